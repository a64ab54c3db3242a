"""The synthetic experiment (Sec. 5.1, supplement C.2): every method trained on the same trees and instances.

Table 2 has c = -5, Table A.2 growing sparsity, c = 0 … -5.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from queue import Queue

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.builders import random_tree
from beamtree.data import gaussian
from beamtree.data.seeds import mix
from beamtree.errors import check_device
from beamtree.methods import METHODS, Method, sized
from beamtree.model import TreeModel
from beamtree.research.paper.cells import Cell, Key, cell, expected
from beamtree.scorers import LinearScorer
from beamtree.theory import regret
from beamtree.train import Schedule, constant, fit

TITLES = {
    "table2": "Table 2: synthetic data, M = 1000, d = 10, k = 50, regret at m",
    "tableA2": "Table A.2: synthetic data, M = 1000, d = 10, k = 50, regret at m by sparsity c",
}
ITEMS, DIM = 1000, 10
BEAM_SIZE = 50
NODES = 2 * BEAM_SIZE  # trained per level where nodes are drawn: as many as the beam's children
EPOCHS, BATCH_SIZE, LR = 200, 500, 1e-2
REPORT_EVERY = 50  # steps
CUTS = (1, 10, 20, 50)  # m

EXTRA = {"otm-mixed": 12 * BEAM_SIZE, "otm-mixed-all": 20}  # uniform nodes beside the beam, of our own rows
DEFAULT_ROWS = ("plt", "tdm", "otm", "otm-no-beam", "otm-no-optest", "otm-mixed")
TOLERANCE = 0.12  # of the paper's number


@dataclass(frozen=True)
class Job:
    """One run of one row."""

    row: str
    bias: float
    seed: int
    epochs: int
    device: str

    @property
    def steps(self) -> int:
        return self.epochs * 20  # 10,000 instances in batches of 500


OnStep = Callable[[int], None]  # steps done since the last call
OnJob = Callable[[Job, dict[int, float]], None]


@dataclass(frozen=True)
class SyntheticExperiment:
    """The runs of a table: every row at every c, several times."""

    rows: tuple[str, ...]
    biases: tuple[float, ...]
    runs: int
    seed: int = 0
    epochs: int = EPOCHS
    device: str = "cpu"

    def __post_init__(self) -> None:
        unknown = [row for row in self.rows if row not in METHODS]
        if unknown:
            raise ValueError(f"row {unknown[0]!r} is unknown: choose from {', '.join(METHODS)}")
        for name, values in (("row", self.rows), ("bias", self.biases)):
            if not values:
                raise ValueError(f"no {name} was given")
        if self.runs < 1 or self.epochs < 1:
            raise ValueError(f"runs={self.runs}, epochs={self.epochs}: each must be at least 1")
        check_device(self.device)

    def jobs(self) -> list[Job]:
        return [
            Job(row, bias, mix(self.seed, run) % 2**31, self.epochs, self.device)
            for run in range(self.runs)
            for bias in dict.fromkeys(self.biases)
            for row in dict.fromkeys(self.rows)
        ]


EXPERIMENTS = {
    "table2": SyntheticExperiment(DEFAULT_ROWS, biases=(-5.0,), runs=5),
    "tableA2": SyntheticExperiment(DEFAULT_ROWS, biases=(0.0, -1.0, -2.0, -3.0, -4.0, -5.0), runs=5),
}


def method_of(row: str) -> Method:
    """The method of a row, with as many nodes per level as the authors use."""
    return sized(row, BEAM_SIZE, EXTRA.get(row, NODES))


def run_job(job: Job, on_step: OnStep) -> dict[int, float]:
    """Train one row from scratch and measure its regret at each m on the test instances."""
    data = gaussian(ITEMS, DIM, job.bias, seed=job.seed)
    tree = random_tree(ITEMS, seed=job.seed, admit_empty=True)
    model = TreeModel(tree, LinearScorer(tree.num_nodes, DIM, seed=job.seed)).to(job.device)

    def report(done: int, total: int, loss: Tensor) -> None:
        if done % REPORT_EVERY == 0 or done == total:
            on_step((done - 1) % REPORT_EVERY + 1)

    fit(
        model,
        data.train,
        method_of(job.row),
        epochs=job.epochs,
        batch_size=BATCH_SIZE,
        schedule=Schedule(LR, constant),
        seed=job.seed,
        on_step=report,
    )
    x = data.test.x.to(job.device)
    items, _ = retrieve(model, x, beam_size=BEAM_SIZE, m=max(CUTS))
    eta = data.eta(data.test.x)
    return {m: float(regret(eta, items.cpu(), m).mean()) for m in CUTS}


def synthetic_cells(table: str, experiment: SyntheticExperiment, on_step: OnStep, on_job: OnJob) -> list[Cell]:
    """The cells of a table: each row, c and m over several runs, each run with its own tree and instances."""
    regrets: dict[tuple[str, float, int], dict[int, float]] = {}
    for job, measured in run_all(experiment.jobs(), on_step):
        on_job(job, measured)
        for m, value in measured.items():
            regrets.setdefault((job.row, job.bias, m), {})[job.seed] = value
    cells = []
    for bias in dict.fromkeys(experiment.biases):
        for row in dict.fromkeys(experiment.rows):
            for m in CUTS:
                key: Key = {"row": row, "bias": bias, "m": m}
                paper = printed(row, bias, m)
                tolerance = None if paper is None else TOLERANCE * paper
                by_seed = regrets[row, bias, m]  # in the order in which the runs ended
                cells.append(cell(table, key, [by_seed[seed] for seed in sorted(by_seed)], paper, tolerance))
    return cells


def printed(row: str, bias: float, m: int) -> float | None:
    """The paper's number, if it prints one."""
    table = expected()["synthetic"]
    for line in table["rows"]:
        if line["bias"] == bias and row in line:
            number: float = line[row][table["m"].index(m)]
            return number
    return None


def run_all(jobs: list[Job], on_step: OnStep) -> Iterator[tuple[Job, dict[int, float]]]:
    """Run jobs in one process per core, also on a GPU, which one such job leaves mostly idle."""
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers == 1:
        for job in jobs:
            yield job, run_job(job, on_step)
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(workers, context, _start_worker, (threads, os.getpid())) as pool,
    ):
        steps = manager.Queue()
        futures = {pool.submit(_work, job, steps): job for job in jobs}
        try:
            for future in _as_completed(set(futures), steps, on_step):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise


def _start_worker(threads: int, parent: int) -> None:
    """Set the number of threads, and exit when the parent process is gone."""
    torch.set_num_threads(threads)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(job: Job, steps: "Queue[int]") -> dict[int, float]:
    return run_job(job, steps.put)


def _as_completed(
    futures: set[Future[dict[int, float]]], steps: "Queue[int]", on_step: OnStep
) -> Iterator[Future[dict[int, float]]]:
    """Yield futures as they complete, and forward the workers' steps in between."""
    while futures:
        done, futures = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
        while not steps.empty():
            on_step(steps.get())
        yield from done

"""The rows of a comparison: how each comes to be, and how it is measured."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.beam import brute_force, retrieve
from beamtree.compare.plan import METRICS, Plan
from beamtree.compare.results import Result, load_result, save_result
from beamtree.data import Log, Windows
from beamtree.evaluate import measure
from beamtree.model import TreeModel
from beamtree.train import fit, load_model, save
from beamtree.train.joint import fit_jointly
from beamtree.train.recipes import METHODS
from beamtree.train.runs import TRAINING, write_run

Find = Callable[[Tensor], Tensor]  # histories x [B, T] -> the best items, best first [B, m]
SECONDS = "seconds.txt"  # how long a model was trained, where its result is not there yet
ROUNDS, AGAIN = 3, 0.25  # of tree learning, and the share of the steps that each trains for


class Made(NamedTuple):
    """A row that is ready to be asked."""

    find: Find
    num_bytes: int
    seconds: float = 0.0  # that its training took, if not in this call


Make = Callable[[Plan, Callable[[str], None]], Made]


@dataclass(frozen=True)
class TreeRow:
    """A tree model: what it is trained by, and whether its history is lifted and its tree learned."""

    method: str
    lift: bool = True
    joint: bool = False

    def steps(self, plan: Plan) -> int:
        """About how many steps its training takes."""
        return round(plan.steps * (1 + ROUNDS * AGAIN)) if self.joint else plan.steps


TREE_ROWS = {
    "hsm": TreeRow("hsm"),
    "plt": TreeRow("plt"),
    "tdm": TreeRow("tdm", lift=False),
    "jtm": TreeRow("tdm", joint=True),
    "otm": TreeRow("otm"),
    "otm-no-beam": TreeRow("otm-no-beam"),
    "otm-no-optest": TreeRow("otm-no-optest"),
    "otm-mixed": TreeRow("otm-mixed"),
    "otm-joint": TreeRow("otm", joint=True),
}


def compare(plan: Plan, rows: Sequence[str]) -> list[Result]:
    """Train and measure rows, or read what an earlier comparison in the same folder found, in the order given.

    Rows share one tree: the one that `jtm` learns, if it is among them and they are not to keep to the first.
    """
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise ValueError(f"row {unknown[0]!r} is unknown: choose from {', '.join(ROWS)}")
    if not rows:
        raise ValueError(f"no row to compare: choose from {', '.join(ROWS)}")
    if max(plan.m) > plan.test_beam:
        raise ValueError(f"m={max(plan.m)} with a beam of {plan.test_beam}: at most as many items can be retrieved")
    if not len(plan.users):
        raise ValueError(f"{plan.data.folder} has no test users: prepare with --test-users")
    plan.folder.mkdir(parents=True, exist_ok=True)
    share = "jtm" in rows and not plan.own_trees
    found: dict[str, Result] = {}
    for row in sorted(dict.fromkeys(rows), key=lambda row: row != "jtm" if share else False):
        found[row] = _result(plan, row, share)
    return [found[row] for row in rows]


def _result(plan: Plan, row: str, share: bool) -> Result:
    settings = {**plan.settings(), "tree_of": "jtm" if share else "first"}
    before = load_result(plan.folder, row, settings)
    if before is not None:
        return before
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        plan.say(f"{row}: {line}")

    plan.say(f"{row}: begun")
    if share and row != "jtm" and (row in TREE_ROWS or row == "otm-brute-force"):
        plan = replace(plan, tree=load_model(plan.folder / "jtm").tree)
    began = time.monotonic()
    made = ROWS[row](plan, note)
    training = made.seconds or time.monotonic() - began
    spent = 0.0

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        nonlocal spent
        start = time.monotonic()
        items = made.find(x).cpu()
        spent += time.monotonic() - start
        return items

    measured = measure(find, plan.users, m=plan.m, metrics=METRICS)
    ms = spent / measured.users * 1e3
    result = Result(row, measured.per_user, plan.m, training, ms, made.num_bytes, tuple(notes), plan.device)
    save_result(plan.folder, result, settings)
    recall = measured["recall", max(plan.m)]
    plan.say(f"{row}: recall@{max(plan.m)} {recall:.2%}, {training:.0f} s of training, {ms:.2f} ms per query")
    return result


# Tree models


def tree_row(row: str, plan: Plan, note: Callable[[str], None]) -> Made:
    """A tree model, trained as the recipe says."""
    return _searched(plan, train_tree_row(row, plan, note), _seconds_of(plan.folder / row))


def train_tree_row(row: str, plan: Plan, note: Callable[[str], None]) -> TreeModel:
    """Train a row, or go on with it, or read it where it is finished."""
    folder, spec = plan.folder / row, TREE_ROWS[row]
    if (folder / "settings.json").exists():
        model = load_model(folder, plan.device)
        if spec.joint or model.tree.fingerprint() == plan.tree.fingerprint():
            return model
        raise ValueError(f"{folder} holds a model on another tree: compare into another folder")
    began = time.monotonic()
    instances = plan.how.instances(plan.data.train)
    training: Log | Windows = instances.windows() if spec.method == "hsm" else instances
    model = plan.how.model(plan.tree, plan.beam_size, lambda: plan.data.factors, plan.seed, lift=spec.lift)
    model.to(plan.device)
    write_run(folder, _run(plan, spec), plan.data)
    train = partial(_train, plan, spec.method, training)
    if spec.joint:
        model = fit_jointly(
            model, instances, plan.data.val, train, rounds=ROUNDS, seed=plan.seed, folder=folder / TRAINING, say=note
        )
    else:
        train(model, 0, folder / TRAINING)
    save(model, folder)
    (folder / SECONDS).write_text(f"{time.monotonic() - began:.1f}\n")
    return model


def _seconds_of(folder: Path) -> float:
    path = folder / SECONDS
    return float(path.read_text()) if path.exists() else 0.0


def _train(plan: Plan, method: str, training: Log | Windows, model: TreeModel, turn: int, folder: Path | None) -> None:
    """Train a model in place: all the way, or after a change of its tree for a while."""
    per_epoch = -(-len(training) // plan.batch_size)
    epochs = max(1, round(plan.steps * (AGAIN if turn else 1) / per_epoch))
    fit(
        model,
        training,
        METHODS[method](plan.beam_size, 2 * plan.beam_size),
        epochs=epochs,
        batch_size=plan.batch_size,
        lr=plan.how.lr * (0.5 if turn else 1),
        schedule=plan.how.schedule,
        warm_up=None if turn else plan.how.begins_as(method, plan.beam_size),
        val=plan.data.val if len(plan.data.val) else None,
        seed=plan.seed + turn,
        folder=folder,
        save_every=2000,
        resume=True,
        on_step=lambda done, total, loss: plan.advance(1),
    )


def _run(plan: Plan, spec: TreeRow) -> dict[str, object]:
    """How a run came to be, as the other commands read it."""
    return {
        "data": str(plan.data.folder.resolve()),
        "method": spec.method,
        "tree": plan.tree.fingerprint(),
        "recipe": plan.recipe,
        "beam_size": plan.beam_size,
        "batch_size": plan.batch_size,
        "steps": plan.steps,
        "seed": plan.seed,
        "device": plan.device,
    }


def _searched(plan: Plan, model: TreeModel, seconds: float = 0.0) -> Made:
    def find(x: Tensor) -> Tensor:
        items, _ = retrieve(model, x.to(plan.device), beam_size=plan.test_beam, m=max(plan.m))
        return items

    return Made(find, model_bytes(model), seconds)


def model_bytes(model: TreeModel) -> int:
    """What the weights and the tree take."""
    return sum(weight.nbytes for weight in model.parameters()) + model.tree.items().nbytes


def all_leaves(plan: Plan, note: Callable[[str], None]) -> Made:
    """OTM's scorer on every leaf: what its beam loses."""
    model = train_tree_row("otm", plan, note)

    def find(x: Tensor) -> Tensor:
        items, _ = brute_force(model, x.to(plan.device), m=max(plan.m))
        return items

    return Made(find, model_bytes(model), _seconds_of(plan.folder / "otm"))


# Flat rows


def plain_row(row: str, plan: Plan, note: Callable[[str], None]) -> Made:
    """Something that needs no training to speak of."""
    from beamtree.baselines import BASELINES  # here, so that tree rows need torch alone

    baseline = BASELINES[row](plan.data.train, plan.data.num_items)
    return Made(lambda x: baseline.retrieve(x, max(plan.m))[0], baseline.num_bytes)


def dnn(index: str, plan: Plan, note: Callable[[str], None]) -> Made:
    """YouTube product-DNN; its two rows differ in how its vectors are searched, and share the weights."""
    from beamtree.baselines.two_tower import BATCH, TwoTower, exact, hnsw, two_tower

    file = plan.folder / "youtube-dnn" / "weights.pt"
    seconds = _seconds_of(file.parent)
    if file.exists():
        model = TwoTower(plan.data.num_items, plan.seed).eval()
        model.load_state_dict(torch.load(file, weights_only=True))
    else:
        began = time.monotonic()
        model = two_tower(
            plan.data.train,
            plan.data.num_items,
            steps=plan.steps,
            batch_size=min(BATCH, 5 * plan.batch_size),
            seed=plan.seed,
            device=plan.device,
            val=plan.data.val,
            on_step=lambda done, total, loss: plan.advance(1),
        ).cpu()
        seconds = time.monotonic() - began
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), draft := file.with_suffix(".new"))
        draft.replace(file)
        (file.parent / SECONDS).write_text(f"{seconds:.1f}\n")
    model.index({"exact": exact, "hnsw": hnsw}[index])
    return Made(lambda x: model.retrieve(x, max(plan.m))[0], model.num_bytes, seconds)


ROWS: dict[str, Make] = {
    **{row: partial(plain_row, row) for row in ("popularity", "item-cf", "item-cf-nearest", "als")},
    "youtube-dnn": partial(dnn, "exact"),
    "youtube-dnn-hnsw": partial(dnn, "hnsw"),
    **{row: partial(tree_row, row) for row in TREE_ROWS},
    "otm-brute-force": all_leaves,
}


def steps_of(plan: Plan, rows: Sequence[str]) -> int:
    """About how many steps of training rows take together."""
    trees = sum(TREE_ROWS[row].steps(plan) for row in rows if row in TREE_ROWS)
    return trees + plan.steps * any(row.startswith("youtube") for row in rows)

"""`beamtree paper`: the tables of the paper, its numbers beside ours."""

import math
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli.options import Device, Json, words
from beamtree.cli.screen import draw, out, print_table, progress
from beamtree.files.atomic import check_writable, write_json
from beamtree.research.paper.report import Cell, results_name, save_results
from beamtree.research.paper.synthetic import PLANS, Job, SyntheticPlan, synthetic_cells
from beamtree.research.paper.synthetic import TITLES as SYNTHETIC_TITLES
from beamtree.research.paper.toy import TITLES as TOY_TITLES
from beamtree.research.paper.toy import toy_cells

RESULTS = Path("results")
DEFAULT_ROWS = ",".join(PLANS["table2"].rows)

paper = typer.Typer(
    no_args_is_help=True,
    help="Reproduce the paper's tables: its numbers beside ours, a JSON file and a picture in results/.",
)

Runs = Annotated[int, typer.Option(min=1, help="How many runs to average.")]
Seed = Annotated[int, typer.Option(help="Same seed, same numbers.")]
Rows = Annotated[str, typer.Option(help="Methods, separated by commas.")]
Bias = Annotated[str, typer.Option(help="The sparsity c: one number, or several with commas.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the 10,000 training instances.")]


@paper.command("table1")
def paper_table1(runs: Runs = 100, seed: Seed = 0, json: Json = None) -> None:
    """The toy experiment: what beam search loses when p(z) is estimated directly (half a minute)."""
    _toy("table1", runs, seed, json)


@paper.command("tableA1")
def paper_table_a1(runs: Runs = 100, seed: Seed = 0, json: Json = None) -> None:
    """The toy experiment in full: three estimators, every m ≤ k (half a minute)."""
    _toy("tableA1", runs, seed, json)


@paper.command("table2")
def paper_table2(
    runs: Runs = PLANS["table2"].runs,
    seed: Seed = 0,
    rows: Rows = DEFAULT_ROWS,
    bias: Bias = "-5",
    epochs: Epochs = PLANS["table2"].epochs,
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """The synthetic experiment at c = -5: every method trained and compared (an hour on two cores).

    Further rows: otm-mixed-all, otm-stochastic, tdm-positives, hsm.
    """
    _synthetic("table2", SyntheticPlan(words(rows), _numbers(bias), runs, seed, epochs, device), json)


@paper.command("tableA2")
def paper_table_a2(
    runs: Runs = PLANS["tableA2"].runs,
    seed: Seed = 0,
    rows: Rows = DEFAULT_ROWS,
    bias: Bias = "0,-1,-2,-3,-4,-5",
    epochs: Epochs = PLANS["tableA2"].epochs,
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """The synthetic experiment from dense (c = 0) to sparse (c = -5): six times the work of table2."""
    _synthetic("tableA2", SyntheticPlan(words(rows), _numbers(bias), runs, seed, epochs, device), json)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(word) for word in words(text))
        if not all(map(math.isfinite, numbers)):
            raise ValueError
        return numbers
    except ValueError as error:
        raise ValueError(f"--bias {text!r}: give numbers separated by commas, such as -5 or 0,-5") from error


def _toy(name: str, runs: int, seed: int, json: Path | None) -> None:
    settings: dict[str, object] = {"runs": runs, "seed": seed}
    file = _make_room(name, {"runs": 100, "seed": 0}, settings, json)
    with progress(runs, "runs") as (advance, _):
        cells = toy_cells(name, runs, seed, lambda done, total: advance(1))
    pictures = _keep(file, cells, settings, json, "plot_toy")
    print_cells(TOY_TITLES[name], cells, line=("estimator", "k", "m"), column="N", digits=3)
    _close(file, cells, pictures)


def _synthetic(name: str, plan: SyntheticPlan, json: Path | None) -> None:
    settings = _settings(plan)
    file = _make_room(name, _settings(PLANS[name]), settings, json)
    with progress(sum(job.steps for job in plan.jobs()), "steps") as (advance, say):

        def ended(job: Job, regrets: dict[int, float]) -> None:
            numbers = "  ".join(f"m={m} {value:.4f}" for m, value in regrets.items())
            say(f"{job.row:<14} c={job.bias:g}  {numbers}")

        cells = synthetic_cells(name, plan, advance, ended)
    pictures = _keep(file, cells, settings, json, "plot_sparsity" if len(plan.biases) > 1 else "plot_bars")
    print_cells(SYNTHETIC_TITLES[name], cells, line=("bias", "row"), column="m", digits=4, best=best_of(cells))
    _close(file, cells, pictures)


def _settings(plan: SyntheticPlan) -> dict[str, object]:
    return {
        "runs": plan.runs,
        "seed": plan.seed,
        "rows": ",".join(plan.rows),
        "bias": ",".join(f"{bias:.12g}" for bias in plan.biases),
        "epochs": plan.epochs,
        "device": plan.device,
    }


def _make_room(name: str, usual: dict[str, object], now: dict[str, object], json: Path | None) -> Path:
    """The file for the results; finds out that it or --json cannot be written before an hour of work, not after."""
    changed = {key: value for key, value in now.items() if usual[key] != value}
    file = RESULTS / f"{results_name(name, changed)}.json"
    for path in (file, *([json] if json else [])):
        check_writable(path)
    return file


def _keep(
    file: Path,
    cells: list[Cell],
    settings: dict[str, object],
    json: Path | None,
    plot: str,
) -> list[Path]:
    """Save before anything is printed: a closed pipe must not cost the work. Gives the pictures."""
    save_results(file, cells, settings)
    if json is not None:
        write_json(json, [each.record() for each in cells])
    picture = file.with_suffix(".png")
    return draw(lambda plots: getattr(plots, plot)(cells, picture), picture)


def _close(file: Path, cells: list[Cell], pictures: list[Path]) -> None:
    judged = [each for each in cells if each.within is not None]
    if judged:
        near = sum(1 for each in judged if each.within)
        out.print(f"{near} of {len(judged)} cells are within tolerance of the paper.", highlight=False)
    out.print(f"Saved {file}", highlight=False, soft_wrap=True)
    for picture in pictures:
        out.print(f"  and {picture}", highlight=False, soft_wrap=True)


def print_cells(
    title: str,
    cells: Sequence[Cell],
    line: tuple[str, ...],
    column: str,
    digits: int,
    best: Set[int] = frozenset(),
    over: str = "runs",
) -> None:
    """A table for people: ours ± half of its 95 % interval, and below it the paper's number and whether we agree."""
    spread = f" ± half of the 95 % interval of the mean over {over}" if any(each.half for each in cells) else ""
    table = Table(title=title, caption=f"ours{spread}; below: the paper's number, ✓ within tolerance, ✗ not")
    columns = list(dict.fromkeys(each.key.get(column) for each in cells))
    named = len(line) * 5 + sum(max(len(name), *(len(str(each.key[name])) for each in cells)) for name in line)
    narrow = out.is_terminal and out.width < named + len(columns) * 18  # then the spread stays in the JSON
    for name in line:
        table.add_column(name, no_wrap=True, min_width=len(name))
    for value in columns:
        table.add_column(f"{column}={value}" if column else "ours", justify="right", no_wrap=True)
    lines = dict.fromkeys(tuple(each.key[name] for name in line) for each in cells)
    found = {(*(each.key[name] for name in line), each.key.get(column)): each for each in cells}
    for place in lines:
        texts = [_cell_text(found.get((*place, value)), digits, best, narrow) for value in columns]
        table.add_row(*(f"{part:g}" if isinstance(part, float) else str(part) for part in place), *texts)
    print_table(table)


def _cell_text(cell: Cell | None, digits: int, best: Set[int], narrow: bool) -> str:
    if cell is None:
        return ""
    ours = f"{cell.value:.{digits}f}"
    if id(cell) in best:
        ours = f"[bold]{ours}[/bold]"
    mark = {True: " [green]✓[/green]", False: " [red]✗[/red]", None: ""}[cell.within]
    paper = "–" if cell.paper is None else f"{cell.paper:.{digits}f}"
    spread = "" if narrow or not cell.half else f" ± {cell.half:.{digits}f}"
    return f"{ours}{spread}\n[dim]{paper}[/dim]{mark}"


def best_of(cells: Sequence[Cell]) -> set[int]:
    """The ids of the cells with the lowest regret among the rows at the same c and m."""
    groups: dict[tuple[object, object], list[Cell]] = {}
    for each in cells:
        groups.setdefault((each.key["bias"], each.key["m"]), []).append(each)
    return {id(min(group, key=lambda each: each.value)) for group in groups.values()}

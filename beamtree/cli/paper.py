"""`beamtree paper`: the tables and figures of the paper, its numbers beside ours."""

import math
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli import options
from beamtree.cli.compare import run_comparison
from beamtree.cli.console import draw, out, print_table, progress, write
from beamtree.data import load_data
from beamtree.errors import as_float, check_device, lookup
from beamtree.files.atomic import write_json
from beamtree.ingest.inputs import tree_builder
from beamtree.research.compare import table as compare_table
from beamtree.research.compare.experiment import PAPER_METRICS
from beamtree.research.paper import real_data, timing
from beamtree.research.paper.cells import Cell, results_name, save_results
from beamtree.research.paper.synthetic import EXPERIMENTS, Job, SyntheticExperiment, synthetic_cells
from beamtree.research.paper.synthetic import TITLES as SYNTHETIC_TITLES
from beamtree.research.paper.toy import TITLES as TOY_TITLES
from beamtree.research.paper.toy import toy_cells
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.recipes import RECIPES

RESULTS = Path("results")
DEFAULT_ROWS = ",".join(EXPERIMENTS["table2"].rows)

paper = typer.Typer(
    no_args_is_help=True,
    help="Reproduce the tables and figures of the paper: its numbers beside ours, as a table, a JSON file and a "
    "picture in results/.\n\n"
    "Tables 1, A1, 2 and A2 use synthetic data. Tables 3 and 4 need the data sets of the paper.",
)

Runs = Annotated[int, typer.Option(min=1, help="Number of runs to average.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")]
Rows = Annotated[str, typer.Option(help="Methods, separated by commas.")]
Bias = Annotated[str, typer.Option(help="The sparsity c: one number, or several separated by commas.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the 10,000 training instances.")]
OutFolder = Annotated[Path, typer.Option("--out", help="The folder for rows, tables and pictures.")]
RecipeName = Annotated[str, typer.Option(help="paper (as published), or beamtree (good on ordinary data).")]


# Synthetic data


@options.command(paper, "table1")
def paper_table1(runs: Runs = 100, seed: Seed = 0, json: options.Json = None) -> None:
    """Toy data: what beam search loses when p(z) is estimated directly. Half a minute."""
    _toy("table1", runs, seed, json)


@options.command(paper, "tableA1")
def paper_table_a1(runs: Runs = 100, seed: Seed = 0, json: options.Json = None) -> None:
    """Toy data in full: three estimators, every m ≤ k. Half a minute."""
    _toy("tableA1", runs, seed, json)


@options.command(paper, "table2")
def paper_table2(
    runs: Runs = EXPERIMENTS["table2"].runs,
    seed: Seed = 0,
    rows: Rows = DEFAULT_ROWS,
    bias: Bias = "-5",
    epochs: Epochs = EXPERIMENTS["table2"].epochs,
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Synthetic data at c = -5: every method trained and compared. An hour on two cores.

    Other rows: otm-mixed-all, otm-stochastic, otm-margin, otm-level-weights, dtr, tdm-positives, hsm.
    """
    _synthetic(
        "table2", SyntheticExperiment(options.parse_list(rows), _numbers(bias), runs, seed, epochs, device), json
    )


@options.command(paper, "tableA2")
def paper_table_a2(
    runs: Runs = EXPERIMENTS["tableA2"].runs,
    seed: Seed = 0,
    rows: Rows = DEFAULT_ROWS,
    bias: Bias = "0,-1,-2,-3,-4,-5",
    epochs: Epochs = EXPERIMENTS["tableA2"].epochs,
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Synthetic data from dense (c = 0) to sparse (c = -5). Six times the work of table2."""
    _synthetic(
        "tableA2", SyntheticExperiment(options.parse_list(rows), _numbers(bias), runs, seed, epochs, device), json
    )


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(as_float(word) for word in options.parse_list(text))
        if not all(map(math.isfinite, numbers)):
            raise ValueError
        return numbers
    except ValueError as error:
        raise ValueError(f"--bias {text!r}: give numbers separated by commas, such as -5 or 0,-5") from error


def _toy(name: str, runs: int, seed: int, json: Path | None) -> None:
    settings: dict[str, object] = {"runs": runs, "seed": seed}
    file = _results_file(name, {"runs": 100, "seed": 0}, settings, json)
    with progress(runs, "runs") as (advance, _):
        cells = toy_cells(name, runs, seed, advance)
    pictures = _save(file, cells, settings, json, "plot_toy")
    print_cells(TOY_TITLES[name], cells, line=("estimator", "k", "m"), column="N", digits=3)
    _print_saved(file, cells, pictures)


def _synthetic(name: str, experiment: SyntheticExperiment, json: Path | None) -> None:
    settings = _settings(experiment)
    file = _results_file(name, _settings(EXPERIMENTS[name]), settings, json)
    with progress(sum(job.steps for job in experiment.jobs()), "steps") as (advance, print_line):

        def on_end(job: Job, regrets: dict[int, float]) -> None:
            numbers = "  ".join(f"m={m} {value:.4f}" for m, value in regrets.items())
            print_line(f"{job.row:<14} c={job.bias:g}  {numbers}")

        cells = synthetic_cells(name, experiment, advance, on_end)
    groups: dict[tuple[object, object], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.key["bias"], cell.key["m"]), []).append(cell)
    lowest = {id(min(group, key=lambda cell: cell.value)) for group in groups.values()}
    pictures = _save(file, cells, settings, json, "plot_sparsity" if len(experiment.biases) > 1 else "plot_bars")
    print_cells(SYNTHETIC_TITLES[name], cells, line=("bias", "row"), column="m", digits=4, best=lowest)
    _print_saved(file, cells, pictures)


def _settings(experiment: SyntheticExperiment) -> dict[str, object]:
    return {
        "runs": experiment.runs,
        "seed": experiment.seed,
        "rows": ",".join(experiment.rows),
        "bias": ",".join(f"{bias:.12g}" for bias in experiment.biases),
        "epochs": experiment.epochs,
        "device": experiment.device,
    }


def _results_file(name: str, defaults: dict[str, object], settings: dict[str, object], json: Path | None) -> Path:
    """The file for the results, named by the settings that are not defaults; checks that it can be written."""
    changed = {key: value for key, value in settings.items() if defaults[key] != value}
    file = RESULTS / f"{results_name(name, changed)}.json"
    options.check_outputs(file, json)
    return file


def _save(file: Path, cells: list[Cell], settings: dict[str, object], json: Path | None, plot: str) -> list[Path]:
    """Save and draw before printing, so that a closed pipe does not lose the results. Returns the pictures."""
    save_results(file, cells, settings)
    if json is not None:
        write_json(json, [cell.record() for cell in cells])
    picture = file.with_suffix(".png")
    return draw(lambda plots: getattr(plots, plot)(cells, picture), picture)


def _print_saved(file: Path, cells: list[Cell], pictures: list[Path]) -> None:
    judged = [cell.within for cell in cells if cell.within is not None]
    if judged:
        write(f"{sum(judged)} of {len(judged)} cells are within tolerance of the paper.")
    write(f"Saved {file}", *(f"  and {picture}" for picture in pictures))


# Real data


@options.command(paper, "table3")
def paper_table3(
    data: options.PreparedFolder,
    folder: OutFolder = Path("results/table3"),
    recipe: RecipeName = "paper",
    seed: Seed = 0,
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Eight systems on Amazon Books. Hours on a GPU.

    Download the ratings of Amazon's books (user, item, rating, timestamp) and prepare them first:

    beamtree prepare ratings_Books.csv --format amazon-ratings --out prepared/books
    """
    _real("table3", data, folder, recipe, seed, device, json)


@options.command(paper, "table4")
def paper_table4(
    data: options.PreparedFolder,
    folder: OutFolder = Path("results/table4"),
    recipe: RecipeName = "paper",
    seed: Seed = 0,
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Eight systems on UserBehavior. Hours on a GPU.

    Download UserBehavior.csv (user, item, category, behaviour, timestamp) and prepare it first:

    beamtree prepare UserBehavior.csv --format user-behavior --out prepared/userbehavior
    """
    _real("table4", data, folder, recipe, seed, device, json)


def _real(name: str, data: Path, folder: Path, recipe: str, seed: int, device: str, json: Path | None) -> None:
    check_device(device)
    lookup(RECIPES, "recipe", recipe)
    options.check_outputs(folder / f"{name}.json", json)
    prepared = load_data(data)
    write(f"A cluster tree over {prepared.num_items:,} items, from which JTM begins")
    experiment = real_data.paper_experiment(prepared, folder, recipe=recipe, device=device, seed=seed)
    results = run_comparison(experiment, real_data.ROWS, None)
    cells = real_data.cells(name, results)
    settings: dict[str, object] = {"recipe": recipe, "seed": seed, "device": device, "data": prepared.folder.name}
    save_results(folder / f"{name}.json", cells, settings)
    if json is not None:
        write_json(json, [cell.record() for cell in cells])
    best = {id(cell) for cell, entry in zip(cells, compare_table(results), strict=True) if entry.best}
    cells.sort(key=lambda cell: PAPER_METRICS.index(str(cell.key["metric"])))
    print_cells(real_data.TITLES[name], cells, line=("metric", "row"), column="m", digits=2, best=best, over="users")
    write(f"Saved {folder / name}.json")


@options.command(paper, "figure2")
def paper_figure2(
    data: Annotated[list[Path], typer.Argument(metavar="DATA…", help="Folders written by `beamtree prepare`.")],
    level: Annotated[int, typer.Option(min=1, help="h: the paper shows level 8, of 256 nodes.")] = 8,
    tree: options.TreeName = "cluster",
    items: options.ItemsFile = None,
    vectors: options.VectorsFile = None,
    seed: Seed = 0,
    json: options.Json = None,
) -> None:
    """How unevenly training instances fall on the nodes of a level: S_n sorted and normalized, a line per data set."""
    picture = RESULTS / "figure2.png"
    options.check_outputs(picture, json)
    build = tree_builder(tree, items, vectors)
    shares = {}
    table = Table(
        title=f"{real_data.TITLES['figure2']}, h = {level}", caption="share of the instances on the first nodes, %"
    )
    table.add_column("data", no_wrap=True)
    for part in ("1 %", "10 %", "50 %"):
        table.add_column(f"first {part}", justify="right")
    for folder in data:
        prepared = load_data(folder)
        built = build(prepared, 2, seed)
        if level > built.height:
            raise ValueError(f"--level {level}: the tree of {folder} has {built.height} levels")
        distribution = real_data.distribution(built, prepared.train, level)
        name = prepared.folder.resolve().name
        name = str(folder) if name in shares else name
        shares[name] = distribution.tolist()
        firsts = [float(distribution[: max(1, round(len(distribution) * part))].sum()) for part in (0.01, 0.1, 0.5)]
        table.add_row(name, *(f"{first * 100:.1f}" for first in firsts))
    pictures = draw(lambda plots: plots.plot_levels(shares, picture), picture)
    if json is not None:
        records = [
            {"data": name, "level": level, "index": index, "value": value}
            for name, values in shares.items()
            for index, value in enumerate(values)
        ]
        write_json(json, records)
    print_table(table)
    write(*(f"Saved {path}" for path in pictures))


@options.command(paper, "timing")
def paper_timing(
    height: Annotated[
        int | None, typer.Option(min=2, help="Of a tree of 2^height items. Default: 22 on a GPU, 14 on a CPU.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Users per batch.")] = 100,
    beam_size: Annotated[int, typer.Option(min=1, help="The beam size k.")] = 400,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Number of batches. Default: 200 on a GPU, 5 on a CPU.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adam, as in the paper, or lazy.")] = "adam",
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Seconds per training batch of PLT, TDM and OTM on synthetic users, beside the paper's on a Tesla P100."""
    check_device(device)
    make_optimizer = lookup(OPTIMIZERS, "optimizer", optimizer)
    on_gpu = device != "cpu"
    height, iterations = height or (22 if on_gpu else 14), iterations or (200 if on_gpu else 5)
    options.check_outputs(json)
    with progress(timing.num_batches(iterations), "batches") as (advance, _):
        cells = timing.batch_times(height, batch_size, beam_size, iterations, make_optimizer, device, advance)
    if json is not None:
        write_json(json, [{**cell.record(), "height": height, "device": device} for cell in cells])
    print_cells(f"{timing.TITLE}: {batch_size} users, 2^{height} items", cells, line=("row",), column="", digits=4)


# Tables


def print_cells(
    title: str,
    cells: Sequence[Cell],
    line: tuple[str, ...],
    column: str,
    digits: int,
    best: Set[int] = frozenset(),
    over: str = "runs",
) -> None:
    """A table: ours ± half of its 95 % interval, and below it the paper's number and whether we agree.

    Args:
        title: of the table.
        cells: its numbers.
        line: the keys that name a line.
        column: the key that names a column; empty for a table of one.
        digits: after the point.
        best: ids of the cells to print in bold.
        over: what the interval is over.
    """
    interval = f" ± half of the 95 % interval of the mean over {over}" if any(cell.half for cell in cells) else ""
    table = Table(title=title, caption=f"ours{interval}; below: the paper's number, ✓ within tolerance, ✗ not")
    columns = list(dict.fromkeys(cell.key.get(column) for cell in cells))
    names_width = len(line) * 5 + sum(max(len(name), *(len(str(cell.key[name])) for cell in cells)) for name in line)
    narrow = out.is_terminal and out.width < names_width + len(columns) * 18  # then intervals are only in the JSON
    for name in line:
        table.add_column(name, no_wrap=True, min_width=len(name))
    for value in columns:
        table.add_column(f"{column}={value}" if column else "ours", justify="right", no_wrap=True)
    by_key = {(*(cell.key[name] for name in line), cell.key.get(column)): cell for cell in cells}
    for names in dict.fromkeys(tuple(cell.key[name] for name in line) for cell in cells):
        texts = [_cell_text(by_key.get((*names, value)), digits, best, narrow) for value in columns]
        table.add_row(*(f"{name:g}" if isinstance(name, float) else str(name) for name in names), *texts)
    print_table(table)


def _cell_text(cell: Cell | None, digits: int, best: Set[int], narrow: bool) -> str:
    if cell is None:
        return ""
    ours = f"{cell.value:.{digits}f}"
    if id(cell) in best:
        ours = f"[bold]{ours}[/bold]"
    mark = {True: " [green]✓[/green]", False: " [red]✗[/red]", None: ""}[cell.within]
    theirs = "–" if cell.paper is None else f"{cell.paper:.{digits}f}"
    interval = "" if narrow or not cell.half else f" ± {cell.half:.{digits}f}"
    return f"{ours}{interval}\n[dim]{theirs}[/dim]{mark}"

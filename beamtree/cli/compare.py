"""`beamtree compare`: methods and baselines on the same users, in one table."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import DEFAULT_BEAM_SIZE
from beamtree.cli import options
from beamtree.cli.console import draw, note, print_table, progress, write
from beamtree.data import load_data
from beamtree.errors import check_device, lookup
from beamtree.evaluate import named_metrics
from beamtree.files.atomic import write_atomically, write_json
from beamtree.files.staging import folder_lock
from beamtree.ingest.inputs import tree_builder
from beamtree.kernels.threads import use_threads
from beamtree.research.compare import ROWS, Experiment, Result, compare
from beamtree.research.compare.report import (
    Grid,
    Marks,
    cost_grid,
    is_finished,
    legend,
    markdown,
    measured_users,
    records,
    score_grid,
    split_settings,
)
from beamtree.research.compare.rows import STRONG
from beamtree.research.compare.runner import check_rows, total_steps
from beamtree.train.recipes import RECIPES, default_sizes

DEFAULT_ROWS = "item-cf,youtube-dnn,hsm,plt,tdm,jtm,otm,otm-no-beam,otm-no-optest,otm-mixed,otm-joint"


def compare_rows(
    data: options.PreparedFolder,
    folder: Annotated[Path, typer.Option("--out", help="The folder for rows, tables and pictures.")] = Path(
        "comparison"
    ),
    rows: Annotated[str, typer.Option(help=f"Any of {', '.join(ROWS)}, separated by commas; or strong, or all.")] = (
        DEFAULT_ROWS
    ),
    tree: options.TreeName = "cluster",
    arity: options.Arity = 2,
    items: options.ItemsFile = None,
    vectors: options.VectorsFile = None,
    own_trees: Annotated[
        bool,
        typer.Option(
            "--own-trees", help="All rows but jtm and otm-joint use the first tree, not the one learned by jtm."
        ),
    ] = False,
    beam_size: Annotated[int | None, options.training_option("beam_size", min=1)] = None,
    test_beam: Annotated[
        int, typer.Option(min=1, help="The beam size k of the search that is measured.")
    ] = DEFAULT_BEAM_SIZE,
    m: options.Cuts = "10,50,100,200",
    metrics: options.Metrics = "precision,recall,f1",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps. Default: 10,000 on a GPU, 3,000 on a CPU.")
    ] = None,
    batch_size: Annotated[int | None, options.training_option("batch_size", min=1)] = None,
    recipe: Annotated[str, typer.Option(help="The recipe of the tree rows: deep, or paper (as published).")] = "deep",
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="The same seed gives the same table, on the same kind of machine with as many threads."
        ),
    ] = 0,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    json: options.Json = None,
) -> None:
    """Train every row, measure all of them on the same test users, and show them in one table, as in the paper.

    There are two tables: with the items that a user has seen, and without them. First comes the one in which the best
    row without a tree has the higher recall.

    All tree rows share one tree, as in the paper: the one learned by jtm, if it is among the rows.

    Finished rows are not trained again: repeat the command to continue after a stop, or to add rows.
    """
    use_threads(threads)
    check_device(device)
    cuts, chosen = options.parse_cuts(m, test_beam, "--test-beam"), parse_rows(rows)
    names = options.parse_list(metrics)
    named_metrics(names)
    lookup(RECIPES, "recipe", recipe)
    build = tree_builder(tree, items, vectors)
    options.check_outputs(folder / "table.json", json)
    prepared = load_data(data)
    sizes = default_sizes(device)
    with folder_lock(folder):
        write(f"A {tree} tree over {prepared.num_items:,} items")
        experiment = Experiment(
            prepared, build(prepared, arity, seed), folder, tree_name=tree, recipe=recipe, device=device, seed=seed,
            beam_size=beam_size or sizes.beam_size, batch_size=batch_size or sizes.batch_size,
            steps=steps or sizes.steps, own_trees=own_trees, m=cuts, metrics=names, test_beam=test_beam,
        )  # fmt: skip
        run_comparison(experiment, chosen, json)


def parse_rows(text: str) -> tuple[str, ...]:
    """The rows of --rows, with groups of rows expanded."""
    groups = {"all": tuple(ROWS), "strong": STRONG}
    rows = tuple(dict.fromkeys(row for word in options.parse_list(text) for row in groups.get(word, (word,))))
    check_rows(rows)
    return rows


def run_comparison(experiment: Experiment, rows: Sequence[str], json: Path | None) -> list[Result]:
    """Run a comparison with progress; write and show its results."""
    rows = [row for row in ROWS if row in rows or is_finished(experiment.folder, row)]  # earlier rows stay in the table
    with progress(max(1, total_steps(experiment, rows)), "steps") as (advance, print_line):
        results = compare(replace(experiment, on_steps=advance, on_message=print_line), rows)
    table = records(results)
    as_json, as_markdown, picture = (experiment.folder / f"table.{ending}" for ending in ("json", "md", "png"))
    write_json(as_json, table)
    write_atomically(as_markdown, lambda draft: draft.write_text(markdown(results), encoding="utf-8"))
    pictures = draw(lambda plots: plots.plot_comparison(results, picture), picture)
    if json is not None:
        write_json(json, table)
    for setting in split_settings(table):
        grid = score_grid(setting, Marks("[bold]", "[/bold]", "*"))
        _show(grid, measured_users(setting), legend(setting), names=2)
    _show(cost_grid(table), "Cost", None, names=1)
    note(*dict.fromkeys(f"note: {cell['warning']}" for cell in table if "warning" in cell))
    write(*(f"{result.row}: {line}" for result in results for line in result.notes))
    write(*(f"Saved {file}" for file in (as_markdown, as_json, *pictures)))
    return results


def _show(grid: Grid, title: str, caption: str | None, names: int) -> None:
    """Print a grid whose first columns are names."""
    table = Table(title=title, caption=caption)
    for index, head in enumerate(grid.headers):
        table.add_column(head, justify="left" if index < names else "right", no_wrap=True)
    for line, following in zip_longest(grid.lines, grid.lines[1:], fillvalue=[""]):
        table.add_row(*line, end_section=names > 1 and bool(following[0]))
    print_table(table)

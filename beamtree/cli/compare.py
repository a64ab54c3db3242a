"""`beamtree compare`: every system of the paper on the same users, in one table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli.options import Cuts, Device, ExcludeSeen, Json, Metrics, Threads, cuts, words
from beamtree.cli.screen import draw, out, print_table, progress
from beamtree.cli.trees import Arity, ItemsFile, TreeName, VectorsFile
from beamtree.data import load_data
from beamtree.evaluate import named_metrics
from beamtree.files.atomic import check_writable, write_atomically, write_json
from beamtree.files.staging import folder_lock
from beamtree.ingest.inputs import tree_builder
from beamtree.model import check_device
from beamtree.research.compare import ROWS, Plan, Result, compare
from beamtree.research.compare.results import (
    Grid,
    Marks,
    cost_grid,
    is_finished,
    legend,
    markdown,
    measured_users,
    records,
    score_grid,
)
from beamtree.research.compare.rows import STRONG, check_rows, steps_of
from beamtree.threads import use_threads
from beamtree.train.recipes import RECIPES, chosen, usual_sizes

USUAL_ROWS = "item-cf,youtube-dnn,hsm,plt,tdm,jtm,otm,otm-no-beam,otm-no-optest,otm-mixed,otm-joint"


def compare_rows(
    data: Annotated[Path, typer.Argument(help="A folder that `beamtree prepare` wrote.")],
    folder: Annotated[Path, typer.Option("--out", help="Where rows, tables and pictures go.")] = Path("comparison"),
    rows: Annotated[str, typer.Option(help=f"Of {', '.join(ROWS)}; or strong, or all.")] = USUAL_ROWS,
    tree: TreeName = "cluster",
    arity: Arity = 2,
    items: ItemsFile = None,
    vectors: VectorsFile = None,
    own_trees: Annotated[
        bool,
        typer.Option(
            "--own-trees",
            help="All rows but jtm and otm-joint use the first tree, not the one that jtm learns.",
        ),
    ] = False,
    beam_size: Annotated[int | None, typer.Option(min=1, help="k in training: 400 on a GPU, 100 on a CPU.")] = None,
    test_beam: Annotated[int, typer.Option(min=1, help="k of the search that is measured.")] = 400,
    m: Cuts = "10,50,100,200",
    metrics: Metrics = "precision,recall,f1",
    exclude_seen: ExcludeSeen = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Of training: 10,000 on a GPU, 3,000 on a CPU.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Users per step: 200 on a GPU, 50 on a CPU.")] = None,
    recipe: Annotated[str, typer.Option(help="Of the rows of the paper: deep, or paper, as published.")] = "deep",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, threads and kind of machine: same table.")] = 0,
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Train every row, measure all on the same test users, and show them as the paper does.

    All tree rows share one tree, as in the paper: the one that jtm learns, if it is among them. What is finished is not
    done again: repeat the command to go on after a stop, or to add rows.
    """
    use_threads(threads)
    check_device(device)
    sizes, some = cuts(m, test_beam, "--test-beam"), _rows(rows)
    named_metrics(words(metrics))
    chosen(RECIPES, "recipe", recipe)
    build = tree_builder(tree, items, vectors)
    for path in (folder / "table.json", *([json] if json else [])):
        check_writable(path)
    prepared = load_data(data)
    usual = usual_sizes(device)
    with folder_lock(folder):
        out.print(f"A {tree} tree over {prepared.num_items:,} items", highlight=False)
        plan = Plan(
            prepared, build(prepared, arity, seed), folder, tree_name=tree, recipe=recipe, device=device, seed=seed,
            beam_size=beam_size or usual.beam_size, batch_size=batch_size or usual.batch_size,
            steps=steps or usual.steps, own_trees=own_trees, m=sizes, metrics=words(metrics), test_beam=test_beam,
            exclude_seen=exclude_seen,
        )  # fmt: skip
        run(plan, some, json)


def _rows(text: str) -> tuple[str, ...]:
    several = {"all": tuple(ROWS), "strong": STRONG}
    rows = tuple(dict.fromkeys(row for word in words(text) for row in several.get(word, (word,))))
    check_rows(rows)
    return rows


def run(plan: Plan, rows: Sequence[str], json: Path | None) -> list[Result]:
    """Compare with progress, write what was found, and show it."""
    rows = [row for row in ROWS if row in rows or is_finished(plan.folder, row)]  # a table grows row by row
    with progress(max(1, steps_of(plan, rows)), "steps") as (advance, say):
        results = compare(replace(plan, advance=advance, say=say), rows)
    pictures = write(plan.folder, results)
    if json is not None:
        write_json(json, records(results))
    show(results)
    for file in (plan.folder / "table.md", plan.folder / "table.json", *pictures):
        out.print(f"Saved {file}", highlight=False, soft_wrap=True)
    return results


def write(folder: Path, results: Sequence[Result]) -> list[Path]:
    """The table as JSON, as Markdown and as a picture; gives the pictures."""
    write_json(folder / "table.json", records(results))
    write_atomically(folder / "table.md", lambda draft: draft.write_text(markdown(results), encoding="utf-8"))
    return draw(lambda plots: plots.plot_comparison(results, folder / "table.png"), folder / "table.png")


def show(results: Sequence[Result]) -> None:
    """Blocks for people, in percent, and what each row costs."""
    found = records(results)
    _show(score_grid(found, Marks("[bold]", "[/bold]", "*")), measured_users(found), legend(found), names=2)
    _show(cost_grid(found), "What it takes", None, names=1)
    for result in results:
        for note in result.notes:
            out.print(f"{result.row}: {note}", highlight=False, soft_wrap=True)


def _show(grid: Grid, title: str, caption: str | None, names: int) -> None:
    shown = Table(title=title, caption=caption)
    for place, head in enumerate(grid.heads):
        shown.add_column(head, justify="left" if place < names else "right", no_wrap=True)
    for place, line in enumerate(grid.lines):
        after = grid.lines[place + 1] if place + 1 < len(grid.lines) else None
        shown.add_row(*line, end_section=after is not None and names > 1 and bool(after[0]))
    print_table(shown)

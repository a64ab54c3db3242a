"""`beamtree compare`: every system of the paper on the same users, in one table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli.options import BeamSize, Cuts, Device, Json, choose, cuts, words
from beamtree.cli.screen import out, print_table, progress
from beamtree.cli.trees import Arity, ItemsFile, TreeName, VectorsFile, builder
from beamtree.compare import ROWS, Plan, Result, compare, table
from beamtree.compare.plan import METRICS
from beamtree.compare.results import is_finished, markdown, records, seconds, shown
from beamtree.compare.rows import check_rows, steps_of
from beamtree.data import load
from beamtree.data.files import check_writable, write_json
from beamtree.model import check_device
from beamtree.train.recipes import RECIPES, USUAL

USUAL_ROWS = "item-cf,youtube-dnn,hsm,plt,tdm,jtm,otm,otm-no-beam,otm-no-optest,otm-mixed,otm-joint"


def compare_rows(
    data: Annotated[Path, typer.Argument(help="A folder that `beamtree prepare` wrote.")],
    folder: Annotated[Path, typer.Option("--out", help="Where rows, tables and pictures go.")] = Path("comparison"),
    rows: Annotated[str, typer.Option(help=f"Of {', '.join(ROWS)}; or all.")] = USUAL_ROWS,
    tree: TreeName = "cluster",
    arity: Arity = 2,
    items: ItemsFile = None,
    vectors: VectorsFile = None,
    own_trees: Annotated[
        bool, typer.Option("--own-trees", help="All but jtm and otm-joint keep to the first.")
    ] = False,
    beam_size: Annotated[int | None, typer.Option(min=1, help="k in training: 400 on a GPU, 100 on a CPU.")] = None,
    test_beam: BeamSize = 400,
    m: Cuts = "10,50,100,200",
    steps: Annotated[int | None, typer.Option(min=1, help="Of training: 10,000 on a GPU, 3,000 on a CPU.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Users per step: 200 on a GPU, 50 on a CPU.")] = None,
    recipe: Annotated[str, typer.Option(help="beamtree, or paper: as published.")] = "beamtree",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same table.")] = 0,
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """Train every row, measure all on the same test users, and show them as the paper does.

    All tree rows share one tree, as in the paper: the one that jtm learns, if it is among them. What is finished is not
    done again: repeat the command to go on after a stop, or to add rows.
    """
    check_device(device)
    sizes = cuts(m, test_beam, "--test-beam")
    choose(RECIPES, "recipe", recipe)
    chosen = tuple(ROWS) if rows.strip() == "all" else tuple(dict.fromkeys(words(rows)))
    check_rows(chosen)
    build = builder(tree, items, vectors)
    for path in (folder / "table.json", *([json] if json else [])):
        check_writable(path)
    prepared = load(data)
    usual_beam, usual_batch, usual_steps = USUAL["cpu" if device == "cpu" else "cuda"]
    out.print(f"A {tree} tree over {prepared.num_items:,} items", highlight=False)
    plan = Plan(
        prepared,
        build(prepared, arity, seed),
        folder,
        recipe=recipe,
        beam_size=beam_size or usual_beam,
        batch_size=batch_size or usual_batch,
        steps=steps or usual_steps,
        device=device,
        seed=seed,
        own_trees=own_trees,
        m=sizes,
        test_beam=test_beam,
    )
    run(plan, chosen, json)


def run(plan: Plan, rows: Sequence[str], json: Path | None) -> list[Result]:
    """Compare with progress, write what was found, and show it."""
    rows = [row for row in ROWS if row in rows or is_finished(plan.folder, row)]  # a table grows row by row
    with progress(max(1, steps_of(plan, rows)), "steps") as (advance, say):
        results = compare(replace(plan, advance=advance, say=say), rows)
    write(plan.folder, results)
    if json is not None:
        write_json(json, records(results))
    show(results)
    for file in ("table.md", "table.json", "table.png"):
        out.print(f"Saved {plan.folder / file}", highlight=False, soft_wrap=True)
    return results


def write(folder: Path, results: Sequence[Result]) -> None:
    """The table as JSON, as Markdown and as a picture."""
    from beamtree.paper.plots import plot_comparison  # matplotlib takes a second to import

    write_json(folder / "table.json", records(results))
    (folder / "table.md").write_text(markdown(results), encoding="utf-8")
    plot_comparison(results, folder / "table.png")


def show(results: Sequence[Result]) -> None:
    """Three blocks for people, in percent, and what each row costs."""
    users, cut = len(results[0].values), results[0].m
    caption = "± half of the 95 % interval; * p < 0.05, ** p < 0.01 against otm, users in pairs"
    grid = Table(title=f"{users:,} users, %", caption=caption)
    for name in ("metric", "row"):
        grid.add_column(name, no_wrap=True)
    for size in cut:
        grid.add_column(f"@{size}", justify="right", no_wrap=True)
    entries = {(entry.row, entry.metric, entry.m): entry for entry in table(results)}
    for metric in METRICS:
        for index, result in enumerate(results):
            cells = [entries[result.row, metric, size] for size in cut]
            texts = [f"[bold]{shown(cell, '')}[/bold]" if cell.best else shown(cell, "") for cell in cells]
            last = index == len(results) - 1
            grid.add_row(metric if index == 0 else "", result.row, *texts, end_section=last)
    print_table(grid)
    costs = Table(title="What it takes")
    costs.add_column("row", no_wrap=True)
    for name in ("training", "ms per query", "size"):
        costs.add_column(name, justify="right", no_wrap=True)
    for result in results:
        took, each = seconds(result.training_seconds), f"{result.ms_per_query:.2f}"
        costs.add_row(result.row, took, each, f"{result.num_bytes / 1e6:,.1f} MB")
    print_table(costs)
    for result in results:
        for note in result.notes:
            out.print(f"{result.row}: {note}", highlight=False, soft_wrap=True)

"""`beamtree paper table3`, `table4`, `figure2` and `timing`: the paper's experiments on real data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli.compare import run
from beamtree.cli.options import Device, Json
from beamtree.cli.paper import RESULTS, paper, print_cells
from beamtree.cli.screen import draw, out, print_table, progress
from beamtree.cli.trees import ItemsFile, TreeName, VectorsFile
from beamtree.data import load_data
from beamtree.files.atomic import check_writable, write_json
from beamtree.ingest.inputs import tree_builder
from beamtree.model import check_device
from beamtree.research.compare import table as compare_table
from beamtree.research.compare.plan import METRICS
from beamtree.research.paper import real_data, timing
from beamtree.research.paper.report import save_results
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.recipes import RECIPES, chosen

Prepared = Annotated[Path, typer.Argument(metavar="DATA", help="The data set as `beamtree prepare` wrote it.")]
Folder = Annotated[Path, typer.Option("--out", help="Where rows, tables and pictures go.")]
RecipeName = Annotated[str, typer.Option(help="paper: as published. beamtree: good on ordinary data.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same table.")]


@paper.command("table3")
def paper_table3(
    data: Prepared,
    folder: Folder = Path("results/table3"),
    recipe: RecipeName = "paper",
    seed: Seed = 0,
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """Eight systems on Amazon Books, the paper's numbers beside ours; hours on a GPU.

    Get the ratings of Amazon's books (user, item, rating, timestamp) and prepare them first:
    beamtree prepare ratings_Books.csv --format amazon-ratings --out prepared/books
    """
    _real("table3", data, folder, recipe, seed, device, json)


@paper.command("table4")
def paper_table4(
    data: Prepared,
    folder: Folder = Path("results/table4"),
    recipe: RecipeName = "paper",
    seed: Seed = 0,
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """Eight systems on UserBehavior, the paper's numbers beside ours; hours on a GPU.

    Get UserBehavior.csv (user, item, category, behaviour, timestamp) and prepare it first:
    beamtree prepare UserBehavior.csv --format user-behavior --out prepared/userbehavior
    """
    _real("table4", data, folder, recipe, seed, device, json)


def _real(name: str, data: Path, folder: Path, recipe: str, seed: int, device: str, json: Path | None) -> None:
    check_device(device)
    chosen(RECIPES, "recipe", recipe)
    for path in (folder / f"{name}.json", *([json] if json else [])):
        check_writable(path)
    prepared = load_data(data)
    out.print(f"A cluster tree over {prepared.num_items:,} items, from which JTM begins", highlight=False)
    plan = real_data.plan(prepared, folder, recipe=recipe, device=device, seed=seed)
    results = run(plan, real_data.ROWS, None)
    found = real_data.cells(name, results)
    settings: dict[str, object] = {"recipe": recipe, "seed": seed, "device": device, "data": prepared.folder.name}
    save_results(folder / f"{name}.json", found, settings)
    if json is not None:
        write_json(json, [each.record() for each in found])
    best = {id(cell) for cell, entry in zip(found, compare_table(results), strict=True) if entry.best}
    found.sort(key=lambda cell: METRICS.index(str(cell.key["metric"])))
    print_cells(real_data.TITLES[name], found, line=("metric", "row"), column="m", digits=2, best=best, over="users")
    out.print(f"Saved {folder / name}.json", highlight=False, soft_wrap=True)


@paper.command("figure2")
def paper_figure2(
    data: Annotated[list[Path], typer.Argument(metavar="DATA…", help="Folders that `beamtree prepare` wrote.")],
    level: Annotated[int, typer.Option(min=1, help="h: the paper shows level 8, of 256 nodes.")] = 8,
    tree: TreeName = "cluster",
    items: ItemsFile = None,
    vectors: VectorsFile = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """How unevenly training instances fall on the nodes of a level: S_n sorted and normalised, a line per data set."""
    picture = RESULTS / "figure2.png"
    for path in (picture, *([json] if json else [])):
        check_writable(path)
    build = tree_builder(tree, items, vectors)
    shares = {}
    table = Table(
        title=f"{real_data.TITLES['figure2']}, h = {level}", caption="share of all S_n that the first nodes hold, %"
    )
    table.add_column("data", no_wrap=True)
    for part in ("1 %", "10 %", "50 %"):
        table.add_column(f"first {part}", justify="right")
    for folder in data:
        prepared = load_data(folder)
        grown = build(prepared, 2, seed)
        if level > grown.height:
            raise ValueError(f"--level {level}: the tree of {folder} has {grown.height} levels")
        found = real_data.distribution(grown, prepared.train, level)
        name = prepared.folder.resolve().name
        name = str(folder) if name in shares else name
        shares[name] = found.tolist()
        firsts = [float(found[: max(1, round(len(found) * part))].sum()) for part in (0.01, 0.1, 0.5)]
        table.add_row(name, *(f"{first * 100:.1f}" for first in firsts))
    saved = draw(lambda plots: plots.plot_levels(shares, picture), picture)
    if json is not None:
        lines = [(name, index, value) for name, values in shares.items() for index, value in enumerate(values)]
        write_json(json, [{"data": d, "level": level, "index": index, "value": value} for d, index, value in lines])
    print_table(table)
    for path in saved:
        out.print(f"Saved {path}", highlight=False, soft_wrap=True)


@paper.command("timing")
def paper_timing(
    height: Annotated[int | None, typer.Option(min=2, help="Of a tree of 2^height items: 22 on a GPU.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Users per batch.")] = 100,
    beam_size: Annotated[int, typer.Option(min=1, help="k.")] = 400,
    iterations: Annotated[int | None, typer.Option(min=1, help="Batches: 200 on a GPU, else 5.")] = None,
    optimizer: Annotated[str, typer.Option(help="adam, as in the paper, or lazy.")] = "adam",
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """Seconds per training batch of PLT, TDM and OTM on made-up users, beside the paper's on a Tesla P100."""
    check_device(device)
    move = chosen(OPTIMIZERS, "optimizer", optimizer)
    on_gpu = device != "cpu"
    height, iterations = height or (22 if on_gpu else 14), iterations or (200 if on_gpu else 5)
    if json is not None:
        check_writable(json)
    with progress(timing.num_batches(iterations), "batches") as (advance, _):
        found = timing.timing(height, batch_size, beam_size, iterations, move, device, advance)
    if json is not None:
        write_json(json, [{**each.record(), "height": height, "device": device} for each in found])
    print_cells(f"{timing.TITLE}: {batch_size} users, 2^{height} items", found, line=("row",), column="", digits=4)

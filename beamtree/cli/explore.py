"""`beamtree explore`: a page to watch a run search, in one file."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.options import DataFolder, Device, RunFolder, split_of
from beamtree.cli.screen import out, progress
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explore import BEAM_SIZES, inspect_for_page, page, record, variants
from beamtree.diagnose.inspect import num_users
from beamtree.files.atomic import check_writable, write_atomically
from beamtree.ingest.item_tables import read_catalogue
from beamtree.model import TreeModel
from beamtree.train.runs import ids_of, open_data, open_model, read_run

INSPECTED = 200  # users whose losses are counted

Out = Annotated[Path, typer.Option("--out", help="The page: one file, which opens from disk in any browser.")]
ItemTable = Annotated[
    Path | None, typer.Option(help="A table of item and title or category; the run's own unless given.")
]
Users = Annotated[int, typer.Option(min=1, help="How many test users' searches are recorded.")]
Against = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Another run over the same items, to see both side by side.")
]


def explore(
    run: RunFolder,
    out_file: Out = Path("page.html"),
    items: ItemTable = None,
    users: Users = 20,
    against: Against = None,
    data: DataFolder = None,
    device: Device = "cpu",
) -> None:
    """Write a page on which one can watch a run search: the tree, the beam, and where items are lost.

    The searches of some test users are recorded for several beam sizes: in the run, in another run if there is one,
    and in the run without each part of its score. The page is one file and asks nobody for anything.
    """
    check_writable(out_file)
    model = open_model(run, device)
    catalogue = catalogue_of(run, items, ids_of(run, model))
    prepared = open_data(run, model, data)
    first = run.resolve().name
    models = {first: model}
    if against is not None:
        models |= other_run(against, first, model, device)
    models |= variants(first, model)
    write_page(out_file, models, prepared, catalogue, users)
    size = out_file.stat().st_size / 2**20
    for line in (f"Saved {out_file}, {size:.1f} MiB: open it in a browser", f"Next: beamtree inspect {run}"):
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def catalogue_of(run: Path, items: Path | None, ids: Ids) -> Catalogue:
    """Titles and categories from a table, from the one that the run was trained with, or none."""
    known = read_run(run).get("items")
    if items is None and isinstance(known, str) and Path(known).exists():
        items = Path(known)
    return Catalogue.plain(ids) if items is None else read_catalogue(items, ids)


def other_run(against: Path, first: str, model: TreeModel, device: str) -> dict[str, TreeModel]:
    """Another run by its name; a ValueError where it knows other items."""
    other = open_model(against, device)
    if ids_of(against, other).names != (model.ids.names if model.ids is not None else None):
        raise ValueError(f"--against {against} knows other items than the run: train both on the same data")
    folder = against.resolve()
    return {folder.name if folder.name != first else f"{folder.parent.name}/{folder.name}": other}


def write_page(path: Path, models: dict[str, TreeModel], data: Prepared, catalogue: Catalogue, users: int) -> None:
    """Record and write, with progress."""
    people = split_of(data, "test")
    names = data.users.names[len(data.train) + len(data.val) :]
    first, model = next(iter(models.items()))
    with progress(num_users(people, INSPECTED), "users inspected") as (advance, _):
        lost = inspect_for_page(model, people, INSPECTED, advance)
    sizes = [size for size in BEAM_SIZES if size < model.tree.num_items]
    with progress(len(models) * min(users, len(people)) * max(1, len(sizes)), "searches recorded") as (advance, _):
        found = record(models, people, names, catalogue, count=users, inspections={first: lost}, on_search=advance)
    write_atomically(path, lambda draft: draft.write_text(page(found), encoding="utf-8"))

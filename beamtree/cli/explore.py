"""`beamtree explore`: a page that shows how a run searches, in one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.console import progress, write
from beamtree.cli.options import DataFolder, Device, RunFolder, users_of
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explore import BEAM_SIZES, inspect_for_page, page, record, variants
from beamtree.diagnose.inspect import num_users
from beamtree.files.atomic import check_writable, write_atomically
from beamtree.ingest.item_tables import read_catalogue
from beamtree.model import TreeModel
from beamtree.train.runs import ids_of, open_data, open_model, read_run

INSPECTED = 200  # users whose losses are counted


def explore(
    run: RunFolder,
    out_file: Annotated[
        Path, typer.Option("--out", help="The page: one file that any browser opens from disk.")
    ] = Path("page.html"),
    items: Annotated[
        Path | None, typer.Option(help="A table of items with titles or categories. Default: that of the run.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Number of test users whose searches are recorded.")] = 20,
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run over the same items, shown side by side.")
    ] = None,
    data: DataFolder = None,
    device: Device = "cpu",
) -> None:
    """Write a page that shows how a run searches: the tree, the beam, and where items are lost.

    It records the searches of some test users at several beam sizes: in the run, in another run if one is given, and in
    the run without each part of its score. The page is one file and needs no network.
    """
    check_writable(out_file)
    model = open_model(run, device)
    catalogue = _catalogue(run, items, ids_of(run, model))
    prepared = open_data(run, model, data)
    name = run.resolve().name
    models = {name: model}
    if against is not None:
        models |= _other_run(against, name, model, device)
    models |= variants(name, model)
    _write_page(out_file, models, prepared, catalogue, users)
    size = out_file.stat().st_size / 2**20
    write(f"Saved {out_file}, {size:.1f} MiB: open it in a browser", f"Next: beamtree inspect {run}")


def _catalogue(run: Path, items: Path | None, ids: Ids) -> Catalogue:
    """Titles and categories from a table, from that of the run, or none."""
    known = read_run(run).get("items")
    if items is None and isinstance(known, str) and Path(known).exists():
        items = Path(known)
    return Catalogue.of_ids(ids) if items is None else read_catalogue(items, ids)


def _other_run(against: Path, name: str, model: TreeModel, device: str) -> dict[str, TreeModel]:
    """Another run by its name; a ValueError where it has other items."""
    other = open_model(against, device)
    if ids_of(against, other).names != (model.ids.names if model.ids is not None else None):
        raise ValueError(f"--against {against} has other items than the run: train both on the same data")
    folder = against.resolve()
    return {folder.name if folder.name != name else f"{folder.parent.name}/{folder.name}": other}


def _write_page(path: Path, models: dict[str, TreeModel], data: Prepared, catalogue: Catalogue, users: int) -> None:
    """Record the searches and write the page, with progress."""
    people = users_of(data, "test")
    names = data.users.names[len(data.train) + len(data.val) :]
    first, model = next(iter(models.items()))
    with progress(num_users(people, INSPECTED), "users inspected") as (advance, _):
        losses = inspect_for_page(model, people, INSPECTED, advance)
    sizes = [size for size in BEAM_SIZES if size < model.tree.num_items]
    with progress(len(models) * min(users, len(people)) * max(1, len(sizes)), "searches recorded") as (advance, _):
        content = record(models, people, names, catalogue, count=users, inspections={first: losses}, on_search=advance)
    write_atomically(path, lambda draft: draft.write_text(page(content), encoding="utf-8"))

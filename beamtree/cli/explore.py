"""`beamtree explore`: a page that shows how a run searches, in one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli import options
from beamtree.cli.console import progress, write
from beamtree.cli.evaluate import honest_model
from beamtree.data import BeforeAfter, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explore import BEAM_SIZES, inspect_for_page, page, record, variants
from beamtree.diagnose.inspect import num_users
from beamtree.files.atomic import check_writable, write_atomically
from beamtree.ingest.item_tables import read_catalogue
from beamtree.model import TreeModel
from beamtree.storage.runs import ids_of, open_data, open_model, table_file

INSPECTED = 200  # users whose losses are counted


def explore(
    run: options.RunFolder,
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
    data: options.DataFolder = None,
    device: options.Device = "cpu",
) -> None:
    """Write a page that shows how a run searches: the tree, the beam, and where items are lost.

    It records the searches of some test users at several beam sizes: in the run, in another run if one is given, and in
    the run without each part of its score. The page is one file and needs no network.
    """
    check_writable(out_file)
    model, name = open_model(run, device), run.resolve().name
    ids = ids_of(run, model)
    if items is None:
        items = table_file(run, "items")
    catalogue = Catalogue.of_ids(ids) if items is None else read_catalogue(items, ids)
    prepared = open_data(run, model, data)
    test_users = options.users_of(prepared, "test")
    model, name = _honest(run, model, name, test_users, prepared)
    models = {name: model}
    if against is not None:
        other, folder = open_model(against, device), against.resolve()
        if ids_of(against, other).names != ids.names:
            raise ValueError(f"--against {against} has other items than the run: train both on the same data")
        other_name = folder.name if folder.name != run.resolve().name else f"{folder.parent.name}/{folder.name}"
        other, other_name = _honest(against, other, other_name, test_users, prepared)
        models[other_name] = other
    models |= variants(name, model)
    with progress(num_users(test_users, INSPECTED), "users inspected") as (advance, _):
        losses = inspect_for_page(model, test_users, INSPECTED, advance)
    sizes = [size for size in BEAM_SIZES if size < model.tree.num_items]
    with progress(len(models) * min(users, len(test_users)) * max(1, len(sizes)), "searches recorded") as (advance, _):
        content = record(
            models,
            test_users,
            prepared.users.names[len(prepared.train) + len(prepared.val) :],
            catalogue,
            count=users,
            inspections={name: losses},
            on_search=advance,
        )
    write_atomically(out_file, lambda draft: draft.write_text(page(content), encoding="utf-8"))
    size = out_file.stat().st_size / 2**20
    write(f"Saved {out_file}, {size:.1f} MiB: open it in a browser", f"Next: beamtree inspect {run}")


def _honest(run: Path, model: TreeModel, name: str, users: BeforeAfter, prepared: Prepared) -> tuple[TreeModel, str]:
    """The model whose searches for test users are shown, and its name, which says if it is that before a refit."""
    shown, which, _ = honest_model(run, model, users, prepared)
    return shown, f"{name} {which.split(',')[0]}" if which else name

"""`beamtree items`: add and change items from a table, in a run or in a running service."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli import options
from beamtree.cli.console import progress, write
from beamtree.kernels.threads import use_threads
from beamtree.live.renewal import edit_run
from beamtree.parts.content import ContentPart, features_weight
from beamtree.recommender import Recommender
from beamtree.serve.item_client import ItemClient, is_url


def change_items(
    target: Annotated[
        str, typer.Argument(metavar="RUN|URL", help="A run, or the address of a service such as http://shop:8000.")
    ],
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="A file of .parquet, .csv or .jsonl: a column of ids, and any others."),
    ],
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> None:
    """Add and change items of a run or of a running service from a table: prices, stock, any column.

    Of known items the columns of the table change; an empty cell clears the value, and other columns stay. New items
    can be recommended at once, placed by all columns. Removed items stay removed, unless the table has ids alone.

    A run is replaced in one step. To a service, items are sent in batches, each of which is made as a whole; if the
    command breaks off, it can be repeated. The token for changes is read from the environment variable
    BEAMTREE_CHANGE_TOKEN.

    A run may get new columns. A service has the columns of the table that it was started with.
    """
    use_threads(threads)
    if is_url(target):
        client = ItemClient(target, table)
        with progress(client.total, "items") as (advance, _):
            added, changed = client.send(advance)
    else:
        added, changed = _change_run(Path(target), table, device)
    write(f"Added {added:,} and changed {changed:,} items of {target}.")


def _change_run(run: Path, table: Path, device: str) -> tuple[int, int]:
    """How many items of a run were added and changed."""
    counts = 0, 0

    def change(copy: Path) -> bool:
        nonlocal counts
        shop = Recommender.load(copy, device=device)
        before, weight = shop.model.tree.num_placed, features_weight(shop.model.scorer)
        total = shop.update_items(table)
        added = shop.model.tree.num_placed - before
        counts = added, total - added
        if features_weight(shop.model.scorer) != weight:
            write(*ContentPart().report(shop.model.scorer))
        if total:
            shop.save(copy)
        return total > 0

    edit_run(run, change)
    return counts

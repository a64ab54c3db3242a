"""`beamtree simulate`: a made-up market to try everything on."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.screen import out, progress

Where = Annotated[Path, typer.Option("--out", help="A file that ends in .parquet, or else a folder of part files.")]
Users = Annotated[int, typer.Option(min=1, help="How many users.")]
Items = Annotated[int, typer.Option(min=1, help="How many items.")]
Events = Annotated[int, typer.Option(min=1, help="How many events; with 20 per user the median is about 10.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same market.")]


def simulate(
    where: Where = Path("market.parquet"),
    users: Users = 20_000,
    items: Items = 10_000,
    events: Events = 400_000,
    seed: Seed = 0,
) -> None:
    """Make up a market: Zipf-like popularity, and interests that drift along a hidden tree of categories.

    It is written as Parquet with the columns user, item and timestamp; a file beside it has each item's category and
    name.
    """
    from beamtree.ingest import simulate as market  # polars takes a moment to import

    with progress(events, "events") as (advance, _):
        shape = market.simulate(where, users=users, items=items, events=events, seed=seed, on_events=advance)
    per_user = shape["events_per_user"]
    for line in (
        f"{users:,} users, {items:,} items in {shape['categories']:,} categories, {events:,} events",
        f"{per_user['median']:g} events per user in the median, {per_user['p99']:g} at the 99th percentile",
        f"The top 1 % of items hold {shape['top_percent_share']:.0%} of the events; "
        f"{shape['items_with_events']:,} items have any",
        f"Saved {where}",
        f"  and {market.items_file(where)}",
        f"Next: beamtree prepare {where} --out prepared/{where.stem}",
    ):
        out.print(line, highlight=False, soft_wrap=True)

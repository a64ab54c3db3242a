"""`beamtree simulate`: a synthetic log to try everything on."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.console import progress, write


def simulate(
    where: Annotated[
        Path, typer.Option("--out", help="A file that ends in .parquet, or otherwise a folder of part files.")
    ] = Path("market.parquet"),
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 20_000,
    items: Annotated[int, typer.Option(min=1, help="Number of items.")] = 10_000,
    events: Annotated[
        int, typer.Option(min=1, help="Number of events; with 20 per user the median is about 10.")
    ] = 400_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same log.")] = 0,
    contexts: Annotated[
        bool,
        typer.Option("--contexts", help="Add a country and a device: some items sell in one country or at some hours."),
    ] = False,
) -> None:
    """Simulate a market: Zipf-like popularity, and interests that drift along a hidden tree of categories.

    The log is written as Parquet with the columns user, item and timestamp. A second file has the category and the
    name of each item.
    """
    from beamtree.ingest import simulate as market  # polars takes a moment to import

    with progress(events, "events") as (advance, _):
        shape = market.simulate(
            where, users=users, items=items, events=events, seed=seed, contexts=contexts, on_events=advance
        )
    per_user = shape["events_per_user"]
    write(
        f"{users:,} users, {items:,} items in {shape['categories']:,} categories, {events:,} events",
        f"Events per user: median {per_user['median']:g}, 99th percentile {per_user['p99']:g}",
        f"The top 1 % of items have {100 * shape['top_percent_share']:.0f} % of the events; "
        f"{shape['items_with_events']:,} items have at least one",
        f"Saved {where}",
        f"  and {market.items_file(where)}",
        f"Next: beamtree prepare {where} --out prepared/{where.stem}",
    )

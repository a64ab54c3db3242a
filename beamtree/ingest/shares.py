"""A log in shares, each of which one process reads."""

from collections.abc import Sequence

import polars as pl

from beamtree.ingest.readers import Opened, Source
from beamtree.ingest.urls import Place

Share = Sequence[Source]


def in_shares(opened: Opened, rows: int | None) -> list[Share]:
    """The log in shares of about so many rows, in its order; all in one where that is None.

    Files are put together, and those of Parquet also cut. Of others it is not known how long they are: each is a share.
    """
    if rows is None:
        return [opened.parts]
    shares: list[Share] = []
    some: list[Source] = []
    filled = 0
    for part in opened.parts:
        length = rows if part.path is None else _length(part.path)
        for start in range(0, max(1, length), rows):
            events = part.events if length <= rows else part.events.slice(start, rows)
            some.append(part._replace(events=events))
            filled += min(rows, length - start)
            if 2 * filled > rows:
                shares.append(some)
                some, filled = [], 0
    return [*shares, some] if some else shares


def _length(path: Place) -> int:
    return int(pl.scan_parquet(str(path), glob=False).select(pl.len()).collect().item())


def events_of(share: Share) -> pl.LazyFrame:
    """All rows of a share, one file after the other."""
    return pl.concat([part.events for part in share])

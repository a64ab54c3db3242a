"""Items and users with few events leave a log together, since each that leaves may make another one of few events."""

from pathlib import Path

import numpy as np

from beamtree.ingest.arrays import Array, Kept, keep_events


def drop_few(kept: Kept, min_events: int, min_item_events: int, work: Path) -> Kept:
    """Drop items of fewer than `min_item_events` events, then users of fewer than `min_events`, again and again.

    What stays when nothing changes any more is known as the k-core of the log. One round reads all that is left once.
    """
    lengths, popularity, report = kept
    report = {**report, "items_with_few_events": 0, "events_of_items_with_few_events": 0}
    while (few := _some_but_fewer(popularity, min_item_events)).any() or _some_but_fewer(lengths, min_events).any():
        before, of_items = lengths, int(popularity[few].sum())
        everyone = np.ones(len(lengths), bool)
        lengths, popularity = keep_events(work, lengths, everyone, ~few, min_events)
        report["items_with_few_events"] += int(few.sum())
        report["events_of_items_with_few_events"] += of_items
        report["users_with_few_events"] += int(((before > 0) & (lengths == 0)).sum())
        report["events_of_users_with_few_events"] += int(before.sum() - lengths.sum()) - of_items
    return Kept(lengths, popularity, report)


def _some_but_fewer(counts: Array, least: int) -> Array:
    """Which of them have events, but fewer than that."""
    found: Array = (counts > 0) & (counts < least)
    return found

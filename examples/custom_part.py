"""A part of the score from outside the package: how often an item was chosen in the newest events of the log.

python examples/custom_part.py
"""

import tempfile
from pathlib import Path

import polars as pl
import torch

import beamtree as bt
from beamtree.data import Prepared
from beamtree.parts import Fitting, Part
from beamtree.scorers import PopularityScorer


class RecentPart(Part):
    """The popularity of items in the newest events, whoever they are of."""

    name = "recent"

    def __init__(self, newest: int = 1_000) -> None:
        self.newest = newest

    def obstacle(self, data: Prepared) -> str | None:
        return super().obstacle(data) if data.train.events.times is not None else "the times of events"

    def fit(self, fitting: Fitting) -> PopularityScorer:
        """A node has the score of the best item below it."""
        events = fitting.fitted_events
        newest = events.times[events.span()].argsort(stable=True)[-self.newest :]
        counts = torch.bincount(events.item_numbers().cpu()[newest], minlength=fitting.tree.num_items)
        return PopularityScorer.from_counts(fitting.tree, counts)


if __name__ == "__main__":
    # In each of two seasons thirty items are in fashion, some more than others, and a user chooses ten of them.
    generator, fashion = torch.Generator().manual_seed(0), 1 / torch.arange(1, 31)
    rows = [
        (user, 30 * season + item, 10 * season + place)
        for user in range(300)
        for season in (0, 1)
        for place, item in enumerate(torch.multinomial(fashion, 10, generator=generator).tolist())
    ]
    shop = bt.Recommender(steps=0, parts=(RecentPart(),))
    shop.fit(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), val_users=100)
    with tempfile.TemporaryDirectory() as name:
        shop.save(Path(name) / "run")
        loaded = bt.Recommender.load(Path(name) / "run")  # its scorer is one of the package
        best = loaded.recommend([3, 13, 24], m=5)
        print(best)
        print(loaded.explain([3, 13, 24], best["item"][0]).select("event", "part", "contribution"))

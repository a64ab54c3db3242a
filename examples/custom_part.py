"""A part of the score from outside the package: how often an item was chosen in the newest events of the log.

python examples/custom_part.py
"""

import tempfile
from pathlib import Path

import polars as pl
import torch

import beamtree as bt
from beamtree.parts import Fitting, Part
from beamtree.scorers import PopularityScorer


class RecentPart(Part):
    """The popularity of items in the newest events, whoever they are of."""

    name = "recent"

    def __init__(self, newest: int = 1_000) -> None:
        self.newest = newest

    def fit(self, fitting: Fitting) -> PopularityScorer:
        """A node has the score of the best item below it."""
        events = fitting.fitted_events
        assert events.times is not None, "the log has no times"
        newest = events.times[events.span()].argsort(stable=True)[-self.newest :]
        counts = torch.bincount(events.item_numbers().cpu()[newest], minlength=fitting.tree.num_items)
        return PopularityScorer.from_counts(fitting.tree, counts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        # In each of two seasons a user chooses each of the thirty items in fashion with probability 1/3.
        chosen = [(user, season, (torch.rand(30) < 1 / 3).nonzero()) for user in range(600) for season in (0, 1)]
        rows = [(user, 30 * season + int(item), season) for user, season, items in chosen for item in items]
        shop = bt.Recommender(steps=0, parts=(RecentPart(),))
        shop.fit(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), val_users=100)
        shop.save(Path(name) / "run")
        loaded = bt.Recommender.load(Path(name) / "run", parts=(RecentPart(),))
        print(loaded.recommend([3, 13, 24], m=5))

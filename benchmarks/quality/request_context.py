"""What the context of a request brings: recall with it and without, for the same users and the same other parts.

    python benchmarks/quality/request_context.py --market --out market.json
    python benchmarks/quality/request_context.py movielens-1m.parquet --context hour,day --out movielens.json
    python benchmarks/quality/request_context.py git-rust.parquet --context hour,day --min-item-events 30 --out git.json

The context of a test user is that of the first event to be found. On the simulated market that is the last event of a
user; and, with the market split by users, the first event of visitors without any history.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import beamtree as bt
from beamtree.data import HISTORY, BeforeAfter, Events, Prepared, load_data
from beamtree.evaluate import evaluate, measure
from beamtree.evaluate.metrics import bootstrap
from beamtree.ingest.prepare import prepare
from beamtree.ingest.simulate import simulate
from beamtree.model import TreeModel
from beamtree.parts import Fitting
from beamtree.parts.context import ContextPart
from beamtree.parts.deep import DEEP
from beamtree.query.search import popular_items
from beamtree.scorers import as_sum, with_inputs

M = (10, 50, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?")
    parser.add_argument("--market", action="store_true", help="a simulated market with countries, devices and hours")
    parser.add_argument("--context", default="country,device,hour,day")
    parser.add_argument("--min-item-events", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.market:
            log = folder / "market.parquet"
            simulate(log, users=20_000, items=5000, events=200_000, seed=5, contexts=True)
            splits = {
                "leave-one-out": {"val_users": 2000, "test_users": 5000},
                "halves": {"val_users": 1000, "test_users": 5000},
            }
            for split, how in splits.items():
                prepare(log, folder / split, context=options.context, split=split, **how)
                without, added = fit(load_data(folder / split))
                test = load_data(folder / split).test
                if split == "halves":
                    records += new_visitors(added, test)
                else:
                    records += compared("simulated market", without, added, test)
        else:
            users = {"min_events": 10, "val_users": 500, "test_users": 1000}
            least = options.min_item_events
            prepare(options.log, folder / "log", context=options.context, min_item_events=least, **users)
            data = load_data(folder / "log")
            records += compared(Path(options.log).stem, *fit(data), data.test)
    if options.out:
        options.out.write_text(json.dumps({"cells": records}, indent=1) + "\n")


def fit(data: Prepared) -> tuple[TreeModel, TreeModel]:
    """A model without contexts, and the same with a context part where it pays."""

    def blind(view: BeforeAfter) -> BeforeAfter:
        return replace(view, events=replace(view.events, contexts=None))

    shop = bt.Recommender(steps=0, seed=0, refit=False)
    shop.fit(replace(data, train=blind(data.train), val=blind(data.val), test=blind(data.test)), verbose=False)
    model, start = shop.model, time.monotonic()
    parts = as_sum(model.scorer)
    assert parts is not None
    fitting = Fitting(model.tree, data, first_level=model.first_level)
    scorer = ContextPart().add(parts.without(DEEP), fitting)
    print(scorer.hyperparameters["context"], f"{time.monotonic() - start:.1f} s", flush=True)
    return model, model.with_scorer(scorer).eval()


def compared(log: str, without: TreeModel, added: TreeModel, test: BeforeAfter) -> list[dict[str, object]]:
    """The recall of both models for test users."""
    rows = {"without context": without, "with context": added}
    return cells(log, {row: evaluate(model, test, m=M, metrics="recall").per_user for row, model in rows.items()})


def new_visitors(model: TreeModel, test: BeforeAfter) -> list[dict[str, object]]:
    """The recall of the first event of test users by popular items, in its context or not."""
    first = test.events.offsets[:-1]
    assert test.events.contexts is not None
    contexts = test.events.contexts.of(first)
    events = Events(torch.arange(len(first) + 1), test.events.items[first], "first events", contexts=contexts)
    users = with_inputs(model.scorer, BeforeAfter(events, torch.zeros(len(first), dtype=torch.int64)))
    results = {}
    for row, in_context in {"popular": False, "popular in the context": True}.items():

        def find(x: torch.Tensor, exclude: torch.Tensor, in_context: bool = in_context) -> torch.Tensor:
            contexts = [numbers if in_context else [] for numbers in x[:, HISTORY:].tolist()]
            return torch.stack([popular_items(model, max(M), context=numbers)[0] for numbers in contexts])

        results[row] = measure(find, users, m=M, metrics="recall").per_user
    return cells("new visitors", results)


def cells(log: str, results: dict[str, torch.Tensor]) -> list[dict[str, object]]:
    """Means and intervals of the recall of each user [U, cuts, 1] in two rows, and of their difference."""
    without, added = results.values()
    records: list[dict[str, object]] = []
    for row, values in {**results, "difference": added - without}.items():
        means, (low, high) = values[:, :, 0].mean(0).tolist(), bootstrap(values[:, :, 0])
        print(f"{log:20} {row:24}", " ".join(f"{100 * mean:.2f}" for mean in means), flush=True)
        for m, mean, a, b in zip(M, means, low.tolist(), high.tolist(), strict=True):
            records.append({"log": log, "row": row, "metric": "recall", "m": m, "value": mean, "low": a, "high": b})
    return records


if __name__ == "__main__":
    main()

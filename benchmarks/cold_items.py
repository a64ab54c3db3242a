"""Items without events: recall of items that are known by features alone, beside training with their events.

    python benchmarks/cold_items.py movielens-1m.parquet movielens-1m.items.parquet --out cold.json

A share of the items is taken out of the training log and given with features alone. The first half of a test user's
events is the history; found are to be the new items of the second half, and the others, and of these the rare ones with
at most five events. `content kNN` ranks all items by the sum of their cosines with the history, over the same features.
"""

import argparse
import json
import time
from copy import copy
from pathlib import Path

import numpy as np
import polars as pl
import torch

import beamtree as bt
from beamtree.beam import retrieve
from beamtree.closed_form.content import FeatureMatrix
from beamtree.ingest.item_features import ItemFeatures
from beamtree.kernels import sparse
from beamtree.metrics import bootstrap
from beamtree.query import pad_histories

M = (10, 50, 200)
RARE = 5  # events of an item, at most
Lists = list[list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("items", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of the items that are new")
    parser.add_argument("--users", type=int, default=1000, help="that test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of training; 0 for the closed form")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    columns = [pl.col("user").cast(pl.String), pl.col("item").cast(pl.String), "timestamp"]
    log = pl.read_parquet(options.log).select(columns).sort("user", "timestamp", maintain_order=True)
    log = log.filter(pl.len().over("user") >= 10)
    table = pl.read_parquet(options.items).with_columns(pl.col("item").cast(pl.String))
    draw, names = np.random.default_rng(options.seed), log["item"].unique().sort()
    new = set(names.gather(draw.permutation(len(names))[: int(options.share * len(names))]).to_list())
    position, count = pl.int_range(pl.len()).over("user"), pl.len().over("user")
    log = log.with_columns(later=position >= count // 2, new=pl.col("item").is_in(list(new)))
    users = log["user"].unique().sort()
    test = set(users.gather(draw.permutation(len(users))[: options.users]).to_list())
    fitted = log.filter(~pl.col("user").is_in(list(test)))
    later, is_new = pl.col("later"), pl.col("new")
    events_of = fitted.group_by("item").len()
    is_rare = pl.col("item").is_in(events_of.filter(pl.col("len") > RARE)["item"].implode()).not_() & ~is_new
    rows = log.filter(pl.col("user").is_in(list(test))).group_by("user", maintain_order=True)
    tests = rows.agg(
        history=pl.col("item").filter(~later), new=pl.col("item").filter(later & is_new).unique(),
        others=pl.col("item").filter(later & ~is_new).unique(), rare=pl.col("item").filter(later & is_rare).unique(),
    )  # fmt: skip
    table = table.filter(pl.col("item").is_in(pl.concat([fitted["item"], pl.Series(list(new))]).unique().implode()))
    print(f"{len(new):,} of {len(names):,} items are new, with {fitted['new'].mean():.1%} of the events", flush=True)
    records: list[dict[str, object]] = []

    def judge(row: str, lists: Lists) -> None:
        shown = []
        for kind in ("new", "others", "rare"):
            pairs = [(found, set(wanted)) for found, wanted in zip(lists, tests[kind].to_list(), strict=True) if wanted]
            values = [[len(wanted & set(found[:m])) / len(wanted) for m in M] for found, wanted in pairs]
            recalls = torch.tensor(values)
            low, high = bootstrap(recalls)
            for index, m in enumerate(M):
                record = {"log": options.log.stem, "row": row, "items": kind, "metric": "recall", "m": m}
                record |= {"value": float(recalls[:, index].mean()), "low": float(low[index])}
                records.append(record | {"high": float(high[index]), "users": len(recalls)})
            shown.append(" ".join(f"{100 * value:6.2f}" for value in recalls.mean(0).tolist()))
        print(f"{row:46} new {shown[0]}   others {shown[1]}   rare {shown[2]}", flush=True)

    def fit(events: pl.DataFrame) -> bt.Recommender:
        began = time.perf_counter()
        shop = bt.Recommender(seed=0, steps=options.steps)
        shop.fit(events.select("user", "item", "timestamp"), val_users=500, test_users=0, verbose=False)
        print(f"  fitted in {time.perf_counter() - began:.0f} s", flush=True)
        return shop

    def with_features(shop: bt.Recommender, about: pl.DataFrame) -> bt.Recommender:
        began = time.process_time()
        for line in shop.use_features(about):
            print(f"  {line}", flush=True)
        print(f"  used features in {time.process_time() - began:.0f} s of CPU time", flush=True)
        return shop

    shop = fit(fitted)
    judge("trained with their events", found_by(shop, tests))
    known = table.filter(pl.col("item").is_in(shop.ids.names))
    random = known.select("item", colour=draw.integers(0, 50, len(known)), size=draw.random(len(known)))
    judge("trained with their events, and random features", found_by(with_features(copy(shop), random), tests))
    judge("trained with their events, and features", found_by(with_features(shop, known), tests))
    shop = fit(fitted.filter(~is_new))
    judge("not known", found_by(shop, tests))
    judge("by features", found_by(with_features(shop, table), tests))
    popular = fitted.group_by("item").len().sort("len", "item", descending=True)["item"].head(max(M)).to_list()
    judge("popular items, with their events", [popular] * len(tests))
    judge("content kNN", content_neighbours(table, tests))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(records, indent=1) + "\n")


def found_by(shop: bt.Recommender, tests: pl.DataFrame) -> Lists:
    """The best 200 items for each history; an item that the model does not have is left out of it."""
    lists = []
    for batch in tests.iter_slices(250):
        x = pad_histories([shop.ids.find_known(history) for history in batch["history"].to_list()])
        items, _ = retrieve(shop.model, x, beam_size=400, m=max(M))
        lists += [[shop.ids[item] for item in row if item >= 0] for row in items.tolist()]
    return lists


def content_neighbours(table: pl.DataFrame, tests: pl.DataFrame) -> Lists:
    features = ItemFeatures.fit(table, leave_out=["item"])
    rows = FeatureMatrix(features.transform(table), features.width).rows
    names, number = table["item"].to_list(), {name: index for index, name in enumerate(table["item"])}
    lists = []
    for batch in tests.iter_slices(64):
        profiles = torch.zeros(features.width, len(batch))
        for column, history in enumerate(batch["history"].to_list()):
            known = [number[item] for item in dict.fromkeys(history[::-1]) if item in number]
            seen = rows.take(torch.tensor(known[:69], dtype=torch.int64))
            profiles[:, column].index_add_(0, seen.columns.long(), seen.values)
        best = sparse.multiply((rows.offsets, rows.columns, rows.values), profiles).T.topk(max(M)).indices
        lists += [[names[item] for item in row] for row in best.tolist()]
    return lists


if __name__ == "__main__":
    main()

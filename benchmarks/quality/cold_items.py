"""Items without events: recall of items that are known by features alone, beside training with their events.

    python benchmarks/quality/cold_items.py movielens-1m.parquet movielens-1m.items.parquet --draws 3 --out cold.json

A share of the items is taken out of the training log and given with features alone. The first half of a test user's
events is the history; found are to be the new items of the second half, and the others, and of these the rare ones with
at most five events. How much is found depends on which items are new, so several draws can be made. No item is drawn
twice, the test users are always the same, and recalls are means over the draws.

`content kNN` ranks all items by the sum of their cosines with the history, over the same features. `LightFM` is
measured if the package is installed (`pip install lightfm-next`).
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
from beamtree.data import HISTORY
from beamtree.evaluate.metrics import bootstrap
from beamtree.ingest.item_features import ItemFeatures
from beamtree.kernels import sparse
from beamtree.query import pad_histories

try:
    import lightfm
    import scipy.sparse
except ImportError:
    lightfm = None

M = (10, 50, 200)
RARE = 5  # events of an item, at most
TRAINED = "trained with their events"
Lists = list[list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("items", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of the items that are new")
    parser.add_argument("--draws", type=int, default=1, help="of the new items")
    parser.add_argument("--users", type=int, default=1000, help="that test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of training; 0 for the closed form")
    parser.add_argument("--runs", type=Path, help="keep the fitted models in this folder, and use those that are there")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    columns = [pl.col("user").cast(pl.String), pl.col("item").cast(pl.String), "timestamp"]
    log = pl.read_parquet(options.log).select(columns).sort("user", "timestamp", maintain_order=True)
    log = log.filter(pl.len().over("user") >= 10)
    whole_table = pl.read_parquet(options.items).with_columns(pl.col("item").cast(pl.String))
    draw, names, users = np.random.default_rng(options.seed), log["item"].unique().sort(), log["user"].unique().sort()
    order, size = draw.permutation(len(names)), int(options.share * len(names))
    test = users.gather(draw.permutation(len(users))[: options.users]).to_list()
    later = pl.int_range(pl.len()).over("user") >= pl.len().over("user") // 2
    log = log.with_columns(later=later, test=pl.col("user").is_in(test))
    fitted = log.filter(~pl.col("test")).select("user", "item", "timestamp")
    frequent = fitted.group_by("item").len().filter(pl.col("len") > RARE)["item"].implode()
    recalls: dict[tuple[str, str], list[torch.Tensor]] = {}  # of each row and kind of items, for each draw [users, M]

    def fit(events: pl.DataFrame, name: str) -> bt.Recommender:
        folder = options.runs / name if options.runs else None
        if folder and folder.exists():
            return bt.Recommender.load(folder)
        began = time.perf_counter()
        shop = bt.Recommender(seed=0, steps=options.steps, refit=False)
        shop.fit(events, split="halves", val_users=500, test_users=0, verbose=False)
        print(f"  fitted in {time.perf_counter() - began:.0f} s", flush=True)
        if folder:
            shop.save(folder)
        return shop

    def with_features(shop: bt.Recommender, about: pl.DataFrame) -> bt.Recommender:
        began = time.process_time()
        shop.update_items(about)
        print(f"  used features in {time.process_time() - began:.0f} s of CPU time", flush=True)
        return shop

    histories = log.filter("test").group_by("user", maintain_order=True)
    histories = histories.agg(history=pl.col("item").filter(~pl.col("later")))
    shop = fit(fitted, "all")
    known = whole_table.filter(pl.col("item").is_in(shop.ids.names))
    random = known.select("item", colour=draw.integers(0, 50, len(known)), size=draw.random(len(known)))
    popular = fitted.group_by("item").len().sort("len", "item", descending=True)["item"].head(max(M)).to_list()
    of_all = {TRAINED: found_by(shop, histories)}
    of_all[f"{TRAINED}, and random features"] = found_by(with_features(copy(shop), random), histories)
    of_all[f"{TRAINED}, and features"] = found_by(with_features(shop, known), histories)
    of_all["popular items, with their events"] = [popular] * len(histories)
    for number in range(options.draws):
        new = names.gather(order[number * size : (number + 1) * size])
        is_new, before = pl.col("item").is_in(new.implode()), fitted.filter(~pl.col("item").is_in(new.implode()))
        print(f"draw {number}: {len(new):,} of {len(names):,} items are new, with "
              f"{1 - len(before) / len(fitted):.1%} of the events", flush=True)  # fmt: skip
        table = whole_table.filter(pl.col("item").is_in(pl.concat([fitted["item"], new]).unique().implode()))
        shop = fit(before, f"draw {number}")
        lists = {**of_all, "not known": found_by(shop, histories)}
        lists["by features"] = found_by(with_features(shop, table), histories)
        lists["content kNN"] = content_neighbours(table, histories)
        if lightfm:
            lists["LightFM"] = lightfm_lists(before, table, histories)
        wanted = {"new": is_new, "others": ~is_new, "rare": ~is_new & ~pl.col("item").is_in(frequent)}
        later = log.filter("test").group_by("user", maintain_order=True)
        tests = later.agg(pl.col("item").filter(pl.col("later") & kind).unique().alias(name)
                          for name, kind in wanted.items())  # fmt: skip
        for row, found in lists.items():
            for kind in wanted:
                pairs = zip(found, map(set, tests[kind].to_list()), strict=True)
                values = [
                    [len(items & set(best[:m])) / len(items) if items else torch.nan for m in M]
                    for best, items in pairs
                ]
                recalls.setdefault((row, kind), []).append(torch.tensor(values))
            shown = (100 * recalls[row, kind][-1].nanmean(0) for kind in wanted)
            text = "   ".join(" ".join(f"{value:6.2f}" for value in values.tolist()) for values in shown)
            print(f"{row:46} new, others, rare {text}", flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(records_of(options.log.stem, recalls), indent=1) + "\n")


def records_of(log: str, recalls: dict[tuple[str, str], list[torch.Tensor]]) -> list[dict[str, object]]:
    """The mean recall of each row over the draws, and how much less is found than by training, with intervals."""
    records: list[dict[str, object]] = []
    for (row, kind), draws in recalls.items():
        trained = recalls[TRAINED, kind]
        values, base = weighted(draws), weighted(trained)
        lost = (base - values) / base.mean(0)
        bounds = [*bootstrap(values), *bootstrap(lost)]
        shares = [each.nanmean(0) / other.nanmean(0) for each, other in zip(draws, trained, strict=True)]
        for index, m in enumerate(M):
            low, high, lost_low, lost_high = (float(bound[index]) for bound in bounds)
            record = {"log": log, "row": row, "items": kind, "metric": "recall", "m": m}
            record |= {"value": float(values[:, index].mean()), "low": low, "high": high, "users": len(values)}
            record |= {"lost": float(lost[:, index].mean()), "lost_low": lost_low, "lost_high": lost_high}
            records.append(record | {"share_of_trained": [float(share[index]) for share in shares]})
    return records


def weighted(draws: list[torch.Tensor]) -> torch.Tensor:
    """Values of users whose mean is the mean over the draws, each the mean over users with such items [users, M]."""
    some = [(~each.isnan()).double() for each in draws]
    return torch.stack([each.nan_to_num() * real / real.mean(0) for each, real in zip(draws, some, strict=True)]).mean(
        0
    )


def found_by(shop: bt.Recommender, tests: pl.DataFrame) -> Lists:
    """The best 200 items for each history; an item that the model does not have is left out of it."""
    lists = []
    for batch in tests.iter_slices(250):
        x = pad_histories([shop.ids.find_known(history) for history in batch["history"].to_list()], HISTORY)
        items, _ = retrieve(shop.model, x, beam_size=400, m=max(M))
        lists += [[shop.ids.name(item) for item in row if item >= 0] for row in items.tolist()]
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


DIM, EPOCHS, TRIALS, VALIDATION = 64, 5, 2, 500  # of LightFM: numbers of a vector, epochs of a trial, validation users


def lightfm_lists(before: pl.DataFrame, table: pl.DataFrame, tests: pl.DataFrame) -> Lists:
    """LightFM (WARP): a vector for each item of the log and for each feature, and one for each user.

    It cannot read histories of other users, so the test users are part of its log, with their histories. So are
    validation users, with the first halves of their events: the number of epochs is that with which the most of the
    second halves is found among 50.
    """
    position, count = pl.int_range(pl.len()).over("user"), pl.len().over("user")
    last = before["user"].unique().sort().tail(VALIDATION)
    hidden = before.filter(pl.col("user").is_in(last.implode()) & (position >= count // 2))
    histories = tests.select("user", item="history").explode("item").join(before.select("item").unique(), on="item")
    events = pl.concat([before.select("user", "item"), histories]).unique().sort("user", "item")
    events = events.join(hidden, on=["user", "item"], how="anti").join(table.select("item"), on="item")
    users, items = (pl.concat([events[name], more]).unique(maintain_order=True)
                    for name, more in (("user", tests["user"]), ("item", table["item"])))  # fmt: skip
    row, column = (events[name].replace_strict(names, range(len(names))).to_numpy()
                   for name, names in (("user", users), ("item", items)))  # fmt: skip
    shape = len(users), events["item"].n_unique()  # without new items, which would be its negatives
    log = scipy.sparse.coo_matrix((np.ones(len(row), np.float32), (row, column)), shape)
    about = pl.DataFrame({"item": items}).join(table, on="item", how="left", maintain_order="left")
    features = ItemFeatures.fit(about, leave_out=["item"])
    entries = features.transform(about)
    matrix = scipy.sparse.csr_matrix((entries.values, entries.columns, entries.offsets), (len(items), features.width))
    own = scipy.sparse.eye(len(items), log.shape[1])  # a feature for each item of the log
    matrix = scipy.sparse.hstack([own, matrix]).tocsr().astype(np.float32)

    def best(model: "lightfm.LightFM", some: list[str]) -> Lists:
        """The items with the highest scores, without those of the user's events."""
        numbers = pl.Series(some).replace_strict(users, range(len(users))).to_numpy()
        bias, vectors = model.get_item_representations(matrix)
        scores = model.get_user_representations()[1][numbers] @ vectors.T + bias
        scores[log.tocsr()[numbers].nonzero()] = -np.inf
        return [items.gather(each).to_list() for each in torch.from_numpy(scores).topk(max(M)).indices.numpy()]

    wanted = hidden.group_by("user").agg(pl.col("item").unique())
    model = lightfm.LightFM(no_components=DIM, loss="warp", random_state=0)
    trials = []
    for trial in range(1, TRIALS + 1):
        model.fit_partial(log, item_features=matrix[: log.shape[1]], epochs=EPOCHS)
        found = zip(best(model, wanted["user"].to_list()), wanted["item"].to_list(), strict=True)
        recall = float(np.mean([len(set(some[:50]) & set(items)) / len(items) for some, items in found]))
        print(f"  LightFM after {trial * EPOCHS} epochs: {100 * recall:.2f}", flush=True)
        trials.append((recall, best(model, tests["user"].to_list())))
    _, lists = max(trials, key=lambda trial: trial[0])
    seen = map(set, tests["history"].to_list())
    return [[item for item in some if item not in known] for some, known in zip(lists, seen, strict=True)]


if __name__ == "__main__":
    main()

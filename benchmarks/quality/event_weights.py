"""What weights of events bring: recall of what users liked or bought, with weights and without, beside other models.

    python benchmarks/quality/event_weights.py movielens-1m.parquet --weight rating --dislike 2 --target 4
        --out ratings.json
    python benchmarks/quality/event_weights.py --market --out purchases.json

A fifth of the users tests. The first half of a test user's events is the history, and the items of the target in the
second half that were not seen before are to be found. Every row sees the same users and the same targets. Settings of
implicit and EASE are chosen on validation users by recall@50.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from implicit.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

import beamtree as bt
from beamtree.beam import retrieve
from beamtree.data import HISTORY
from beamtree.evaluate.metrics import bootstrap
from beamtree.ingest.simulate import simulate
from beamtree.query import pad_histories
from beamtree.query.history import pad_rows

M = (10, 50, 200)
KINDS = {"view": 1.0, "cart": 3.0, "buy": 10.0}
Rows = list[list[int]]
Find = Callable[[Rows, Rows, list[list[float]]], np.ndarray]  # histories, items to leave out, weights -> items [U, 200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?")
    parser.add_argument("--market", action="store_true", help="a made-up market of views, carts and purchases")
    parser.add_argument("--weight", default="rating")
    parser.add_argument("--dislike", type=float)
    parser.add_argument("--target", default="4")
    parser.add_argument("--users", type=int, default=1000, help="that test, and as many validate")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.market:
        log, reading, name = made_up_market(), {"kinds": KINDS, "target": "buy"}, "made-up market"
    else:
        log = pl.read_parquet(options.log).select("user", "item", "timestamp", kind=options.weight)
        reading = {"weight": "kind", "dislike": options.dislike, "target": float(options.target)}
        name = Path(options.log).stem
    value = pl.col("kind").replace_strict(KINDS, return_dtype=pl.Float64) if options.market else pl.col("kind")
    wanted = pl.col("kind") == "buy" if options.market else pl.col("kind") >= float(options.target)
    log = log.sort("user", "timestamp", maintain_order=True).with_columns(value=value.cast(pl.Float64), wanted=wanted)
    position, count = pl.int_range(pl.len()).over("user"), pl.len().over("user")
    log = log.with_columns(later=position >= count // 2, seen=pl.col("item").cum_count().over("user", "item") > 1)
    can_test = log.group_by("user", maintain_order=True).agg(
        ok=((pl.col("later") & pl.col("wanted") & ~pl.col("seen")).any()) & (pl.len() >= 10)
    )
    eligible = can_test.filter("ok")["user"].shuffle(seed=0)
    test, val = (set(eligible[start : start + options.users].to_list()) for start in (0, options.users))
    fitted = log.filter(~pl.col("user").is_in(list(test)))
    least = options.dislike or 0.0
    judge = Judge(log, test, least)
    results: dict[str, torch.Tensor] = {}

    def run(row: str, find: Find, ids: dict[str, int], drop: bool) -> None:
        results[row] = judge.recalls(find, ids, drop)
        print(f"{row:42}", " ".join(f"{100 * value:.2f}" for value in results[row].mean(0).tolist()), flush=True)

    columns = ["user", "item", "timestamp", "kind"]
    ours = {
        "beamtree, all events the same": ({}, False),
        "beamtree, weights": ({**reading, "target": None, "dislike": None}, False),
        "beamtree, target": ({**reading, "dislike": None}, False),
    }
    if options.dislike:
        ours["beamtree, target and dislikes"] = (reading, True)
    for row, (how, drop) in ours.items():
        given = {key: each for key, each in how.items() if each is not None}
        shop = bt.Recommender(seed=0, refit=False)
        shop.fit(
            fitted.select(columns), split="halves", val_users=options.users // 2, test_users=0, verbose=False, **given
        )
        run(row, search_of(shop), {name: number for number, name in enumerate(shop.ids.names)}, drop)
    own = Matrix(fitted.filter(~pl.col("user").is_in(list(val))), least)
    val_judge = Judge(log, val, least)
    for row, values, drop in (
        ("implicit ALS, all events the same", None, False),
        ("implicit ALS, weights", "value", True),
        ("EASE, all events the same", None, False),
        ("EASE, only the target", "wanted", True),
    ):
        grid = ALS_GRID if row.startswith("implicit") else EASE_GRID
        make = implicit_als if row.startswith("implicit") else ease
        matrix, unit = own.of(values)
        if make is ease and matrix.shape[1] > 20_000:
            continue
        trials = [(make(matrix, unit, **settings), settings) for settings in grid]
        scores = [float(val_judge.recalls(find, own.ids, drop)[:, 1].mean()) for find, _ in trials]
        best, settings = trials[int(np.argmax(scores))]
        print(f"  {settings}")
        run(row, best, own.ids, drop)
    records = []
    for row, values in results.items():
        low, high = bootstrap(values)
        for index, m in enumerate(M):
            mean = float(values[:, index].mean())
            records.append({"log": name, "row": row, "metric": "recall", "m": m, "value": mean})
            records[-1] |= {"low": float(low[index]), "high": float(high[index]), "users": len(values)}
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n")


class Judge:
    """Histories of some users, and what they are to find."""

    def __init__(self, log: pl.DataFrame, users: set[object], least: float) -> None:
        rows = log.filter(pl.col("user").is_in(list(users)))
        item = pl.col("item").cast(pl.String)
        before, target = ~pl.col("later"), pl.col("later") & pl.col("wanted") & ~pl.col("seen")
        liked = before & (pl.col("value") > least)
        self.users = rows.group_by("user", maintain_order=True).agg(
            history=item.filter(before), liked=item.filter(liked), target=item.filter(target),
            worth_history=pl.col("value").filter(before), worth_liked=pl.col("value").filter(liked),
        )  # fmt: skip

    def recalls(self, find: Find, ids: dict[str, int], drop: bool) -> torch.Tensor:
        """The recall of each user [U, 3]; `drop` leaves dislikes out of the histories."""
        parts = []
        for start in range(0, len(self.users), 256):
            some = self.users[start : start + 256]
            name = "liked" if drop else "history"
            history, seen = ([[ids[i] for i in row if i in ids] for row in some[each]] for each in (name, "history"))
            known = zip(some[name], some[f"worth_{name}"], strict=True)
            worth = [[value for i, value in zip(*row, strict=True) if i in ids] for row in known]
            items = find(history, seen, worth)
            for row, target in zip(items, some["target"], strict=True):
                wanted = {ids.get(i, -2) for i in target.to_list()}
                hits = np.cumsum([item in wanted for item in row.tolist()])
                parts.append([hits[min(m, len(hits)) - 1] / len(set(target.to_list())) for m in M])
        return torch.tensor(parts)


def search_of(shop: bt.Recommender) -> Find:
    def find(histories: Rows, seen: Rows, worth: list[list[float]]) -> np.ndarray:
        exclude = pad_rows(seen, max(1, *map(len, seen)))
        items, _ = retrieve(shop.model, pad_histories(histories, HISTORY), beam_size=400, m=max(M), exclude=exclude)
        return items.numpy()

    return find


class Matrix:
    """Users by items, with weights."""

    def __init__(self, log: pl.DataFrame, least: float) -> None:
        self.log, self.least = log.with_columns(item=pl.col("item").cast(pl.String)), least
        names = self.log["item"].unique().sort()
        self.ids = {name: number for number, name in enumerate(names)}
        self.rows = {user: number for number, user in enumerate(self.log["user"].unique().sort())}

    def of(self, values: str | None) -> tuple[csr_matrix, float | None]:
        """The matrix, and the weight that is 1 in it; None where all are."""
        rows = self.log if values is None else self.log.filter(pl.col("value") > self.least)
        if values == "wanted":
            rows = rows.filter("wanted")
        worth = pl.lit(1.0) if values != "value" else pl.col("value")
        rows = rows.group_by("user", "item").agg(worth=worth.max())
        where = [self.rows[user] for user in rows["user"]], [self.ids[item] for item in rows["item"]]
        matrix = csr_matrix((rows["worth"].to_numpy(), where), (len(self.rows), len(self.ids)), dtype=np.float32)
        unit = float(matrix.data.mean())
        matrix.data /= unit
        return matrix, unit if values == "value" else None


ALS_GRID = [
    {"factors": 128, "alpha": alpha, "regularization": penalty}
    for alpha in (1.0, 5.0, 20.0)
    for penalty in (0.05, 1.0, 10.0)
]
EASE_GRID = [{"penalty": penalty} for penalty in (100.0, 300.0, 1000.0, 3000.0)]


def implicit_als(matrix: csr_matrix, unit: float | None, **settings: float) -> Find:
    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(iterations=10, use_gpu=False, random_state=0, **settings)
        model.fit(matrix, show_progress=False)

    def find(histories: Rows, seen: Rows, worth: list[list[float]]) -> np.ndarray:
        """Histories have the weights of the matrix, if it has any."""
        rows = indicator(histories, matrix.shape[1])
        if unit is not None:
            rows = weighted(histories, worth, matrix.shape[1], unit)
        with threadpool_limits(1, "blas"):
            factors = np.stack([model.recalculate_user(0, rows[row]) for row in range(len(histories))])
        return best_of(factors @ model.item_factors.T, seen)

    return find


def ease(matrix: csr_matrix, unit: float | None, penalty: float) -> Find:
    gram = (matrix.T @ matrix).toarray()
    gram[np.diag_indices(len(gram))] += penalty
    inverse = np.linalg.inv(gram)
    weights = inverse / -np.diag(inverse)
    weights[np.diag_indices(len(gram))] = 0
    return lambda histories, seen, worth: best_of(indicator(histories, matrix.shape[1]) @ weights, seen)


def indicator(rows: Rows, size: int) -> csr_matrix:
    index = [(number, item) for number, row in enumerate(rows) for item in set(row)]
    where = tuple(zip(*index, strict=True)) or ((), ())
    return csr_matrix((np.ones(len(index), np.float32), where), (len(rows), size))


def weighted(rows: Rows, worth: list[list[float]], size: int, unit: float) -> csr_matrix:
    """The largest weight of each item of a history."""
    largest: dict[tuple[int, int], float] = {}
    for number, (row, values) in enumerate(zip(rows, worth, strict=True)):
        for item, value in zip(row, values, strict=True):
            largest[number, item] = max(largest.get((number, item), 0.0), value / unit)
    where = tuple(zip(*largest, strict=True)) or ((), ())
    return csr_matrix((np.array(list(largest.values()), np.float32), where), (len(rows), size))


def best_of(scores: np.ndarray, seen: Rows) -> np.ndarray:
    for row, items in zip(scores, seen, strict=True):
        row[items] = -np.inf
    return np.argsort(-scores, axis=1)[:, : max(M)]


def made_up_market() -> pl.DataFrame:
    """Views of the simulated market, of which some become carts and purchases: items differ in how often they do."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        simulate(Path(folder) / "log.parquet", users=10_000, items=5_000, events=400_000, seed=0)
        log = pl.read_parquet(Path(folder) / "log.parquet")
    generator = np.random.default_rng(0)
    items = log["item"].unique().sort()
    appeal = pl.DataFrame({"item": items, "appeal": generator.normal(size=len(items))})
    log = log.join(appeal, on="item", how="left", maintain_order="left")
    chance = pl.Series(generator.random(len(log)))
    odds = 1 / (1 + np.exp(-(1.5 * log["appeal"].to_numpy() - 2.5)))
    kind = np.where(chance < 0.5 * odds, "buy", np.where(chance < odds, "cart", "view"))
    time = "timestamp" if "timestamp" in log.columns else "time"
    return log.select("user", "item", timestamp=time, kind=pl.Series(kind))


if __name__ == "__main__":
    main()

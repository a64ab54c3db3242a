"""Random requests with random filters and rules on a simulated market, each checked against the definition.

An answer is short if it has fewer items than the rules leave room for, and broken if an item is not allowed, twice
there, over a limit, not at the place of its pin, or has another score. All probabilities are computed for every item,
and the most items that two limits leave room for by SciPy. It is also counted how many answers are exactly those of the
definition, which the beam does not promise.

    python benchmarks/quality/random_rules.py --out results/rules.json
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import maximum_flow

import beamtree as bt
from beamtree.data import HISTORY
from beamtree.ingest.simulate import items_file, simulate
from beamtree.query.history import pad_histories
from beamtree.query.rules import POOL

COLUMNS = ("category", "brand")
BATCH = 250  # requests whose items are all scored together
TOLERANCE = 1e-3  # relative: one search adds up the parts of a score in another order than the other


class Request(NamedTuple):
    """The arguments of `recommend`, and what they mean for each item."""

    history: list[str]
    options: dict[str, Any]
    rules: dict[str, Any]
    allowed: np.ndarray  # by the filter and the history [M]
    factors: np.ndarray  # the product of the boosts [M]


class Shop:
    """A model of a simulated market with attributes of its items."""

    def __init__(self, users: int, items: int, events: int, seed: int) -> None:
        draws = np.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "market.parquet"
            simulate(log, users=users, items=items, events=events, seed=seed)
            table = pl.read_parquet(items_file(log))
            brands = [None if n % 9 == 0 else f"brand {n}" for n in (draws.zipf(1.3, len(table)) % 60).tolist()]
            price = np.round(draws.lognormal(3, 1, len(table)), 2)
            table = table.with_columns(brand=pl.Series(brands, dtype=pl.String), price=pl.Series(price))
            self.model = bt.Recommender(steps=0, seed=seed, items=table).fit(
                log, split="halves", test_users=0, verbose=False
            )
        self.ids = self.model.ids
        rows = pl.DataFrame({"item": self.ids.names}).join(table, on="item", how="left", maintain_order="left")
        self.columns: dict[str, np.ndarray] = {name: rows[name].to_numpy() for name in (*COLUMNS, "price")}
        self.numbers = {name: (rows[name].rank("dense").cast(pl.Int64).fill_null(0) - 1).to_numpy() for name in COLUMNS}

    def draw(self, draws: np.random.Generator) -> Request:
        """A random request."""
        count, names = len(self.ids), self.ids.names

        def some(most: int) -> list[str]:
            return [names[item] for item in draws.integers(0, count, draws.integers(0, most + 1))]

        history = [] if draws.random() < 0.1 else some(10)
        m = int(draws.choice([1, 5, 10, 20, 50]))
        options: dict[str, Any] = {"m": m, "exclude_seen": bool(draws.random() < 0.5)}
        options["beam_size"] = max(m, int(draws.choice([10, 50, 400])))
        allowed = np.ones(count, bool)
        if draws.random() < 0.6:
            options["where"], allowed = self.condition(draws)
        if draws.random() < 0.2:
            options["exclude"] = some(200)
            allowed &= ~np.isin(names, options["exclude"])
        if options["exclude_seen"]:
            allowed &= ~np.isin(names, history)
        boosts, factors = list[dict[str, Any]](), np.ones(count)
        for _ in range(int(draws.integers(0, 4))):
            boost: dict[str, Any] = {"factor": float(draws.choice([0.01, 0.5, 2.0, 100.0]))}
            if draws.random() < 0.5:
                boost["where"], matches = self.condition(draws)
            else:
                boost["items"] = some(50) or [names[0]]
                matches = np.isin(names, boost["items"])
            boosts.append(boost)
            factors *= np.where(matches, boost["factor"], 1.0)
        columns = draws.permutation(COLUMNS)[: draws.integers(0, 3)]
        at_most = {str(column): int(draws.integers(1, 4)) for column in columns}
        pins = {int(place): name for place, name in zip(draws.permutation(m + 3) + 1, set(some(4)), strict=False)}
        diversity = float(draws.choice([0, 0, 0.1, 0.5, 1]))
        rules = {"boosts": boosts, "at_most": at_most, "pins": pins, "diversity": diversity}
        return Request(history, options, rules, allowed, factors)

    def condition(self, draws: np.random.Generator) -> tuple[str, np.ndarray]:
        """A random expression, and which items it is true for."""
        parts = []
        for kind in draws.permutation(3)[: draws.integers(1, 3)].tolist():
            if kind == 0:
                limit = float(np.round(draws.lognormal(3, 1.5), 2))
                parts.append((f"price < {limit}", self.columns["price"] < limit))
            elif kind == 1:
                brands = sorted({f"brand {number}" for number in draws.integers(1, 60, draws.integers(1, 20))})
                quoted = ", ".join(f"'{brand}'" for brand in brands)
                parts.append((f"brand in ({quoted})", np.isin(self.columns["brand"].astype(str), brands)))
            else:
                step = int(draws.integers(0, 4))
                path = self.columns["category"].astype(str)
                parts.append((f"starts_with(category, '{step}/')", np.char.startswith(path, f"{step}/")))
        return " and ".join(text for text, _ in parts), np.logical_and.reduce([passes for _, passes in parts])

    def probabilities(self, histories: list[list[str]]) -> np.ndarray:
        """By which items are ranked for each history [B, M]."""
        model = self.model.model
        numbers = [self.ids.find_known(history) for history in histories]
        items, log_p = bt.brute_force(model, pad_histories(numbers, HISTORY), m=len(self.ids))
        result = np.zeros(items.shape)
        np.put_along_axis(result, items.numpy(), log_p.exp().numpy(), 1)
        assert model.popularity is not None
        result[[not row for row in numbers]] = (model.popularity / model.popularity.sum()).numpy()
        return result

    def room(self, items: np.ndarray, counts: dict[str, Counter[int]], limits: dict[str, int]) -> int:
        """The largest number of some items that limits leave room for, where some of each value are there already."""
        if len(limits) < 2:
            total = len(items)
            for column, limit in limits.items():
                values = Counter(self.numbers[column][items].tolist())
                total = values[-1] + sum(
                    min(count, limit - counts[column][value]) for value, count in values.items() if value >= 0
                )
            return total
        if not len(items):
            return 0
        (left, most_left), (right, most_right) = limits.items()
        pairs = Counter(zip(self.numbers[left][items].tolist(), self.numbers[right][items].tolist(), strict=True))
        first = {value: 2 + index for index, value in enumerate(sorted({a for a, _ in pairs}))}
        second = {value: 2 + len(first) + index for index, value in enumerate(sorted({b for _, b in pairs}))}
        edges = [(first[a], second[b], count) for (a, b), count in pairs.items()]
        everything = len(items)
        edges += [(0, n, everything if a < 0 else most_left - counts[left][a]) for a, n in first.items()]
        edges += [(n, 1, everything if b < 0 else most_right - counts[right][b]) for b, n in second.items()]
        start, end, capacity = (np.array(column, np.int32) for column in zip(*edges, strict=True))
        size = 2 + len(first) + len(second)
        return int(maximum_flow(coo_matrix((capacity, (start, end)), (size, size)).tocsr(), 0, 1).flow_value)

    def check(self, request: Request, answer: pl.DataFrame, p: np.ndarray) -> tuple[bool, str, bool | None]:
        """Whether an answer is short, how it is broken, and whether it is the definition's, if that was computed.

        `p` are the probabilities of all items for the history [M].
        """
        items = np.array(self.ids.find_known(answer["item"].to_list()), np.int64)
        m, limits = request.options["m"], request.rules["at_most"]
        scores = p * request.factors
        counts = {column: Counter[int]() for column in limits}

        def has_room(item: int) -> bool:
            values = {column: int(self.numbers[column][item]) for column in limits}
            return all(value < 0 or counts[column][value] < limits[column] for column, value in values.items())

        def use(item: int) -> None:
            for column in limits:
                counts[column][int(self.numbers[column][item])] += 1

        pins: dict[int, int] = {}
        for place, name in sorted(request.rules["pins"].items()):
            (item,) = self.ids.find([name])
            if place <= m and item is not None and request.allowed[item] and has_room(item):
                pins[place] = item
                use(item)
        others = request.allowed.copy()
        others[list(pins.values())] = False
        room = {column: counter.copy() for column, counter in counts.items()}
        size = min(m, len(pins) + self.room(others.nonzero()[0], room, limits))
        broken = ""
        if len(set(items.tolist())) < len(answer):
            broken = "an item is there twice"
        elif not request.allowed[items].all():
            broken = "an item is not allowed"
        elif any(
            count > limits[column]
            for column in limits
            for value, count in Counter(self.numbers[column][items].tolist()).items()
            if value >= 0
        ):
            broken = "a limit is exceeded"
        elif not set(pins.values()) <= set(items.tolist()):
            broken = "a pin is missing"
        elif any(items[place - 1] != item for place, item in pins.items() if place <= size - len(pins)):
            broken = "a pin is elsewhere"
        elif not np.allclose(answer["score"].to_numpy(), scores[items], rtol=TOLERANCE, atol=1e-9):
            broken = "a score is wrong"
        short = len(items) < size
        if short or broken or (len(limits) == 2 and request.rules["diversity"]):
            return short, broken, None
        expected = self.definition(request, scores, others, pins, counts, m)
        if len(expected) < size:  # an item took the room of two others: the order then looks ahead
            return short, broken, None
        return short, broken, bool(np.allclose(scores[expected], scores[items], rtol=TOLERANCE))

    def definition(
        self,
        request: Request,
        scores: np.ndarray,
        others: np.ndarray,
        pins: dict[int, int],
        counts: dict[str, Counter[int]],
        m: int,
    ) -> list[int]:
        """The answer of the definition, from the scores of all items, without looking ahead."""
        limits, d = request.rules["at_most"], request.rules["diversity"]
        order = others.nonzero()[0]
        order = order[np.argsort(-scores[order], kind="stable")]
        best = scores[order[0]] if len(order) else 1.0
        answer, left = list[int](), sorted(pins.items())
        while len(answer) < m:
            fits = np.ones(len(order), bool)
            for column, limit in limits.items():
                full = [value for value, count in counts[column].items() if value >= 0 and count >= limit]
                fits &= ~np.isin(self.numbers[column][order], full)
            pool = order[fits][: POOL if d else 1]
            if left and (left[0][0] <= len(answer) + 1 or not len(pool)):
                answer.append(left.pop(0)[1])
                continue
            if not len(pool):
                break
            item = int(pool[0])
            if d and answer:
                similar = (self.units[pool] @ self.units[answer].T).max(1)
                item = int(pool[((1 - d) * scores[pool] / (best or 1.0) - d * similar).argmax()])
            answer.append(item)
            order = order[order != item]
            for column in limits:
                counts[column][int(self.numbers[column][item])] += 1
        return answer

    @property
    def units(self) -> np.ndarray:
        if not hasattr(self, "_units"):
            vectors = self.model.model.vectors_of(torch.arange(len(self.ids))).double().numpy()
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            self._units = vectors / np.where(lengths > 0, lengths, 1.0)
        return self._units


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shop, draws = Shop(args.users, args.items, args.events, args.seed), np.random.default_rng(args.seed + 1)
    counts, answer = Counter[str](), pl.DataFrame()
    seconds: dict[str, list[float]] = {"new_rules": [], "same_rules": [], "no_rules": []}
    for first in range(0, args.requests, BATCH):
        requests = [shop.draw(draws) for _ in range(min(BATCH, args.requests - first))]
        p = shop.probabilities([request.history for request in requests])
        for index, request in enumerate(requests):
            for name, measured in seconds.items():
                if name != "new_rules" and index % 10:  # a tenth is enough to measure time
                    continue
                rules = None if name == "no_rules" else request.rules
                start = time.perf_counter()
                found = shop.model.recommend(request.history, **request.options, rules=rules)
                measured.append(time.perf_counter() - start)
                answer = found if name == "new_rules" else answer
            short, broken, exact = shop.check(request, answer, p[index])
            beam = "wide" if request.options["beam_size"] == 400 else "narrow"
            counts["short"] += short
            counts["broken"] += bool(broken)
            counts["fewer than m"] += len(answer) < request.options["m"]
            counts[f"compared, {beam} beam"] += exact is not None
            counts[f"exact, {beam} beam"] += bool(exact)
            if short or broken:
                print(f"request {first + index}: {broken or 'short'}: {request[:3]}", flush=True)
        print(f"{first + len(requests):,} requests: {dict(counts)}", flush=True)
    result = {
        "requests": args.requests,
        "items": len(shop.ids),
        "seed": args.seed,
        "counts": {name: counts[name] for name in sorted({*counts, "short", "broken"})},
        "milliseconds": {
            name: {"median": round(1000 * float(np.median(each)), 1), "p99": round(1000 * np.quantile(each, 0.99), 1)}
            for name, each in seconds.items()
        },
    }
    print(json.dumps(result))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

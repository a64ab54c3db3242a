"""Random filters put to the service's engine, from one allowed item to all, against brute force over all leaves.

An answer with fewer than m items, although m are allowed, is a fault; so is one that is not allowed. It also tells how
often a beam as narrow as m finds what brute force finds.

    python benchmarks/check_served_filters.py [--filters 10000] [--items 2000]
"""

import argparse
import math
import random
import sys

import torch
from bench_engine import a_model

import beamtree as bt
from beamtree.data.catalogue import Catalogue
from beamtree.query import Filter, RecommendRequest, Searcher, allowed_items, pad_histories


def a_filter(draw: random.Random, names: list[str]) -> Filter:
    """From one allowed item to all, less some, and of one category now and then."""
    size = min(len(names), int(math.exp(draw.uniform(0, math.log(len(names) + 1)))))
    allowed = tuple(draw.sample(names, size)) if draw.random() < 0.9 else None
    exclude = tuple(draw.sample(names, draw.choice((0, 0, 1, len(names) // 3))))
    return Filter(allowed, exclude, draw.choice((None, None, None, "even", "odd/third")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, model = random.Random(given.seed), a_model(given.items, "cpu")
    paths = [f"{'odd' if n % 2 else 'even'}/{'third' if n % 3 == 0 else 'other'}" for n in range(given.items)]
    catalogue = Catalogue(model.ids, [None] * given.items, list(paths))
    searcher = Searcher(model, model.ids, catalogue=catalogue)
    short = foreign = same = wanted = told = 0
    for _ in range(given.filters):
        only, m = a_filter(draw, model.ids.names), draw.choice((1, 10, 10, 50, 200))
        history = draw.sample(range(given.items), draw.randint(1, 30))
        seen = draw.random() < 0.3
        beam_size, ids = draw.choice((m, 2 * m, 400 + m)), [model.ids[n] for n in history]
        response = searcher.recommend(RecommendRequest([ids], None, m, beam_size, seen, only))
        found = [n for n in model.ids.find(response.results[0].items) if n is not None]
        allowed, hidden = allowed_items(only, model.ids, catalogue), torch.tensor([history]) if seen else None
        exact = bt.brute_force(model, pad_histories([history]), m=m, allowed=allowed, exclude=hidden)[0][0]
        best = {n for n in exact.tolist() if n != bt.PAD}
        may = set(allowed.tolist()) - (set(history) if seen else set())
        short += len(found) != min(m, len(may)) or len(found) != len(best)
        foreign += not set(found) <= may
        told += response.short
        same, wanted = same + len(best & set(found)), wanted + len(best)
    print(f"{given.filters:,} filters over {given.items:,} items: {short} answers too short, {foreign} not allowed")
    print(f"the counter of short answers stands at {told}; {same / wanted:.1%} of the items are those of brute force")
    return 1 if short or foreign or told else 0


if __name__ == "__main__":
    sys.exit(main())

"""Recall against milliseconds: a tree under beams of many widths beside exact iALS, iALS with HNSW, EASE and user kNN.

    beamtree train prepared/amazon-books-unordered --out runs/amazon
    python benchmarks/bench_pareto.py runs/amazon --json results/bench_pareto.json && python docs/fill.py

One query at a time, one thread, all in one run. iALS uses the factors of the tree's model and leaves out seen items;
the others are tuned on the validation users, and so is whether they do. EASE is the approximation with the strongest
partners of each item: its exact solution does not fit into memory.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import torch
from torch import Tensor

import beamtree as bt
from beamtree.evaluate import leaving_out, measure
from beamtree.research.baselines import build
from beamtree.research.baselines.two_tower import HNSWIndex
from beamtree.scorers import FactorScorer, SumScorer

M, BEAMS, BREADTHS = 20, (20, 50, 100, 200, 400, 800), (20, 50, 100, 200, 400, 800)
TIMED = 200  # users whose queries are timed
Find = Callable[[Tensor, Tensor], Tensor]


class IALSSearch:
    """iALS with the vectors of a tree's leaves, searched exactly or by HNSW."""

    def __init__(self, model: bt.TreeModel, part: FactorScorer) -> None:
        self.model, self.part = model, part
        self.items = part.item_vectors(model.tree)
        self.graph = HNSWIndex(self.items)

    def user(self, x: Tensor) -> Tensor:
        """The vector of each history."""
        user: Tensor = self.part.context(self.model.tree, x).user
        return user

    def exact(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        best = (self.user(x) @ self.items.T).topk(m)
        return best.indices, best.values

    def hnsw(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        scores, items = self.graph.search(self.user(x).numpy(), m)
        return torch.from_numpy(items), torch.from_numpy(scores)


def milliseconds(find: Find, data: bt.data.Prepared) -> float:
    """The median over single queries."""
    users = [data.test.batch(torch.tensor([row]))[0] for row in range(min(TIMED, len(data.test)))]
    warm_up, times = users[:20], []
    for x in [*warm_up, *users]:
        start = time.perf_counter()
        find(x, x[:, :0])
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[len(warm_up) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--peers", default="ease,user-knn")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)  # for the tuning; one while queries are timed
    shop = bt.Recommender.load(args.run)
    model, data, records = shop.model.eval(), shop.data, []
    scorer = model.scorer
    assert isinstance(scorer, SumScorer)
    factors = scorer.part("factors")
    assert isinstance(factors, FactorScorer)

    def record(row: str, width: int | None, find: Find) -> None:
        torch.set_num_threads(1)
        faiss.omp_set_num_threads(1)
        ms = milliseconds(find, data)
        torch.set_num_threads(2)
        faiss.omp_set_num_threads(2)
        scores = measure(find, data.test, m=M, metrics="recall")
        cell: dict[str, Any] = {"row": row, "width": width, "ms": ms, "recall": scores["recall", M]}
        records.append({**cell, "low": scores.scores[0].low, "high": scores.scores[0].high})
        print(f"{row:14s} {width or '':>5} {ms:8.2f} ms  recall@{M} {scores['recall', M]:.2%}", flush=True)

    peers = [name for name in args.peers.split(",") if name]
    built = {name: build(name, data.train.events, data.num_items, data.val) for name in peers}
    ials = IALSSearch(model, factors)
    print("All are fitted; measuring", flush=True)
    for k in BEAMS:
        record("beamtree", k, lambda x, _, k=k: bt.retrieve(model, x, beam_size=k, m=M)[0])  # type: ignore[misc]
    hnsw, exact = leaving_out(ials.hnsw, M), leaving_out(ials.exact, M)
    for breadth in BREADTHS:
        ials.graph._index.hnsw.efSearch = breadth
        record("iALS, HNSW", breadth, lambda x, _: hnsw(x, x))
    record("iALS, exact", None, lambda x, _: exact(x, x))
    for name, peer in built.items():
        record(name, None, lambda x, _, peer=peer: peer.retrieve(x, M)[0])  # type: ignore[misc]
    if args.json:
        about = {"items": data.num_items, "log": data.folder.name, "m": M, "threads": 1}
        args.json.write_text(json.dumps({**about, "cells": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Recall against milliseconds: a tree under beams of many widths beside the strongest alternatives on the same core.

    beamtree train prepared/amazon-books-unordered --out runs/amazon
    python benchmarks/speed/bench_pareto.py runs/amazon --json results/bench_pareto.json && python docs/fill.py

One query at a time, one thread, all in one run. iALS uses the factors of the tree's model: all products by BLAS, or an
HNSW graph by FAISS and by hnswlib. EASE is the approximation with the strongest partners of each item, as a product of
sparse matrices and in code compiled as ours is; its λ was chosen on validation users, as for the tree's model. User kNN
is tuned on them. Seen items are left out where the model does so.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import hnswlib
import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

import beamtree as bt
from beamtree.closed_form.cooccurrence import cooccurrence
from beamtree.closed_form.ridge import ridge_partners
from beamtree.data.csr import CSR
from beamtree.evaluate import leaving_out, measure
from beamtree.kernels.compiled_shared import compiled, select, sort
from beamtree.research.baselines import build
from beamtree.research.baselines.sparse import history_items, partner_matrix
from beamtree.research.baselines.two_tower import HNSWIndex
from beamtree.scorers import FactorScorer, as_sum
from beamtree.tree import PAD

M, BEAMS, BREADTHS, PARTNERS = 20, (20, 50, 100, 200, 400), (20, 50, 100, 200, 400, 800), (20, 50, 100, 200)
TIMED = 300  # users whose queries are timed
Find = Callable[[Tensor, Tensor], Tensor]


class IALSSearch:
    """iALS with the vectors of a tree's leaves, searched exactly or by HNSW."""

    def __init__(self, model: bt.TreeModel, part: FactorScorer, graphs: bool) -> None:
        self.model, self.part = model, part
        self.items = part.item_vectors(model.tree).float()
        if not graphs:
            return
        self.faiss = HNSWIndex(self.items)
        self.hnswlib = hnswlib.Index("ip", self.items.shape[1])
        self.hnswlib.init_index(len(self.items), ef_construction=200, M=32)
        self.hnswlib.add_items(self.items.numpy())
        self.hnswlib.set_num_threads(1)

    def user(self, x: Tensor) -> Tensor:
        """The vector of each history."""
        user: Tensor = self.part.prepare(self.model.tree, x).user
        return user

    def exact(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        best = (self.user(x) @ self.items.T).topk(m)
        return best.indices, best.values

    def by_faiss(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        scores, items = self.faiss.search(self.user(x).numpy(), m)
        return torch.from_numpy(items), torch.from_numpy(scores)

    def by_hnswlib(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        items, distances = self.hnswlib.knn_query(self.user(x).numpy(), m)
        return torch.from_numpy(items.astype(np.int64)), torch.from_numpy(-distances)


def sparse_ease(partners: CSR) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """EASE as the product of sparse matrices."""
    matrix: csr_matrix = partner_matrix(partners)

    def find(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        product = history_items(x, len(partners)) @ matrix
        items, scores = torch.full((len(x), m), PAD), torch.full((len(x), m), -torch.inf)
        for row in range(len(x)):
            span = slice(product.indptr[row], product.indptr[row + 1])
            values, columns = torch.from_numpy(product.data[span]), torch.from_numpy(product.indices[span])
            best = values.topk(min(m, len(values)))
            items[row, : len(best.values)] = columns[best.indices].long()
            scores[row, : len(best.values)] = best.values
        return items, scores

    return find


@compiled()
def add_partners(x, leave_out, offsets, partners, weights, total, found, values, items, scores):
    for row in range(len(x)):
        count = 0
        for t in range(x.shape[1]):
            item = x[row, t]
            if item == PAD:
                continue
            for entry in range(offsets[item], offsets[item + 1]):
                partner = partners[entry]
                if total[partner] == 0:
                    found[count] = partner
                    count += 1
                total[partner] += weights[entry]
        if leave_out:
            for t in range(x.shape[1]):
                if x[row, t] != PAD and total[x[row, t]] != 0:
                    total[x[row, t]] = -np.inf
        left = 0
        for i in range(count):
            partner, value = found[i], total[found[i]]
            total[partner] = 0
            if value > -np.inf:
                found[left], values[left] = partner, value
                left += 1
        kept = min(left, items.shape[1])
        if left > kept:
            select(found, values, left, kept)
        sort(found, values, kept)
        items[row, :kept], scores[row, :kept] = found[:kept], values[:kept]


def compiled_ease(partners: CSR, leave_out: bool) -> Find:
    """EASE with the partners of the history added up in compiled code."""
    assert partners.values is not None
    arrays = [part.numpy() for part in (partners.offsets, partners.columns, partners.values)]
    total, found = np.zeros(len(partners), np.float32), np.empty(len(partners.columns), np.int64)
    values = np.empty(len(found), np.float32)

    def find(x: Tensor, _: Tensor) -> Tensor:
        items, scores = np.full((len(x), M), PAD), np.empty((len(x), M), np.float32)
        add_partners(x.numpy(), leave_out, *arrays, total, found, values, items, scores)
        return torch.from_numpy(items)

    return find


def milliseconds(find: Find, users: list[Tensor]) -> float:
    """The median over single queries, after some that are not timed."""
    times = []
    for x in [*users[:20], *users]:
        start = time.perf_counter()
        find(x, x[:, :0])
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[20:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--peers", default="user-knn", help="baselines that are tuned; none with ''")
    parser.add_argument("--no-graphs", action="store_true", help="leave out HNSW, whose graphs take long to build")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)  # for the fits; one while queries are timed
    shop = bt.Recommender.load(args.run)
    model, data, records = shop.before_refit.eval(), shop.data, []
    scorer = as_sum(model.scorer)
    assert scorer is not None
    factors = scorer.part("factors")
    assert isinstance(factors, FactorScorer)
    own = scorer.hyperparameters["weights"]["repeats"] < 0  # whether histories are left out
    users = [data.test.batch(torch.tensor([row]))[0] for row in range(min(TIMED, len(data.test)))]

    def record(row: str, width: int | None, find: Find) -> None:
        torch.set_num_threads(1)
        faiss.omp_set_num_threads(1)
        ms = milliseconds(find, users)
        torch.set_num_threads(2)
        faiss.omp_set_num_threads(2)
        scores = measure(find, data.test, m=M, metrics="recall")
        cell: dict[str, Any] = {"row": row, "width": width, "ms": ms, "recall": scores["recall", M]}
        records.append({**cell, "low": scores.scores[0].low, "high": scores.scores[0].high})
        print(f"{row:16s} {width or '':>5} {ms:8.3f} ms  recall@{M} {scores['recall', M]:.2%}", flush=True)

    def record_peer(row: str, width: int | None, search: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> None:
        find = leaving_out(search, M)
        record(row, width, lambda x, _: find(x, x if own else x[:, :0]))

    built = {name: build(name, data.train.events, data.num_items, data.val) for name in args.peers.split(",") if name}
    ials = IALSSearch(model, factors, not args.no_graphs)
    slots = model.tree.items()
    gram = cooccurrence(data.train.events, data.num_items)
    penalty = scorer.hyperparameters["together, λ"]
    partners = ridge_partners(gram, slots[slots >= 0], penalty, max(PARTNERS))
    del gram
    print("All are fitted; measuring", flush=True)
    for k in BEAMS:
        record("beamtree", k, lambda x, _, k=k: bt.retrieve(model, x, beam_size=k, m=M)[0])  # type: ignore[misc]
    for most in PARTNERS:
        record_peer("EASE, sparse", most, sparse_ease(partners.head(most)))
        record("EASE, compiled", most, compiled_ease(partners.head(most), own))
    for breadth in () if args.no_graphs else BREADTHS:
        ials.faiss._index.hnsw.efSearch = breadth
        ials.hnswlib.set_ef(breadth)
        record_peer("iALS, FAISS", breadth, ials.by_faiss)
        record_peer("iALS, hnswlib", breadth, ials.by_hnswlib)
    record_peer("iALS, exact", None, ials.exact)
    for name, peer in built.items():
        record(name, None, lambda x, _, peer=peer: peer.retrieve(x, M)[0])  # type: ignore[misc]
    if args.json:
        about = {"items": data.num_items, "log": data.folder.name, "m": M, "threads": 1}
        args.json.write_text(json.dumps({**about, "cells": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The toy experiment (Sec. 4.1, supplement C.1): the regret of beam search given estimates of p(z_n = 1).

Table 1 shows DirEst at m = k, Table A.1 three estimators at every m ≤ k.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.builders import random_tree
from beamtree.data import toy
from beamtree.data.seeds import mix
from beamtree.model import TreeModel
from beamtree.research.paper.cells import Cell, cell, expected
from beamtree.scorers import FixedScorer
from beamtree.theory import on_leaves, optimal_prob, regret, relevance_odds, upward
from beamtree.tree import Tree

TITLES = {
    "table1": "Table 1: toy experiment, M = 1000, b = 2, DirEst, regret at m = k",
    "tableA1": "Table A.1: toy experiment, M = 1000, b = 2, regret at m ≤ k",
}
ITEMS = 1000
SAMPLES = (100, 1000, 10_000)
BEAMS = (1, 5, 10, 20, 50)

# (estimator, N, k, m). N is "inf" for p(z_n = 1) itself in float32, as the authors store it, and "inf-exact" for its
# exact order: in float32 it rounds to 1 in the upper tree and ties decide.
Samples = int | str
Key = tuple[str, Samples, int, int]


def one_run(seed: int) -> dict[Key, float]:
    """A fresh tree and fresh η, and the regret of beam search under each estimate."""
    eta = toy(ITEMS, seed=seed)
    tree = random_tree(ITEMS, seed=seed, admit_empty=True)
    generator = torch.Generator().manual_seed(mix(seed, 1))
    direct: dict[tuple[str, Samples], Tensor] = {}
    chained: dict[tuple[str, Samples], Tensor] = {}
    for count in SAMPLES:
        y = torch.rand(count, ITEMS, generator=generator) < eta
        relevant = upward(tree, on_leaves(tree, y, False), lambda v: v[..., 0] | v[..., 1])
        prob = relevant.float().mean(0)
        direct["DirEst", count] = prob
        chained["HierEst", count] = conditional(tree, prob)
        direct["OptEst", count] = optimal_prob(tree, y.float().mean(0))
    prob = 1 - upward(tree, on_leaves(tree, 1 - eta, 1.0), lambda v: v.prod(-1))
    direct["DirEst", "inf"] = prob
    chained["HierEst", "inf"] = conditional(tree, prob)
    # Down a path the conditional probabilities multiply to p(z_n = 1): in exact order both estimators are the same.
    direct["DirEst", "inf-exact"] = relevance_odds(tree, eta.double())
    direct["HierEst", "inf-exact"] = direct["DirEst", "inf-exact"]
    direct["OptEst", "inf"] = optimal_prob(tree, eta)
    # A direct model only compares logits, so probabilities can replace them. Float64 keeps float32's ties.
    values = {key: value.double() for key, value in direct.items()}
    return {**search(tree, eta, values, chained=False), **search(tree, eta, chained, chained=True)}


def conditional(tree: Tree, prob: Tensor) -> Tensor:
    """The logits of p(z_n = 1 | z_ρ(n) = 1) from p(z_n = 1) of every node."""
    nodes = torch.arange(tree.num_nodes)
    above = prob[tree.parent(nodes).clamp(min=0)]
    above[0] = 1.0  # the root has no parent
    return torch.logit((prob / above).nan_to_num(0.0))


def search(tree: Tree, eta: Tensor, estimates: dict[tuple[str, Samples], Tensor], *, chained: bool) -> dict[Key, float]:
    """Beam search under several estimates at once, one query each."""
    model = TreeModel(tree, FixedScorer(torch.stack(list(estimates.values()))), chained=chained)
    x = FixedScorer.every(len(estimates))
    truth = eta.expand(len(estimates), -1)
    regrets: dict[Key, float] = {}
    for k in BEAMS:
        items, _ = retrieve(model, x, beam_size=k, m=k)
        for m in (m for m in BEAMS if m <= k):
            values = regret(truth, items, m).tolist()
            for (estimator, samples), value in zip(estimates, values, strict=True):
                regrets[estimator, samples, k, m] = value
    return regrets


def tolerance(estimator: str, samples: Samples, k: int) -> float | None:
    """How far from the paper's number a cell may be: the paper's own runs vary this much."""
    if samples == "inf-exact":
        return None
    if samples == "inf":
        return 0.0 if estimator == "OptEst" else 0.010
    return 0.015 if k == 1 else 0.006


def toy_cells(table: str, runs: int, seed: int, on_runs: Callable[[int], None]) -> list[Cell]:
    """The cells of Table 1 or A.1. `on_runs` is called with the number of runs done since the last call."""
    regrets: dict[Key, list[float]] = {}
    for run in range(runs):
        for key, value in one_run(mix(seed, run)).items():
            regrets.setdefault(key, []).append(value)
        on_runs(1)
    samples = expected()[table]["N"]
    columns = {"DirEst": "regret"} if table == "table1" else {name: name for name in ("DirEst", "HierEst", "OptEst")}
    cells = []
    for estimator, column in columns.items():
        for row in expected()[table]["rows"]:
            k, m = row["k"], row.get("m", row["k"])
            paper = dict(zip(samples, row[column], strict=True))
            cells += [
                cell(
                    table,
                    {"estimator": estimator, "k": k, "m": m, "N": n},
                    regrets[estimator, n, k, m],
                    paper.get(n),
                    tolerance(estimator, n, k),
                )
                for n in (samples if estimator == "OptEst" else (*samples, "inf-exact"))
            ]
    return cells

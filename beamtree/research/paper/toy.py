"""The toy experiment (Sec. 4.1, supplement C.1): given estimates of p(z_n = 1), how much does beam search lose?"""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.builders import random_tree
from beamtree.data import toy
from beamtree.data.seeds import mix
from beamtree.model import TreeModel
from beamtree.scorers import FixedScorer
from beamtree.theory import on_leaves, optimal_prob, regret, relevance_odds, upward
from beamtree.tree import Tree

ITEMS = 1000
SAMPLES = (100, 1000, 10_000)
BEAMS = (1, 5, 10, 20, 50)

# (estimator, N, k, m). N is "inf" for p(z_n = 1) itself in float32, as the authors hold it, and "inf-exact" for its
# exact order: in float32 it rounds to 1 in the upper tree and ties decide.
Samples = int | str
Where = tuple[str, Samples, int, int]
OnRun = Callable[[int, int], None]  # (runs done, runs in all)


def toy_regrets(runs: int, seed: int, on_run: OnRun) -> dict[Where, list[float]]:
    """reg_{p@m} of every estimator, N, k and m ≤ k, a list of one value per run."""
    found: dict[Where, list[float]] = {}
    for run in range(runs):
        for where, value in one_run(mix(seed, run)).items():
            found.setdefault(where, []).append(value)
        on_run(run + 1, runs)
    return found


def one_run(seed: int) -> dict[Where, float]:
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
    # Down a path the conditional probabilities multiply to p(z_n = 1): in exact order both estimators are one.
    direct["DirEst", "inf-exact"] = relevance_odds(tree, eta.double())
    direct["HierEst", "inf-exact"] = direct["DirEst", "inf-exact"]
    direct["OptEst", "inf"] = optimal_prob(tree, eta)
    # What orders nodes may stand for their logits: a direct model only compares. Float64 keeps float32's ties.
    values = {where: value.double() for where, value in direct.items()}
    found = search(tree, eta, values, chained=False)
    return {**found, **search(tree, eta, chained, chained=True)}


def conditional(tree: Tree, prob: Tensor) -> Tensor:
    """The logits of p(z_n = 1 | z_ρ(n) = 1) from p(z_n = 1) of every node."""
    nodes = torch.arange(tree.num_nodes)
    above = prob[tree.parent(nodes).clamp(min=0)]
    above[0] = 1.0  # above the root nothing is asked
    return torch.logit((prob / above).nan_to_num(0.0))


def search(
    tree: Tree, eta: Tensor, estimates: dict[tuple[str, Samples], Tensor], *, chained: bool
) -> dict[Where, float]:
    """Beam search under several estimates at once, one query each."""
    model = TreeModel(tree, FixedScorer(torch.stack(list(estimates.values()))), chained=chained)
    x = FixedScorer.every(len(estimates))
    truth = eta.expand(len(estimates), -1)
    found: dict[Where, float] = {}
    for k in BEAMS:
        items, _ = retrieve(model, x, beam_size=k, m=k)
        for m in (m for m in BEAMS if m <= k):
            values = regret(truth, items, m).tolist()
            for (estimator, samples), value in zip(estimates, values, strict=True):
                found[estimator, samples, k, m] = value
    return found


def tolerance(estimator: str, samples: Samples, k: int) -> float | None:
    """How near the paper a cell should come: its own runs scatter this much."""
    if samples == "inf-exact":
        return None
    if samples == "inf":
        return 0.0 if estimator == "OptEst" else 0.010
    return 0.015 if k == 1 else 0.006

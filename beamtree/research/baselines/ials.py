"""iALS (Rendle et al. 2021): factors by alternating least squares, and users folded in from what they chose."""

import torch
from torch import Tensor

from beamtree.closed_form.als import DIM, STRENGTHS, Factors, fold_in
from beamtree.closed_form.als import ials as factorise
from beamtree.data import BeforeAfter, Events
from beamtree.data.views import recency
from beamtree.research.baselines.ranking import (
    Log,
    Peer,
    Score,
    Settings,
    Trial,
    best_of,
    once,
    renumbered,
    try_repeats,
)
from beamtree.tree import PAD

TRIAL_DIM = 48  # numbers per item with which the STRENGTHS of `closed.ials` are tried
POWERS = (0.0, 0.3, 0.6, 1.0)  # p: of the history's recency
REPEATS = (-torch.inf, 0.0, 0.03, 0.1, 0.3, 1.0)  # w: of the history itself
DEFAULTS = {"penalty": 0.015, "everywhere": 0.01, "recency": 0.3, "repeats": 0.0}


def ials(events: Events, num_items: int, val: BeforeAfter | None = None) -> Peer:
    """Factorise which training users have which items, with the settings that find most for validation users.

    λ and α₀ are chosen with short vectors, p and w again with the final ones.
    """
    log = renumbered(events, num_items, val)
    settings = DEFAULTS
    if len(log.x):
        trials: list[Trial] = []
        for penalty, everywhere in STRENGTHS:
            strength = {"penalty": penalty, "everywhere": everywhere}
            trials += _trials(log, _factors(log, strength, TRIAL_DIM), strength)
        settings = best_of(trials)
    factors = _factors(log, settings, DIM)
    if len(log.x):
        settings = best_of(_trials(log, factors, settings))
    return Peer(log, score_of(factors, settings["recency"]), settings, int(factors.items.nbytes))


def _factors(log: Log, settings: Settings, dim: int) -> Factors:
    return factorise(log.events, log.num_items, dim=dim, penalty=settings["penalty"], everywhere=settings["everywhere"])


def _trials(log: Log, factors: Factors, settings: Settings) -> list[Trial]:
    """Every p and w with the same factors."""
    return [
        trial
        for power in POWERS
        for trial in try_repeats(log, score_of(factors, power), {**settings, "recency": power}, REPEATS)
    ]


def score_of(factors: Factors, power: float) -> Score:
    """Products of all items with folded-in histories, whose events count (1 + t)^-p, of a repeated item the newest."""

    def score(x: Tensor) -> Tensor:
        x = once(x)
        weights = recency(power, x.shape[1]) * (x != PAD)
        return fold_in(factors, factors.items[x.clamp(min=0)], weights) @ factors.items.T

    return score

"""Rules: what came next after the items of the history, the newest of which say most."""

import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.closed_form.transitions import next_partners
from beamtree.data import BeforeAfter, Events
from beamtree.research.baselines.item_cf import matrix_bytes
from beamtree.research.baselines.ranking import (
    Log,
    Peer,
    Score,
    Trial,
    as_matrix,
    best_of,
    renumbered,
    try_repeats,
    weighted,
)

BACKWARD = (0.0, 0.3, 0.6)  # what a pair counts the other way round
DECAYS = (0.6, 0.8, 0.9)  # of the history, from event to event
REPEATS = (-torch.inf, 0.0, 0.1, 1.0)  # w: of the history itself, beside pairs of an item with itself
DEFAULTS = {"backward": 0.3, "decay": 0.8, "recency": 0.3, "repeats": 0.0}


def pair_weights(log: Log, backward: float) -> csr_matrix:
    """All pairs within ten events, 1/gap each, over popularity^0.3 [M, M]."""
    return as_matrix(next_partners(log.events, log.num_items, backward=backward, most=log.num_items))


def score_of(pairs: csr_matrix, decay: float) -> Score:
    """Every item's pairs with the events of the history, the t-th newest of which counts decay^t."""

    def score(x: Tensor) -> Tensor:
        weights = decay ** torch.arange(x.shape[1])
        return torch.from_numpy((weighted(x, weights, pairs.shape[0]) @ pairs).toarray())

    return score


def rules(events: Events, num_items: int, val: BeforeAfter | None = None) -> Peer:
    """Count pairs of training users' events, with the settings that find most for validation users."""
    log = renumbered(events, num_items, val)
    settings = DEFAULTS
    if len(log.x):
        trials: list[Trial] = []
        for backward in BACKWARD:
            pairs = pair_weights(log, backward)
            for decay in DECAYS:
                tried = {**DEFAULTS, "backward": backward, "decay": decay}
                trials += try_repeats(log, score_of(pairs, decay), tried, REPEATS)
        settings = best_of(trials)
    pairs = pair_weights(log, settings["backward"])
    return Peer(log, score_of(pairs, settings["decay"]), settings, matrix_bytes(pairs))

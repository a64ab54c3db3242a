"""Algorithm 1, its pieces, and the recipes that put them together."""

from beamtree.metrics import usual_m
from beamtree.train.checkpoint import Checkpoints, steps_done
from beamtree.train.history import Journal
from beamtree.train.loop import fit
from beamtree.train.schedule import Schedule, constant, cosine
from beamtree.train.validation import Progress, Validation

__all__ = [
    "Checkpoints",
    "Journal",
    "Progress",
    "Schedule",
    "Validation",
    "constant",
    "cosine",
    "fit",
    "steps_done",
    "usual_m",
]

"""Algorithm 1, its parts, and the recipes that combine them."""

from beamtree.evaluate.metrics import default_m
from beamtree.train.checkpoint import Checkpoints, steps_done
from beamtree.train.loop import fit
from beamtree.train.options import TrainingOptions
from beamtree.train.schedule import Schedule, constant, cosine
from beamtree.train.validation import Progress, Validation

__all__ = [
    "Checkpoints",
    "Progress",
    "Schedule",
    "TrainingOptions",
    "Validation",
    "constant",
    "cosine",
    "default_m",
    "fit",
    "steps_done",
]

"""Algorithm 1 and its checkpoints."""

from beamtree.train.checkpoint import load_model, save, steps_done
from beamtree.train.journal import Journal
from beamtree.train.loop import checked_at, constant, cosine, fit

__all__ = ["Journal", "checked_at", "constant", "cosine", "fit", "load_model", "save", "steps_done"]

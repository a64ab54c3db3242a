"""Algorithm 1 and its checkpoints."""

from beamtree.train.checkpoint import load_model, save
from beamtree.train.loop import fit

__all__ = ["fit", "load_model", "save"]

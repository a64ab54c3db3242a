"""A folder that holds a model."""

from beamtree.storage.models import load_model, save_model

__all__ = ["load_model", "save_model"]

"""Catalogue changes and user events applied to a model without training."""

from beamtree.live.journal import Journal
from beamtree.live.live_model import LiveModel
from beamtree.live.placement import NewItem

__all__ = ["Journal", "LiveModel", "NewItem"]

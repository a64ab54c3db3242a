"""Catalogue changes and user events applied to a model without training."""

from beamtree.live.journal import Journal
from beamtree.live.live_model import ItemFields, LiveModel, Snapshot
from beamtree.live.placement import NewItem

__all__ = ["ItemFields", "Journal", "LiveModel", "NewItem", "Snapshot"]

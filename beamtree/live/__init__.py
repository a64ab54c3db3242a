"""Catalogue changes and user events applied to a model without training, and nightly renewal."""

from beamtree.live.journal import Journal
from beamtree.live.live_model import LiveModel
from beamtree.live.placement import NewItem
from beamtree.live.renewal import renew, roll_back

__all__ = ["Journal", "LiveModel", "NewItem", "renew", "roll_back"]

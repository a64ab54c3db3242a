"""Items that come and go, and users who go on choosing, without training."""

from beamtree.live.journal import Journal
from beamtree.live.likeness import NewItem
from beamtree.live.live import Live, Now

__all__ = ["Journal", "Live", "NewItem", "Now"]

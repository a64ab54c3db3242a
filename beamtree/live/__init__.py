"""Items that come and go, and users who go on choosing, without training."""

from beamtree.live.journal import Journal
from beamtree.live.likeness import NewItem
from beamtree.live.live import Facts, Live, Now

__all__ = ["Facts", "Journal", "Live", "NewItem", "Now"]

"""What is known of a log without a gradient: factors, partners of items, and rules of what comes next."""

from beamtree.closed.ials import Factors, ials
from beamtree.closed.partners import Partners
from beamtree.closed.ridge import follow_partners, ridge_partners
from beamtree.closed.rules import next_partners

__all__ = ["Factors", "Partners", "follow_partners", "ials", "next_partners", "ridge_partners"]

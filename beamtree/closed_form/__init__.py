"""What is known of a log without a gradient: factors, partners of items, and rules of what comes next."""

from beamtree.closed_form.als import Factors, ials
from beamtree.closed_form.partners import Partners
from beamtree.closed_form.ridge import follow_partners, ridge_partners
from beamtree.closed_form.transitions import next_partners

__all__ = ["Factors", "Partners", "follow_partners", "ials", "next_partners", "ridge_partners"]

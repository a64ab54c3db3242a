"""Every system on one protocol: the same users, the same cuts, one table."""

from beamtree.compare.plan import Plan
from beamtree.compare.results import Result, table
from beamtree.compare.rows import ROWS, compare

__all__ = ["ROWS", "Plan", "Result", "compare", "table"]

"""Every system on one protocol: the same users, the same cuts, one table."""

from beamtree.research.compare.plan import Plan, Row
from beamtree.research.compare.results import Result, table
from beamtree.research.compare.rows import ROWS, compare
from beamtree.research.compare.trees import tree_row

__all__ = ["ROWS", "Plan", "Result", "Row", "compare", "table", "tree_row"]

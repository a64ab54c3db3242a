"""Every system on one protocol: the same users, the same cuts, one table."""

from beamtree.compare.plan import Plan, Row
from beamtree.compare.results import Result, table
from beamtree.compare.rows import ROWS, compare
from beamtree.compare.trees import tree_row

__all__ = ["ROWS", "Plan", "Result", "Row", "compare", "table", "tree_row"]

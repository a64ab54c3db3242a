"""Methods and baselines compared on the same users, in one table."""

from beamtree.research.compare.experiment import Experiment, Retriever, Row
from beamtree.research.compare.report import Result, markdown, records, table
from beamtree.research.compare.rows import ROWS, tree_row
from beamtree.research.compare.runner import compare

__all__ = [
    "ROWS",
    "Experiment",
    "Result",
    "Retriever",
    "Row",
    "compare",
    "markdown",
    "records",
    "table",
    "tree_row",
]

"""g(x, n): the node-wise scorers."""

from beamtree.scorers.base import Scorer
from beamtree.scorers.deep import DeepScorer
from beamtree.scorers.given import GivenScorer
from beamtree.scorers.linear import LinearScorer
from beamtree.scorers.table import NodeTable

# What a checkpoint can name. A new scorer is one file and one line here.
SCORERS: dict[str, type[Scorer]] = {"linear": LinearScorer, "deep": DeepScorer}

__all__ = ["SCORERS", "DeepScorer", "GivenScorer", "LinearScorer", "NodeTable", "Scorer"]

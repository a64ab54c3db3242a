"""g(x, n): the node-wise scorers."""

from beamtree.scorers.base import Scorer, TableScorer
from beamtree.scorers.deep import DeepScorer
from beamtree.scorers.fixed import FixedScorer
from beamtree.scorers.linear import LinearScorer
from beamtree.scorers.table import NodeTable

# What a saved model can name. A new scorer is one file and one line here; one from outside is passed to `load_model`.
SCORERS: tuple[type[Scorer], ...] = (DeepScorer, LinearScorer)

__all__ = ["SCORERS", "DeepScorer", "FixedScorer", "LinearScorer", "NodeTable", "Scorer", "TableScorer"]

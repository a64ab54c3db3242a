"""g(x, n): the node-wise scorers."""

from beamtree.scorers.base import LaterEvents, NewItems, Scorer, TableScorer, with_inputs
from beamtree.scorers.context import ContextScorer, context_part
from beamtree.scorers.deep import DeepScorer
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.factors import FactorScorer
from beamtree.scorers.fixed import FixedScorer
from beamtree.scorers.linear import LinearScorer
from beamtree.scorers.memory import MemoryScorer, SubtreeMaxScorer
from beamtree.scorers.popularity import PopularityScorer
from beamtree.scorers.repeats import RepeatScorer
from beamtree.scorers.sequence import SequenceScorer
from beamtree.scorers.sum import SumScorer, as_sum
from beamtree.scorers.table import NodeTable
from beamtree.scorers.trend import TrendScorer

# What a saved model can name. A new scorer is one file and one line here; one from outside is passed to `load_model`.
SCORERS: tuple[type[Scorer], ...] = (
    DeepScorer,
    LinearScorer,
    FactorScorer,
    MemoryScorer,
    PopularityScorer,
    RepeatScorer,
    SequenceScorer,
    ContextScorer,
    TrendScorer,
    SumScorer,
)

__all__ = [
    "SCORERS",
    "ContextScorer",
    "DeepScorer",
    "DotProductScorer",
    "FactorScorer",
    "FixedScorer",
    "LaterEvents",
    "LinearScorer",
    "MemoryScorer",
    "NewItems",
    "NodeTable",
    "PopularityScorer",
    "RepeatScorer",
    "Scorer",
    "SequenceScorer",
    "SubtreeMaxScorer",
    "SumScorer",
    "TableScorer",
    "TrendScorer",
    "as_sum",
    "context_part",
    "with_inputs",
]

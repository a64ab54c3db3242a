"""The parts of the score, one file each, and the table of them in the order in which they are tried."""

from beamtree.parts.base import ClosedFormPart, FittedCandidates, Fitting, Part
from beamtree.parts.content import ContentPart
from beamtree.parts.context import ContextPart
from beamtree.parts.deep import DeepPart
from beamtree.parts.factors import FactorsPart
from beamtree.parts.memory import MemoryPart
from beamtree.parts.popularity import PopularityPart
from beamtree.parts.repeats import RepeatsPart
from beamtree.parts.sequence import SequencePart
from beamtree.parts.trend import TrendPart

# A new part is one file and one row here. One from outside the package is passed as an argument, `parts`, and tried
# after these, before the deep part, which is trained beside all others.
PARTS: tuple[Part, ...] = (
    FactorsPart(),
    MemoryPart(),
    RepeatsPart(),
    PopularityPart(),
    TrendPart(),
    SequencePart(),
    ContextPart(),
    ContentPart(),
    DeepPart(),
)

__all__ = ["PARTS", "ClosedFormPart", "FittedCandidates", "Fitting", "Part"]

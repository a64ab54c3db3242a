"""The parts of the score, one file each, and the table of them in the order in which they are tried."""

from collections.abc import Sequence

from torch import nn

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

# Names that no part from outside may have: what is recorded beside the parts, and the stages of theirs.
RECORDS = {"weights", "scales", "calibration", "same", "vanished", "added"}
RECORDS |= {name for part in PARTS if isinstance(part, ClosedFormPart) for name in (*part.stages, *part.last_stages)}

__all__ = ["PARTS", "ClosedFormPart", "FittedCandidates", "Fitting", "Part", "check_parts"]


def check_parts(parts: object) -> None:
    """Raise a ValueError in one line where these are not parts that a sum can have."""
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise ValueError(f"parts={parts!r}: give a list of parts")
    for part in parts:
        if not isinstance(part, Part):
            raise ValueError(f"`parts`: {part!r} is no part: give objects of classes that derive from Part")
        name, kind = getattr(part, "name", None), type(part)
        if not isinstance(name, str) or not name.isidentifier() or name in RECORDS or hasattr(nn.ModuleDict, name):
            raise ValueError(f"`parts`: {kind.__name__}.name={name!r}: give it another word for a name")
        if kind.fit is Part.fit and kind.add is Part.add and not issubclass(kind, ClosedFormPart):
            raise ValueError(f"`parts`: {kind.__name__} needs a method fit")

"""Why an item was found or lost: the beam of one user level by level, and the way of single items down the tree."""

from beamtree.diagnose.explain.explanation import Explanation, ItemPath, Level, Loss, Step
from beamtree.diagnose.explain.parts import Part, parts_of, without_part
from beamtree.diagnose.explain.search import explain
from beamtree.diagnose.explain.subtrees import Subtrees, subtrees

__all__ = [
    "Explanation",
    "ItemPath",
    "Level",
    "Loss",
    "Part",
    "Step",
    "Subtrees",
    "explain",
    "parts_of",
    "subtrees",
    "without_part",
]

"""Ranks that train one model are alike: the same code, data and settings, and the same numbers where each has all."""

import hashlib
from functools import cache
from pathlib import Path

import torch

from beamtree.distributed.group import Ranks, ranks
from beamtree.model import TreeModel
from beamtree.scorers import SumScorer
from beamtree.tree import Tree


@cache
def code() -> str:
    """A short name for the very code of this package."""
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def check_alike(together: Ranks, **things: object) -> None:
    """Raise a ValueError where ranks run other code, or do not mean the same things."""
    if together.size > 1:
        together.same(code=code(), torch=torch.__version__, **things)


def one_tree(tree: Tree) -> Tree:
    """The first rank's tree: a builder may round otherwise on another machine."""
    if ranks().size == 1:
        return tree
    ranks().same(items=tree.num_items, arity=tree.arity, height=tree.height, admit_empty=tree.admit_empty)
    slots = ranks().broadcast_(tree.items().clone())
    return Tree(slots, tree.arity, admit_empty=tree.admit_empty, num_items=tree.num_items)


def one_model(model: TreeModel) -> TreeModel:
    """The same model with the first rank's weights, but for those of which each has a part."""
    if ranks().size > 1:
        own = model.scorer.pieces()
        whole = {name: value for name, value in model.scorer.state_dict().items() if name not in own}
        ranks().same(weights={name: list(value.shape) for name, value in whole.items()})
        for value in whole.values():
            ranks().broadcast_(value)
    return model


def one_blend(model: TreeModel) -> None:
    """Let the parts of a sum count as the first rank says."""
    if ranks().size > 1 and isinstance(model.scorer, SumScorer):
        ranks().broadcast_(model.scorer.weights)
        ranks().broadcast_(model.scorer.calibration)

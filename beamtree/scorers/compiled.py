"""Which scores the compiled search on a CPU covers: sums of dot products, item memory and repeats."""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from beamtree.data.views import HISTORY
from beamtree.kernels.cpu import Memory, Product, SearchParts, search_arrays
from beamtree.scorers.base import Scorer
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.factors import FactorScorer
from beamtree.scorers.memory import MemoryScorer, SubtreeMaxScorer
from beamtree.scorers.repeats import RepeatScorer
from beamtree.scorers.sequence import SequenceScorer
from beamtree.scorers.sum import ActiveParts, SumScorer
from beamtree.scorers.table import NodeTable
from beamtree.tree import Tree

MAX_PRODUCTS = 2
State = list[object]
_ARRAYS: WeakKeyDictionary[Scorer, tuple[State, SearchParts | None, list[DotProductScorer]]] = WeakKeyDictionary()


def search_parts(scorer: Scorer, tree: Tree, x: Tensor) -> tuple[SearchParts, list[Tensor]] | None:
    """A scorer as the compiled search takes it, and u(x) of its dot products; None where it is not covered."""
    if x.device.type != "cpu" or type(scorer) not in COVERED:
        return None
    active = _active(scorer, tree)
    state: State = [tree.height]
    for weight, part in (*active[0], *active[1]):
        state += [weight, id(part)]
        for tensor in (part.table.weight,) if isinstance(part, DotProductScorer) else part.buffers():
            state += [tensor.data_ptr(), tensor._version]  # what is cached keeps its memory, so that no other has it
    cached = _ARRAYS.get(scorer)
    if cached is None or cached[0] != state:
        parts = _parts(active)
        products = [part for _, part in active[0] if isinstance(part, DotProductScorer)]
        cached = _ARRAYS[scorer] = state, parts, products if parts is not None else []
    if cached[1] is None:
        return None
    return cached[1], [part.encode(tree, part.table.read(tree, share=False), x) for part in cached[2]]


def _active(scorer: Scorer, tree: Tree) -> ActiveParts:
    """The parts of a sum that count, or of a single scorer."""
    if isinstance(scorer, SumScorer):
        return scorer.active_parts()
    if isinstance(scorer, SubtreeMaxScorer):
        return [], [(1.0, scorer)]
    return [([1.0] * (tree.height + 1), scorer)], []


def _parts(active: ActiveParts) -> SearchParts | None:
    single, sparse = active
    memories = [(weight, part) for weight, part in sparse if type(part) is MemoryScorer]
    repeats = [(weight, part) for weight, part in sparse if type(part) is RepeatScorer]
    products = [(levels, part) for levels, part in single if _is_covered(part)]
    covered = len(memories) + len(repeats) + len(products) == len(single) + len(sparse)
    if not covered or len(memories) > 1 or len(repeats) > 1 or len(products) > MAX_PRODUCTS:
        return None
    memory, own = None, torch.zeros(HISTORY)
    for weight, part in memories:
        memory = Memory(part.offsets, part.partners, part.weights, part.recency * weight)
    for weight, each in repeats:
        own = each.recency * weight
    rows = [Product(part.table.weight, levels) for levels, part in products if isinstance(part, DotProductScorer)]
    return search_arrays(memory, own, rows)


def _is_covered(part: Scorer) -> bool:
    if type(part) not in (FactorScorer, SequenceScorer):
        return False
    assert isinstance(part, DotProductScorer)
    table = part.table
    return type(table) is NodeTable and table.weight.dtype == torch.float16 and table.weight.is_contiguous()


COVERED = (SumScorer, FactorScorer, SequenceScorer, MemoryScorer, RepeatScorer)

"""Which scores the compiled search on a CPU covers: sums of dot products, item memory and repeats."""

import torch
from torch import Tensor

from beamtree.kernels.cpu import Memory, Product, SearchParts
from beamtree.scorers.base import Scorer
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.factors import FactorScorer
from beamtree.scorers.memory import MemoryScorer, SubtreeMaxScorer
from beamtree.scorers.repeats import RepeatScorer
from beamtree.scorers.sequence import SequenceScorer
from beamtree.scorers.sum import SumScorer
from beamtree.scorers.table import NodeTable
from beamtree.tree import Tree

MAX_PRODUCTS = 2


def search_parts(scorer: Scorer, tree: Tree, x: Tensor) -> SearchParts | None:
    """A scorer and the users x as the compiled search takes them; None where it does not cover the scorer."""
    if x.device.type != "cpu":
        return None
    if type(scorer) is SumScorer:
        single, sparse = scorer.active_parts()
    else:
        single, sparse = [], []
        if isinstance(scorer, SubtreeMaxScorer):
            sparse = [(1.0, scorer)]
        else:
            single = [([1.0] * (tree.height + 1), scorer)]
    memories = [(weight, part) for weight, part in sparse if type(part) is MemoryScorer]
    repeats = [(weight, part) for weight, part in sparse if type(part) is RepeatScorer]
    products = [(levels, part) for levels, part in single if _is_covered(part)]
    covered = len(memories) + len(repeats) + len(products) == len(single) + len(sparse)
    if not covered or len(memories) > 1 or len(repeats) > 1 or len(products) > MAX_PRODUCTS:
        return None
    memory = None
    for weight, part in memories:
        memory = Memory(part.offsets, part.partners, part.weights, (part.recency * weight).contiguous())
    own = None
    for weight, each in repeats:
        own = each.recency * weight
    return SearchParts(memory, own, [_product(levels, part, tree, x) for levels, part in products])


def _is_covered(part: Scorer) -> bool:
    if type(part) not in (FactorScorer, SequenceScorer):
        return False
    table = part.table
    return type(table) is NodeTable and table.weight.dtype == torch.float16 and table.weight.is_contiguous()


def _product(levels: list[float], part: Scorer, tree: Tree, x: Tensor) -> Product:
    assert isinstance(part, DotProductScorer)
    users = part.encode(tree, part.table.read(tree, share=False), x)
    return Product(part.table.weight, users.contiguous(), levels)

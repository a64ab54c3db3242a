"""Which scores the compiled search on a CPU covers: sums of dot products, item memory, repeats and a deep part."""

from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from beamtree.data.csr import concatenate
from beamtree.data.views import HISTORY
from beamtree.kernels.cpu import Memory, Network, Product, SearchParts, search_arrays
from beamtree.scorers.base import Scorer, TableScorer, histories_of
from beamtree.scorers.context import ContextScorer
from beamtree.scorers.deep import HIDDEN, DeepScorer
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.factors import FactorScorer
from beamtree.scorers.memory import MemoryScorer, SubtreeMaxScorer
from beamtree.scorers.popularity import PopularityScorer
from beamtree.scorers.repeats import RepeatScorer
from beamtree.scorers.sequence import SequenceScorer
from beamtree.scorers.sum import ActiveParts, SumScorer
from beamtree.scorers.table import NodeTable
from beamtree.tree import Tree

MAX_PRODUCTS = 3
MAX_JOINED = 1 << 25  # partners of several memories, which are copied after every change of items
State = list[object]
# No value may refer to its scorer, which would then never be freed.
_ARRAYS: WeakKeyDictionary[Scorer, tuple[State, list[Tensor], SearchParts | None]] = WeakKeyDictionary()


def search_parts(scorer: Scorer, tree: Tree, x: Tensor) -> tuple[SearchParts, list[Tensor]] | None:
    """A scorer as the compiled search takes it, and u(x) of its dot products; None where it is not covered."""
    if x.device.type != "cpu" or type(scorer) not in COVERED:
        return None
    active = _active(scorer, tree)
    state: State = [tree.height]
    tensors: list[Tensor] = []
    for weight, part in (*active[0], *active[1]):
        state += [weight, id(part)]
        tensors += _tensors(part, tree)
    for tensor in tensors:  # they are cached, so that no others can be allocated at their addresses
        state += [tensor.data_ptr(), tensor._version]
    cached = _ARRAYS.get(scorer)
    if cached is None or cached[0] != state:
        cached = _ARRAYS[scorer] = state, tensors, _parts(active, tree)
    if cached[2] is None:
        return None
    products = [part for _, part in active[0] if _is_product(part)]
    histories = histories_of(scorer, x)
    return cached[2], [
        part.encode(tree, part.table.read(tree, share=False), x if part.reads_context else histories)
        for part in products
    ]


def _is_product(part: Scorer) -> TypeGuard[DotProductScorer]:
    """Whether a part differs between users and nodes, as a product of two vectors."""
    return isinstance(part, DotProductScorer) and not isinstance(part, PopularityScorer)


def _active(scorer: Scorer, tree: Tree) -> ActiveParts:
    """The parts of a sum that count, or of a single scorer."""
    if isinstance(scorer, SumScorer):
        return scorer.active_parts()
    if isinstance(scorer, SubtreeMaxScorer):
        return [], [(1.0, scorer)]
    return [([1.0] * (tree.height + 1), scorer)], []


def _tensors(part: Scorer, tree: Tree) -> list[Tensor]:
    """What the arrays of a part are made from."""
    if isinstance(part, DeepScorer) and _is_covered(part):
        return [_vectors(part, tree), *part.parameters()]
    if isinstance(part, DotProductScorer):
        return [part.table.weight]
    return [each for each in part._buffers.values() if each is not None]


def _parts(active: ActiveParts, tree: Tree) -> SearchParts | None:
    single, sparse = active
    memories = [(weight, part) for weight, part in sparse if type(part) is MemoryScorer]
    repeats = [(weight, part) for weight, part in sparse if type(part) is RepeatScorer]
    tables = [(levels, part) for levels, part in single if _is_covered(part)]
    products = [Product(part.table.weight, levels) for levels, part in tables if _is_product(part)]
    same_for_all = [_of_nodes(part, levels, tree) for levels, part in tables if isinstance(part, PopularityScorer)]
    networks = [_network(levels, part, tree) for levels, part in tables if isinstance(part, DeepScorer)]
    covered = len(memories) + len(repeats) + len(tables) == len(single) + len(sparse)
    if not covered or len(products) > MAX_PRODUCTS or any(len(each) > 1 for each in (repeats, networks, same_for_all)):
        return None
    memory, own = None, torch.zeros(HISTORY)
    if memories:
        rows = memories[0][1].rows
        if len(memories) > 1:  # items that were added have a memory of their own: its lists follow the others
            too_large = sum(len(part.partners) for _, part in memories) > MAX_JOINED
            if too_large or any(part.num_items != tree.num_items for _, part in memories):
                return None
            rows = concatenate([part.rows for _, part in memories])
        assert rows.values is not None
        recency = torch.cat([part.recency * weight for weight, part in memories])
        memory = Memory(rows.offsets, rows.columns, rows.values, recency)
    for weight, each in repeats:
        own = each.recency * weight
    return search_arrays(
        memory, own, products, networks[0] if networks else None, same_for_all[0] if same_for_all else None
    )


def _of_nodes(part: PopularityScorer, levels: list[float], tree: Tree) -> Tensor:
    """The scores of all nodes, which are the same for every user, times the weights of their levels [num_nodes]."""
    counts = torch.tensor([len(tree.level(level)) for level in range(tree.height + 1)])
    weights = part.scale * torch.tensor(levels).repeat_interleave(counts)
    return part.table.weight[: tree.num_nodes, 0].float() * weights


def _network(levels: list[float], part: DeepScorer, tree: Tree) -> Network:
    """A deep part with a bias and slopes for each layer, also where they change nothing."""
    layers: list[tuple[Tensor, Tensor, Tensor]] = [
        (part.of_user.weight, part.of_user.bias, torch.ones(HIDDEN[0])),
        (part.of_node.weight, torch.zeros(HIDDEN[0]), part.slopes[0]),
    ]
    slopes = [*part.slopes[1:], torch.ones(1)]
    layers += [(layer.weight, layer.bias, slope) for layer, slope in zip(part._linear_layers(), slopes, strict=True)]
    return Network(levels, _vectors(part, tree), part.windows.argmax(0), part.lift, layers)


def _vectors(part: DeepScorer, tree: Tree) -> Tensor:
    return part.table.read(tree, share=part.share).values


def _is_covered(part: Scorer) -> bool:
    dtype = DTYPES.get(type(part))
    if dtype is None:
        return False
    assert isinstance(part, TableScorer)
    table = part.table
    return type(table) is NodeTable and table.weight.dtype == dtype and table.weight.is_contiguous()


DTYPES = {  # of covered tables
    FactorScorer: torch.float16,
    SequenceScorer: torch.float16,
    ContextScorer: torch.float16,
    PopularityScorer: torch.float16,
    DeepScorer: torch.float32,
}
COVERED = (SumScorer, MemoryScorer, RepeatScorer, *DTYPES)

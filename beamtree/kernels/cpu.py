"""What the compiled search on a CPU is given, and how it is called."""

from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.kernels import compiling
from beamtree.mask import NodeMask
from beamtree.threads import parallel_map
from beamtree.tree import Tree

_ZEROS: list[Any] = []  # arrays of zeros that no search uses now
_LOCK = Lock()

# What a search is given in place of parts and filters that it does not have.
NO_TABLE, NO_VECTORS = (np.empty((0, 1), np.uint16), np.zeros(65, np.float32)), np.empty((0, 1), np.float32)
ALL_ENTERED, NONE_BEFORE, NONE_HIDDEN = np.empty(0, np.bool_), np.empty(0, np.int32), np.empty((0, 0), np.int64)


class Memory(NamedTuple):
    """Lists of partners: those of the first list for all items, then those of the next."""

    offsets: Tensor  # int64 [lists · M + 1]
    partners: Tensor  # int32
    weights: Tensor  # float16
    recency: Tensor  # the weight of each event of a history [lists, ≥ T]


class Product(NamedTuple):
    """⟨u(x), v_n⟩ with a weight for each level."""

    rows: Tensor  # float16 [num_nodes, dim]
    levels: list[float]  # [H + 1]


class Network(NamedTuple):
    """Layers over the means of windows of a history and the vector of a node: see `scorers.deep`."""

    levels: list[float]  # its weight on each level [H + 1]
    vectors: Tensor  # float32 [num_nodes, dim]
    windows: Tensor  # the window of each event [≥ T]
    lift: bool
    layers: list[tuple[Tensor, Tensor, Tensor]]  # weight [out, in], bias and slopes: user half, node half, and others


class SearchParts(NamedTuple):
    """A sum of parts as arrays for the compiled search."""

    memory: tuple[Any, ...]  # offsets, partners, weights as bits, and recency
    repeats: Any  # the score that each event gives its own item [≥ T]
    products: list[tuple[Any, Any]]  # three of them: rows as bits, and weights of levels
    same_for_all: Any  # a score of each node, whoever the user is [num_nodes]; empty for none
    deep: tuple[Any, ...]  # see `compiled_search.search`


def search_arrays(
    memory: Memory | None,
    repeats: Tensor,
    products: list[Product],
    network: Network | None,
    same_for_all: Tensor | None = None,
) -> SearchParts:
    """The parts of a sum, without a copy of what is large."""
    if memory is None:
        none = torch.zeros(0, dtype=torch.float16)
        memory = Memory(torch.zeros(1, dtype=torch.int64), none.int(), none, torch.zeros(0, 0))
    if network is None:
        layers = [(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))] * 5
        network = Network([], torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), False, layers)
    offsets, partners, weights, recency = memory
    levels, vectors, windows = np.array(network.levels, np.float32), network.vectors.numpy(), network.windows.numpy()
    return SearchParts(
        (offsets.numpy(), partners.numpy(), _bits(weights), recency.contiguous().numpy()),
        repeats.contiguous().numpy(),
        [*((_bits(rows), np.array(levels, np.float32)) for rows, levels in products), *[NO_TABLE] * 3][:3],
        np.empty(0, np.float32) if same_for_all is None else same_for_all.contiguous().numpy(),
        (levels, vectors, windows, network.lift, tuple(_pack(*layer) for layer in network.layers)),
    )


def _pack(weight: Tensor, bias: Tensor, slopes: Tensor) -> tuple[Any, Any, Any]:
    """A layer with weights [groups, in, LANES], the last group of outputs filled up with zeros."""
    lanes = compiling.load("compiled_search").LANES
    weight, bias, slopes = (pad(each.detach().float(), (0, -len(bias) % lanes)) for each in (weight.T, bias, slopes))
    return weight.unflatten(1, (-1, lanes)).transpose(0, 1).contiguous().numpy(), bias.numpy(), slopes.numpy()


def fold_in(
    tree: Tree, rows: Tensor, x: Tensor, recency: Tensor, gram_diagonal: Tensor, penalty: float, everywhere: float
) -> Tensor:
    """u(x) [B, dim] of histories x [B, T]: see `scorers.factors.fold_in`. The rows are those of all nodes, float16."""
    users = np.empty((len(x), rows.shape[1]), np.float32)
    compiling.load("compiled_search").fold_in(
        x.contiguous().numpy(), tree._leaf_of_item.numpy(), _bits(rows), recency.numpy(), gram_diagonal.numpy(),
        np.float32(penalty), np.float32(everywhere), users,
    )  # fmt: skip
    return torch.from_numpy(users)


def search(
    tree: Tree, mask: NodeMask, parts: SearchParts, users: list[Tensor], x: Tensor, excluded: Tensor | None,
    first_level: int, widths: tuple[int, ...], m: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The m best items of the last beam and their scores [B, m], best first, PAD and -inf where there are fewer.

    `users` are u(x) of the dot products [B, dim] each.
    """
    function = compiling.load("compiled_search").search
    histories, leaf_of_item, item_of_slot = x.contiguous().numpy(), tree._leaf_of_item.numpy(), tree.items().numpy()
    count, tables = x.shape[0], parts.products
    vectors = [*(user.contiguous().numpy() for user in users), *[NO_VECTORS] * (len(tables) - len(users))]
    entered = ALL_ENTERED if mask.full_to == tree.height else mask.entered.numpy()
    before = NONE_BEFORE if excluded is None else mask._allowed_before.numpy()
    hidden = NONE_HIDDEN if excluded is None else excluded.numpy()
    items, scores = np.empty((count, m), np.int64), np.empty((count, m), np.float32)
    sizes = np.array(widths)

    def run(rows: slice) -> None:
        zeros = _borrow(tree.num_nodes)
        function(
            histories[rows], leaf_of_item, item_of_slot, tree.arity, tree.height, first_level, sizes,
            entered, before, hidden if excluded is None else hidden[rows], *parts.memory, parts.repeats,
            tables[0][0], vectors[0][rows], tables[0][1], tables[1][0], vectors[1][rows], tables[1][1],
            tables[2][0], vectors[2][rows], tables[2][1],
            parts.same_for_all, parts.deep, zeros, items[rows], scores[rows],
        )  # fmt: skip
        with _LOCK:
            _ZEROS.append(zeros)

    step = -(-count // torch.get_num_threads())
    if step == count:
        run(slice(0, step))
    else:
        parallel_map(run, [slice(start, start + step) for start in range(0, count, step)])
    return torch.from_numpy(items), torch.from_numpy(scores)


def _bits(halves: Tensor) -> Any:
    """Halves as 16 bits each, without a copy."""
    return halves.detach().view(torch.int16).numpy().view(np.uint16)


def _borrow(size: int) -> Any:
    """An array of at least so many zeros, which is to be zero again when it is given back."""
    with _LOCK:
        for index, zeros in enumerate(_ZEROS):
            if size <= len(zeros) <= 4 * size:
                return _ZEROS.pop(index)
        del _ZEROS[64:]
    return np.zeros(size, np.float32)

"""What the compiled search on a CPU is given, and how it is called."""

from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree.mask import NodeMask
from beamtree.progress import Reporter
from beamtree.threads import parallel_map
from beamtree.tree import Tree

_ZEROS: list[Any] = []  # arrays of zeros that no search uses now
_LOCK = Lock()


class Memory(NamedTuple):
    """Lists of partners: those of the first list for all items, then those of the next."""

    offsets: Tensor  # int64 [lists · M + 1]
    partners: Tensor  # int32
    weights: Tensor  # float16
    recency: Tensor  # the weight of each event of a history [lists, ≥ T]


class Product(NamedTuple):
    """⟨u(x), v_n⟩ with a weight for each level."""

    rows: Tensor  # float16 [num_nodes, dim]
    users: Tensor  # float32 [B, dim]
    levels: list[float]  # [H + 1]


class SearchParts(NamedTuple):
    """A score for the compiled search: the parts of a sum, for a batch of users."""

    memory: Memory | None
    repeats: Tensor | None  # the score that each event gives its own item [≥ T]
    products: list[Product]  # at most two


@cache
def compiled() -> Any:
    """The compiled functions. The first time in an installation they are compiled, and that is said."""
    from beamtree.kernels import cpu_search

    folder = cpu_search.search.stats.cache_path
    if folder is None or not any(Path(folder).glob("cpu_search.search-*.nbi")):
        Reporter().line("Compiling the search for this machine: about ten seconds, once.")
    return cpu_search


def fold_in(
    tree: Tree, rows: Tensor, x: Tensor, recency: Tensor, gram_diagonal: Tensor, penalty: float, everywhere: float
) -> Tensor:
    """u(x) [B, dim] of histories x [B, T]: see `scorers.factors.fold_in`. The rows are those of all nodes, float16."""
    users = np.empty((len(x), rows.shape[1]), np.float32)
    compiled().fold_in(
        x.numpy(), tree._leaf_of_item.numpy(), _bits(rows), recency.numpy(), gram_diagonal.numpy(),
        np.float32(penalty), np.float32(everywhere), users,
    )  # fmt: skip
    return torch.from_numpy(users)


def search(
    tree: Tree, mask: NodeMask, parts: SearchParts, x: Tensor, excluded: Tensor | None, first_level: int,
    widths: tuple[int, ...], m: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The m best items of the last beam and their scores [B, m], best first, PAD and -inf where there are fewer."""
    function, length = compiled().search, x.shape[1]
    memory, repeats = parts.memory, parts.repeats
    of_memory = (
        (np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint16), np.zeros((0, length), np.float32))
        if memory is None
        else (memory.offsets.numpy(), memory.partners.numpy(), _bits(memory.weights), memory.recency.numpy())
    )
    of_repeats = np.zeros(length, np.float32) if repeats is None else repeats.numpy()
    none = Product(torch.empty(0, 1, dtype=torch.float16), torch.empty(len(x), 1), [0.0] * (tree.height + 1))
    products = (*parts.products, none, none)[:2]
    entered = np.empty(0, np.bool_) if mask.full_to == tree.height else mask.entered.numpy()
    before = np.empty(0, np.int32) if excluded is None else mask._allowed_before.numpy()
    items, scores = np.empty((len(x), m), np.int64), np.empty((len(x), m), np.float32)

    def run(rows: slice) -> None:
        zeros = _borrow(tree.num_nodes)
        function(
            x.numpy()[rows], tree._leaf_of_item.numpy(), tree.items().numpy(), tree.arity, tree.height, first_level,
            np.array(widths), entered, before,
            np.empty((0, 0), np.int64) if excluded is None else excluded.numpy()[rows],
            *of_memory, of_repeats,
            *(
                part
                for rows_, users, levels in products
                for part in (_bits(rows_), users.numpy()[rows], np.array(levels, np.float32))
            ),
            zeros, items[rows], scores[rows],
        )  # fmt: skip
        with _LOCK:
            _ZEROS.append(zeros)

    step = -(-len(x) // torch.get_num_threads())
    if step == len(x):
        run(slice(0, step))
    else:
        parallel_map(run, [slice(start, start + step) for start in range(0, len(x), step)])
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

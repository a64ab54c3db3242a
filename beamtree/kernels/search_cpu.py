"""The compiled beam and the compiled scan on a CPU: what the parts of a score give them, and how they are called.

A scorer says in `compiled_part` which of the records below it is; one that says nothing is searched by `beam.walk`. A
scan on a GPU reads the same records: see `beamtree.search.scan`.
"""

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.kernels import compiling
from beamtree.kernels.threads import in_spans
from beamtree.mask import NodeMask
from beamtree.tree import Tree

MAX_PRODUCTS = 4  # of a sum
MAX_JOINED = 1 << 25  # partners of several memories, which are copied after every change of items


# What a part of a score gives a search


class Product(NamedTuple):
    """⟨u(x), v_n⟩."""

    rows: Tensor  # v_n of every node, float16 [≥ num_nodes, dim]
    encode: Callable[[Tensor], Tensor]  # u(x) [B, dim]
    columns: "Columns"  # of x
    history: int  # events that are read


class NodeScores(NamedTuple):
    """A score of each node that is the same for every user."""

    scores: Tensor  # of any dtype [≥ num_nodes]
    scale: float = 1.0


class Entries(NamedTuple):
    """A few items of each user with scores: a node has the score of the best item below it, and at least 0."""

    entries: Callable[[Tensor], tuple[Tensor, Tensor]]  # items, PAD for none, and scores [B, E]
    columns: "Columns"
    history: int


class Memory(NamedTuple):
    """The same, where the items are partners of those of the history, in one list or several."""

    offsets: Tensor  # of the first list for all items, then of the next: int64 [lists · M + 1]
    partners: Tensor  # int32
    weights: Tensor  # float16
    recency: Tensor  # the weight of each event of a history [lists, any]; those after it have none
    named: Entries | None  # the same items with their scores


class Repeats(NamedTuple):
    """The same, where each event names its own item."""

    recency: Tensor  # the score that each event gives [any], likewise
    named: Entries | None


class Network(NamedTuple):
    """Layers over the means of windows of a history and the vector of a node: see `scorers.deep`."""

    vectors: Tensor  # float32 [num_nodes, dim]
    windows: Tensor  # whether an event is in a window [windows, T]
    lift: bool
    layers: Sequence[tuple[Tensor, Tensor | None, Tensor | None]]  # weight [out, in], bias and slopes: see `_pack`


CompiledPart = Product | NodeScores | Entries | Memory | Repeats | Network
WeightedParts = Sequence[tuple[Sequence[float], CompiledPart]]  # with a weight for each level [H + 1]


class Columns(Protocol):
    """Those of x: see `data.inputs`."""

    def narrowed(self, x: Tensor, to: Any, history: int) -> Tensor: ...


class Compilable(Protocol):
    """A scorer, as far as a search needs to know it: see `scorers.base.Scorer`."""

    def compiled_parts(self, tree: Tree) -> WeightedParts | None: ...

    @property
    def columns(self) -> Columns: ...

    def histories(self, x: Tensor) -> Tensor: ...


# The same as arrays. The compiled function is given tuples without names, whose types Numba finds in less time.


class Lists(NamedTuple):
    """Memories, joined."""

    offsets: Any
    partners: Any
    weights: Any  # halves, as 16 bits
    recency: Any  # times the weight of the part
    repeats: Any  # the score that each event gives its own item


class Table(NamedTuple):
    """A product."""

    rows: Any  # halves, as 16 bits
    levels: Any  # its weights
    users: Any  # u(x) [B, dim]


class Layers(NamedTuple):
    """A network."""

    levels: Any  # its weights
    vectors: Any  # of all nodes; empty for none
    windows: Any  # the window of each event
    lift: bool
    layers: tuple[Any, ...]  # weights, biases and slopes of the user half of the first, of the node half, of the others


class SearchParts(NamedTuple):
    """A sum of parts for some users."""

    memory: tuple[Any, ...]  # `Lists`
    items: Any  # that are named for each user, PAD for none [B, E]
    item_scores: Any  # of these
    node_scores: Any  # of each node, whoever the user is; empty for none
    tables: tuple[tuple[Any, Any, Any], ...]  # `Table`, MAX_PRODUCTS times: another number would be compiled again
    network: tuple[Any, ...]  # `Layers`

    @property
    def has_network(self) -> bool:
        """Whether there is one."""
        return len(self.network[1]) > 0


class SearchInput(NamedTuple):
    """All that `compiled_search.search` reads and writes."""

    x: Any  # histories [B, T], newest first, PAD for none
    leaf_of_item: Any  # [M + 1], PAD last
    item_of_slot: Any  # the items of the leaves from left to right
    arity: int
    height: int
    first_level: int  # the first that is searched
    widths: Any  # of the beam on each searched level
    entered: Any  # which nodes may be entered; empty where all may
    allowed_before: Any  # how many leaves are allowed before each; empty where no leaves are excluded
    excluded: Any  # slots excluded for each user [B, E], sorted; empty where there are none
    parts: tuple[Any, ...]  # `SearchParts`
    found: Any  # the result: items [B, m], PAD where there are fewer
    scores: Any  # and their scores


class ScanInput(NamedTuple):
    """All that `compiled_scan.scan` reads and writes."""

    x: Any  # histories [B, T], newest first, PAD for none
    leaf_of_item: Any  # [M + 1], PAD last
    item_of_slot: Any  # the items of the leaves from left to right
    height: int
    first_leaf: int
    leaves: Any  # those to score; empty for all that may be entered
    entered: Any  # which nodes may be entered; empty where all may
    hidden: Any  # leaves hidden from each user [B, E], PAD for none; empty where there are none
    parts: tuple[Any, ...]  # `SearchParts`, without a network
    found: Any  # the result: items [B, m], PAD where there are fewer
    scores: Any  # and their scores


NO_REPEATS = np.empty(0, np.float32)
NO_TABLE = Table(np.empty((0, 1), np.uint16), np.zeros(65, np.float32), np.empty((0, 1), np.float32))
ALL_ENTERED, NONE_BEFORE, NONE_HIDDEN = np.empty(0, np.bool_), np.empty(0, np.int32), np.empty((0, 0), np.int64)
ALL_LEAVES = np.empty(0, np.int64)

State = list[object]
# No value may refer to its scorer, which would then never be freed.
_ARRAYS: WeakKeyDictionary[Any, tuple[State, list[Tensor], SearchParts | None]] = WeakKeyDictionary()
_ZEROS: list[Any] = []  # arrays of zeros that no search uses now
_LOCK = Lock()


class PreparedParts(NamedTuple):
    """A scorer as the compiled search takes it, without users."""

    parts: WeightedParts
    arrays: SearchParts


def prepare_parts(scorer: Compilable, tree: Tree) -> PreparedParts | None:
    """A scorer as the compiled search takes it, without users; None where it is not compiled."""
    parts = scorer.compiled_parts(tree)
    if parts is None:
        return None
    tensors: list[Tensor] = []  # kept, so that no others can be allocated at their addresses
    state: State = [tree.arity, tree.height, tree._leaf_of_item.shape]
    for levels, part in parts:
        state.append(type(part))
        state += levels
        _add_values(part, state, tensors)
    cached = _ARRAYS.get(scorer)
    if cached is None or cached[0] != state:
        cached = _ARRAYS[scorer] = state, tensors, _arrays(parts, tree)
    return None if cached[2] is None else PreparedParts(parts, cached[2])


def search_parts(
    scorer: Compilable, tree: Tree, x: Tensor, prepared: PreparedParts | None = None
) -> SearchParts | None:
    """The same for users x [B, ...] on a CPU; `prepared` where it is known what `prepare_parts` gives."""
    if x.device.type != "cpu" or (prepared := prepared or prepare_parts(scorer, tree)) is None:
        return None
    (parts, arrays), columns = prepared, scorer.columns
    tables, items, scores = list(arrays.tables), [], []
    place = 0
    for levels, part in parts:
        if type(part) is Product:
            u = part.encode(columns.narrowed(x, part.columns, part.history))
            rows, shares, _ = tables[place]
            tables[place] = rows, shares, u.detach().contiguous().numpy()
            place += 1
        elif type(part) is Entries:
            named = part.entries(columns.narrowed(x, part.columns, part.history))
            items.append(named[0].numpy())
            scores.append(named[1].detach().numpy() * np.float32(levels[0]))
    if items:
        arrays = arrays._replace(items=_joined(items, np.int64), item_scores=_joined(scores, np.float32))
    return arrays._replace(tables=tuple(tables))


def _add_values(part: Iterable[Any], state: State, tensors: list[Tensor]) -> None:
    """Add what the arrays of a part are made from: numbers, and where tensors are and how often they were changed."""
    for value in part:
        if isinstance(value, Tensor):
            tensors.append(value)
            state += (value.data_ptr(), value._version)
        elif isinstance(value, list | tuple):
            _add_values(value, state, tensors)
        elif not callable(value):
            state.append(value)


def _joined(rows: list[Any], dtype: type) -> Any:
    """Rows [B, E] beside each other."""
    return np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1), dtype)


def _arrays(parts: WeightedParts, tree: Tree) -> SearchParts | None:
    """The parts of a sum, without a copy of what is large, and without users; None where they are not covered."""
    products = [(levels, part) for levels, part in parts if isinstance(part, Product)]
    networks = [(levels, part) for levels, part in parts if isinstance(part, Network)]
    shared = [(levels, part) for levels, part in parts if isinstance(part, NodeScores)]
    memories = [(levels[0], part) for levels, part in parts if isinstance(part, Memory)]
    repeats = [part.recency * levels[0] for levels, part in parts if isinstance(part, Repeats)]
    constant = all(len(set(levels)) == 1 for levels, part in parts if isinstance(part, Entries | Memory | Repeats))
    memory = _lists(memories, repeats, tree.num_items) if constant and len(repeats) < 2 else None
    if memory is None or len(products) > MAX_PRODUCTS or len(networks) > 1:
        return None
    tables = [Table(_bits(part.rows), np.array(levels, np.float32), NO_TABLE.users) for levels, part in products]
    return SearchParts(
        tuple(memory),
        np.empty((1, 0), np.int64),
        np.empty((1, 0), np.float32),
        sum((_of_nodes(levels, part, tree) for levels, part in shared), torch.zeros(1 if shared else 0)).numpy(),
        tuple(tuple(table) for table in (*tables, *[NO_TABLE] * (MAX_PRODUCTS - len(tables)))),
        tuple(_layers(*networks[0]) if networks else _no_layers()),
    )


def _lists(memories: list[tuple[float, Memory]], repeats: list[Tensor], num_items: int) -> Lists | None:
    """The lists of partners of all memories: those of items that were added follow the others."""
    if not memories:
        halves = torch.zeros(0, dtype=torch.float16)
        memories = [(1.0, Memory(torch.zeros(1, dtype=torch.int64), halves.int(), halves, torch.zeros(0, 0), None))]
    parts = [part for _, part in memories]
    longest = max(part.recency.shape[1] for part in parts)
    by_list = [pad(part.recency * weight, (0, longest - part.recency.shape[1])) for weight, part in memories]
    recency = torch.cat(by_list).contiguous().numpy()
    if len(parts) == 1:
        offsets, partners, weights, *_ = parts[0]
    else:
        too_large = sum(len(part.partners) for part in parts) > MAX_JOINED
        if too_large or any(len(part.offsets) != len(part.recency) * num_items + 1 for part in parts):
            return None
        starts = np.cumsum([0, *(len(part.partners) for part in parts)]).tolist()
        ends = [part.offsets[1:] + start for start, part in zip(starts, parts, strict=False)]
        offsets = torch.cat([parts[0].offsets[:1], *ends])
        partners, weights = (torch.cat([getattr(part, name) for part in parts]) for name in ("partners", "weights"))
    own = repeats[0].contiguous().numpy() if repeats else NO_REPEATS
    return Lists(offsets.numpy(), partners.numpy(), _bits(weights), recency, own)


def _of_nodes(levels: Sequence[float], part: NodeScores, tree: Tree) -> Tensor:
    """The scores of all nodes times the weights of their levels [num_nodes]."""
    counts = torch.tensor([len(tree.level(level)) for level in range(tree.height + 1)])
    return part.scores[: tree.num_nodes].float() * (part.scale * torch.tensor(levels).repeat_interleave(counts))


def _layers(levels: Sequence[float], part: Network) -> Layers:
    windows = part.windows.argmax(0).numpy()
    layers = tuple(_pack(*layer) for layer in part.layers)
    return Layers(np.array(levels, np.float32), part.vectors.detach().numpy(), windows, part.lift, layers)


def _no_layers() -> Layers:
    """In place of a network, where there is none."""
    layers = [(torch.zeros(1, 1), None, None)] * 5
    return _layers([], Network(torch.zeros(0, 1), torch.zeros(1, 0), False, layers))


def _pack(weight: Tensor, bias: Tensor | None, slopes: Tensor | None) -> tuple[Any, Any, Any]:
    """A layer with weights [groups, in, LANES], the last group of outputs filled up with zeros.

    Every layer has a bias and slopes, also where they change nothing.
    """
    lanes = compiling.load("compiled_layers").LANES
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    slopes = weight.new_ones(len(weight)) if slopes is None else slopes
    weight, bias, slopes = (pad(each.detach().float(), (0, -len(bias) % lanes)) for each in (weight.T, bias, slopes))
    return weight.unflatten(1, (-1, lanes)).transpose(0, 1).contiguous().numpy(), bias.numpy(), slopes.numpy()


def fold_in(
    tree: Tree,
    rows: Tensor,
    x: Tensor,
    recency: Tensor,
    gram_diagonal: Tensor,
    penalty: float,
    unobserved_weight: float,
    scale: float = 1.0,
) -> Tensor:
    """u(x) [B, dim] of histories x [B, T]: see `scorers.factors.fold_in`. The rows are those of all nodes, float16.

    It is multiplied by `scale`, by NumPy, which takes less time for a few numbers.
    """
    users = np.empty((len(x), rows.shape[1]), np.float32)
    compiling.load("compiled_search").fold_in(
        x.contiguous().numpy(), tree._leaf_of_item.numpy(), _bits(rows), recency.numpy(), gram_diagonal.numpy(),
        np.float32(penalty), np.float32(unobserved_weight), users,
    )  # fmt: skip
    users *= np.float32(scale)
    return torch.from_numpy(users)


def search(
    tree: Tree, mask: NodeMask, parts: SearchParts, x: Tensor, excluded: Tensor | None,
    first_level: int, widths: tuple[int, ...], m: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The m best items of the last beam and their scores [B, m], best first, PAD and -inf where there are fewer.

    x are histories [B, T], for whose users the parts are.
    """
    count, most = x.shape[0], max(m, len(tree.items()))  # a level has no more nodes, however wide the beam
    task = SearchInput(
        x.contiguous().numpy(), tree._leaf_of_item.numpy(), tree.items().numpy(),
        tree.arity, tree.height, first_level, np.array([min(width, most) for width in widths]),
        ALL_ENTERED if mask.full_to == tree.height else mask.entered.numpy(),
        NONE_BEFORE if excluded is None else mask._allowed_before.numpy(),
        NONE_HIDDEN if excluded is None else excluded.numpy(),
        tuple(parts), np.empty((count, m), np.int64), np.empty((count, m), np.float32),
    )  # fmt: skip
    return _run(compiling.load("compiled_search").search, task, tree.num_nodes)


def scan(
    tree: Tree, mask: NodeMask, parts: SearchParts, x: Tensor, hidden: Tensor | None, m: int,
    leaves: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The m best items of all that may be entered, and their scores [B, m], as `search` gives them.

    `hidden` are leaves that each user is not shown [B, E], PAD for none; `leaves` those that may be entered, where they
    are few. There is no network among the parts.
    """
    count = x.shape[0]
    task = ScanInput(
        x.contiguous().numpy(), tree._leaf_of_item.numpy(), tree.items().numpy(),
        tree.height, tree.level(tree.height).start,
        ALL_LEAVES if leaves is None else leaves.numpy(),
        ALL_ENTERED if mask.full_to == tree.height else mask.entered.numpy(),
        NONE_HIDDEN if hidden is None else hidden.contiguous().numpy(),
        tuple(parts), np.empty((count, m), np.int64), np.empty((count, m), np.float32),
    )  # fmt: skip
    return _run(compiling.load("compiled_scan").scan, task, tree.num_nodes)


def _run(function: Callable[..., None], task: SearchInput | ScanInput, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Call a compiled function for all users, some in each thread; returns what it found."""
    arrays = tuple(task)

    def run(span: tuple[int, int]) -> None:
        zeros = _borrow(num_nodes)
        function(*span, arrays, zeros)
        with _LOCK:
            _ZEROS.append(zeros)

    in_spans(run, len(task.found))
    return torch.from_numpy(task.found), torch.from_numpy(task.scores)


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

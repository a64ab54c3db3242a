"""Models that several processes wrote, each a part; any number of processes can read them.

    settings.json                     as for every model, with how rows and lists are divided under `shards`
    tree-<step>.safetensors           the items on the leaf slots
    shard-<rank>-<step>.safetensors   the weights and moments of one rank; the first has those that are not divided

Rows of nodes are divided below a level, the cut: each level below it is a tensor [nodes of the cut, nodes below one of
them, dim], of which every file has some nodes of the cut in the order of the ranks. All levels above it are one tensor,
<name>:top. The partners of item i of a memory are in the part i % W of W.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.csr import CSR, concatenate
from beamtree.model import TreeModel
from beamtree.scorers import MemoryScorer
from beamtree.storage.settings import REMEDY, explain_damage, file_path, read_tensors, shard_names
from beamtree.tree import Tree

MEMORY_TENSORS = ("offsets", "partners", "weights")


def memories_of(model: TreeModel) -> dict[str, MemoryScorer]:
    """The memories among the parts of a model, by the prefix of their names in `state_dict`."""
    modules = model.scorer.named_modules()
    return {f"{name}.".lstrip("."): module for name, module in modules if isinstance(module, MemoryScorer)}


def memory_names(prefixes: Iterable[str]) -> set[str]:
    """The names in `state_dict` of the tensors of memories."""
    return {f"{prefix}{name}" for prefix in prefixes for name in MEMORY_TENSORS}


class ShardedTensors:
    """The tensors in the files of all ranks, by name: the parts of a divided one follow each other.

    Args:
        files: of the ranks, in their order, as safetensors has opened them.
    """

    def __init__(self, files: Sequence[Any]) -> None:
        self._files: dict[str, list[Any]] = {}
        for file in files:
            for name in file.keys():  # noqa: SIM118
                self._files.setdefault(name, []).append(file)

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._files)

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor."""
        first, *others = (file.get_slice(name).get_shape() for file in self._files[name])
        return [first[0] + sum(other[0] for other in others), *first[1:]] if others else list(first)

    def whole(self, name: str) -> Tensor:
        """All of a tensor."""
        parts = [file.get_tensor(name) for file in self._files[name]]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def copy(self, name: str, out: Tensor, first: int = 0) -> None:
        """Copy a tensor into another one; of a divided one as many rows as this has, from the row `first` on."""
        shape = self.shape(name)
        if not shape:
            out.copy_(self.whole(name))
            return
        if shape[1:] != list(out.shape[1:]) or first + len(out) > shape[0]:
            raise ValueError(f"{name} is {shape}, which does not hold {list(out.shape)} from row {first}")
        end, start = first + len(out), 0
        for file in self._files[name]:
            part = file.get_slice(name)
            rows = range(max(first, start), min(end, start + part.get_shape()[0]))
            if rows:  # pages of the file are read as they are copied
                out[rows.start - first : rows.stop - first].copy_(part[rows.start - start : rows.stop - start])
            start += part.get_shape()[0]


@contextmanager
def open_shards(folder: Path, settings: Mapping[str, Any]) -> Iterator[ShardedTensors]:
    """The tensors in the files of a model, which must have been checked."""
    from safetensors import SafetensorError, safe_open

    try:
        with ExitStack() as stack, explain_damage(folder):
            paths = [file_path(folder, dict(settings), part) for part in shard_names(settings["shards"]["ranks"])]
            yield ShardedTensors([stack.enter_context(safe_open(path, framework="pt")) for path in paths])
    except SafetensorError as error:
        raise ValueError(f"{folder} is damaged ({error}): {REMEDY}") from error


def load_shards(folder: Path, settings: Mapping[str, Any], model: TreeModel) -> None:
    """Load all weights into a model of one process."""
    memories, prefixes = memories_of(model), settings["shards"]["lists"]
    with open_shards(folder, settings) as tensors:
        for prefix in prefixes:
            memory = memories[prefix]
            memory.rows = read_memory(tensors, settings, prefix, memory.lists, torch.arange(memory.num_items))
        divided = memory_names(prefixes)
        state = {f"weights.{k}": v.detach() for k, v in model.scorer.state_dict().items() if k not in divided}
        for name, value in _layout(state, settings, model.tree).items():
            tensors.copy(name, value)


def weight_shapes(folder: Path, settings: Mapping[str, Any]) -> dict[str, list[int]]:
    """The shapes of all weights, put together, by their names in `state_dict`."""
    size = settings["shards"]["ranks"]
    with open_shards(folder, settings) as tensors:
        shapes = {name: tensors.shape(name) for name in tensors.names if ":" not in name}
        for name in settings["shards"]["rows"]:
            parts = [tensors.shape(part) for part in row_names(tensors, name)]
            shapes[name] = [sum(prod(part[:-1]) for part in parts), parts[0][-1]]
        for name in memory_names(settings["shards"]["lists"]):
            length = sum(tensors.shape(f"weights.{name}:{rank}")[0] for rank in range(size))
            shapes[f"weights.{name}"] = [length - (size - 1 if name.endswith("offsets") else 0)]
    return {name.removeprefix("weights."): shape for name, shape in shapes.items()}


def read_moments(folder: Path, settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The moments of Adam by name, <number of a parameter>.<name>, of one process or of several."""
    if "shards" not in settings:
        return read_tensors(folder, dict(settings), "optimizer")
    moments = {}
    with open_shards(folder, settings) as tensors:
        for name in sorted({name.partition(":")[0] for name in tensors.names if name.startswith("optimizer.")}):
            if name in settings["shards"]["rows"]:
                levels = (tensors.whole(level) for level in row_names(tensors, name))
                value = torch.cat([level.reshape(-1, level.shape[-1]) for level in levels])
            else:
                value = tensors.whole(name)
            moments[name.removeprefix("optimizer.")] = value
    return moments


def row_names(tensors: ShardedTensors, name: str) -> list[str]:
    """The tensors that hold rows of nodes: the top, and the levels below it."""
    levels = [key for key in tensors.names if key.startswith(f"{name}:") and not key.endswith(":top")]
    return [f"{name}:top", *sorted(levels, key=lambda key: int(key.rpartition(":")[2]))]


def _layout(state: Mapping[str, Tensor], settings: Mapping[str, Any], tree: Tree) -> dict[str, Tensor]:
    """Views of full tensors in the layout of the files."""
    cut, rows = settings["shards"]["cut"], settings["shards"]["rows"]
    if not 0 <= cut <= tree.height:
        raise IndexError(f"the tree has no level {cut}")
    result = {name: value for name, value in state.items() if name not in rows}
    for name in (name for name in rows if name in state):
        value = state[name]
        result[f"{name}:top"] = value[: tree.level(cut).stop]
        for level in range(cut + 1, tree.height + 1):
            span, below = tree.level(level), tree.arity ** (level - cut)
            result[f"{name}:{level}"] = value[span.start : span.stop].view(-1, below, value.shape[1])
    return result


def read_memory(
    tensors: ShardedTensors,
    settings: Mapping[str, Any],
    prefix: str,
    lists: int,
    items: Tensor,
) -> CSR:
    """The partners of some items, list by list."""
    size = settings["shards"]["ranks"]
    parts = (CSR(*(tensors.whole(f"weights.{prefix}{name}:{rank}") for name in MEMORY_TENSORS)) for rank in range(size))
    return merge_parts(parts, lists, size, items)


def merge_parts(parts: Iterable[CSR], lists: int, size: int, items: Tensor) -> CSR:
    """The rows of some items [n], in rising order, for each list; part i of `size` has those of items i, i + size, …"""
    rows, keys = [], []
    number = torch.arange(lists).unsqueeze(1)
    for index, part in enumerate(parts):
        in_part = items[items % size == index]
        rows.append(part.take((number * (len(part) // lists) + in_part // size).flatten()))
        keys.append((number * (int(items.max()) + 1 if len(items) else 1) + in_part).flatten())
    return concatenate(rows).take(torch.cat(keys).argsort())

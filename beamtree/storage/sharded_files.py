"""Models that several processes wrote, each a part; any number of processes can read them.

    settings.json             as for every model, with the folder and the files below under `shards`
    tree-<step>.safetensors   the items on the leaf slots
    shards-<step>/            weights and moments, as torch.distributed.checkpoint writes them

Rows of nodes are divided below a level, the cut: each level below it is a tensor [nodes of the cut, nodes below one of
them, dim], and all levels above it are one tensor, <name>:top. The partners of item i of a memory are in the part i % W
of W. torch.distributed.checkpoint reads its list of files with pickle: only read what you wrote.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.csr import CSR, concatenate
from beamtree.model import TreeModel
from beamtree.scorers import MemoryScorer
from beamtree.storage.settings import REMEDY, read_tensors
from beamtree.tree import Tree

MEMORY_TENSORS = ("offsets", "partners", "weights")


def memories_of(model: TreeModel) -> dict[str, MemoryScorer]:
    """The memories among the parts of a model, by the prefix of their names in `state_dict`."""
    modules = model.scorer.named_modules()
    return {f"{name}.".lstrip("."): module for name, module in modules if isinstance(module, MemoryScorer)}


def memory_names(prefixes: Iterable[str]) -> set[str]:
    """The names in `state_dict` of the tensors of memories."""
    return {f"{prefix}{name}" for prefix in prefixes for name in MEMORY_TENSORS}


def load_shards(folder: Path, settings: Mapping[str, Any], model: TreeModel) -> None:
    """Load all weights into a model of one process."""
    memories, prefixes = memories_of(model), memory_prefixes(folder, settings)
    for prefix in prefixes:
        memory = memories[prefix]
        memory.rows = read_memory(folder, settings, prefix, memory.lists, torch.arange(memory.num_items))
    divided = memory_names(prefixes)
    state = {f"weights.{k}": v.detach() for k, v in model.scorer.state_dict().items() if k not in divided}
    load_state(folder, settings, _layout(state, settings, model.tree))


def read_moments(folder: Path, settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The moments of Adam by name, <number of a parameter>.<name>, of one process or of several."""
    if "shards" not in settings:
        return read_tensors(folder, dict(settings), "optimizer")
    tensors, rows = tensors_in(folder, settings), settings["shards"]["rows"]
    state = {name: _empty(metadata) for name, metadata in tensors.items() if name.startswith("optimizer.")}
    state = {name: value for name, value in state.items() if name.partition(":")[0] not in rows}
    levels = {name: value for name, value in _row_tensors(tensors, settings).items() if name.startswith("optimizer.")}
    load_state(folder, settings, {**state, **{name: part for parts in levels.values() for name, part in parts.items()}})
    state |= {
        name: torch.cat([part.reshape(-1, part.shape[-1]) for part in parts.values()]) for name, parts in levels.items()
    }
    return {name.removeprefix("optimizer."): value for name, value in state.items()}


def _row_tensors(tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Empty tensors for the rows of nodes: for each name one for the top, and one for each level below it."""
    result: dict[str, dict[str, Tensor]] = {}
    for name in settings["shards"]["rows"]:
        keys = [key for key in tensors if key.startswith(f"{name}:") and not key.endswith(":top")]
        keys.sort(key=lambda key: int(key.rpartition(":")[2]))
        result[name] = {key: _empty(tensors[key]) for key in (f"{name}:top", *keys)}
    return result


def _layout(state: Mapping[str, Tensor], settings: Mapping[str, Any], tree: Tree) -> dict[str, Tensor]:
    """Views of full tensors in the layout of the files."""
    cut, rows = int(settings["shards"]["cut"]), settings["shards"]["rows"]
    result = {name: value for name, value in state.items() if name not in rows}
    for name in (name for name in rows if name in state):
        value = state[name]
        result[f"{name}:top"] = value[: tree.level(cut).stop]
        for level in range(cut + 1, tree.height + 1):
            span, below = tree.level(level), tree.arity ** (level - cut)
            result[f"{name}:{level}"] = value[span.start : span.stop].view(-1, below, value.shape[1])
    return result


def read_memory(
    folder: Path,
    settings: Mapping[str, Any],
    prefix: str,
    lists: int,
    items: Tensor,
    wanted: Callable[[Tensor], Tensor] | None = None,
) -> CSR:
    """The partners of some items, list by list; with `wanted`, only partners in its mask."""
    tensors, size = tensors_in(folder, settings), settings["shards"]["ranks"]

    def parts() -> Iterator[CSR]:
        for index in range(size):
            names = [f"weights.{prefix}{name}:{index}" for name in MEMORY_TENSORS]
            state = {name: _empty(tensors[name]) for name in names}
            load_state(folder, settings, dict(state))
            part = CSR(*state.values())
            yield part if wanted is None else part.filter(wanted(part.columns))

    return merge_parts(parts(), lists, size, items)


def merge_parts(parts: Iterable[CSR], lists: int, size: int, items: Tensor) -> CSR:
    """The rows of some items [n], in rising order, for each list; part i of `size` has those of items i, i + size, …"""
    rows, keys = [], []
    number = torch.arange(lists).unsqueeze(1)
    for index, part in enumerate(parts):
        in_part = items[items % size == index]
        rows.append(part.take((number * (len(part) // lists) + in_part // size).flatten()))
        keys.append((number * (int(items.max()) + 1 if len(items) else 1) + in_part).flatten())
    return concatenate(rows).take(torch.cat(keys).argsort())


def memory_prefixes(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """The prefixes of the memories that are divided over the files."""
    if "lists" not in settings["shards"]:
        raise ValueError(f"{folder} was written by another version of beamtree: {REMEDY}")
    prefixes: list[str] = settings["shards"]["lists"]
    return prefixes


def tensors_in(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata (size and dtype) of every tensor in the files, by name."""
    tensors: dict[str, Any] = _reader(folder, settings).read_metadata().state_dict_metadata
    return tensors


def load_state(folder: Path, settings: Mapping[str, Any], state: dict[str, Any], *, alone: bool = True) -> None:
    """Read the tensors of `state` from the files, in place; with `alone`, without other processes."""
    from torch.distributed.checkpoint.state_dict_loader import load

    with checkpoint_errors(folder):
        load(state, storage_reader=_reader(folder, settings), no_dist=alone)


def _reader(folder: Path, settings: Mapping[str, Any]) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # here: it takes a second to import

    return FileSystemReader(folder / settings["shards"]["folder"])


def _empty(metadata: Any) -> Tensor:
    return torch.empty(metadata.size, dtype=metadata.properties.dtype)


@contextmanager
def checkpoint_errors(folder: Path) -> Iterator[None]:
    """Turn errors of torch.distributed.checkpoint into one-line errors."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, OSError):
            raise OSError(first.errno, f"{folder}: {first.strerror or first}") from error
        raise ValueError(f"{folder} is damaged ({type(first).__name__}: {first}): {REMEDY}") from error

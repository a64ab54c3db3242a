"""Weights and moments that lie on several ranks, as a folder holds them; `storage.spread` writes them.

    settings.json             what this is, and under `shards` the folder below with every file in it
    tree-<step>.safetensors   the items on the leaf slots
    shards-<step>/            weights and moments, as torch.distributed.checkpoint writes them, a file from each rank

Any number of ranks reads it. Rows are divided where the levels below the cut are: each level is a tensor [nodes of the
cut, nodes below one of them, dim] of which every rank has a run. As with every model, settings.json is replaced
last, in one move. torch.distributed.checkpoint reads its list of files with pickle: read only what you wrote.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.distributed.group import Ranks, ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharded_lists import Kept, merged_lists, of_entries
from beamtree.distributed.sharded_table import SpreadTable
from beamtree.files.checksums import check_file
from beamtree.model import TreeModel
from beamtree.scorers.memory import MemoryScorer
from beamtree.storage.settings import AGAIN
from beamtree.tree import Tree

Moments = Mapping[str, Tensor]  # by name: those of rows are as long as the rows


def row_names(model: TreeModel) -> dict[str, SpreadTable]:
    """The weights that are rows of several ranks, by their names in `state_dict`."""
    modules = model.scorer.named_modules()
    return {f"{name}.weight".lstrip("."): each for name, each in modules if isinstance(each, SpreadTable)}


def memories(model: TreeModel) -> dict[str, MemoryScorer]:
    """The memories among its parts, by what their names in `state_dict` begin with."""
    modules = model.scorer.named_modules()
    return {f"{name}.".lstrip("."): each for name, each in modules if isinstance(each, MemoryScorer)}


def spread_memories(model: TreeModel) -> dict[str, MemoryScorer]:
    """Those of which each rank has some lists."""
    return {prefix: each for prefix, each in memories(model).items() if each.is_spread}


def names_of_lists(prefixes: Iterable[str]) -> set[str]:
    """What the lists of memories are called in `state_dict`."""
    return {f"{prefix}{name}" for prefix in prefixes for name in Kept._fields}


def check_shards(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise a ValueError where a file that a rank wrote is not there as it was written."""
    shards = settings["shards"]
    for name, known in shards["files"].items():
        try:
            check_file(folder / shards["folder"], name, known, AGAIN)
        except ValueError as error:
            count = f"{len(shards['files'])} files from {shards['ranks']} ranks"
            raise ValueError(f"{error} ({count} belong to {folder})") from error


def read_shards(folder: Path, settings: Mapping[str, Any], model: TreeModel) -> None:
    """Copy the weights into the model's: all of them, or this rank's."""
    over, known = ranks() if model.scorer.is_spread else Ranks(), memories(model)
    written = _of_lists(folder, settings)
    for prefix in written:
        known[prefix].keep(*_read_lists(folder, settings, prefix, known[prefix].lists, over))
    listed = names_of_lists(written)
    whole = {name: value for name, value in model.scorer.state_dict().items() if name not in listed}
    _read(folder, settings, model, {f"weights.{name}": value.detach() for name, value in whole.items()})


def _of_lists(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    if "lists" not in settings["shards"]:
        raise ValueError(f"{folder} was written by another version of beamtree: {AGAIN}")
    found: list[str] = settings["shards"]["lists"]
    return found


def _read_lists(
    folder: Path,
    settings: Mapping[str, Any],
    prefix: str,
    lists: int,
    over: Ranks,
    wanted: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Kept, int]:
    """The lists of items that are dealt to one of some ranks, from all that were written, a rank at a time.

    Beside them, how many entries were written. With `wanted`, entries of partners that it names alone are kept.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    known, written = _reader(folder, settings).read_metadata().state_dict_metadata, settings["shards"]["ranks"]

    def parts() -> Iterator[Kept]:
        for rank in range(written):
            names = [f"weights.{prefix}{name}:{rank}" for name in Kept._fields]
            state = {name: torch.empty(known[name].size, dtype=known[name].properties.dtype) for name in names}
            load(dict(state), storage_reader=_reader(folder, settings), no_dist=True)
            part = Kept(*state.values())
            yield part if wanted is None else of_entries(part, wanted(part.partners))

    entries = sum(known[f"weights.{prefix}partners:{rank}"].size[0] for rank in range(written))
    with told(folder):
        return merged_lists(parts(), lists, written, over), entries


def read_moments(
    folder: Path, settings: Mapping[str, Any], model: TreeModel, parameter: Callable[[int], Tensor]
) -> dict[str, Tensor]:
    """Adam's moments by name, <number of a parameter>.<name>: all of them, or this rank's."""
    known = _reader(folder, settings).read_metadata().state_dict_metadata
    rows = [name for name in settings["shards"]["rows"] if name.startswith("optimizer.")]
    whole = [name for name in known if name.startswith("optimizer.") and name.partition(":")[0] not in rows]
    state = {name: torch.empty_like(parameter(int(name.split(".")[1])), requires_grad=False) for name in rows}
    state |= {name: torch.empty(known[name].size, dtype=known[name].properties.dtype) for name in whole}
    _read(folder, settings, model, state)
    return {name.removeprefix("optimizer."): value for name, value in state.items()}


def read_part(folder: Path, settings: Mapping[str, Any], tree: Tree, shard: Shard) -> dict[str, Tensor]:
    """The weights by name, of rows and of partners those of a shard: each rank reads for itself."""
    if int(settings["shards"]["cut"]) != shard.cut:
        raise ValueError(f"{folder} was written by another version of beamtree: {AGAIN}")
    from torch.distributed.checkpoint.state_dict_loader import load

    known = _reader(folder, settings).read_metadata().state_dict_metadata
    rows = [name for name in settings["shards"]["rows"] if name.startswith("weights.")]
    state: dict[str, Tensor] = {}
    lists_of: dict[str, Tensor] = {}

    def own(partners: Tensor) -> Tensor:
        return shard.owned(shard.height, tree.leaf_of_item(partners.long()))

    for prefix in _of_lists(folder, settings):
        lists = known[f"weights.{prefix}recency"].size[0]
        found, _ = _read_lists(folder, settings, prefix, lists, Ranks(), own)
        lists_of |= {f"{prefix}{name}": value for name, value in found._asdict().items()}
    for name in (*rows, *(each for each in known if each.startswith("weights.") and ":" not in each)):
        top = known[f"{name}:top" if name in rows else name]
        size = (shard.num_rows, top.size[1]) if name in rows else top.size
        state[name] = torch.empty(size, dtype=top.properties.dtype)
    with told(folder):
        load(laid_out(state, rows, shard), storage_reader=_reader(folder, settings), no_dist=True)
    return {**{name.removeprefix("weights."): value for name, value in state.items()}, **lists_of}


def _read(folder: Path, settings: Mapping[str, Any], model: TreeModel, state: dict[str, Tensor]) -> None:
    tables, cut = row_names(model), int(settings["shards"]["cut"])
    now = ranks() if model.scorer.is_spread else Ranks()
    shard = Shard(model.tree.arity, model.tree.height, cut, now)
    if any(table.shard != shard for table in tables.values()):
        raise ValueError(f"{folder} was written by another version of beamtree: {AGAIN}")
    names = [name for name in settings["shards"]["rows"] if name in state]
    from torch.distributed.checkpoint.state_dict_loader import load

    with told(folder):
        wanted = laid_out(state, names, shard)
        load(wanted, storage_reader=_reader(folder, settings), no_dist=now.size == 1)


def _reader(folder: Path, settings: Mapping[str, Any]) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(folder / settings["shards"]["folder"])


def laid_out(state: Mapping[str, Tensor], rows: list[str], shard: Shard) -> dict[str, Any]:
    """What torch.distributed.checkpoint is given: of rows the top, and every level below it with this rank's run."""
    found: dict[str, Any] = {name: value for name, value in state.items() if name not in rows}
    for name in rows:
        value, dim = state[name], state[name].shape[1]
        found[f"{name}:top"] = value[: shard.num_top]
        for level in shard.below:
            each = shard.arity ** (level - shard.cut)
            run = value[shard.rows(level)].view(len(shard.runs(shard.ranks.rank)), each, dim)
            found[f"{name}:{level}"] = run if shard.ranks.size == 1 else _part_of(run, len(shard.level(shard.cut)))
    return found


def _part_of(run: Tensor, nodes: int) -> Any:
    """A run of one rank as a part of a tensor of all, which nobody has."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as Divided

    mesh = init_device_mesh(run.device.type, (ranks().size,))
    shape = torch.Size((nodes, *run.shape[1:]))
    stride = (run.shape[1] * run.shape[2], run.shape[2], 1)
    return DTensor.from_local(run, mesh, [Divided(0)], run_check=False, shape=shape, stride=stride)


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Errors of torch.distributed.checkpoint, which are of a kind of their own, in one line."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, OSError):
            raise OSError(first.errno, f"{folder}: {first.strerror or first}") from error
        raise ValueError(f"{folder} is damaged ({type(first).__name__}: {first}): {AGAIN}") from error

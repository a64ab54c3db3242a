"""How several ranks write one model: all at once into a draft, which takes its place in one move."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beamtree.distributed.checkpoint_files import Moments, laid_out, names_of_lists, row_names, spread_memories, told
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.errors import explain_full_disk
from beamtree.files.atomic import fsync
from beamtree.files.checksums import file_checksum, with_checksum
from beamtree.files.staging import folder_lock, remove, staging_folder
from beamtree.model import TreeModel
from beamtree.storage.models import OURS, check_room, settings_of, tree_tensors
from beamtree.storage.settings import SETTINGS, check_finite
from beamtree.storage.tensors import save_tensors


def write_spread(
    folder: Path, model: TreeModel, step: int, moments: Moments, of_rows: set[str], progress: dict[str, Any]
) -> None:
    """Write a model in training; all ranks call it, and the first makes it whole.

    Args:
        folder: where to; every rank must see it.
        model: the model, with rows on several ranks.
        step: steps behind it, or 0.
        moments: Adam's, by name.
        of_rows: the names of those that belong to rows.
        progress: how far its training is.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # here: it takes a second to import
    from torch.distributed.checkpoint.state_dict_saver import save

    now, rows, lists = ranks(), row_names(model), spread_memories(model)
    shard = next((table.shard for table in rows.values()), Shard.of(model.tree, now))
    listed = names_of_lists(lists)
    state = {
        f"weights.{name}:{now.rank}" if name in listed else f"weights.{name}": value.detach()
        for name, value in model.scorer.state_dict().items()
    }
    state |= {f"optimizer.{name}": value for name, value in moments.items()}
    names = [*(f"weights.{name}" for name in rows), *(f"optimizer.{name}" for name in sorted(of_rows))]
    with ExitStack() as stack:
        place = Path()
        with now.agreed():
            check_finite(model)
            if now.is_first:
                stack.enter_context(folder_lock(folder))
                place = _room(folder, step, stack)
        place = now.gather(place)[0]
        with now.agreed(), explain_full_disk(folder), told(folder):
            save(laid_out(state, names, shard), storage_writer=FileSystemWriter(place))
        with now.agreed(), explain_full_disk(folder):
            files = {path.name: file_checksum(path) for path in _written(place, now.rank)}
        files = {name: known for each in now.gather(files) for name, known in each.items()}
        with now.agreed() as first, explain_full_disk(folder):
            if first:
                whose = {"cut": shard.cut, "ranks": now.size, "rows": names, "lists": list(lists)}
                shards = {"folder": place.name, **whose, "files": files}
                _finish(folder, place, model, step, progress, shards)


def _room(folder: Path, step: int, stack: ExitStack) -> Path:
    """Where the ranks write: a draft that nobody reads."""
    check_room(folder)
    name = f"shards-{step}"
    if (folder / name).exists():
        name += "b"
        remove(folder / name)
    draft = stack.enter_context(staging_folder(folder / "files"))
    (draft / name).mkdir()
    return draft / name


def _written(place: Path, rank: int) -> Iterator[Path]:
    """The files of one rank."""
    for path in sorted(place.iterdir()):
        if path.name.startswith(f"__{rank}_") or (rank == 0 and path.name == ".metadata"):
            yield path


def _finish(
    folder: Path, place: Path, model: TreeModel, step: int, progress: dict[str, Any], shards: dict[str, Any]
) -> None:
    """Move what was written to its place, and let settings.json point to it."""
    draft, name = place.parent, f"tree-{step}{'b' if place.name.endswith('b') else ''}.safetensors"
    save_tensors(draft / name, tree_tensors(model))
    fsync(draft / name)
    fsync(place)
    settings = settings_of(model, progress, {"tree": {"file": name, **file_checksum(draft / name)}})
    (draft / SETTINGS).write_text(json.dumps(with_checksum({**settings, "shards": shards}), indent=2) + "\n")
    fsync(draft / SETTINGS)
    os.replace(place, folder / place.name)
    os.replace(draft / name, folder / name)
    fsync(folder)
    os.replace(draft / SETTINGS, folder / SETTINGS)
    fsync(folder)
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in (name, place.name):
            remove(path)

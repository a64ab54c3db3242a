"""Checkpoints of a model that is trained over ranks: each rank writes its part, and any number of ranks reads them.

The files are described in `beamtree.storage.sharded_files`. As with every model, settings.json is replaced last.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.csr import CSR
from beamtree.distributed.exchange import own_rows
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharding import (
    divided_names,
    is_sharded,
    own_lists,
    shard_model,
    sharded_memories,
    sharded_names,
    whole_model,
)
from beamtree.errors import explain_full_disk
from beamtree.files.atomic import fsync
from beamtree.files.checksums import file_checksum
from beamtree.files.staging import folder_lock, staging_folder
from beamtree.model import TreeModel
from beamtree.scorers import Scorer
from beamtree.storage import models
from beamtree.storage.models import files_in_use, make_settings, model_without_weights, move_model, tree_tensors
from beamtree.storage.settings import (
    REMEDY,
    check_files,
    explain_damage,
    holds_model,
    read_settings,
    read_tensors,
    shard_names,
)
from beamtree.storage.sharded_files import MEMORY_TENSORS, ShardedTensors, open_shards, read_memory
from beamtree.storage.tensors import check_finite, save_tensors
from beamtree.train.checkpoint import Checkpointer, check_same_tree, load_moments, moments_of
from beamtree.train.validation import Progress

Moments = Mapping[str, Tensor]  # by name; those of rows have one row for each


def save_model(model: TreeModel, folder: str | Path) -> None:
    """`beamtree.save_model` for a model that is sharded over ranks: the first rank gathers and writes it."""
    model = models.without_zero_parts(model)  # before they are gathered
    with ranks().fail_together():
        check_finite(model)
    whole = whole_model(model) if is_sharded(model) else model
    with ranks().fail_together() as first:
        if first and whole is not None:
            models.save_model(whole, folder)


class ShardedCheckpointer(Checkpointer):
    """Saves and resumes a run over ranks; another number of ranks may have begun it."""

    def resume(self, steps: int) -> Progress:
        if self.folder is None:
            return Progress(0)
        settings, progress = None, Progress(0)
        with ranks().fail_together() as first:
            if first:
                files_in_use(self.folder)
            if holds_model(self.folder):
                settings, progress = self.check(self.folder, steps)
        ranks().check_equal(step=progress.step)
        if settings is not None:
            moments = _read_moments(self.folder, settings, self.model, self.optimizer)
            load_weights(self.folder, settings, self.model)
            load_moments(self.optimizer, moments)
        return progress

    def is_late(self, now: float) -> bool:
        return ranks().broadcast(super().is_late(now))

    def write(self, folder: Path, step: int, progress: dict[str, Any]) -> None:
        if is_sharded(self.model):
            moments = moments_of(self.optimizer)
            tables = {id(table.weight) for table in sharded_names(self.model).values()}
            rows = {index for index, each in enumerate(_parameters(self.optimizer)) if id(each) in tables}
            of_rows = {name for name, value in moments.items() if int(name.split(".")[0]) in rows and value.dim()}
            write_sharded(folder, self.model, step, moments, of_rows, progress)
            return
        with ranks().fail_together() as first:
            if first:
                super().write(folder, step, progress)

    def write_best(self, folder: Path) -> None:
        if is_sharded(self.model):
            write_sharded(folder, self.model, 0, {}, set(), {})
            return
        with ranks().fail_together() as first:
            if first:
                super().write_best(folder)

    def load_best(self, folder: Path) -> None:
        settings = read_settings(folder)
        with ranks().fail_together():
            check_same_tree(folder, settings, self.model)
        load_weights(folder, settings, self.model)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


# Writing


def write_sharded(
    folder: Path, model: TreeModel, step: int, moments: Moments, of_rows: set[str], progress: dict[str, Any]
) -> None:
    """Write a sharded model; all ranks call it, and the first completes it.

    Args:
        folder: where to; every rank must see it.
        model: the model.
        step: steps of training, or 0.
        moments: of Adam, by name.
        of_rows: the names of those that belong to sharded rows.
        progress: of its training.
    """
    group, tables, memories = ranks(), sharded_names(model), sharded_memories(model)
    shard = next((table.shard for table in tables.values()), Shard.of(model.tree, group))
    divided = divided_names(model) - set(tables)
    state = {
        f"weights.{name}:{group.rank}" if name in divided else f"weights.{name}": value.detach()
        for name, value in model.scorer.state_dict().items()
    }
    state |= {f"optimizer.{name}": value for name, value in moments.items()}
    rows = [*(f"weights.{name}" for name in tables), *(f"optimizer.{name}" for name in sorted(of_rows))]
    parts = _layout(state, rows, shard)
    if not group.is_first:  # which writes what all have
        parts = {name: value for name, value in parts.items() if ":" in name and not name.endswith(":top")}
    with ExitStack() as stack:
        draft, suffix = Path(), ""
        with group.fail_together():
            check_finite(model)
            if group.is_first:
                stack.enter_context(folder_lock(folder))
                if f"tree-{step}.safetensors" in files_in_use(folder):  # never overwrite a file of the last good model
                    suffix = "b"
                draft = stack.enter_context(staging_folder(folder / "files"))
        draft, suffix = group.broadcast((draft, suffix))
        own: dict[str, Any] = {"file": f"shard-{group.rank}-{step}{suffix}.safetensors"}
        with group.fail_together(), explain_full_disk(folder):
            save_tensors(draft / own["file"], parts)
            fsync(draft / own["file"])
            own |= file_checksum(draft / own["file"])
        files = dict(zip(shard_names(group.size), group.gather(own), strict=True))
        with group.fail_together() as first, explain_full_disk(folder):
            if first:
                tree = f"tree-{step}{suffix}.safetensors"
                save_tensors(draft / tree, tree_tensors(model))
                fsync(draft / tree)
                files["tree"] = {"file": tree, **file_checksum(draft / tree)}
                shards = {"cut": shard.cut, "ranks": group.size, "rows": rows, "lists": list(memories)}
                move_model(draft, folder, {**make_settings(model, progress, files), "shards": shards})


def _layout(state: Mapping[str, Tensor], rows: Sequence[str], shard: Shard) -> dict[str, Tensor]:
    """State in the layout of the files: rows become the top, and this rank's part of every level below it."""
    result = {name: value for name, value in state.items() if name not in rows}
    for name in (name for name in rows if name in state):
        value, dim = state[name], state[name].shape[1]
        result[f"{name}:top"] = value[: shard.num_top]
        for level in shard.below:
            below = shard.arity ** (level - shard.cut)
            result[f"{name}:{level}"] = value[shard.rows(level)].view(len(shard.runs(shard.ranks.rank)), below, dim)
    return result


# Reading


def load_part_for_training(
    folder: str | Path, device: torch.device | str = "cpu", *, scorers: Sequence[type[Scorer]] = ()
) -> TreeModel:
    """This rank's part of a model whose training continues."""
    folder = Path(folder)
    with ranks().fail_together():
        settings = read_settings(folder)
        check_files(folder, settings)
        with explain_damage(folder):
            model = model_without_weights(folder, settings, scorers)
    shard_model(model)
    load_weights(folder, settings, model)
    return model.to(device).eval()


def load_weights(folder: Path, settings: dict[str, Any], model: TreeModel) -> None:
    """Load this rank's part of weights that one process or any number of ranks wrote; all ranks call it."""
    tables, memories = sharded_names(model), sharded_memories(model)
    if "shards" not in settings:  # one process wrote it
        weights = read_tensors(folder, settings, "weights")
        for name, table in tables.items():
            weights[name] = table.shard.part(weights[name])
        for prefix, memory in memories.items():
            rows = CSR(*(weights[f"{prefix}{name}"] for name in MEMORY_TENSORS))
            memory.set_part(own_lists(rows, memory.lists))
            weights |= {f"{prefix}{name}": getattr(memory, name) for name in MEMORY_TENSORS}
        model.scorer.load_state_dict(weights)
        return
    prefixes, shard = settings["shards"]["lists"], _shard(settings, model)
    divided = divided_names(model) - set(tables)
    state = {f"weights.{k}": v.detach() for k, v in model.scorer.state_dict().items() if k not in divided}
    with ranks().fail_together(), open_shards(folder, settings) as tensors:
        if any(table.shard != shard for table in tables.values()):
            raise ValueError(f"{folder} was written by another version of beamtree: {REMEDY}")
        lists = {
            prefix: read_memory(tensors, settings, prefix, memories[prefix].lists, own_rows(memories[prefix].num_items))
            for prefix in prefixes
        }
        _copy(tensors, settings, state, shard)
    for prefix, part in lists.items():
        memories[prefix].set_part(part)


def _read_moments(
    folder: Path, settings: dict[str, Any], model: TreeModel, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """This rank's part of the moments of Adam, by name."""
    parameters = _parameters(optimizer)
    if "shards" not in settings:
        moments = read_tensors(folder, settings, "optimizer")
        tables = {id(table.weight): table for table in sharded_names(model).values()}
        for name, value in moments.items():
            table = tables.get(id(parameters[int(name.split(".")[0])]))
            if table is not None and value.dim():
                moments[name] = table.shard.part(value)
        return moments
    rows = [name for name in settings["shards"]["rows"] if name.startswith("optimizer.")]
    state = {name: torch.empty_like(parameters[int(name.split(".")[1])], requires_grad=False) for name in rows}
    with ranks().fail_together(), open_shards(folder, settings) as tensors:
        _copy(tensors, settings, state, _shard(settings, model))
        others = [name for name in tensors.names if name.startswith("optimizer.") and ":" not in name]
        state |= {name: tensors.whole(name) for name in others}
    return {name.removeprefix("optimizer."): value for name, value in state.items()}


def _shard(settings: Mapping[str, Any], model: TreeModel) -> Shard:
    return Shard(model.tree.arity, model.tree.height, int(settings["shards"]["cut"]), ranks())


def _copy(tensors: ShardedTensors, settings: Mapping[str, Any], state: Mapping[str, Tensor], shard: Shard) -> None:
    """Copy this rank's part of saved tensors into those of `state`."""
    rows = [name for name in settings["shards"]["rows"] if name in state]
    for name, value in _layout(state, rows, shard).items():
        is_level = name.partition(":")[0] in rows and not name.endswith(":top")
        tensors.copy(name, value, shard.runs(shard.ranks.rank).start if is_level else 0)

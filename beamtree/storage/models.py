"""A folder that holds a model: `save_model` writes it, `load_model` reads it, and checkpoints of training build on it.

    settings.json                  what kind of model this is, and which files belong to it
    tree-<step>.safetensors        the items on the leaf slots, how often each was chosen, and which are hidden
    weights-<step>.safetensors     the scorer's parameters
    search-<step>.safetensors      what search computes from the weights
    items-<step>.txt               the ids of the items, one per line, if they have any
    optimizer-<step>.safetensors   Adam's moments, if it was saved in training

Files are written under new names, and settings.json is replaced last, atomically. A process that is killed leaves the
old model or the new one, never half of each. settings.json has the checksum of every file, see `files.checksums`. Only
one process at a time writes to a folder.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.ids import Ids, write_ids
from beamtree.errors import explain_full_disk
from beamtree.files.atomic import fsync
from beamtree.files.checksums import file_checksum, is_read_fully
from beamtree.files.sealed import seal
from beamtree.files.staging import folder_lock, remove, staging_folder
from beamtree.model import TreeModel
from beamtree.scorers import SCORERS, NodeTable, Scorer, TableScorer
from beamtree.storage.settings import (
    DTYPES,
    FORMATS,
    REMEDY,
    SETTINGS,
    check_files,
    explain_damage,
    file_path,
    holds_model,
    read_settings,
    read_tensors,
    shard_names,
    unknown_scorers,
)
from beamtree.storage.sharded_files import load_shards, weight_shapes
from beamtree.storage.tensors import check_finite, save_tensors
from beamtree.tree import Tree, height_for

MODEL_FILES = re.compile(r"(tree|weights|optimizer|search|shard-\d+)-\d+b?\.safetensors|items-\d+b?\.txt")


# Writing


def save_model(model: TreeModel, folder: str | Path) -> None:
    """Write a model, and the ids of its items if it has any, to a folder.

    An existing model is replaced only when the new one is complete. Parts of a sum with weight 0 are left out.
    """
    write_finished(Path(folder), without_zero_parts(model), model.ids)


def without_zero_parts(model: TreeModel) -> TreeModel:
    """The model without parts of a sum that have weight 0; the model itself if there are none."""
    scorer = model.scorer.drop_zero_parts()
    return model if scorer is model.scorer else model.with_scorer(scorer)


def write_finished(folder: Path, model: TreeModel, ids: Ids | None) -> None:
    """Write a model that is not in training, with what search computes from its weights."""
    more: dict[str, Mapping[str, Tensor]] = {}
    tables = (module for module in model.modules() if isinstance(module, NodeTable))
    if any(len(table.weight) < table.num_nodes for table in tables):
        raise ValueError(
            "this process holds a part of the model: save it with beamtree.distributed.checkpoint.save_model"
        )
    if isinstance(model.scorer, TableScorer):
        with torch.no_grad():
            more["search"] = model.scorer.search_cache(model.tree)
    write_model(folder, model, 0, more, {}, ids)


def write_model(
    folder: Path,
    model: TreeModel,
    step: int,
    more: Mapping[str, Mapping[str, Tensor]],
    progress: dict[str, Any],
    ids: Ids | None = None,
) -> None:
    """Write a model with further tensors and its progress in training, under file names that contain the step."""
    with folder_lock(folder):
        in_use = files_in_use(folder)
        check_finite(model)
        parts: dict[str, Mapping[str, Tensor]] = {
            "tree": tree_tensors(model),
            "weights": model.scorer.state_dict(),
            **more,
        }
        files = {part: f"{part}-{step}.safetensors" for part, tensors in parts.items() if tensors or part == "weights"}
        if ids is not None:
            files["items"] = f"items-{step}.txt"
        if in_use & set(files.values()):  # never overwrite a file of the last good model
            files = {part: file.replace(f"-{step}.", f"-{step}b.") for part, file in files.items()}
        with explain_full_disk(folder), staging_folder(folder / "files") as draft:
            for part, file in files.items():
                if part == "items" and ids is not None:
                    write_ids(draft / file, ids.names)
                else:
                    save_tensors(draft / file, parts[part])
            checksums = {part: {"file": file, **file_checksum(draft / file)} for part, file in files.items()}
            move_model(draft, folder, make_settings(model, progress, checksums))


def move_model(draft: Path, folder: Path, settings: dict[str, Any]) -> None:
    """Move the files of a model into its folder, settings.json last, and remove those of the previous one."""
    seal(draft, SETTINGS, settings, indent=2)
    files = {entry["file"] for entry in settings["files"].values()}
    for file in files:
        os.replace(draft / file, folder / file)
    fsync(folder)
    os.replace(draft / SETTINGS, folder / SETTINGS)
    fsync(folder)
    for path in folder.iterdir():  # of the previous model, or of one that was not completed
        if MODEL_FILES.fullmatch(path.name) and path.name not in files:
            remove(path)


def tree_tensors(model: TreeModel) -> dict[str, Tensor]:
    """The content of the file of a tree."""
    events = {} if model.popularity is None else {"events": model.popularity}
    hidden = model.tree.hidden()
    return {"items": model.tree.items(), **events, **({"hidden": hidden} if len(hidden) else {})}


def make_settings(model: TreeModel, progress: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
    """The content of settings.json; `files` are the checksums by part."""
    dtypes = (weight.dtype for weight in model.scorer.parameters() if weight.dtype != torch.float16)  # of some rows
    return {
        "format": FORMATS[0],
        "tree": model.tree.fingerprint(),
        "arity": model.tree.arity,
        "admit_empty": model.tree.admit_empty,
        "scorer": model.scorer.kind,
        "scorer_settings": model.scorer.settings(),
        "dtype": str(next(dtypes, torch.float32)).removeprefix("torch."),
        "chained": model.chained,
        "first_level": model.first_level,
        "trained_on_beams": model.trained_on_beams,
        "progress": progress,
        "files": files,
        **({"integer_ids": True} if model.ids is not None and model.ids.integer else {}),
        **({"num_items": model.tree.num_items} if model.tree.num_placed < model.tree.num_items else {}),
    }


def files_in_use(folder: Path) -> set[str]:
    """The files of the model in a folder, which is created if needed; a ValueError if no model can be saved there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not holds_model(folder):
        return set()
    return {entry["file"] for entry in read_settings(folder)["files"].values()}  # fails if the settings are not ours


# Reading


def load_model(
    folder: str | Path, device: torch.device | str = "cpu", *, scorers: Sequence[type[Scorer]] = ()
) -> TreeModel:
    """The model of a folder that `save_model` or a training run wrote, with the ids of its items if it has any.

    On a CPU the weights are mapped to memory, and read when a search uses them. Scorers from outside the package are
    passed as classes in `scorers`; no name in a file decides which code is run. Files that do not match their checksum
    are refused: up to 256 MiB all of a file is read, of larger ones a sample.
    """
    folder = Path(folder)
    while True:
        settings = read_settings(folder)
        try:
            return _read_model(folder, settings, device, scorers)
        except ValueError:
            if holds_model(folder) and read_settings(folder) == settings:
                raise  # otherwise another process has saved a newer model and removed these files


def _read_model(
    folder: Path, settings: dict[str, Any], device: torch.device | str, scorers: Sequence[type[Scorer]]
) -> TreeModel:
    check_files(folder, settings)
    with explain_damage(folder):
        model = model_without_weights(folder, settings, scorers)
        load_weights(folder, settings, model, assign=True)
    model.to(device).eval()
    if "search" in settings["files"] and model.tree.device.type == "cpu" and isinstance(model.scorer, TableScorer):
        with explain_damage(folder):
            model.scorer.load_search_cache(model.tree, read_tensors(folder, settings, "search"))
    return model


def model_without_weights(folder: Path, settings: dict[str, Any], scorers: Sequence[type[Scorer]] = ()) -> TreeModel:
    """The model of a folder before its weights are loaded."""
    tree, items = read_tree(folder, settings)
    scorer = _make_scorer(folder, settings, scorers)
    if DTYPES[settings["dtype"]] is not torch.float32:  # scorers are made in float32
        scorer.to(DTYPES[settings["dtype"]])
    ids = read_ids(folder, settings)
    model = TreeModel(tree, scorer, chained=settings["chained"], first_level=settings["first_level"], ids=ids)
    model.popularity, model.trained_on_beams = items.get("events"), settings.get("trained_on_beams", False)
    return model


def read_tree(folder: Path, settings: dict[str, Any]) -> tuple[Tree, dict[str, Tensor]]:
    """The tree of a model, and the tensors of its file."""
    tensors, arity = read_tensors(folder, settings, "tree"), settings["arity"]
    slots = tensors["items"]
    if slots.dim() != 1 or arity < 2 or arity ** height_for(len(slots), arity) != len(slots):
        raise ValueError(f"{folder} is damaged: {len(slots):,} slots are no tree of arity {arity}; {REMEDY}")
    tree = Tree(
        slots,
        arity,
        admit_empty=settings["admit_empty"],
        num_items=settings.get("num_items"),  # if items were forgotten
        hidden=tensors.get("hidden", ()),
    )
    if tree.fingerprint() != settings["tree"]:
        raise ValueError(f"{folder} holds the tree of another model: {REMEDY}")
    return tree, tensors


def read_ids(folder: Path, settings: dict[str, Any]) -> Ids | None:
    """The ids of the items of a model; None if it has none."""
    if "items" not in settings["files"]:
        return None
    return Ids(file_path(folder, settings, "items"), unique=True, integer=settings.get("integer_ids") is True)


def load_weights(folder: Path, settings: dict[str, Any], model: TreeModel, *, assign: bool = False) -> None:
    """Copy the weights of a folder into the model, or with `assign` use them in place."""
    if "shards" in settings:
        load_shards(folder, settings, model)
    else:
        weights = read_tensors(folder, settings, "weights")
        try:
            model.scorer.load_state_dict(weights, assign=assign)
        except RuntimeError as error:
            raise ValueError(f"{folder}: the weights do not fit a {settings['scorer']}") from error
    parts = shard_names(settings["shards"]["ranks"]) if "shards" in settings else ["weights"]
    if all(is_read_fully(settings["files"][part]["bytes"]) for part in parts):
        check_finite(model)


def _make_scorer(folder: Path, settings: dict[str, Any], more: Sequence[type[Scorer]]) -> Scorer:
    """The scorer that the settings describe, without its weights."""
    for name in unknown_scorers(settings, (*SCORERS, *more)):
        raise ValueError(f"{folder} holds a {name}, which is not of this package: pass its class, scorers=[{name}]")
    classes = {scorer.__name__: scorer for scorer in (*SCORERS, *more)}
    name, scorer_settings = settings["scorer"], settings["scorer_settings"]
    try:
        with torch.device("meta"):  # nothing is allocated before the shapes are known to match the files
            _check_shapes(folder, settings, classes[name].from_settings(scorer_settings, classes))
        return classes[name].from_settings(scorer_settings, classes)
    except TypeError as error:  # a scorer must accept its own `settings`
        raise ValueError(f"{folder}: a {name} cannot be made from its settings: {error}") from error


def _check_shapes(folder: Path, settings: dict[str, Any], scorer: Scorer) -> None:
    shapes = (
        weight_shapes(folder, settings) if "shards" in settings else _shapes(file_path(folder, settings, "weights"))
    )
    for key, value in scorer.state_dict().items():
        if shapes.get(key) != list(value.shape):
            raise ValueError(f"{folder}: the weights do not fit a {settings['scorer']}: {key} is {shapes.get(key)}")


def _shapes(path: Path) -> dict[str, list[int]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error

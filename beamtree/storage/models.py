"""A folder that holds a model: `save_model` writes it, `load_model` reads it, and checkpoints of training build on it.

    settings.json                  what this is, and which files belong to it
    tree-<step>.safetensors        the items on the leaf slots, how often each was chosen, and which are hidden
    weights-<step>.safetensors     the scorer's parameters
    search-<step>.safetensors      what search makes of the weights
    items-<step>.txt               the ids of the items, one per line, where they have any
    optimizer-<step>.safetensors   Adam's moments, if it was saved in training

Files are written under names of their own and settings.json is replaced last, in one move: whoever is
killed at any moment leaves the old model or the new one, never half of each. settings.json knows every file by its
checksum, as `files.checksums` describes, and one process at a time writes to a folder.
"""

import json
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
from beamtree.files.checksums import file_checksum, is_read_fully, with_checksum
from beamtree.files.staging import folder_lock, remove, staging_folder
from beamtree.model import TreeModel
from beamtree.scorers import SCORERS, NodeTable, Scorer, SumScorer, TableScorer
from beamtree.storage.settings import (
    AGAIN,
    DTYPES,
    FORMATS,
    SETTINGS,
    check_files,
    check_finite,
    damaged,
    file_of,
    holds_model,
    kinds_of,
    read_settings,
    read_tensors,
)
from beamtree.storage.sharded_files import check_shards, load_shards
from beamtree.storage.tensors import save_tensors
from beamtree.tree import Tree, height_for

OURS = re.compile(r"(tree|weights|optimizer|search)-\d+b?\.safetensors|items-\d+b?\.txt|shards-\d+b?")


def save_model(model: TreeModel, folder: str | Path) -> None:
    """Write a model, and the ids of its items where it has them, to a folder.

    A model that was there is replaced only once all of the new one is written. Parts of a sum with weight 0 are left
    out.
    """
    model = without_zero_parts(model)
    write_finished(Path(folder), model, model.ids)


def without_zero_parts(model: TreeModel) -> TreeModel:
    """The model without parts of a sum that have the weight 0; the model itself where there are none."""
    if not isinstance(model.scorer, SumScorer):
        return model
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
            more["search"] = model.scorer.for_search(model.tree)
    write_model(folder, model, 0, more, {}, ids)


def load_model(
    folder: str | Path, device: torch.device | str = "cpu", *, scorers: Sequence[type[Scorer]] = ()
) -> TreeModel:
    """The model of a folder that `save_model` or a training run wrote, with the ids of its items where it has any.

    On a CPU its weights are the file itself, mapped to memory: they are read where a search touches them. A scorer from
    outside the package is passed as a class in `scorers`; no name in a file decides which code is run. Files whose
    checksum is not that of `settings.json` are refused: those up to 256 MiB are read whole, of larger ones a sample.
    """
    folder = Path(folder)
    while True:
        settings = read_settings(folder)
        try:
            return _read_model(folder, settings, device, scorers)
        except ValueError:
            if holds_model(folder) and read_settings(folder) == settings:
                raise  # and not: another process has saved a newer model, and the files of this one are gone


def _read_model(
    folder: Path, settings: dict[str, Any], device: torch.device | str, scorers: Sequence[type[Scorer]]
) -> TreeModel:
    check_files(folder, settings)
    if "shards" in settings:
        check_shards(folder, settings)
    with damaged(folder):
        model = model_without_weights(folder, settings, scorers)
        load_weights(folder, settings, model, assign=True)
    model.to(device).eval()
    if "search" in settings["files"] and model.tree.device.type == "cpu" and isinstance(model.scorer, TableScorer):
        with damaged(folder):
            model.scorer.use_for_search(model.tree, read_tensors(folder, settings, "search"))
    return model


def model_without_weights(folder: Path, settings: dict[str, Any], scorers: Sequence[type[Scorer]] = ()) -> TreeModel:
    """The model of a folder before its weights are loaded."""
    tree, items = read_tree(folder, settings)
    scorer = _make_scorer(folder, settings, scorers)
    if DTYPES[settings["dtype"]] is not torch.float32:  # what a scorer is made in; weights come as they are saved
        scorer.to(DTYPES[settings["dtype"]])
    ids = Ids(folder / file_of(settings, "items"), unique=True) if "items" in settings["files"] else None
    model = TreeModel(tree, scorer, chained=settings["chained"], first_level=settings["first_level"], ids=ids)
    model.popularity, model.trained_on_beams = items.get("events"), settings.get("trained_on_beams", False)
    return model


def read_tree(folder: Path, settings: dict[str, Any]) -> tuple[Tree, dict[str, Tensor]]:
    """The tree of a model's folder, and what is known of its items."""
    items = read_tensors(folder, settings, "tree")
    _check_tree(folder, items["items"], settings["arity"])
    counts = {"num_items": settings.get("num_items")}  # where items were forgotten
    hidden = items.get("hidden", ())
    tree = Tree(items["items"], settings["arity"], admit_empty=settings["admit_empty"], **counts, hidden=hidden)
    if tree.fingerprint() != settings["tree"]:
        raise ValueError(f"{folder} holds the tree of another model: {AGAIN}")
    return tree, items


def _check_tree(folder: Path, slots: Tensor, arity: int) -> None:
    """Raise a ValueError where slots are not those of a tree of this arity, before anything is allocated for it."""
    if slots.dim() != 1 or arity < 2 or arity ** height_for(len(slots), arity) != len(slots):
        raise ValueError(f"{folder} is damaged: {len(slots):,} slots are no tree of arity {arity}; {AGAIN}")


def write_model(
    folder: Path,
    model: TreeModel,
    step: int,
    more: Mapping[str, Mapping[str, Tensor]],
    progress: dict[str, Any],
    ids: Ids | None = None,
) -> None:
    """Write a model with further tensors, and how far its training is, under names that hold the step."""
    with folder_lock(folder):
        in_use = check_room(folder)
        check_finite(model)
        parts: dict[str, Mapping[str, Tensor]] = {
            "tree": tree_tensors(model),
            "weights": model.scorer.state_dict(),
            **more,
        }
        files = {part: f"{part}-{step}.safetensors" for part, tensors in parts.items() if tensors or part == "weights"}
        if ids is not None:
            files["items"] = f"items-{step}.txt"
        if in_use & set(files.values()):  # never write over a file that the last good model needs
            files = {part: file.replace(f"-{step}.", f"-{step}b.") for part, file in files.items()}
        with explain_full_disk(folder), staging_folder(folder / "files") as draft:
            for part, file in files.items():
                if part == "items" and ids is not None:
                    write_ids(draft / file, ids.names)
                else:
                    save_tensors(draft / file, parts[part])
                fsync(draft / file)
            seals = {part: {"file": file, **file_checksum(draft / file)} for part, file in files.items()}
            settings = settings_of(model, progress, seals)
            (draft / SETTINGS).write_text(json.dumps(with_checksum(settings), indent=2) + "\n")
            fsync(draft / SETTINGS)
            for file in files.values():
                os.replace(draft / file, folder / file)
            fsync(folder)
            os.replace(draft / SETTINGS, folder / SETTINGS)
            fsync(folder)
        for path in folder.iterdir():  # left by the model before, or by one cut short
            if OURS.fullmatch(path.name) and path.name not in files.values():
                remove(path)


def tree_tensors(model: TreeModel) -> dict[str, Tensor]:
    """What the file of a tree holds."""
    events = {} if model.popularity is None else {"events": model.popularity}
    hidden = model.tree.hidden()
    return {"items": model.tree.items(), **events, **({"hidden": hidden} if len(hidden) else {})}


def settings_of(model: TreeModel, progress: dict[str, Any], seals: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMATS[0],
        "tree": model.tree.fingerprint(),
        "arity": model.tree.arity,
        "admit_empty": model.tree.admit_empty,
        "scorer": model.scorer.kind,
        "scorer_settings": model.scorer.settings(),
        "dtype": _dtype(model.scorer),
        "chained": model.chained,
        "first_level": model.first_level,
        "trained_on_beams": model.trained_on_beams,
        "progress": progress,
        "files": seals,
        **({"num_items": model.tree.num_items} if model.tree.num_placed < model.tree.num_items else {}),
    }


def _dtype(scorer: Scorer) -> str:
    """What a scorer computes in; some of its rows may be kept in half precision."""
    found = (each.dtype for each in scorer.parameters() if each.dtype != torch.float16)
    return str(next(found, torch.float32)).removeprefix("torch.")


def check_room(folder: Path) -> set[str]:
    """Make the folder, or raise a ValueError if a model could not be saved there; the files now in use there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not holds_model(folder):
        return set()
    return {each["file"] for each in read_settings(folder)["files"].values()}  # fails at settings of somebody else's


def load_weights(folder: Path, settings: dict[str, Any], model: TreeModel, *, assign: bool = False) -> None:
    """Copy a folder's weights into the model, or use them in place with `assign`."""
    if "shards" in settings:
        load_shards(folder, settings, model)
        return
    weights = read_tensors(folder, settings, "weights")
    try:
        model.scorer.load_state_dict(weights, assign=assign)
    except RuntimeError as error:
        raise ValueError(f"{folder}: the weights do not fit a {settings['scorer']}") from error
    if is_read_fully(settings["files"]["weights"]["bytes"]):
        check_finite(model)


def _make_scorer(folder: Path, settings: dict[str, Any], more: Sequence[type[Scorer]]) -> Scorer:
    """A scorer as the settings describe it, without its weights."""
    kinds = {kind.__name__: kind for kind in (*SCORERS, *more)}
    name, own = settings["scorer"], settings["scorer_settings"]
    for kind in kinds_of(settings):
        if kind not in kinds:
            raise ValueError(f"{folder} holds a {kind}, which is not of this package: pass its class, scorers=[{kind}]")
    try:
        with torch.device("meta"):  # nothing is allocated before the sizes are known to be those of the files
            if "shards" not in settings:
                _check_shapes(folder, settings, kinds[name].from_settings(own, kinds))
        return kinds[name].from_settings(own, kinds)
    except TypeError as error:  # a scorer must take what its `settings` gave
        raise ValueError(f"{folder}: a {name} cannot be made from its settings: {error}") from error


def _check_shapes(folder: Path, settings: dict[str, Any], scorer: Scorer) -> None:
    from safetensors import SafetensorError, safe_open

    path = folder / file_of(settings, "weights")
    try:
        with safe_open(path, framework="pt") as file:
            known = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for key, value in scorer.state_dict().items():
        if known.get(key) != list(value.shape):
            raise ValueError(f"{folder}: the weights do not fit a {settings['scorer']}: {key} is {known.get(key)}")

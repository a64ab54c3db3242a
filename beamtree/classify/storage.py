"""A folder that holds a classifier.

    classifier.json       settings, weights and names of labels, with the checksums of the other files
    arrays.safetensors    trees, classifiers and memory
    labels.txt            ids of labels, one per line
    vocabulary.txt        features of texts, one per line, if documents are texts

A folder is written beside the old one and replaces it at once. Arrays are mapped from the file, not read.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beamtree.classify.model import LabelModel, Weights
from beamtree.classify.text import TextFeatures
from beamtree.data.ids import Ids, write_ids
from beamtree.errors import explain_full_disk
from beamtree.files.atomic import fsync
from beamtree.files.checksums import check_file, file_checksum, read_checked_json, with_checksum
from beamtree.files.staging import move_into_place, staging_folder
from beamtree.storage.settings import explain_damage
from beamtree.storage.tensors import load_tensors, save_tensors

SETTINGS, ARRAYS, LABELS, VOCABULARY = "classifier.json", "arrays.safetensors", "labels.txt", "vocabulary.txt"
FORMAT = 2
REMEDY = "train again"
SIGNED = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}  # as which they are written
UNSIGNED = {"uint16": np.uint16, "uint32": np.uint32}  # as which they are read


def holds_classifier(folder: Path) -> bool:
    """Whether a folder holds a classifier."""
    return (folder / SETTINGS).is_file()


def refuse_classifier(folder: Path) -> None:
    """Raise a ValueError where a folder that should be a run holds a classifier."""
    if holds_classifier(folder):
        raise ValueError(f"{folder} is a classifier of documents: see `beamtree classify --help` for its commands")


def save_classifier(
    folder: Path,
    model: LabelModel,
    features: TextFeatures | None,
    ids: Ids,
    counts: np.ndarray,
    settings: dict[str, Any],
) -> None:
    """Write a classifier to a folder."""
    if folder.exists() and not (folder.is_dir() and (holds_classifier(folder) or not any(folder.iterdir()))):
        raise ValueError(f"{folder} exists and is not a classifier: choose another folder")
    arrays = {**model.arrays(), "counts": counts}
    if features is not None:
        arrays |= {"text.idf": features.idf, "text.ends": np.array(features.ends)}
    unsigned = {name: str(array.dtype) for name, array in arrays.items() if array.dtype in SIGNED}
    with explain_full_disk(folder), staging_folder(folder) as draft:
        save_tensors(draft / ARRAYS, {name: _tensor(array) for name, array in arrays.items()})
        write_ids(draft / LABELS, ids.names)
        if features is not None:
            write_ids(draft / VOCABULARY, features.vocabulary)
        files = {path.name: file_checksum(path) for path in sorted(draft.iterdir())}
        content = {
            "format": FORMAT, **settings, "weights": model.weights._asdict(), "num_labels": model.num_labels,
            "unsigned": unsigned, "files": files,
        }  # fmt: skip
        (draft / SETTINGS).write_text(json.dumps(with_checksum(content), ensure_ascii=False) + "\n", encoding="utf-8")
        for path in draft.iterdir():
            fsync(path)
        move_into_place(draft, folder)


def load_classifier(folder: Path) -> tuple[LabelModel, TextFeatures | None, Ids, np.ndarray, dict[str, Any]]:
    """The model, the features of texts, the labels, how often each occurs, and the settings of a folder."""
    if not holds_classifier(folder):
        raise ValueError(f"{folder} is not a classifier: save one with Classifier.save")
    settings = read_checked_json(folder / SETTINGS, (FORMAT,), REMEDY)
    with explain_damage(folder):
        paths = {name: check_file(folder, name, checksum, REMEDY) for name, checksum in settings["files"].items()}
        arrays = {name: tensor.numpy() for name, tensor in load_tensors(paths[ARRAYS]).items()}
        for name, dtype in settings["unsigned"].items():
            arrays[name] = arrays[name].view(UNSIGNED[dtype])
        ids, features = Ids(paths[LABELS], integer=settings.get("integer_labels") is True), None
        if VOCABULARY in paths:
            vocabulary = Ids(paths[VOCABULARY]).names
            features = TextFeatures(vocabulary, arrays["text.ends"].tolist(), arrays["text.idf"])
        model = LabelModel.from_arrays(arrays, Weights(**settings["weights"]), settings["num_labels"])
        return model, features, ids, arrays["counts"].copy(), settings


def _tensor(array: np.ndarray) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array.view(SIGNED[array.dtype])) if array.dtype in SIGNED else torch.from_numpy(array)

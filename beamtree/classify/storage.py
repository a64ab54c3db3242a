"""A folder that holds a classifier.

    classifier.json       settings, weights and names of labels, with the checksums of the other files
    arrays.safetensors    trees, classifiers and memory
    labels.txt            ids of labels, one per line
    vocabulary.txt        features of texts, one per line, if documents are texts

A folder is written beside the old one and replaces it at once. Arrays are mapped from the file, not read.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from beamtree.classify.model import LabelModel, Weights
from beamtree.classify.text import TextFeatures
from beamtree.data.ids import Ids, write_ids
from beamtree.files.checksums import read_checked_json
from beamtree.files.sealed import check_files, file_checksums, write_sealed_folder
from beamtree.storage.settings import CLASSIFIER, explain_damage, holds_classifier
from beamtree.storage.tensors import load_tensors, save_tensors

ARRAYS, LABELS, VOCABULARY = "arrays.safetensors", "labels.txt", "vocabulary.txt"
FORMAT = 2
REMEDY = "train again"
SIGNED = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}  # as which they are written
UNSIGNED = {"uint16": np.uint16, "uint32": np.uint32}  # as which they are read


def save_classifier(
    folder: Path,
    model: LabelModel,
    features: TextFeatures | None,
    ids: Ids,
    counts: np.ndarray,
    settings: dict[str, Any],
) -> None:
    """Write a classifier to a folder."""
    arrays = {**model.arrays(), "counts": counts}
    if features is not None:
        arrays |= {"text.idf": features.idf, "text.ends": np.array(features.ends)}
    unsigned = {name: str(array.dtype) for name, array in arrays.items() if array.dtype in SIGNED}

    def fill(draft: Path) -> dict[str, Any]:
        save_tensors(draft / ARRAYS, {name: _tensor(array) for name, array in arrays.items()})
        write_ids(draft / LABELS, ids.names)
        if features is not None:
            write_ids(draft / VOCABULARY, features.vocabulary)
        return {
            "format": FORMAT, **settings, "weights": model.weights._asdict(), "num_labels": model.num_labels,
            "unsigned": unsigned, "files": file_checksums(draft),
        }  # fmt: skip

    write_sealed_folder(folder, CLASSIFIER, fill, _check_target, indent=None)


def _check_target(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and (holds_classifier(folder) or not any(folder.iterdir()))):
        raise ValueError(f"{folder} exists and is not a classifier: choose another folder")


def load_classifier(folder: Path) -> tuple[LabelModel, TextFeatures | None, Ids, np.ndarray, dict[str, Any]]:
    """The model, the features of texts, the labels, how often each occurs, and the settings of a folder."""
    if not holds_classifier(folder):
        raise ValueError(f"{folder} is not a classifier: save one with Classifier.save")
    settings = read_checked_json(folder / CLASSIFIER, (FORMAT,), REMEDY)
    with explain_damage(folder):
        paths = check_files(folder, settings["files"], REMEDY)
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

"""Extreme classification: precision, time and size of our classifier beside others, as `beamtree classify compare`.

    pip install libpecos omikuji napkinxc
    python benchmarks/quality/bench_classification.py yso-en.parquet delicious --rows pecos knn --out classes.json

A set is a folder with X_train, X_test, Y_train and Y_test as SciPy matrices (.npz), or a Parquet file with the columns
text, labels and split (train, test); names of its labels may lie beside it, NAME.labels.parquet. A row whose package is
missing is skipped. Rows are written as they are finished, in the form of results/classification.json, with the
differences at k = 10 between our classifier, which comes first, and each other row.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl
import torch
from scipy.sparse import load_npz

from beamtree.classify.documents import LoadedDocuments, open_documents
from beamtree.classify.matrix import empty
from beamtree.research.label_comparison import (
    ALL,
    BEAMS,
    LINEAR,
    OURS,
    LabelResult,
    Sets,
    compare_labels,
    half_interval,
    run_ours,
    why_missing,
)

K = 10  # of the differences
TREES = {1: "-one-tree", 2: "-two-trees", 3: "-three-trees"}


def read(path: Path) -> tuple[str, Sets]:
    """The name and the documents of a folder of matrices, or of a Parquet file with texts."""
    if path.is_dir():
        parts = {part: load_npz(path / f"{part}.npz").tocsr() for part in ("X_train", "X_test", "Y_train", "Y_test")}
        opened = [open_documents(parts[f"X_{split}"], parts[f"Y_{split}"]) for split in ("train", "test")]
        return path.name, Sets.of(opened[0], opened[1])
    frame = pl.read_parquet(path)
    num_labels = int(frame["labels"].list.max().max()) + 1  # type: ignore[arg-type]
    frames = [frame.filter(pl.col("split") == split) for split in ("train", "test")]
    lists = [part["labels"].cast(pl.List(pl.String)).to_list() for part in frames]
    opened = [
        LoadedDocuments(part["text"].to_list(), empty(0, 0), labels, num_labels)
        for part, labels in zip(frames, lists, strict=True)
    ]
    beside, names = path.with_suffix(".labels.parquet"), {}
    if beside.exists():
        of_labels = pl.read_parquet(beside)
        names = {str(label): name or "" for label, name in zip(of_labels["label"], of_labels["name"], strict=True)}
    return path.stem, Sets.of(opened[0], opened[1], names)


def difference(ours: LabelResult, other: LabelResult) -> dict[str, object]:
    """By how much ours is ahead of another row, document by document, in points, and half of the 95 % interval."""
    values = 100 * (ours.values - other.values)
    gain, error = (np.round(each, 2).tolist() for each in (values.mean(0), half_interval(values)))
    return {"row": other.row, "k": K, "gain": gain, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+", help="folders of matrices, Parquet files of texts")
    parser.add_argument("--rows", nargs="+", choices=ALL, metavar="ROW", help="default: all, with --trees our two")
    parser.add_argument("--words", action="store_true", help="our rows get words alone, as the others do, and no names")
    parser.add_argument("--trees", type=int, choices=TREES, help="run our classifier with so many trees")
    parser.add_argument("--out", type=Path, default=Path("classes.json"))
    args = parser.parse_args()
    rows = args.rows or ((OURS, LINEAR) if args.trees else ALL)
    if args.trees and set(rows) - {OURS, LINEAR}:
        parser.error(f"--trees is for {OURS} and {LINEAR}")
    torch.set_num_threads(2)
    cells: list[dict[str, object]] = []
    gains: list[dict[str, object]] = []
    suffix = ("-words" if args.words else "") + TREES.get(args.trees, "")
    for path in args.sets:
        name, sets = read(path)
        sets = sets._replace(texts=None, ours=sets.words, names=None) if args.words else sets
        ours = None
        for row in rows:
            why = why_missing(row, sets)
            if why is not None:
                print(f"{name}, {row}: skipped, {why}", flush=True)
                continue
            if args.trees:
                results = run_ours(sets, [row], BEAMS, {"trees": args.trees}, say)
            else:
                results = compare_labels(sets, [row], BEAMS, say)
            for result in results:
                cells.append({"set": name, **result.record(), "row": result.row + suffix})
                if result.k in (K, None) and ours is not None:
                    gains.append({"set": name, **difference(ours, result)})
                if (result.row, result.k) == (OURS, K):
                    ours = result
            args.out.write_text(json.dumps({"cells": cells, "gains": gains}, indent=1) + "\n")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()

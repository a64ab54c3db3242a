"""Extreme classification: precision, time and size of our classifier beside others, as `beamtree classify compare`.

    pip install libpecos omikuji napkinxc
    python benchmarks/bench_classification.py data/yso-en.parquet data/delicious --rows pecos knn --out classes.json

A set is a folder with X_train, X_test, Y_train and Y_test as SciPy matrices (.npz), or a Parquet file with the columns
text, labels and split (train, test); names of its labels may lie beside it, NAME.labels.parquet. A row whose package is
missing is skipped. Rows are written as they are finished, in the form of results/classification.json.
"""

import argparse
import json
from pathlib import Path

import polars as pl
import torch
from scipy.sparse import load_npz

from beamtree.classify.documents import Opened, open_documents
from beamtree.classify.matrix import empty
from beamtree.research.label_comparison import ALL, BEAMS, Sets, compare_labels, why_missing


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
        Opened(part["text"].to_list(), empty(0, 0), labels, num_labels)
        for part, labels in zip(frames, lists, strict=True)
    ]
    beside, names = path.with_suffix(".labels.parquet"), {}
    if beside.exists():
        of_labels = pl.read_parquet(beside)
        names = {str(label): name or "" for label, name in zip(of_labels["label"], of_labels["name"], strict=True)}
    return path.stem, Sets.of(opened[0], opened[1], names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+", help="folders of matrices, Parquet files of texts")
    parser.add_argument("--rows", nargs="+", choices=ALL, default=ALL, metavar="ROW")
    parser.add_argument("--out", type=Path, default=Path("classes.json"))
    args = parser.parse_args()
    torch.set_num_threads(2)
    cells: list[dict[str, object]] = []
    for path in args.sets:
        name, sets = read(path)
        for row in args.rows:
            why = why_missing(row, sets)
            if why is not None:
                print(f"{name}, {row}: skipped, {why}", flush=True)
                continue
            results = compare_labels(sets, [row], BEAMS, lambda line: print(line, flush=True))
            cells += [{"set": name, **result.record()} for result in results]
            args.out.write_text(json.dumps({"cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()

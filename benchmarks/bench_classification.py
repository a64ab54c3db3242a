"""Extreme classification: precision, time and size of the classifier beside omikuji, PECOS, napkinXC and kNN.

    pip install libpecos omikuji napkinxc scikit-learn
    python benchmarks/bench_classification.py data/yso-en.parquet data/delicious --rows pecos knn --out results/classes

A set is a folder with X_train, X_test, Y_train and Y_test as SciPy matrices (.npz), or a Parquet file with the columns
text, labels and split (train, test); names of its labels may lie beside it, NAME.labels.parquet. Peers get TF-IDF of
words. The rows "our features" get ours: words, pairs of words and beginnings of words. A row whose package is missing
is skipped.

A setting of each peer is chosen on validation documents (2,000, at most a tenth of the training documents), by the mean
of P@1, P@3 and P@5 at k = 10; for three trees the trials have one. Then it is trained on all, with two threads. Times
are from features to labels, with one thread: the mean over a batch, and the median over single documents. `seconds` is
the last training, `tuning` the trials. Our classifier chooses its weights within `seconds`. Precision is over the test
documents that have a label, its error half a 95 % interval.

Each set and row gives SET-ROW.json, a list of records, and SET-ROW.npy: which labels are right [beams, documents, 5].
"""

import argparse
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix, load_npz, save_npz

M, CUTS, BEAMS = 5, (1, 3, 5), (1, 2, 5, 10, 20)
TRIAL_BEAM = 10  # k on validation documents
VALIDATION = 2_000
NEIGHBOURS, CHUNK = 100, 256
TIMED = 300  # documents that are asked one by one
THREADS = 2  # of training
Find = Callable[[csr_matrix, int | None], np.ndarray]  # documents and k -> labels [n, M], -1 where fewer are found
Train = Callable[[csr_matrix, csr_matrix, Any, Path], Find]  # features, labels, a setting and a folder for the model


class Documents(NamedTuple):
    """A set: features and labels, or texts and labels."""

    name: str
    train_y: csr_matrix
    test_y: csr_matrix
    train_x: csr_matrix | None = None
    test_x: csr_matrix | None = None
    train_texts: list[str] | None = None
    test_texts: list[str] | None = None
    names: dict[str, str] | None = None  # of labels


class Row(NamedTuple):
    """A peer: the packages that it needs, how it is trained, and the settings to choose from."""

    packages: tuple[str, ...]
    train: Train
    trial: Train  # for the choice of the setting
    settings: tuple[Any, ...]
    beams: tuple[int | None, ...] = BEAMS
    batches: bool = True  # whether the package answers many documents at once
    our_features: bool = False


def read(path: Path) -> Documents:
    """A folder of matrices, or a Parquet file with texts."""
    if path.is_dir():
        parts = {part: load_npz(path / f"{part}.npz").tocsr() for part in ("X_train", "X_test", "Y_train", "Y_test")}
        return Documents(path.name, parts["Y_train"], parts["Y_test"], parts["X_train"], parts["X_test"])
    frame = pl.read_parquet(path)
    num_labels = int(frame["labels"].list.max().max()) + 1  # type: ignore[arg-type]
    train, test = (frame.filter(pl.col("split") == split) for split in ("train", "test"))
    beside, names = path.with_suffix(".labels.parquet"), None
    if beside.exists():
        of_labels = pl.read_parquet(beside)
        names = {str(label): name or "" for label, name in zip(of_labels["label"], of_labels["name"], strict=True)}
    matrices = [label_matrix(part["labels"].to_list(), num_labels) for part in (train, test)]
    return Documents(path.stem, *matrices, None, None, train["text"].to_list(), test["text"].to_list(), names)


def label_matrix(lists: list[list[int]], num_labels: int) -> csr_matrix:
    """Documents by labels."""
    offsets = np.cumsum([0, *(len(labels) for labels in lists)])
    columns = np.concatenate([np.array(labels, np.int64) for labels in lists])
    return csr_matrix((np.ones(len(columns), np.float32), columns, offsets), (len(lists), num_labels))


def label_lists(y: csr_matrix) -> list[list[int]]:
    """The labels of each document."""
    return [y.indices[a:b].tolist() for a, b in zip(y.indptr, y.indptr[1:], strict=False)]


def word_features(data: Documents) -> tuple[csr_matrix, csr_matrix]:
    """TF-IDF of words of the training and the test documents; given features as they are, but of length 1."""
    if data.train_texts is None:
        assert data.train_x is not None
        assert data.test_x is not None
        return unit_rows(data.train_x), unit_rows(data.test_x)
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"(?u)\b\w\w+\b", min_df=2, sublinear_tf=True, dtype=np.float32)
    return words.fit_transform(data.train_texts).tocsr(), words.transform(data.test_texts).tocsr()


def unit_rows(x: csr_matrix) -> csr_matrix:
    """Rows of length 1, but for empty ones."""
    lengths = np.sqrt(np.asarray(x.multiply(x).sum(1)).ravel())
    return csr_matrix(x.multiply(1 / np.where(lengths == 0, 1, lengths)[:, None]))


def our_features(data: Documents) -> tuple[csr_matrix, csr_matrix]:
    """Words, pairs of words and beginnings of words, as our classifier makes them of texts."""
    from beamtree.classify.text import TextFeatures

    assert data.train_texts is not None
    assert data.test_texts is not None
    features = TextFeatures.fit(data.train_texts)
    matrices = [features.transform(texts) for texts in (data.train_texts, data.test_texts)]
    train, test = (csr_matrix((x.values, x.columns, x.offsets), (x.rows, x.width)) for x in matrices)
    return train, test


def omikuji(trees: int, bonsai: bool) -> Train:
    """Bonsai (wide, not balanced, three levels) or Parabel (two children, balanced); the setting is C."""

    def train(x: csr_matrix, y: csr_matrix, cost: float, folder: Path) -> Find:
        from omikuji import Model

        options = Model.default_hyper_param()
        options.n_trees, options.linear_c = trees, cost
        if bonsai:
            options.cluster_balanced, options.cluster_k, options.max_depth = False, 100, 3
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "train.txt"
            write_documents(path, x, y)
            Model.train_on_data(str(path), options, THREADS).save(str(folder))
        model = Model.load(str(folder))
        model.init_prediction_thread_pool(1)

        def find(x: csr_matrix, k: int | None) -> np.ndarray:
            found = np.full((x.shape[0], M), -1)
            indices, values = x.indices.tolist(), x.data.tolist()
            for row in range(len(found)):
                span = slice(x.indptr[row], x.indptr[row + 1])
                best = model.predict(list(zip(indices[span], values[span], strict=True)), beam_size=k, top_k=M)
                found[row, : len(best)] = [label for label, _ in best]
            return found

        return find

    return train


def write_documents(path: Path, x: csr_matrix, y: csr_matrix) -> None:
    """The text format of the extreme classification repository, with its header."""
    with path.open("w") as file:
        file.write(f"{x.shape[0]} {x.shape[1]} {y.shape[1]}\n")
        for row in range(x.shape[0]):
            labels = ",".join(map(str, y.indices[y.indptr[row] : y.indptr[row + 1]]))
            span = slice(x.indptr[row], x.indptr[row + 1])
            pairs = zip(x.indices[span], x.data[span], strict=True)
            file.write(labels + "".join(f" {column}:{value:.6g}" for column, value in pairs) + "\n")


def pecos(x: csr_matrix, y: csr_matrix, cost: float, folder: Path) -> Find:
    """XR-Linear: 16 children, leaves of 100 labels; the setting is C."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    means = LabelEmbeddingFactory.create(y, x, method="pifa")
    chain = Indexer.gen(
        means, indexer_type="hierarchicalkmeans", nr_splits=16, max_leaf_size=100, seed=0, threads=THREADS
    )
    XLinearModel.train(x, y.tocsc(), C=chain, Cp=cost, Cn=cost, threads=THREADS).save(str(folder))
    model = XLinearModel.load(str(folder), is_predict_only=True)

    def find(x: csr_matrix, k: int | None) -> np.ndarray:
        return best_of_rows(model.predict(x, beam_size=k, only_topk=M, threads=1))

    return find


def best_of_rows(scores: csr_matrix) -> np.ndarray:
    """The columns of the M largest entries of each row, best first [n, M]."""
    found = np.full((scores.shape[0], M), -1)
    for row in range(len(found)):
        span = slice(scores.indptr[row], scores.indptr[row + 1])
        values, columns = scores.data[span], scores.indices[span]
        if len(values) > M:
            most = np.argpartition(-values, M)[:M]
            values, columns = values[most], columns[most]
        found[row, : len(values)] = columns[np.argsort(-values, kind="stable")]
    return found


def napkinxc(x: csr_matrix, y: csr_matrix, cost: float, folder: Path) -> Find:
    """A probabilistic label tree with logistic classifiers; the setting is C."""
    from napkinxc.models import PLT

    PLT(str(folder), loss="log", liblinear_c=cost, seed=0, threads=THREADS, verbose=0).fit(x, label_lists(y))
    loaded: dict[int | None, Any] = {}

    def find(x: csr_matrix, k: int | None) -> np.ndarray:
        if k not in loaded:  # the beam is an option of a model
            loaded.clear()
            loaded[k] = PLT(str(folder), tree_search_type="beam", beam_search_width=k, threads=1, verbose=0)
            loaded[k].load()
        found = np.full((x.shape[0], M), -1)
        for start in range(0, len(found), CHUNK):
            for row, labels in enumerate(loaded[k].predict(x[start : start + CHUNK], top_k=M), start):
                best = labels[:M]  # under a beam the package gives all that it has seen, best first
                found[row, : len(best)] = best
        return found

    return find


def knn(x: csr_matrix, y: csr_matrix, power: float, folder: Path) -> Find:
    """Labels of the 100 nearest documents by cosine, weighted by similarity to a power, which is the setting."""
    folder.mkdir(parents=True, exist_ok=True)
    save_npz(folder / "x.npz", x)
    save_npz(folder / "y.npz", y)
    by_feature = x.T.tocsr()

    def find(x: csr_matrix, _: int | None) -> np.ndarray:
        found = []
        for start in range(0, x.shape[0], CHUNK):
            similar = x[start : start + CHUNK] @ by_feature
            data, rows, offsets = [], [], [0]
            for a, b in zip(similar.indptr, similar.indptr[1:], strict=False):
                values, near = similar.data[a:b], similar.indices[a:b]
                if len(values) > NEIGHBOURS:
                    most = np.argpartition(-values, NEIGHBOURS)[:NEIGHBOURS]
                    values, near = values[most], near[most]
                data.append(values**power)
                rows.append(near)
                offsets.append(offsets[-1] + len(near))
            nearest = (np.concatenate(data), np.concatenate(rows), np.array(offsets))
            found.append(best_of_rows(csr_matrix(nearest, similar.shape) @ y))
        return np.concatenate(found)

    return find


COSTS = (0.3, 1.0, 3.0)
ROWS = {
    "omikuji-bonsai-3": Row(("omikuji",), omikuji(3, True), omikuji(1, True), COSTS, batches=False),
    "omikuji-parabel": Row(("omikuji",), omikuji(1, False), omikuji(1, False), COSTS, batches=False),
    "pecos": Row(("pecos",), pecos, pecos, COSTS),
    "napkinxc": Row(("napkinxc",), napkinxc, napkinxc, (3.0, 10.0, 30.0)),
    "knn": Row((), knn, knn, (1.0, 2.0, 3.0), beams=(None,)),
}
for name in ("omikuji-bonsai-3", "pecos"):
    ROWS[f"{name}, our features"] = ROWS[name]._replace(our_features=True, settings=COSTS[:2])  # 3 lost with words
OURS = "beamtree"


def run_peer(row: str, data: Documents) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Choose a setting of a peer, train it and measure it."""
    peer = ROWS[row]
    train_x, test_x = our_features(data) if peer.our_features else word_features(data)
    useful = (np.diff(train_x.indptr) > 0) & (np.diff(data.train_y.indptr) > 0)
    train_x, train_y = sorted_rows(train_x[useful]), sorted_rows(data.train_y[useful])
    test_x = sorted_rows(test_x)
    setting, tuning = choose(row, train_x, train_y)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        start = time.perf_counter()
        find = peer.train(train_x, train_y, setting, folder)
        about = {"setting": setting, "tuning": tuning, "seconds": time.perf_counter() - start, "mb": megabytes(folder)}
        singles = [test_x[number] for number in range(min(TIMED, test_x.shape[0]))]
        return measure(data, row, about, peer.beams, lambda k: find(test_x, k), singles, find, peer.batches)


def sorted_rows(matrix: csr_matrix) -> csr_matrix:
    """A matrix in single precision with rising columns in each row."""
    matrix = csr_matrix(matrix, dtype=np.float32)
    matrix.sort_indices()
    return matrix


def choose(row: str, x: csr_matrix, y: csr_matrix) -> tuple[Any, float]:
    """The best setting on validation documents, and the seconds that it took to find."""
    start = time.perf_counter()
    order = np.random.default_rng(0).permutation(x.shape[0])
    count = min(VALIDATION, x.shape[0] // 10)
    held_out, kept = np.sort(order[:count]), np.sort(order[count:])
    scores = {}
    for setting in ROWS[row].settings:
        with tempfile.TemporaryDirectory() as scratch:
            find = ROWS[row].trial(x[kept], y[kept], setting, Path(scratch) / "model")
            right = hits(find(x[held_out], TRIAL_BEAM), y[held_out])
        scores[setting] = float(np.mean([right[:, :m].mean() for m in CUTS]))
        print(f"  {row}, setting {setting:g}: {scores[setting]:.2%} on validation documents", flush=True)
    return max(scores, key=scores.__getitem__), time.perf_counter() - start


def run_ours(data: Documents) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Train our classifier with its defaults and measure it."""
    import torch

    from beamtree.classify import Classifier

    torch.set_num_threads(THREADS)
    lists = label_lists(data.train_y)
    start = time.perf_counter()
    if data.train_texts is None:
        model, test = Classifier().fit(data.train_x, data.train_y, verbose=False), data.test_x
    else:
        model = Classifier().fit(data.train_texts, lists, names=data.names, verbose=False)
        test = data.test_texts
    about: dict[str, Any] = {"setting": None, "tuning": 0.0, "seconds": time.perf_counter() - start}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        model.save(folder)
        about["mb"] = megabytes(folder)
    torch.set_num_threads(1)
    x = model.features_of(test)
    numbers = np.array([*map(int, model.labels), -1])  # the last is that of no label
    singles = [x.take(np.array([number])) for number in range(min(TIMED, x.rows))]

    def find(x: Any, k: int | None) -> np.ndarray:
        return numbers[model.find(x, M, k)[0]]

    return measure(data, OURS, about, BEAMS, lambda k: find(x, k), singles, find, True)


def measure(
    data: Documents,
    row: str,
    about: dict[str, Any],
    beams: tuple[int | None, ...],
    find_all: Callable[[int | None], np.ndarray],
    singles: list[Any],
    find: Callable[[Any, int | None], np.ndarray],
    batches: bool,
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """A record for each beam, and which labels are right [beams, documents with a label, M].

    Args:
        data: the set.
        row: the name of the row.
        about: what all its records share.
        beams: k.
        find_all: the labels of all test documents with a beam.
        singles: documents that are asked one by one.
        find: the labels of one of them with a beam.
        batches: whether `find_all` is a batch and not a loop.
    """
    records, right = [], []
    for k in beams:
        find(singles[0], k)  # what is loaded or compiled at the first call is not timed
        start = time.perf_counter()
        found = find_all(k)
        us_batch = (time.perf_counter() - start) / len(found) * 1e6 if batches else None
        right.append(hits(found, data.test_y))
        record: dict[str, Any] = {"set": data.name, "row": row, "k": k}
        for m in CUTS:
            values = right[-1][:, :m].mean(1)
            record[f"p{m}"] = float(values.mean())
            record[f"p{m}_error"] = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5
        record |= {"us_batch": us_batch, "us_single": microseconds(find, singles, k), **about}
        records.append(record)
        print(describe(record), flush=True)
    return records, np.stack(right)


def hits(found: np.ndarray, y: csr_matrix) -> np.ndarray:
    """Whether each label that was found is right, for documents that have a label [n, M]."""
    row = np.repeat(np.arange(len(found)), found.shape[1])
    right = np.asarray(y[row, found.clip(0).ravel()]).reshape(found.shape) > 0
    return (right & (found >= 0))[np.diff(y.indptr) > 0]


def microseconds(find: Callable[[Any, int | None], np.ndarray], singles: list[Any], k: int | None) -> float:
    """The median over single documents, after some that are not timed."""
    times = []
    for x in [*singles[:20], *singles]:
        start = time.perf_counter()
        find(x, k)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[20:])


def megabytes(folder: Path) -> float:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def describe(record: dict[str, Any]) -> str:
    """A record in a line."""
    precision = " ".join(f"{record[f'p{m}']:6.2%}" for m in CUTS)
    batch = "" if record["us_batch"] is None else f"{record['us_batch']:.0f}"
    times = f"{batch:>6} µs in a batch {record['us_single']:6.0f} µs one by one"
    name = f"{record['set']:12s} {record['row']:32s} {record['k'] or '':>3}"
    return f"{name} {precision} ±{record['p1_error']:.2%} {times} {record['seconds']:6.1f} s {record['mb']:6.1f} MB"


def missing(row: str, data: Documents) -> str | None:
    """Why a row cannot be run for a set, or None."""
    if row == OURS:
        packages: tuple[str, ...] = ("beamtree.classify",)
    else:
        words = () if data.train_texts is None else ("sklearn",)
        packages = ROWS[row].packages + (("beamtree.classify",) if ROWS[row].our_features else words)
        if ROWS[row].our_features and data.train_texts is None:
            return "it needs texts"
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            return f"it needs the package {package} ({error})"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+", help="folders of matrices, Parquet files of texts")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, OURS], default=[*ROWS, OURS], metavar="ROW")
    parser.add_argument("--out", type=Path, default=Path("results/classification"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.sets:
        data = read(path)
        for row in args.rows:
            why = missing(row, data)
            if why is not None:
                print(f"{data.name}, {row}: skipped, {why}", flush=True)
                continue
            records, right = run_ours(data) if row == OURS else run_peer(row, data)
            stem = args.out / f"{data.name}-{row.replace(', ', '-').replace(' ', '-')}"
            np.save(f"{stem}.npy", right)
            Path(f"{stem}.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

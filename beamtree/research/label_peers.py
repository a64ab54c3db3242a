"""Other classifiers with many labels, trained through their packages: omikuji, PECOS, napkinXC; and nearest documents.

Each function takes features and labels as SciPy matrices, one setting, and a folder for the model, and returns a
function from documents and k to labels [n, M], -1 where fewer are found.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz  # type: ignore[import-untyped]

M = 5  # labels that are found
NEIGHBOURS, CHUNK = 100, 256
THREADS = 2  # of training
Find = Callable[[Any, int | None], np.ndarray]
Train = Callable[[csr_matrix, csr_matrix, Any, Path], Find]


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

    lists = [y.indices[a:b].tolist() for a, b in zip(y.indptr, y.indptr[1:], strict=False)]
    PLT(str(folder), loss="log", liblinear_c=cost, seed=0, threads=THREADS, verbose=0).fit(x, lists)
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

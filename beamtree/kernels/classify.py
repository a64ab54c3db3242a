"""Labels of documents on a CPU: how the compiled functions are called."""

from collections.abc import Sequence
from threading import local
from typing import Any, NamedTuple

import numpy as np

from beamtree.kernels import compiling
from beamtree.kernels.sparse import starts_of
from beamtree.kernels.threads import in_spans, parallel_map, spans

EXAMPLE_POWER = 4  # of cosines: with less, examples take the place of better labels; with more, they find few
_SCRATCH = local()  # of the searches of a thread

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # offsets, columns and values of compressed rows


class SearchInput(NamedTuple):
    """What the search reads of a classifier, in plain tuples: it would be compiled again for each named one."""

    forest: tuple[Any, ...]  # `Forest`, with the parent of each label in each tree, -1 for none, in place of `leaf`
    linear: tuple[Any, ...]  # `Linear`
    memory: tuple[Any, ...]  # an `Index` of the training documents, and where their labels start, and these
    names: tuple[Any, ...]  # an `Index` of the names of labels
    encoder: tuple[Any, ...]  # `Encoder`
    examples: tuple[Any, ...]  # an `Index` of added documents, the label of each, and the first document of this label
    weights: tuple[Any, ...]  # `Weights`, and the weight of examples
    filters: tuple[Any, Any]  # whether each label may be found, and the number of such labels below each node


def weigh(
    starts: np.ndarray, tokens: np.ndarray, idf: np.ndarray, ends: Sequence[int], weights: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """TF-IDF of documents, whose tokens [starts[i] … starts[i + 1]] are features.

    See `compiled_label_training.weigh`.
    """
    documents = len(starts) - 1
    counts, columns = np.zeros(documents, np.int64), np.empty(len(tokens), np.int32)
    values = np.empty(len(tokens), np.float32)
    last, block_weights = np.array(ends), np.array(weights)
    compiled = compiling.load("compiled_label_training")
    parallel_map(
        lambda span: compiled.weigh(*span, starts, tokens, idf, last, block_weights, counts, columns, values),
        spans(documents),
    )
    offsets = starts_of(counts)
    entries = np.arange(offsets[-1]) + np.repeat(starts[:-1] - offsets[:-1], counts)
    return offsets, columns[entries], values[entries]


def nearest_means(rows: Rows, means: np.ndarray) -> np.ndarray:
    """The mean [width, means] with the largest product for each row."""
    compiled, nearest = compiling.load("compiled_label_training"), np.empty(len(rows[0]) - 1, np.int64)
    parallel_map(lambda span: compiled.nearest_means(*span, *rows, means, nearest), spans(len(nearest)))
    return nearest


def nearest_rows(rows: Rows, index: Rows, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row the `most` of `size` others with the largest products, best first, and these [n, most] each.

    The others are given as rows by feature. Where fewer have a feature in common with a row, the rest is 0.
    """
    compiled, count = compiling.load("compiled_classify"), len(rows[0]) - 1
    nearest, cosines = np.zeros((count, min(most, size)), np.int64), np.zeros((count, min(most, size)), np.float32)

    def find(span: tuple[int, int]) -> None:
        scratch = np.full(size, np.nan, np.float32), np.empty(size + 1, np.int64), np.empty(size, np.float32)
        compiled.nearest_rows(*span, *rows, index, *scratch, nearest, cosines)

    parallel_map(find, spans(count))
    return nearest, cosines


def train_children(rows: Rows, width: int, task: Any, settings: tuple[float, float, int, float]) -> Any:
    """Linear classifiers of some children of a node: see `compiled_label_training.train_children`."""
    return compiling.load("compiled_label_training").train_children(*rows, width, *task, *settings)


def search(rows: Rows, parts: SearchInput, beam_size: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """The m best labels of documents, whose features are the rows, and their scores [n, m]."""
    compiled, documents, task = compiling.load("compiled_classify"), len(rows[0]) - 1, tuple(parts)
    labels, nodes = map(len, parts.filters)
    sizes = labels, max(len(parts.memory[3]) - 1, labels), nodes
    found, scores = np.empty((documents, m), np.int64), np.empty((documents, m), np.float32)

    def find(span: tuple[int, int]) -> None:
        compiled.search(*span, rows, task, _scratch(sizes), beam_size, m, found, scores)
        _SCRATCH.sizes = sizes  # not after an exception

    in_spans(find, documents)
    return found, scores


def _scratch(sizes: tuple[int, int, int]) -> tuple[Any, ...]:
    """Arrays that the searches of a thread share; a search leaves zeros and NaN where it found them.

    The sizes are the numbers of labels, of rows of the larger index, and of nodes.
    """
    if getattr(_SCRATCH, "sizes", None) != sizes:
        labels, rows, nodes = sizes
        most = max(labels, nodes)
        of_rows = np.full(rows, np.nan, np.float32), np.empty(rows + 1, np.int64), np.empty(rows, np.float32)
        whole, single = np.int64, np.float32
        kinds = (whole, single, whole, single, single, single, whole, single)
        room = tuple(np.empty(most + 1, kind) for kind in kinds)
        of_nodes = np.zeros(nodes, single), np.empty(nodes + 1, whole)
        _SCRATCH.arrays = np.zeros(labels, single), np.empty(labels, whole), of_rows, *of_nodes, room
    _SCRATCH.sizes = None  # until the search is done
    arrays: tuple[Any, ...] = _SCRATCH.arrays
    return arrays

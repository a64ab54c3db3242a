"""Our classifier, parts of it and other packages on the same documents: precision with intervals, time and size.

Other packages get TF-IDF of words; rows with "our-features" get ours: words, pairs of words and beginnings of words. A
setting of each is chosen on validation documents (2,000, at most a tenth of the training documents), by the mean of
P@1, P@3 and P@5 at k = 10; for three trees the trials have one. Then it is trained on all. Our classifier chooses its
weights while it is fitted.

Precision is over the test documents that have a label. Times are from features to labels, with one thread.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

from beamtree.classify import Classifier
from beamtree.classify.documents import LoadedDocuments, number_labels, relevant_labels
from beamtree.classify.matrix import Matrix
from beamtree.classify.metrics import PRECISIONS, precisions
from beamtree.classify.model import Weights
from beamtree.classify.text import TextFeatures
from beamtree.research.label_peers import Find, M, Train, knn, napkinxc, omikuji, pecos

BEAMS = (1, 2, 5, 10, 20)
TRIAL_BEAM = 10  # k on validation documents
VALIDATION = 2_000
TIMED = 300  # documents that are asked one by one


class PeerRow(NamedTuple):
    """Another classifier: the module that it needs, how it is trained, and the settings to choose from."""

    module: str
    train: Train
    trial: Train  # for the choice of the setting
    settings: tuple[Any, ...]
    beams: bool = True  # whether it has a beam
    batches: bool = True  # whether the package answers many documents at once
    our_features: bool = False


COSTS = (0.3, 1.0, 3.0)
ROWS = {
    "omikuji-bonsai-3": PeerRow("omikuji", omikuji(3, True), omikuji(1, True), COSTS, batches=False),
    "omikuji-parabel": PeerRow("omikuji", omikuji(1, False), omikuji(1, False), COSTS, batches=False),
    "pecos": PeerRow("pecos.xmc.xlinear.model", pecos, pecos, COSTS),
    "napkinxc": PeerRow("napkinxc.models", napkinxc, napkinxc, (3.0, 10.0, 30.0)),
    "knn": PeerRow("scipy", knn, knn, (1.0, 2.0, 3.0), beams=False),
}
for _name in ("omikuji-bonsai-3", "pecos"):
    ROWS[f"{_name}-our-features"] = ROWS[_name]._replace(our_features=True, settings=COSTS[:2])  # 3 lost with words
OURS, LINEAR, ONE_TREE, NO_TREE = "beamtree", "beamtree-linear", "beamtree-one-tree", "beamtree-no-tree"
ALL = (OURS, LINEAR, ONE_TREE, NO_TREE, *ROWS)


class Sets(NamedTuple):
    """Documents to train on and to test, as features for all rows; labels are numbers of columns."""

    texts: tuple[list[str], list[str]] | None  # of the training and the test, where documents are texts
    words: tuple[csr_matrix, csr_matrix]  # TF-IDF of words; given features as they are
    ours: tuple[csr_matrix, csr_matrix]  # words, pairs of words and beginnings of words; given features as they are
    train_y: Matrix
    test_y: Matrix
    names: dict[str, str] | None  # of labels, by number

    @classmethod
    def of(cls, train: LoadedDocuments, test: LoadedDocuments, names: Mapping[str, str] | None = None) -> "Sets":
        """Features of two lists of documents. Labels that are not in the training are never found."""
        ids, y = number_labels(train.labels, train.num_labels)
        test_y = relevant_labels(ids, test.labels)
        if not len(test_y.columns):
            raise ValueError("no test document has a label: there is nothing to measure")
        if (train.texts is None) != (test.texts is None):
            raise ValueError("training and test documents must both be texts, or both features")
        if train.texts is None or test.texts is None:
            if train.features.width != test.features.width:
                widths = f"{train.features.width:,} features, test documents {test.features.width:,}"
                raise ValueError(f"training documents have {widths}: they must be the same")
            x = sparse(train.features.normalized()), sparse(test.features.normalized())
            return cls(None, x, x, y, test_y, None)
        features = TextFeatures.fit(train.texts)
        ours = [features.transform(texts) for texts in (train.texts, test.texts)]
        words = [sparse(first_columns(x, features.ends[0]).normalized()) for x in ours]
        numbered = {str(number): names[label] for number, label in enumerate(ids.names) if names and names.get(label)}
        x = sparse(ours[0]), sparse(ours[1])
        return cls((train.texts, test.texts), (words[0], words[1]), x, y, test_y, numbered)


def sparse(x: Matrix) -> csr_matrix:
    """A matrix of SciPy."""
    return csr_matrix((x.values, x.columns, x.offsets), (x.rows, x.width))


def first_columns(x: Matrix, width: int) -> Matrix:
    """The first columns of a matrix."""
    kept = x.columns < width
    offsets = np.concatenate([[0], np.cumsum(kept)])[x.offsets]
    return Matrix(offsets, x.columns[kept], x.values[kept], width)


@dataclass(frozen=True)
class LabelResult:
    """What a row found at one k, document by document, and its costs."""

    row: str
    k: int | None  # None for a row without a beam
    values: np.ndarray  # P@1, P@3 and P@5 of each test document with a label [n, 3]
    us_batch: float | None  # microseconds per document; None where the package answers one by one
    us_single: float
    setting: Any
    tuning: float  # seconds
    seconds: float  # of the last training
    mb: float

    def record(self) -> dict[str, Any]:
        """Precision in % with half of its 95 % interval, None for one document, and costs."""
        record: dict[str, Any] = {"row": self.row, "k": self.k}
        for m, value, error in zip(PRECISIONS, self.values.mean(0), half_interval(self.values), strict=True):
            half = None if np.isnan(error) else round(100 * float(error), 2)
            record |= {f"p{m}": round(100 * float(value), 2), f"p{m}_error": half}
        costs = {name: getattr(self, name) for name in ("us_batch", "us_single", "tuning", "seconds", "mb")}
        rounded = {name: None if value is None else round(value, 1) for name, value in costs.items()}
        return {**record, **rounded, "setting": self.setting}


def strongest_first(results: Sequence[LabelResult]) -> list[LabelResult]:
    """Our rows as they are, then all others by the best mean of their precisions; the beams of a row together."""
    best: dict[str, float] = {}
    for each in results:
        best[each.row] = max(best.get(each.row, 0.0), float(each.values.mean()))
    return sorted(results, key=lambda each: -best[each.row] if each.row in ROWS else -2.0)


def half_interval(values: np.ndarray) -> np.ndarray:
    """Half of the 95 % interval of the mean over documents; NaN for one document."""
    if len(values) == 1:
        return np.full(values.shape[1], np.nan)
    result: np.ndarray = 1.96 * values.std(0, ddof=1) / len(values) ** 0.5
    return result


def gains(results: Sequence[LabelResult]) -> list[tuple[str, int | None, np.ndarray, np.ndarray]]:
    """By how much our classifier is ahead of the strongest other row: its name, k, differences and half intervals."""
    rivals = [each for each in strongest_first(results) if each.row in ROWS]
    pairs = [
        (ours, rival)
        for ours in results
        for rival in rivals
        if ours.row == OURS and rival.row == rivals[0].row and rival.k in (ours.k, None)
    ]
    differences = [(rival.row, ours.k, ours.values - rival.values) for ours, rival in pairs]
    return [(row, k, values.mean(0), half_interval(values)) for row, k, values in differences]


def why_missing(row: str, sets: Sets) -> str | None:
    """Why a row cannot be run, or None."""
    if row not in ROWS:
        return None
    if ROWS[row].our_features and sets.texts is None:
        return "it needs texts"
    package = ROWS[row].module.split(".")[0]
    try:
        import_module(ROWS[row].module)
    except ImportError as error:
        return f"{package} is not installed" if error.name == package else f"{package} does not work: {error}"
    return None


def compare_labels(
    sets: Sets, rows: Sequence[str], beams: Sequence[int], on_message: Callable[[str], None]
) -> list[LabelResult]:
    """Run rows on the same documents; one result per row and beam. A package that fails is left out, with a line."""
    results: list[LabelResult] = []
    ours = [row for row in rows if row not in ROWS]
    if {OURS, LINEAR} & set(ours):
        results += run_ours(sets, [row for row in ours if row in (OURS, LINEAR)], beams, {}, on_message)
    for row, options in ((ONE_TREE, {"trees": 1}), (NO_TREE, {"trees": 1, "group": sets.train_y.width})):
        if row in ours:
            results += run_ours(sets, [row], beams, options, on_message)
    for row in rows:
        if row in ROWS:
            try:
                results += run_peer(sets, row, beams, on_message)
            except Exception as error:
                on_message(f"{row}: left out, it failed with {type(error).__name__}: {error}")
    return results


def run_ours(
    sets: Sets, rows: Sequence[str], beams: Sequence[int], options: dict[str, Any], on_message: Callable[[str], None]
) -> list[LabelResult]:
    """Fit our classifier with its defaults, and measure it with all parts, or the linear part alone."""
    threads = torch.get_num_threads()
    on_message(f"{rows[0]}: training")
    start = time.perf_counter()
    classifier = Classifier(**options)
    documents = sets.ours[0] if sets.texts is None else sets.texts[0]
    classifier.fit(documents, sparse(sets.train_y), names=sets.names, verbose=False)
    costs = {"setting": None, "tuning": 0.0, "seconds": time.perf_counter() - start}
    with tempfile.TemporaryDirectory() as scratch:
        classifier.save(Path(scratch) / "model")
        costs["mb"] = megabytes(Path(scratch))
    x = classifier.features_of(sets.ours[1] if sets.texts is None else sets.texts[1])
    singles = [x.take(np.array([number])) for number in range(min(TIMED, x.rows))]
    results = []
    torch.set_num_threads(1)
    try:
        for row in rows:
            model = classifier.model
            if row == LINEAR:
                model = replace(model, weights=Weights(0.0, 0.0, groups=model.weights.groups))
            for k in (None,) if row == NO_TREE else beams:

                def find(x: Matrix, k: int | None, model: Any = model) -> np.ndarray:
                    found: np.ndarray = model.search(x, M, beam_size=k or 1)[0]
                    return found

                results.append(measure(row, k, find, x, singles, sets.test_y, True, costs))
                on_message(describe(results[-1]))
    finally:
        torch.set_num_threads(threads)
    return results


def run_peer(sets: Sets, row: str, beams: Sequence[int], on_message: Callable[[str], None]) -> list[LabelResult]:
    """Choose a setting of another classifier on validation documents, train it and measure it."""
    peer = ROWS[row]
    train_x, test_x = sets.ours if peer.our_features else sets.words
    useful = np.flatnonzero((np.diff(train_x.indptr) > 0) & (np.diff(sets.train_y.offsets) > 0))
    x, y = train_x[useful], sets.train_y.take(useful)
    start = time.perf_counter()
    order = np.random.default_rng(0).permutation(x.shape[0])
    count = min(VALIDATION, max(1, x.shape[0] // 10))
    held_out, kept = np.sort(order[:count]), np.sort(order[count:])
    scores = {}
    for setting in peer.settings:
        with tempfile.TemporaryDirectory() as scratch:
            find = peer.trial(x[kept], sparse(y.take(kept)), setting, Path(scratch) / "model")
            scores[setting] = float(precisions(find(x[held_out], TRIAL_BEAM), y.take(held_out)).mean())
        on_message(f"{row}, setting {setting:g}: {scores[setting]:.2%} on validation documents")
    setting = max(scores, key=lambda setting: scores[setting])
    costs: dict[str, Any] = {"setting": setting, "tuning": time.perf_counter() - start}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        start = time.perf_counter()
        find = peer.train(x, sparse(y), setting, folder)
        costs |= {"seconds": time.perf_counter() - start, "mb": megabytes(folder)}
        singles = [test_x[number] for number in range(min(TIMED, test_x.shape[0]))]
        results = []
        for k in beams if peer.beams else (None,):
            results.append(measure(row, k, find, test_x, singles, sets.test_y, peer.batches, costs))
            on_message(describe(results[-1]))
        return results


def measure(
    row: str,
    k: int | None,
    find: Find,
    documents: Any,
    singles: Sequence[Any],
    y: Matrix,
    batches: bool,
    costs: Mapping[str, Any],
) -> LabelResult:
    """What a row finds with a beam, and how long it takes.

    Args:
        row: its name.
        k: the beam.
        find: labels of documents with a beam.
        documents: all test documents.
        singles: documents that are asked one by one.
        y: the right labels.
        batches: whether `find` answers many documents at once.
        costs: seconds of tuning and training, and size.
    """
    find(singles[0], k)  # what is loaded or compiled at the first call is not timed
    start = time.perf_counter()
    found = find(documents, k)
    us_batch = (time.perf_counter() - start) / len(found) * 1e6 if batches else None
    warm, times = singles[:20], []
    for each in [*warm, *singles]:
        start = time.perf_counter()
        find(each, k)
        times.append((time.perf_counter() - start) * 1e6)
    values = precisions(found, y)[np.diff(y.offsets) > 0]
    return LabelResult(row, k, values, us_batch, statistics.median(times[len(warm) :]), **costs)


def megabytes(folder: Path) -> float:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def describe(result: LabelResult) -> str:
    """A result in a line."""
    precision = " ".join(f"{value:6.2%}" for value in result.values.mean(0))
    batch = "" if result.us_batch is None else f"{result.us_batch:.0f}"
    times = f"{batch:>6} µs in a batch {result.us_single:6.0f} µs one by one"
    return f"{result.row:32s} {result.k or '':>3} {precision} {times} {result.seconds:6.1f} s {result.mb:6.1f} MB"

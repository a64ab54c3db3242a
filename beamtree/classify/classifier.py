"""Classifier: one object that learns which labels documents have, and finds them: text or features in, labels out."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic as time_now
from typing import Any

import numpy as np

from beamtree.classify.documents import (
    check_ids,
    is_text,
    number_labels,
    open_documents,
    read_label_names,
    relevant_labels,
)
from beamtree.classify.explain import explain_label
from beamtree.classify.linear import BEAM_NEGATIVES, DEFAULT_C
from beamtree.classify.matrix import Matrix, empty, from_entries, stack
from beamtree.classify.metrics import label_metrics
from beamtree.classify.model import LabelModel, Weights, train
from beamtree.classify.part_weights import MEMORY, NAMES, choose_weights, mean_precision
from beamtree.classify.storage import load_classifier, save_classifier
from beamtree.classify.text import TextFeatures
from beamtree.data import Ids
from beamtree.data.frames import check_frame_kind, make_frame
from beamtree.data.ids import Id, as_id
from beamtree.errors import positive_int
from beamtree.evaluate import Evaluation, all_cuts
from beamtree.kernels.threads import ChangeLock
from beamtree.progress import Reporter, clock

BEAM_SIZE = 10
VALIDATION = 2_000  # documents, at most a fifth of all, that choose the weights of the parts
# Documents up to which they also choose C, and the classifiers are trained again with them
MAX_TUNED_DOCUMENTS = 50_000
GROUP = 256  # labels that a group has, about
FEW_LABELS, FEW_PAIRS = 1_000, 20_000_000  # labels, and documents times labels, up to which all are one group
# Documents times labels up to which labels are trained on beam negatives with several trees, too
MAX_PAIRS_WITH_NEGATIVES = 200_000_000
OLD_OPTIONS = {"cost": "C", "least": "min_weight"}  # in classifiers saved before 0.3.0
C_CHOICES = (0.25, 0.5, 1.0)  # C of the linear classifiers, from which validation documents choose


class NotFindableError(ValueError):
    """New labels that no search could find."""

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__(f"label {labels[0]!r} has no name or document with a known word: it could never be found")
        self.labels = labels


class Classifier:
    """Learns which labels documents have, and finds the best few of thousands or millions of labels.

    Documents are texts, or rows of features: a sparse matrix, or vectors from any encoder. The score of a label is a
    sum of a linear part in trees over the labels, a memory of the nearest documents, the names of labels, and, where
    there are few labels, an encoder; see docs/classification.md.

    Args:
        beam_size: k, the groups of labels that a search looks into. Default of `predict` and `evaluate`.
        trees: trees over the labels, whose probabilities are averaged. Fewer are smaller and faster, and find less,
            most at narrow beams. With many documents and labels a single one takes longer to train than two.
        group: labels in a group. Default: 256; where there are at most 1,000 labels, all of them in one tree, if
            training each against all documents does not take long.
        C: of the linear classifiers; more follows the training documents more closely. Default: 0.5, and chosen
            on validation documents where there are at most 50,000 documents.
        min_weight: weights below are dropped; larger ones make a smaller model.
        memory: whether labels of the nearest documents count. Without them a search takes a half to a third of the
            time, and finds less, most at narrow beams. Labels that are added by documents need memory: then all
            labels get it.
        seed: the same seed gives the same model.
        frame: the kind of frame to return, polars or pandas.
    """

    def __init__(
        self,
        *,
        beam_size: int = BEAM_SIZE,
        trees: int = 3,
        group: int | None = None,
        C: float | None = None,
        min_weight: float = 0.1,
        memory: bool = True,
        seed: int = 0,
        frame: str | None = None,
    ) -> None:
        self.beam_size = positive_int("beam_size", beam_size)
        for name, value, lowest in (("C", C, 1e-6), ("min_weight", min_weight, 0.0)):
            if value is not None and not lowest <= value < float("inf"):
                raise ValueError(f"{name}={value!r}: give a number {'above' if name == 'C' else 'of at least'} 0")
        if not isinstance(memory, bool):
            raise ValueError(f"memory={memory!r}: give True or False")
        group = None if group is None else positive_int("group", group)
        self.options = Options(positive_int("trees", trees), group, C, min_weight, memory, seed)
        check_frame_kind(frame)
        self._frame = frame
        self._changes = ChangeLock()  # held during every change of the labels
        self._model: LabelModel | None = None
        self._features: TextFeatures | None = None  # None where documents are features
        self._ids = Ids([])
        self._names: dict[str, str] = {}
        self._counts = np.zeros(0, np.int64)  # training documents of each label
        self.report: dict[str, Any] = {}  # what was chosen, and what validation documents found

    def __repr__(self) -> str:
        if self._model is None:
            return "Classifier(not fitted: call fit(texts, labels))"
        return f"Classifier({self.model.num_labels:,} labels, {self.model.labels.rows:,} documents)"

    @property
    def model(self) -> LabelModel:
        """Trees, classifiers and memory."""
        if self._model is None:
            raise ValueError("this classifier is not fitted: call fit(texts, labels), or Classifier.load(folder)")
        return self._model

    @property
    def ids(self) -> Ids:
        """The ids of all labels, by number."""
        return self._ids

    @property
    def labels(self) -> list[Id]:
        """The ids of all labels, in the type that they had in the training."""
        return self._ids[:]

    @property
    def takes_text(self) -> bool:
        """Whether documents are texts, not features."""
        return self._features is not None

    def name_of(self, label: object) -> str:
        """The name of a label; empty where it has none."""
        return self._names.get(as_id(label), "")

    def describe_label(self, label: object) -> dict[str, Any] | None:
        """The name of a label, the number of its documents, and whether it is hidden; None where it is unknown."""
        one = copy(self)
        (number,) = one._ids.find([label])
        if number is None:
            return None
        hidden = not one.model.visible[number]
        return {
            "label": label, "name": one.name_of(label), "documents": int(one._counts[number]), "hidden": bool(hidden),
        }  # fmt: skip

    def fit(
        self,
        documents: Any,
        labels: Any = None,
        *,
        names: Any = None,
        text: str | None = None,
        label_column: str | None = None,
        separator: str | None = None,
        verbose: bool = True,
    ) -> "Classifier":
        """Learn from documents and their labels.

        Args:
            documents: texts; a SciPy sparse matrix or an array, one row per document; or a frame or a file (Parquet,
                CSV, JSON lines, or the text format of the extreme classification sets) with texts and labels.
            labels: for texts and matrices: a list of labels per document, or a sparse matrix of documents and labels.
            names: names of labels by id: a dict, or a frame or a file with the columns label and name. Their words
                find labels with few documents.
            text: the column of texts. Default: found by its name.
            label_column: the column of labels, lists or one label each. Default: found by its name.
            separator: between the labels of a text column, such as ";".
            verbose: print a report and progress on standard error.
        """
        began = time_now()
        with Reporter(verbose) as report:
            report.stage("Reading the documents")
            opened = open_documents(
                documents, labels, text=text, label_column=label_column, separator=separator, needs_labels=True
            )
            ids, y = number_labels(opened.labels, opened.num_labels, opened.numeric_labels)
            features, x = None, opened.features.normalized()
            if opened.texts is not None:
                features = TextFeatures.fit(opened.texts)
                x = features.transform(opened.texts)
            useful = np.flatnonzero((np.diff(x.offsets) > 0) & (np.diff(y.offsets) > 0))
            if not len(useful):
                raise ValueError("no document has both a label and a feature: there is nothing to learn from")
            if len(useful) < x.rows:
                report.write(f"Left out {x.rows - len(useful):,} of {x.rows:,} documents without a label or a word.")
                x, y = x.take(useful), y.take(useful)
            read_names = read_label_names(names)
            name_texts = [read_names.get(each, "") for each in ids.names]
            z = empty(len(ids), x.width) if features is None else features.transform(name_texts)
            report.write(f"{x.rows:,} documents, {x.width:,} features, {len(ids):,} labels.")
            pairs = x.rows * len(ids)
            settings: dict[str, Any] = {**asdict(self.options), "C": self.options.C or DEFAULT_C}
            with_memory = settings.pop("memory")
            if self.options.group is None:
                few = len(ids) <= FEW_LABELS and pairs <= FEW_PAIRS
                settings |= {"group": len(ids), "trees": 1} if few else {"group": GROUP}
            several_groups = settings["group"] < len(ids)
            has_negatives = several_groups and (settings["trees"] == 1 or pairs <= MAX_PAIRS_WITH_NEGATIVES)
            settings["negatives"] = BEAM_NEGATIVES if has_negatives else 0
            rows = np.random.default_rng(self.options.seed).permutation(x.rows)
            count = min(VALIDATION, x.rows // 5)
            kept, held_out = np.sort(rows[count:]), np.sort(rows[:count])
            parts = x.take(kept), y.take(kept), z
            validation = x.take(held_out), y.take(held_out)
            if self.options.C is None and count and x.rows <= MAX_TUNED_DOCUMENTS:
                trials: dict[float, float] = {}
                for each in C_CHOICES:
                    alone = {**settings, "C": each, "trees": 1, "weights": Weights(0.0, 0.0)}
                    trial = train(*parts, **alone, on_progress=report.progress)
                    trials[each] = mean_precision(trial, *validation, self.beam_size)
                settings["C"] = max(trials, key=lambda each: trials[each])
            model = train(*parts, **settings, on_progress=report.progress)
            report.stage("Weights of the parts")
            model, found = choose_weights(model, *validation, self.beam_size, memory=with_memory)
            if count and x.rows <= MAX_TUNED_DOCUMENTS:
                model = train(x, y, z, **settings, weights=model.weights, on_progress=report.progress)
            elif count:
                model = model.with_documents(*validation, y.width)
            self.report = {"weights": model.weights._asdict(), "C": settings["C"], "validation": found}
            self._model, self._features, self._ids, self._names = model, features, ids, read_names
            self._counts = np.bincount(y.columns, minlength=len(ids))
            report.write(*self._describe(count), f"Fitted in {clock(time_now() - began)}.")
        return self

    def _describe(self, validation: int) -> list[str]:
        weights, trials = self.model.weights, self.report["validation"]
        parts = ", ".join(f"{name} {getattr(weights, name):g}" for name in ("memory", "names", "encoder"))
        lines = [f"Weights: linear 1, {parts}."]
        if trials:
            found = ", ".join(f"{name} {value:.1%}" for name, value in trials.items())
            lines.append(f"Mean of P@1, P@3 and P@5 on {validation:,} validation documents: {found}.")
        return lines

    def predict(
        self,
        documents: Any,
        m: int = 5,
        *,
        beam_size: int | None = None,
        allowed: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
        text: str | None = None,
    ) -> Any:
        """The m best labels of each document: a frame with the columns document, rank, label and score.

        Args:
            documents: one text, texts, a matrix, or a frame or a file with texts.
            m: labels per document.
            beam_size: k: groups of labels that a search looks into. Default: that of the classifier.
            allowed: ids of labels that may be found. Default: all.
            exclude: ids of labels that may not be found.
            text: the column of texts. Default: found by its name.

        Every document gets m labels if so many are allowed. A document without a known feature gets the most frequent
        labels, with a warning.
        """
        one = copy(self)  # one state of the labels, whatever other threads change meanwhile
        found, scores = one.find(one.features_of(documents, text), m, beam_size, allowed, exclude)
        document, rank = np.nonzero(found >= 0)
        labels = found[found >= 0]
        names = [one.name_of(one._ids.name(label)) for label in labels.tolist()] if one._names else []
        columns: dict[str, Any] = {
            "document": document.tolist(),
            "rank": (rank + 1).tolist(),
            "label": one._ids.column(labels),
            **({"name": names} if one._names else {}),
            "score": scores[found >= 0].astype(float).tolist(),
        }
        types = {"document": int, "rank": int, "label": int if one._ids.integer else str, "name": str, "score": float}
        return make_frame(columns, {name: types[name] for name in columns}, self._frame)

    def features_of(self, documents: Any, text: str | None = None) -> Matrix:
        """The features of documents in any form; a ValueError where they are not those of the training."""
        model = self.model
        opened = open_documents([documents] if is_text(documents) else documents, text=text)
        if opened.texts is not None:
            if self._features is None:
                raise ValueError(f"this classifier knows {model.num_features:,} features: give a matrix, not text")
            return self._features.transform(opened.texts)
        given = opened.features
        if self._features is not None:
            raise ValueError("this classifier was fitted to texts: give texts, not a matrix")
        if given.width != model.num_features:
            raise ValueError(f"documents have {given.width:,} features, those of the training {model.num_features:,}")
        return given.normalized()

    def find(
        self,
        features: Matrix,
        m: int = 5,
        beam_size: int | None = None,
        allowed: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the m best labels and their scores [n, m], -1 where fewer are allowed.

        Args:
            features: of the documents, as `features_of` gives them.
            m: labels per document.
            beam_size: k. Default: that of the classifier.
            allowed: ids of labels that may be found. Default: all.
            exclude: ids of labels that may not be found.
        """
        model, m = self.model, positive_int("m", m)
        mask = self._mask(allowed, exclude)
        k = self.beam_size if beam_size is None else positive_int("beam_size", beam_size)
        found, scores = model.search(features, m, beam_size=k, allowed=mask)
        empty = np.flatnonzero(np.diff(features.offsets) == 0)
        if len(empty):
            message = f"{len(empty):,} of {features.rows:,} documents have no known word or feature"
            warnings.warn(f"{message}: they get the most frequent labels", UserWarning, stacklevel=3)
            found[empty] = -1
        short = np.flatnonzero(found[:, -1] < 0)
        if len(short):
            self._fill(found, scores, short, model.visible if mask is None else mask & model.visible)
        return found, scores

    def _fill(self, found: np.ndarray, scores: np.ndarray, rows: np.ndarray, allowed: np.ndarray) -> None:
        """Add the most frequent of the allowed labels where fewer than m were found, after them."""
        order = np.argsort(-self._counts, kind="stable")
        order = order[allowed[order]]
        for row in rows:
            known = found[row][found[row] >= 0]
            more = order[: found.shape[1] + len(known)]
            more = more[~np.isin(more, known)][: found.shape[1] - len(known)]
            last = min(1.0, scores[row, len(known) - 1]) if len(known) else 1.0
            found[row, len(known) : len(known) + len(more)] = more
            scores[row, len(known) : len(known) + len(more)] = last * self._counts[more] / self.model.labels.rows

    def _mask(self, allowed: Iterable[object] | None, exclude: Iterable[object] | None) -> np.ndarray | None:
        if allowed is None and exclude is None:
            return None
        mask = np.full(self.model.num_labels, allowed is None)  # hidden ones are left out by the search
        for given, value in ((allowed, True), (exclude, False)):
            if given is None:
                continue
            if isinstance(given, str):
                raise ValueError(f"labels {given!r}: give a list of ids")
            mask[self._ids.find_known(given)] = value
        return mask

    def evaluate(
        self,
        documents: Any,
        labels: Any = None,
        *,
        m: Sequence[int] | int = (1, 3, 5),
        beam_size: int | None = None,
        metrics: Sequence[str] = ("precision", "ndcg", "psp", "recall"),
        text: str | None = None,
        label_column: str | None = None,
        separator: str | None = None,
    ) -> Evaluation:
        """P@m, nDCG@m, propensity-scored P@m and R@m with 95 % intervals over documents.

        Args:
            documents: as in `fit`.
            labels: as in `fit`.
            m: numbers of labels.
            beam_size: k. Default: that of the classifier.
            metrics: of precision, ndcg, psp, recall, f1 and rare_recall: recall of labels with at most five documents.
            text: the column of texts. Default: found by its name.
            label_column: the column of labels. Default: found by its name.
            separator: between the labels of a text column.
        """
        opened = open_documents(
            documents, labels, text=text, label_column=label_column, separator=separator, needs_labels=True
        )
        cuts, one = all_cuts(m), copy(self)
        found, _ = one.find(
            one.features_of(opened.features if opened.texts is None else opened.texts), max(cuts), beam_size
        )
        y = relevant_labels(one._ids, opened.labels)
        return label_metrics(
            found, np.split(y.columns, y.offsets[1:-1]), one._counts, one.model.labels.rows, cuts, tuple(metrics)
        )

    # Labels of a live model

    def add_labels(self, labels: Mapping[Any, Any], documents: Any = None) -> "Classifier":
        """Add labels without training: by their names, by a few documents, or both. Ids of other labels stay.

        They are found by names and memory, which get a small weight where they had none, and by the nearest of their
        documents: a copy of a document has its label first. A removed label is found again.

        Args:
            labels: names by id, None or "" where a label has none, or keeps the one that it has.
            documents: a dict from id to texts (or a matrix) of documents with this label; also for known labels.
        """
        examples = {as_id(key): self.features_of(value) for key, value in (documents or {}).items()}
        names = {as_id(key): value or "" for key, value in labels.items()}
        for key, name in names.items():
            if not isinstance(name, str):
                raise ValueError(
                    f"label {key!r}: its name must be text or None; its documents are the second argument, "
                    f"add_labels({{{key!r}: None}}, {{{key!r}: [text, …]}})"
                )
        unknown = [key for key in examples if key not in names and self._ids.find([key])[0] is None]
        if unknown:
            raise ValueError(f"documents of {unknown[0]!r}, which is no label: name it in `labels`")
        with self._changes:
            self.__dict__.update(self.with_labels(names, examples).__dict__)
        return self

    def with_labels(
        self, names: Mapping[str, str], documents: Mapping[str, Matrix], hidden: Iterable[str] = ()
    ) -> "Classifier":
        """A copy with labels added or changed; this one stays as it is.

        Args:
            names: by id of a label; an empty one changes nothing.
            documents: their features, by id of a label.
            hidden: ids of labels that are never found. The others that are given here are found again.

        Raises NotFindableError for new labels that are not hidden and have no known word or feature.
        """
        result, model, hidden = copy(self), self.model, list(hidden)
        given = list(dict.fromkeys([*names, *documents, *hidden]))
        new = [each for each, number in zip(given, self._ids.find(given), strict=True) if number is None]
        result._ids = ids = self._ids.extended(check_ids(new))
        named = {label: name for label, name in names.items() if name}
        numbers = np.array(ids.find(named), np.int64)
        z = empty(len(named), model.num_features)
        if self._features is not None:
            z = self._features.transform(named.values())
        x = stack(empty(0, model.num_features), *documents.values())
        labels = np.repeat(np.array(ids.find(documents), np.int64), [each.rows for each in documents.values()])
        known = {*numbers[np.diff(z.offsets) > 0].tolist(), *labels[np.diff(x.offsets) > 0].tolist()}
        known.update(ids.find_known(hidden))
        bare = [each for each in new if ids.find([each])[0] not in known]
        if bare:
            raise NotFindableError(bare)
        y = from_entries(np.arange(len(labels)), labels, np.ones(len(labels)), (len(labels), len(ids)))
        model, weights = model.with_documents(x, y, len(ids)), model.weights
        if len(labels):
            model = replace(model, examples=model.examples.with_documents(x, labels))
        if len(z.columns):
            model = replace(model, names=model.names.with_rows(numbers, z))
            weights = weights._replace(names=weights.names or NAMES[2])
        if len(labels):
            weights = weights._replace(memory=weights.memory or MEMORY[1])
        off = np.union1d(np.setdiff1d(model.hidden, ids.find_known(given)), np.array(ids.find(hidden), np.int64))
        result._model = replace(model, weights=weights, hidden=off)
        result._names = self._names | named
        counts = np.concatenate([self._counts, np.zeros(len(new), np.int64)])
        result._counts = counts + np.bincount(labels, minlength=len(ids))
        return result

    def remove_labels(self, labels: Iterable[object]) -> "Classifier":
        """Hide labels: they are never found until they are added again. What was learned about them stays."""
        if isinstance(labels, str):
            raise ValueError(f"labels {labels!r}: give a list of ids")
        with self._changes:
            numbers = self._ids.find_known(labels)
            self._model = replace(self.model, hidden=np.union1d(self.model.hidden, numbers).astype(np.int64))
        return self

    def explain(self, document: Any, label: object, *, features: int = 5, neighbours: int = 3) -> dict[str, Any]:
        """Why a label has its score for a document: what each part gives, and which words and documents count.

        Args:
            document: a text, or a matrix of one row.
            label: the id of a label.
            features: words with the largest weights to show.
            neighbours: nearest documents with this label to show. They are counted without those that were left out of
                the training, from 0.
        """
        one = copy(self)
        (number,) = one._ids.find([label])
        if number is None:
            raise ValueError(f"label {label!r} is unknown")
        x = one.features_of(document)
        if x.rows != 1:
            raise ValueError(f"explain one document, not {x.rows:,}")
        words = None if one._features is None else one._features.vocabulary
        return explain_label(one.model, x, number, words, one._ids, features=features, neighbours=neighbours)

    # Files

    def save(self, folder: str | Path) -> None:
        """Write the classifier to a folder; an existing one is replaced only when the new one is complete."""
        one = copy(self)
        settings = {
            "beam_size": one.beam_size, "frame": one._frame, "options": asdict(one.options), "report": one.report,
            "names": one._names, "integer_labels": one._ids.integer,
        }  # fmt: skip
        save_classifier(Path(folder), one.model, one._features, one._ids, one._counts, settings)

    @classmethod
    def load(cls, folder: str | Path) -> "Classifier":
        """The classifier of a folder; its arrays are mapped to memory, and read when a search needs them."""
        model, features, ids, counts, settings = load_classifier(Path(folder))
        classifier = cls(beam_size=settings["beam_size"])
        options = {OLD_OPTIONS.get(name, name): value for name, value in settings["options"].items()}
        classifier.options = Options(**options)
        classifier.report, classifier._names = settings["report"], settings["names"]
        classifier._model, classifier._features, classifier._ids = model, features, ids
        classifier._counts, classifier._frame = counts, settings.get("frame")
        return classifier


@dataclass(frozen=True)
class Options:
    """How a classifier is trained."""

    trees: int
    group: int | None
    C: float | None
    min_weight: float
    memory: bool
    seed: int

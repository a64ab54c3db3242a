"""A live classifier: labels are added, changed and hidden while documents are classified."""

import threading
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from beamtree.classify import Classifier
from beamtree.classify.classifier import NotFindableError
from beamtree.classify.matrix import Matrix, from_dicts
from beamtree.data.ids import as_id, is_integer
from beamtree.live.journal import Journal, count_changes, unknown_kind

SentDocuments = list[str] | list[dict[str, float]]  # texts, or values by number of a feature


class LiveLabel(NamedTuple):
    """What was sent about a label."""

    name: str | None = None  # None: the one that it was trained with, if any
    documents: SentDocuments | None = None  # besides those of the training
    hidden: bool = False


class ClassifierSnapshot(NamedTuple):
    """A consistent state that a search reads."""

    version: int  # how many changes were applied
    classifier: Classifier


class LiveClassifier:
    """A classifier whose labels can change.

    `snapshot` is what to search: it is replaced on every change and never modified. A change is made from the trained
    classifier and all that was sent since, so the same label sent twice counts once. With a journal, a change is on
    disk before it is visible, and the changes in the journal are applied on opening. What another classifier was given
    and this one cannot read, such as features that it does not have, is left out, and labels that it could then not
    find are hidden; the journal keeps both.

    Args:
        classifier: as it was trained.
        journal: where changes are written; the caller closes it.
    """

    def __init__(self, classifier: Classifier, journal: Journal | None = None) -> None:
        self._trained, self.journal = classifier, journal
        self._labels: dict[str, LiveLabel] = {}
        self._features: dict[str, Matrix] = {}  # of their documents
        self._lock = threading.Lock()
        self.snapshot = ClassifierSnapshot(0, classifier)
        entries = [] if journal is None else journal.entries
        sent: dict[str, LiveLabel] = {}
        for entry in entries:
            if entry["kind"] not in ("label", "before"):
                raise unknown_kind(entry["kind"])
            if entry["kind"] == "label" and classifier.ids.integer and not is_integer(entry["label"]):
                warnings.warn(f"label {entry['label']!r} is left out: labels are whole numbers here", stacklevel=2)
            elif entry["kind"] == "label":
                sent[entry["label"]] = LiveLabel(**{key: entry[key] for key in LiveLabel._fields if key in entry})
        if not sent:
            return
        self._labels = sent
        self._read_documents()
        try:
            self._apply(sent, count_changes(entries))
        except NotFindableError as error:  # by a classifier that was trained again
            warnings.warn(f"{error}; it is hidden until it is changed", stacklevel=2)
            hidden = {label: sent[label]._replace(hidden=True) for label in error.labels}
            self._apply({**sent, **hidden}, count_changes(entries))

    def _read_documents(self) -> None:
        """Features of the documents in the journal, without those that a classifier trained again does not have."""
        width, errors = self._trained.model.num_features, []
        for label, state in self._labels.items():
            if not state.documents:
                continue
            try:
                self._features[label] = self._features_of(label, state.documents)
            except ValueError as error:
                errors.append(error)
                rows = [each for each in state.documents if isinstance(each, dict)]
                known = [{name: value for name, value in row.items() if int(name) < width} for row in rows]
                with suppress(ValueError):  # features for a classifier of texts, or the reverse
                    self._features[label] = self._features_of(label, known)
        if errors:
            message = f"{errors[0]}; what cannot be read is left out (labels: {len(errors):,})"
            warnings.warn(message, stacklevel=3)

    def put_labels(self, labels: Mapping[str, Mapping[str, Any]]) -> int:
        """Add labels, show hidden ones again, or change them, all or none; returns how many changed.

        A label has a name, documents, or both; the documents of the training count besides. A field that is left out
        keeps its value, None clears it.
        """
        return self._change({as_id(label): {**fields, "hidden": False} for label, fields in labels.items()})

    def remove_labels(self, labels: Iterable[str]) -> int:
        """Hide labels until they are put again; returns how many changed. Unknown ones are passed over."""
        known = [label for label in map(as_id, labels) if self.snapshot.classifier.describe_label(label)]
        return self._change({label: {"hidden": True} for label in known})

    def _change(self, changes: Mapping[str, Mapping[str, Any]]) -> int:
        with self._lock:
            changed = {}
            for label, fields in changes.items():
                known = self.snapshot.classifier.describe_label(label)
                before = self._labels.get(label) or LiveLabel(hidden=known is not None and known["hidden"])
                after = before._replace(**fields)
                if after != before or known is None:
                    changed[label] = after
            if changed:
                self._apply(changed, self.snapshot.version + len(changed), write=True)
            return len(changed)

    def _apply(self, changed: Mapping[str, LiveLabel], version: int, *, write: bool = False) -> None:
        """Make the next snapshot, write the changes down, and only then show it."""
        features = dict(self._features)
        for label, state in changed.items():
            if label in self._labels and state.documents == self._labels[label].documents:
                continue
            features.pop(label, None)
            if state.documents:
                features[label] = self._features_of(label, state.documents)
        labels = {**self._labels, **changed}
        classifier = self._trained.with_labels(
            {label: state.name or "" for label, state in labels.items()},
            {label: features[label] for label in labels if label in features},
            [label for label, state in labels.items() if state.hidden],
        )
        if write and self.journal is not None:
            entries = [{"kind": "label", "label": label, **state._asdict()} for label, state in changed.items()]
            self.journal.append(*entries)
        self._labels, self._features = labels, features
        self.snapshot = ClassifierSnapshot(version, classifier)

    def _features_of(self, label: str, documents: SentDocuments) -> Matrix:
        try:
            width = self._trained.model.num_features
            rows = [each for each in documents if isinstance(each, dict)]
            return self._trained.features_of(from_dicts(rows, width) if rows else documents)
        except ValueError as error:
            raise ValueError(f"documents of {label!r}: {error}") from error

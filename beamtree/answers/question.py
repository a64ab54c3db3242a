"""What is asked of a run for every user, and the search that answers it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from beamtree.answers.answer import Answer, History, Tally, answer, item_filter
from beamtree.beam import BeamSize
from beamtree.data import Ids
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.train.runs import ids_of, open_model

if TYPE_CHECKING:
    from beamtree.answers.files import Histories, OnRows


class Question(NamedTuple):
    """What is asked of a run; it can be sent to another process."""

    run: Path
    m: int = 10
    beam_size: BeamSize = 400
    exclude_seen: bool = False
    allowed: Sequence[str] | None = None  # ids
    exclude: Sequence[str] | None = None
    names: Sequence[str] | None = None  # these four as in `files.open_histories`
    user: str | None = None
    item: str | None = None
    time: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The options of `files.open_histories`."""
        return {"names": self.names, "user": self.user, "item": self.item, "time": self.time}

    def record(self) -> dict[str, Any]:
        """All but the run, in short and as JSON holds it, so that another question can be compared with it."""
        short = {
            "beam_size": self.beam_size if isinstance(self.beam_size, int) else list(self.beam_size),
            "allowed": _digest(self.allowed),
            "exclude": _digest(self.exclude),
            "names": None if self.names is None else list(self.names),
        }
        return {name: short.get(name, value) for name, value in self._asdict().items() if name != "run"}


def _digest(ids: Sequence[str] | None) -> str | None:
    return None if ids is None else hashlib.sha256("\n".join(sorted(set(ids))).encode()).hexdigest()[:16]


class Search(NamedTuple):
    """A question, and the model that answers it."""

    question: Question
    model: TreeModel
    ids: Ids
    allowed: NodeMask | None

    def __call__(self, histories: list[History]) -> list[Answer]:
        asked = self.question
        return answer(
            self.model,
            self.ids,
            histories,
            beam_size=asked.beam_size,
            m=asked.m,
            exclude_seen=asked.exclude_seen,
            allowed=self.allowed,
        )

    def write(
        self, histories: "Histories", output: Path, on_rows: "OnRows | None" = None, even_none: bool = False
    ) -> Tally:
        """Answer a file of histories, as `files.write_answers` does."""
        from beamtree.answers.files import write_answers  # polars takes a moment

        return write_answers(
            self.model,
            self.ids,
            histories,
            output,
            beam_size=self.question.beam_size,
            m=self.question.m,
            exclude_seen=self.question.exclude_seen,
            allowed=self.allowed,
            on_rows=on_rows,
            even_none=even_none,
        )


def open_search(question: Question, device: str) -> Search:
    """Load the model of a question's run."""
    return search_in(open_model(question.run, device), question)


def search_in(model: TreeModel, question: Question) -> Search:
    """A question put to the model of its run."""
    ids = ids_of(question.run, model)
    return Search(question, model, ids, item_filter(model, ids, question.allowed, question.exclude))

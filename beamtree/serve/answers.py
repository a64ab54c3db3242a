"""From a history of ids to the best items, as ids again."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.data import HISTORY, Ids
from beamtree.model import TreeModel
from beamtree.tree import PAD

NAMED = 5  # unknown ids that a note shows


class Answer(NamedTuple):
    """What was found for one user."""

    items: list[str]  # ids, best first; fewer than m where the beam holds fewer
    scores: list[float]  # p_g(z_n = 1 | x) of each
    known: int  # items of the history that the model knows
    unknown: list[str]  # and those that it does not


def split_ids(text: str) -> list[str]:
    """The ids of a history that is written as text, between spaces, commas or |."""
    return [word for word in re.split(r"[\s,|]+", text) if word]


def answer(
    model: TreeModel,
    ids: Ids,
    histories: Sequence[Sequence[str]],
    *,
    beam_size: int = 400,
    m: int = 10,
    exclude_seen: bool = False,
) -> list[Answer]:
    """The m best items for each history of ids, oldest first, all in one batch.

    Unknown ids are passed over, then the newest 69 count. A history of which nothing is known is an empty one, and
    gets what the beam finds for that. With `exclude_seen`, no item of a history is found, however old.
    """
    if len(ids) != model.tree.num_items:
        raise ValueError(f"{len(ids):,} ids for a tree of {model.tree.num_items:,} items: they are not of one run")
    numbers = [ids.find(history) for history in histories]
    known = [[number for number in row if number is not None] for row in numbers]
    device = model.tree.device
    x = _padded([row[: -HISTORY - 1 : -1] for row in known], HISTORY).to(device)  # newest first
    exclude = _padded(known, max(map(len, known), default=0)).to(device) if exclude_seen else None
    items, log_p = retrieve(model, x, beam_size=beam_size, m=m, exclude=exclude)
    found = (items != PAD).sum(1).tolist()
    rows = zip(items.tolist(), log_p.exp().tolist(), found, strict=True)  # PAD comes last
    answers = [([ids[item] for item in row[:count]], scores[:count]) for row, scores, count in rows]
    return [
        Answer(best, scores, len(known[place]), _unknown(histories[place], numbers[place]))
        for place, (best, scores) in enumerate(answers)
    ]


def _padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """Rows of different lengths as one tensor, PAD at the end [B, width]."""
    filled = [[*row, *[PAD] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64).view(len(rows), width)


def _unknown(history: Sequence[str], numbers: Sequence[int | None]) -> list[str]:
    return [name for name, number in zip(history, numbers, strict=True) if number is None]


@dataclass
class Tally:
    """What is worth a note about many answers."""

    users: int = 0
    unknown: int = 0  # events of items that the model does not know
    names: list[str] = field(default_factory=list)  # the first few of these items
    nothing_known: int = 0  # users of whom not one item is known
    nothing_found: int = 0  # users for whom no item was found
    rows: int = 0  # of a file that were used
    left_out: int = 0  # and that could not be

    def add(self, answers: Iterable[Answer]) -> None:
        for each in answers:
            self.users += 1
            self.unknown += len(each.unknown)
            self.nothing_known += each.known == 0
            self.nothing_found += not each.items
            if len(self.names) < NAMED:
                self.names = list(dict.fromkeys([*self.names, *each.unknown]))[:NAMED]

    def notes(self) -> Iterator[str]:
        """One line for each thing that was not as it should be."""
        if self.left_out:
            yield f"{_count(self.left_out, 'row')} left out: without a user, an item or a readable time"
        if self.unknown:
            shown = ", ".join(self.names) + (", …" if len(self.names) == NAMED else "")
            which = f"items that the model does not know ({shown})"
            yield f"{_count(self.unknown, 'event')} passed over: of {which}"
        if self.nothing_known:
            yield f"{_count(self.nothing_known, 'user')} without a known item: answered as for an empty history"
        if self.nothing_found:
            yield f"{_count(self.nothing_found, 'user')} without an answer: all that the beam found was seen before"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

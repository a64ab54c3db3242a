"""Contexts: what is known of a request besides its history, such as the country, the device, the hour and the day.

A column has a value in each context, or none. The values of all columns are numbered through. A model reads histories
x [B, HISTORY + columns]: after the items of the history, the number of the value in each column, PAD for none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.data.ids import as_id
from beamtree.errors import parse_number
from beamtree.tree import PAD

Context = Mapping[str, object]  # the value of each column; those that are missing or None are not known
Values = Mapping[str, Sequence[str]]  # the values of each column, as text


class EventContexts(NamedTuple):
    """The context of each event."""

    number: Tensor  # of the context of an event, int32 [E]; always on the CPU
    contexts: Sequence[Context]  # the distinct ones

    def of(self, index: Tensor | slice) -> "EventContexts":
        """The contexts of some events."""
        return self._replace(number=self.number[index])


class ValueIndex:
    """The numbers of the values of all columns."""

    def __init__(self, values: Values) -> None:
        self.columns = list(values)
        pairs = ((column, value) for column, names in values.items() for value in names)
        self._numbers = {pair: number for number, pair in enumerate(pairs)}
        self._numeric = {column for column, names in values.items() if all(as_number(name) == name for name in names)}

    def find(self, contexts: Iterable[Context]) -> list[list[int]]:
        """The numbers of the values of each context, PAD for one that is missing or unknown [N, columns]."""

        def number(column: str, value: object) -> int:
            if value is None:
                return PAD
            name = as_id(value)
            if (column, name) not in self._numbers:
                if name in ("True", "False"):
                    name = name.lower()  # as columns of truth values are read
                elif column in self._numeric:
                    name = as_number(name) or name
            return self._numbers.get((column, name), PAD)

        return [[number(column, context.get(column)) for column in self.columns] for context in contexts]


def as_number(text: str) -> str | None:
    """A number as columns of numbers are read, such as 8 for 08 and 8.0; None for other text."""
    try:
        return as_id(float(parse_number(text)))
    except ValueError:
        return None


def value_numbers(values: Values, contexts: Iterable[Context]) -> Tensor:
    """The same as a tensor."""
    return torch.tensor(ValueIndex(values).find(contexts), dtype=torch.int64).view(-1, len(values))

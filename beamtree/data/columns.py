"""Values by item number that change while others read them.

A column itself never changes: `changed` makes a new one, so whoever has the old one goes on reading that. The latest
changes lie beside the other values, and are merged when all values are read: one change does not copy the values of a
million items, and many changes between two readings are merged at once.
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

import numpy as np

Values = TypeVar("Values")  # a list, or a series of Polars
MAX_RECENT = 4096  # changes that lie beside the other values, each of which copies those before it


class Column(ABC, Generic[Values]):
    """A value for each item, None where there is none. Items beyond the end have none."""

    def __init__(self, values: Any, recent: dict[int, Any] | None = None) -> None:
        self._state = values, recent or {}  # one attribute, because it is replaced while other threads read it

    @property
    def length(self) -> int:
        """Up to which item there are values."""
        values, recent = self._state
        return max(len(values), 1 + max(recent, default=-1))

    def get(self, row: int) -> Any:
        """The value of one item."""
        values, recent = self._state
        return recent[row] if row in recent else values[row] if row < len(values) else None

    def first(self, count: int) -> Values:
        """The values of the first items."""
        values, recent = self._state
        if recent or len(values) < count:
            values = self._merge(values, list(recent), list(recent.values()), max(count, self.length))
            self._state = values, {}
        result: Values = values if len(values) == count else values[:count]
        return result

    def _with(self, rows: Any, new: Any) -> Self:
        """The column with new values of some items; of an item that occurs twice, the last one."""
        values, recent = self._state
        if len(recent) + len(rows) <= MAX_RECENT:
            return type(self)(values, {**recent, **dict(zip(rows, new, strict=True))})
        length = max(self.length, 1 + int(np.max(rows)))
        return type(self)(self._merge(self.first(self.length), rows, new, length))

    @abstractmethod
    def _merge(self, values: Values, rows: Any, new: Any, length: int) -> Values:
        """A copy of so many values, with new ones in some rows."""

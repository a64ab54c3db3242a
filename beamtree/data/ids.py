"""The ids of users and items, and the numbers that stand for them.

Ids are text inside, whatever type they came in: 17 and "17" are the same id. Ids of a log whose column holds whole
numbers are marked as `integer`, and are integers again where a person or a program reads them.
"""

import mmap
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any, overload

import numpy as np

WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # int64, but for the last digit of the longest

Id = str | int
Column = np.ndarray | list[str]  # of ids in a table: int64 [n], or text


class Ids:
    """Ids by number, from a file of one id per line or from a list.

    `ids[3]` is the id of item 3 in the type of the log, `ids.name(3)` is its text, and `ids.find(["B00A"])` returns its
    number. A file is opened at once and read on first use, so that it may be replaced in between.

    Args:
        source: a file, or the ids as text.
        unique: whether a repeated id is an error.
        integer: whether the ids were integers in the log.
    """

    def __init__(self, source: Path | Sequence[str], *, unique: bool = False, integer: bool = False) -> None:
        self._source, self._unique, self.integer = source, unique, integer
        self._bytes: mmap.mmap | bytes = b""
        self._added: list[str] = []  # after those of the source
        self._added_numbers: dict[str, int] = {}
        if isinstance(source, Path) and source.stat().st_size:
            with source.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _source_names(self) -> list[str]:
        if not isinstance(self._source, Path):
            return list(self._source)
        try:
            return bytes(self._bytes).decode("utf-8").split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._source} is damaged: it is not UTF-8") from error

    @cached_property
    def _source_numbers(self) -> dict[str, int]:
        numbers = {name: number for number, name in enumerate(self._source_names)}
        if self._unique and len(numbers) < len(self._source_names):
            repeated = next(name for number, name in enumerate(self._source_names) if numbers[name] != number)
            where = f"{self._source}: " if isinstance(self._source, Path) else ""
            raise ValueError(f"{where}the id {repeated[:80]!r} is repeated: ids must be unique")
        return numbers

    @cached_property
    def _source_integers(self) -> np.ndarray:
        """The ids of the source as int64 [M]: a file is parsed as a whole, and no text of an id is made."""
        try:
            if not isinstance(self._source, Path):
                return np.array(self._source_names, np.int64)
            content = bytes(self._bytes)
            integers = np.fromstring(content, np.int64, sep="\n")
            if len(integers) == content.count(b"\n"):
                return integers
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"{self._source} is damaged: an id is not a whole number")

    @cached_property
    def _added_integers(self) -> np.ndarray:
        return np.array(self._added, np.int64)

    @cached_property
    def names(self) -> list[str]:
        """All ids as text, in the order of their numbers."""
        return [*self._source_names, *self._added] if self._added else self._source_names

    @cached_property
    def folded(self) -> list[str]:
        """All ids in lower case, to search in."""
        return [name.casefold() for name in self.names]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the ids themselves, not the file."""
        return partial(Ids, integer=self.integer), (self.names,)

    def __len__(self) -> int:
        return len(self._source_names) + len(self._added)

    @overload
    def __getitem__(self, number: int) -> Id: ...

    @overload
    def __getitem__(self, number: slice) -> list[Id]: ...

    def __getitem__(self, number: int | slice) -> Id | list[Id]:
        if isinstance(number, slice):
            return self.as_logged(self.names[number])
        name = self.name(number)
        return int(name) if self.integer else name

    def __iter__(self) -> Iterator[Id]:
        return iter(self.as_logged(self.names))

    def name(self, number: int) -> str:
        """The text of one id."""
        count = len(self._source_names)
        number = number + len(self) if number < 0 else number
        return self._source_names[number] if number < count else self._added[number - count]

    def as_logged(self, names: Iterable[str]) -> list[Id]:
        """Ids that are given as text, in the type of the log."""
        return list(map(int, names)) if self.integer else list(names)

    def column(self, numbers: np.ndarray) -> Column:
        """The ids of some numbers [n] as a column of a table, in the type of the log."""
        if not self.integer:
            return list(map(self.names.__getitem__, numbers.tolist()))
        source: np.ndarray = self._source_integers
        if not self._added:
            return np.asarray(source[numbers])
        is_added = numbers >= len(source)
        result = np.empty(len(numbers), np.int64)
        result[~is_added] = source[numbers[~is_added]]
        result[is_added] = self._added_integers[numbers[is_added] - len(source)]
        return result

    def __repr__(self) -> str:
        first = ", ".join(self.names[:3])
        return f"Ids({len(self):,}: {first}{', …' if len(self) > 3 else ''})"

    def find(self, names: Iterable[object]) -> list[int | None]:
        """The number of each id; None if it is unknown."""
        find, names = self._source_numbers.get, list(names)
        try:
            numbers: list[int | None] = list(map(find, names))  # type: ignore[arg-type]
        except TypeError:  # an unhashable value
            numbers = [None] * len(names)
        if None not in numbers:  # the usual case: ids are stored as they are written
            return numbers
        for index, name in enumerate(names):
            if numbers[index] is None:
                name = as_id(name)
                numbers[index] = find(name, self._added_numbers.get(name))
        return numbers

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """The number of each id as it is stored, and -1 if it is unknown [n]: for many ids."""
        result = np.fromiter(map(self._source_numbers.get, names, repeat(-1)), np.int64, len(names))
        for row in (result < 0).nonzero()[0].tolist():
            result[row] = self._added_numbers.get(names[row], -1)
        return result

    def find_known(self, names: Iterable[object]) -> list[int]:
        """The numbers of those ids that are known."""
        return [number for number in self.find(names) if number is not None]

    def extended(self, names: Iterable[str]) -> "Ids":
        """These ids with more after them; what was read from the source is shared, not copied.

        Among integers, an id that is none is an error.
        """
        names = list(names)
        if self.integer:
            check_integers(names)
        result = Ids((), integer=self.integer)
        result._source, result._unique, result._bytes = self._source, self._unique, self._bytes
        result._source_names, result._source_numbers = self._source_names, self._source_numbers
        if "_source_integers" in self.__dict__:
            result._source_integers = self._source_integers
        result._added = [*self._added, *names]
        result._added_numbers = {name: number for number, name in enumerate(result._added, len(self._source_names))}
        return result


def as_id(value: object) -> str:
    """An id as it is stored: text without surrounding white space, a whole number as its digits."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def is_integer(name: str) -> bool:
    """Whether a text is an integer as an int64 is written: no other text stands for the same number."""
    return WHOLE_NUMBER.fullmatch(name) is not None and -(2**63) <= int(name) < 2**63


def check_integers(names: Iterable[str]) -> None:
    """Raise a ValueError for an id that cannot be one of ids that are integers."""
    other = next((name for name in names if not is_integer(name)), None)
    if other is not None:
        raise ValueError(f"the id {other[:80]!r} is not a whole number, as all others are: give it a number")


def as_given(ids: Sequence[object], *, integer: bool = False) -> Column:
    """Ids that a caller passed, as a column of the answer: whole numbers stay numbers, everything else is text.

    `integer` decides where there are none.
    """
    if not len(ids) and not integer:
        return []
    numbers = list[int]()
    for value in ids:
        if isinstance(value, float) and value.is_integer():  # of a column with gaps
            value = int(value)
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            return list(map(as_id, ids))
        if isinstance(value, bool) or not -(2**63) <= number < 2**63:
            return list(map(as_id, ids))
        numbers.append(number)
    return np.array(numbers, np.int64)


def sorted_ids(names: Iterable[str], *, integer: bool) -> Ids:
    """Ids, each once, sorted; integers by their value."""
    if integer:
        return Ids(list(map(str, np.unique(np.array(list(names), np.int64)).tolist())), integer=True)
    return Ids(sorted(set(names)))


def write_ids(path: Path, names: Iterable[str]) -> None:
    """One id per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}\n" for name in names)

"""The ids of users and items, and the numbers that stand for them."""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, overload

import numpy as np


class Ids:
    """Ids by number, from a file of one id per line or from a list.

    `ids[3]` is the id of item 3, and `ids.find(["B00A"])` returns its number. A file is opened at once and read on
    first use, so that it may be replaced in between. With `unique`, a repeated id is an error.
    """

    def __init__(self, source: Path | Sequence[str], *, unique: bool = False) -> None:
        self._source, self._unique = source, unique
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
    def names(self) -> list[str]:
        """All ids, in the order of their numbers."""
        return [*self._source_names, *self._added] if self._added else self._source_names

    @cached_property
    def folded(self) -> list[str]:
        """All ids in lower case, to search in."""
        return [name.casefold() for name in self.names]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the ids themselves, not the file."""
        return Ids, (self.names,)

    def __len__(self) -> int:
        return len(self._source_names) + len(self._added)

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> list[str]: ...

    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return self.names[number]
        count = len(self._source_names)
        number = number + len(self) if number < 0 else number
        return self._source_names[number] if number < count else self._added[number - count]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

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
        """These ids with more after them; what was read from the source is shared, not copied."""
        result = Ids(())
        result._source, result._unique, result._bytes = self._source, self._unique, self._bytes
        result._source_names, result._source_numbers = self._source_names, self._source_numbers
        result._added = [*self._added, *names]
        result._added_numbers = {name: number for number, name in enumerate(result._added, len(self._source_names))}
        return result


def as_id(value: object) -> str:
    """An id as it is stored: text without surrounding white space, a whole number as its digits."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def write_ids(path: Path, names: Iterable[str]) -> None:
    """One id per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}\n" for name in names)

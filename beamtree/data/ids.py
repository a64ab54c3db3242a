"""The ids that users write, and the numbers that stand for them inside."""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any


class Ids:
    """Ids by number, from a file of one id per line or from a list.

    `ids[3]` is the id of item 3, `ids.find(["B00A"])` gives its number. A file is opened at once and read when it is
    first asked for: another file that takes its name later does not matter. With `once`, an id that stands there twice
    is an error: it would not be clear who is meant.
    """

    def __init__(self, source: Path | Sequence[str], *, once: bool = False) -> None:
        self._source, self._once = source, once
        self._bytes: mmap.mmap | bytes = b""
        if isinstance(source, Path) and source.stat().st_size:
            with source.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def names(self) -> list[str]:
        if not isinstance(self._source, Path):
            return list(self._source)
        try:
            return bytes(self._bytes).decode("utf-8").split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._source} is damaged: it is no UTF-8") from error

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is made of the ids themselves."""
        return Ids, (self.names,)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        found = {name: number for number, name in enumerate(self.names)}
        if self._once and len(found) < len(self.names):
            twice = next(name for number, name in enumerate(self.names) if found[name] != number)
            where = f"{self._source}: " if isinstance(self._source, Path) else ""
            raise ValueError(f"{where}the id {twice[:80]!r} stands there twice, so it is not clear what is meant")
        return found

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> str:
        return self.names[number]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __repr__(self) -> str:
        first = ", ".join(self.names[:3])
        return f"Ids({len(self):,}: {first}{', …' if len(self) > 3 else ''})"

    def find(self, names: Iterable[object]) -> list[int | None]:
        """The number of each id; None where it is unknown."""
        find, names = self._numbers.get, list(names)
        try:
            found: list[int | None] = list(map(find, names))  # type: ignore[arg-type]
        except TypeError:  # something that is no key of a dict
            found = [None] * len(names)
        if None not in found:  # nearly always: ids are kept as they are written
            return found
        return [find(as_id(name)) if known is None else known for name, known in zip(names, found, strict=True)]

    def known(self, names: Iterable[object]) -> list[int]:
        """The numbers of those ids that are known."""
        return [number for number in self.find(names) if number is not None]


class MoreIds(Ids):
    """Ids with some more after them: those of before are shared and not copied."""

    def __init__(self, first: Ids, more: Sequence[str]) -> None:
        self._first: Ids = first
        self._more: list[str] = list(more)
        if isinstance(first, MoreIds):
            self._first, self._more = first._first, [*first._more, *more]
        self._known = len(self._first)
        self._places = {name: self._known + place for place, name in enumerate(self._more)}

    @cached_property
    def names(self) -> list[str]:
        return [*self._first.names, *self._more]

    def __len__(self) -> int:
        return self._known + len(self._more)

    def __getitem__(self, number: int) -> str:
        return self._first[number] if number < self._known else self._more[number - self._known]

    def find(self, names: Iterable[object]) -> list[int | None]:
        words = [as_id(name) for name in names]
        return [self._places.get(word, number) for word, number in zip(words, self._first.find(words), strict=True)]


def as_id(value: object) -> str:
    """An id as it is kept: text without white space around it, a whole number as its digits."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def write_ids(path: Path, names: Iterable[str]) -> None:
    """One id per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}\n" for name in names)

"""Titles, categories and other attributes of items, to display and to filter by."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from beamtree.data.ids import Ids
from beamtree.errors import requires

NO_ATTRIBUTES = "nothing is known about the items of this model: fit it with a table of them, `items`"
SEPARATORS = r"\s*[/|>]\s*"  # between the steps of a category path


class ItemTable(NamedTuple):
    """The table of the items as it was read."""

    frame: Any  # of Polars: all its columns, with one row for each item in order
    item: str  # the column of ids
    title: str | None  # the column of titles, if there is one
    category: str | None  # the column of categories, if there is one
    titles: list[str | None]  # the texts of these columns
    categories: list[str | None]


@dataclass(frozen=True)
class Catalogue:
    """Titles and categories by item number, None if unknown.

    Args:
        ids: of the items.
        titles: one for each item.
        categories: likewise; a path such as `Books/Fiction` is below `Books`.
        table: all that was read about the items, to filter by; changes since are in `titles` and `categories`.
    """

    ids: Ids
    titles: list[str | None]
    categories: list[str | None]
    table: ItemTable | None = None

    @classmethod
    def of_ids(cls, ids: Ids) -> "Catalogue":
        """A catalogue without titles and categories."""
        return cls(ids, [None] * len(ids), [None] * len(ids))

    def __repr__(self) -> str:
        titles, categories = (sum(text is not None for text in texts) for texts in (self.titles, self.categories))
        return f"Catalogue({len(self.ids):,} items, {titles:,} titles, {categories:,} categories)"

    @cached_property
    def has_titles(self) -> bool:
        """Whether any item has a title."""
        return any(title is not None for title in self.titles)

    @cached_property
    def attributes(self) -> Any:
        """What is known about the items now, as a Polars frame with one row for each; see `attribute_frame`."""
        if self.table is None and not any(self.titles) and not any(self.categories):
            raise ValueError(NO_ATTRIBUTES)
        with requires("", "filtering by attributes"):
            from beamtree.data.attributes import attribute_frame

        return attribute_frame(self)

    def where(self, expression: str) -> list[int]:
        """The items that an expression is true for, such as `category == 'lamps' and price < 50`."""
        attributes = self.attributes
        from beamtree.data.expressions import rows_where

        numbers: list[int] = rows_where(attributes, expression).nonzero()[0].tolist()
        return numbers

    def values(self, column: str) -> Any:
        """The values of a column as numbers, the same for the same value and -1 for none, as NumPy array [M]."""
        attributes = self.attributes
        from beamtree.data.attributes import value_numbers

        return value_numbers(attributes, column)

    def in_category(self, category: str) -> list[int]:
        """The items of a category and of all categories below it; `Books` includes `Books/Fiction`."""
        steps = category_steps(category)
        groups = [items for path, items in self._by_category.items() if path[: len(steps)] == steps]
        return sorted(item for items in groups for item in items) if steps else []

    @cached_property
    def _by_category(self) -> dict[tuple[str, ...], list[int]]:
        """The items of each category path."""
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        steps = {text: category_steps(text) for text in set(self.categories) if text is not None}
        for item, text in enumerate(self.categories):
            if text is not None:
                groups[steps[text]].append(item)
        return groups

    def search(self, text: str, limit: int) -> list[int]:
        """The first items with this text in their id or title; those whose id begins with it come first."""
        return search_texts(self._search_texts, text, limit)

    @cached_property
    def _search_texts(self) -> list[tuple[str, str]]:
        """Case-folded id and title of each item."""
        pairs = zip(self.ids.names, self.titles, strict=True)
        return [(name.casefold(), (title or "").casefold()) for name, title in pairs]


def category_steps(category: str) -> tuple[str, ...]:
    """The case-folded steps of a category path."""
    return tuple(step for step in re.split(SEPARATORS, category.strip().casefold()) if step)


def search_texts(texts: Iterable[tuple[str, str]], text: str, limit: int) -> list[int]:
    """The indices of the first (id, title) pairs, case-folded, that contain a text; ids that begin with it first."""
    query = text.strip().casefold()
    first: list[int] = []
    others: list[int] = []
    for index, (name, title) in enumerate(texts):
        if name.startswith(query):
            first.append(index)
            if len(first) >= limit:
                break
        elif len(others) < limit and (query in name or query in title):
            others.append(index)
    return [*first, *others][:limit]

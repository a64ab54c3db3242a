"""Titles and categories of items, to display and to filter by."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from beamtree.data.ids import Ids

SEPARATORS = r"\s*[/|>]\s*"  # between the steps of a category path


@dataclass(frozen=True)
class Catalogue:
    """Titles and categories by item number, None if unknown.

    Args:
        ids: of the items.
        titles: one for each item.
        categories: likewise; a path such as `Books/Fiction` is below `Books`.
    """

    ids: Ids
    titles: list[str | None]
    categories: list[str | None]

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

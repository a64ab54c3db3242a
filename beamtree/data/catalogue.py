"""What is known of the items besides their ids: titles and categories, for people to read and to filter by."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from beamtree.data.ids import Ids

SEPARATORS = r"\s*[/|>]\s*"  # between the steps of a category's path


@dataclass(frozen=True)
class Catalogue:
    """Titles and categories by item number, None where one is not known.

    Args:
        ids: of the items.
        titles: one for each item.
        categories: likewise; a path such as `Books/Fiction` lies under `Books`.
    """

    ids: Ids
    titles: list[str | None]
    categories: list[str | None]

    @classmethod
    def plain(cls, ids: Ids) -> "Catalogue":
        """One that knows ids alone."""
        return cls(ids, [None] * len(ids), [None] * len(ids))

    def __repr__(self) -> str:
        titles, categories = (sum(each is not None for each in part) for part in (self.titles, self.categories))
        return f"Catalogue({len(self.ids):,} items, {titles:,} titles, {categories:,} categories)"

    @cached_property
    def has_titles(self) -> bool:
        """Whether any item has a title."""
        return any(title is not None for title in self.titles)

    def title(self, number: int) -> str | None:
        """The title of an item."""
        return self.titles[number]

    def category(self, number: int) -> str | None:
        """The category of an item, as it was written."""
        return self.categories[number]

    def of_category(self, text: str) -> list[int]:
        """The items of a category and of all that lies below it; `Books` has those of `Books/Fiction`."""
        asked = steps_of(text)
        found = [items for steps, items in self._by_steps.items() if steps[: len(asked)] == asked]
        return sorted(item for items in found for item in items) if asked else []

    @cached_property
    def _by_steps(self) -> dict[tuple[str, ...], list[int]]:
        """The items of each path."""
        found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        steps = {text: steps_of(text) for text in set(self.categories) if text is not None}
        for item, text in enumerate(self.categories):
            if text is not None:
                found[steps[text]].append(item)
        return dict(found)

    def search(self, text: str, limit: int) -> list[int]:
        """The first few items with this text in their id or title; those whose id begins with it come first."""
        return matches(self._folded, text, limit)

    @cached_property
    def _folded(self) -> list[tuple[str, str]]:
        """Id and title of each item, whatever their case."""
        pairs = zip(self.ids.names, self.titles, strict=True)
        return [(name.casefold(), (title or "").casefold()) for name, title in pairs]


def steps_of(category: str) -> tuple[str, ...]:
    """The steps of a category's path, whatever their case."""
    return tuple(step for step in re.split(SEPARATORS, category.strip().casefold()) if step)


def matches(folded: Iterable[tuple[str, str]], text: str, limit: int) -> list[int]:
    """The places of the first few pairs of id and title with a text in them; ids that begin with it come first."""
    asked = text.strip().casefold()
    first: list[int] = []
    others: list[int] = []
    for place, (name, title) in enumerate(folded):
        if name.startswith(asked):
            first.append(place)
            if len(first) >= limit:
                break
        elif len(others) < limit and (asked in name or asked in title):
            others.append(place)
    return [*first, *others][:limit]

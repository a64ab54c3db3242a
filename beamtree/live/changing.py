"""What a recommender can change without training."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from beamtree.answers import listed
from beamtree.data import Prepared
from beamtree.extras import needs
from beamtree.files.small import read_json, write_json
from beamtree.live.likeness import NewItem, new_item
from beamtree.live.live import Live
from beamtree.live.update import update
from beamtree.model import TreeModel

EVENTS = "events.json"  # in a run's folder: what users chose since the log ended


class Changing:
    """Items come and go, and users go on choosing, without training."""

    _live: Live | None = None
    _how: dict[str, Any]

    @property
    def model(self) -> TreeModel:
        """The tree and the scorer."""
        raise NotImplementedError

    def add_items(self, items: Mapping[str, NewItem | Mapping[str, Any]] | Iterable[object]) -> int:
        """Add items that can be recommended at once; how many were new.

        Args:
            items: ids, each with what it comes with: `{"B9": {"like": ["B1"], "histories": [["B2", "B3"]]}}`. `like`
                names items that it resembles, `histories` are of users who chose it next, `category` is that of others,
                `vector` is one in the space of those that the tree was made from, `title` is for people. A plain list
                of ids adds items that nobody knows anything of.
        """
        known = items if isinstance(items, Mapping) else {str(each): NewItem() for each in listed(items)}
        return sum(self._changing().add(item, _as_new(item, facts)) for item, facts in known.items())

    def remove_items(self, items: Iterable[object]) -> int:
        """Remove items: nothing recommends them any more. How many were there."""
        return sum(self._changing().remove(str(item)) for item in listed(items))

    def update(
        self, log: Any, *, user: str | None = None, item: str | None = None, time: str | None = None
    ) -> "Changing":
        """Learn from new events in closed form, without a gradient and without choosing anything anew.

        Args:
            log: of new events alone, in any shape that `fit` takes.
            user: the column of users, where it has an unusual name.
            item: the column of items, likewise.
            time: the column of times, likewise.

        Items that are new are placed by the histories of those who chose them; what users are recommended follows
        their new events at once; what goes together, what follows and the factors are made again from all events.
        """
        with needs("", "reading a log"):
            from beamtree.ingest.recent import read_events

        update(self._changing(), read_events(log, user, item, time), self._learned_from(), self._how["seed"])
        return self

    def _learned_from(self) -> Prepared | None:
        raise NotImplementedError

    def _changing(self) -> Live:
        """The model as one that changes."""
        if self._live is None:
            self._live = Live(self.model, data=self._learned_from())
        return self._live

    def _save_events(self, folder: Path) -> None:
        """Write what users chose since, into a run's folder."""
        if self._live is not None and self._live.events:
            write_json(folder / EVENTS, self._live.events)
        else:
            (folder / EVENTS).unlink(missing_ok=True)

    def _load_events(self, folder: Path) -> None:
        if (folder / EVENTS).exists():
            found = read_json(folder / EVENTS, "remove it, or save the recommender again")
            if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
                raise ValueError(f"{folder / EVENTS} is damaged: remove it, or save the recommender again")
            for user, items in found.items():
                self._changing().record(user, items)


def _as_new(item: str, facts: NewItem | Mapping[str, Any]) -> NewItem:
    """What is known of an item, from words; a ValueError that names one that means nothing."""
    if isinstance(facts, NewItem):
        return facts
    if not isinstance(facts, Mapping) or not facts.keys() <= set(NewItem._fields):
        raise ValueError(f"item {item!r}: give a dict with some of {', '.join(NewItem._fields)}")
    return new_item(facts)

"""A model that changes while it is searched: items come and go, and users go on choosing."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.answers import History, history_of_user, read_history
from beamtree.data import Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.data.ids import as_id
from beamtree.live.changes import with_items, without_items
from beamtree.live.journal import Journal, count, unknown_kind
from beamtree.live.learned import Anybody, learned
from beamtree.live.likeness import Likeness, NewItem, mixed, new_item, of_histories, of_items, of_popular, of_vectors
from beamtree.model import TreeModel
from beamtree.scorers import SumScorer
from beamtree.tree import PAD

ASKING = threading.Lock()  # held while anybody's searches are made


class Now(NamedTuple):
    """What a search reads: all of one moment."""

    version: int  # how many changes were applied
    model: TreeModel
    catalogue: Catalogue


class Live:
    """A model, what is known of its items and users, and how these change.

    `now` is what to search: it is never changed under whoever holds it, but replaced. With a journal every change is
    on the disk before it is told of, and what the journal holds is applied when it is opened. Changes come from one
    thread at a time.

    Args:
        model: with ids.
        catalogue: titles and categories; ids alone unless given.
        data: the log, where it is there: what its users did is known.
        vectors: of the items [M, dim], where the tree was made from them.
        journal: where changes are written; whoever opened it closes it.
        rest: seconds for which the slot of a removed item is not used again, where searches run beside changes.
    """

    def __init__(
        self,
        model: TreeModel,
        *,
        catalogue: Catalogue | None = None,
        data: Prepared | None = None,
        vectors: Tensor | None = None,
        journal: Journal | None = None,
        rest: float = 0.0,
    ) -> None:
        if model.ids is None:
            raise ValueError("the items of this model have numbers and no ids: only ids can come and go")
        self.now = Now(0, model, catalogue or Catalogue.plain(model.ids))
        self.events: dict[str, list[str]] = {}  # that users chose since, oldest first
        self.run: str | None = None  # the run that was last chosen to be served
        self._data, self._vectors, self._journal = data, vectors, journal
        self._facts: dict[str, NewItem] = {}  # of items that were added or changed
        self._anybody: Anybody | None = None
        self._rest, self._freed = rest, list[tuple[float, int]]()  # when, and which slot
        if journal is not None:
            self._replay(journal.entries)

    # Changes

    def add(self, item: str, new: NewItem) -> bool:
        """Add an item, or change what is known of it; False where it is there with the same facts."""
        name = as_id(item)
        if not name or not name.isprintable():
            raise ValueError(f"{item!r} is no id: give one line of text")
        if self.holds(name) and self._facts.get(name, NewItem()) == new:
            return False
        changed = self._added({name: new})
        self._write({"kind": "add", "item": name, **_as_entry(new)})
        self._publish(*changed, {name: new})
        return True

    def remove(self, item: str) -> bool:
        """Remove an item: nothing finds it any more; False where it was not there."""
        name = as_id(item)
        if not self.holds(name):
            return False
        self._write({"kind": "remove", "item": name})
        self._removed(name)
        return True

    def record(self, user: str, items: Sequence[str]) -> int:
        """Take note of what a user chose, newest last; how many were known items."""
        names = [as_id(item) for item in items]
        if names:
            self._write({"kind": "events", "user": as_id(user), "items": names})
            self.events.setdefault(as_id(user), []).extend(names)
            self.now = self.now._replace(version=self.version + 1)
        return sum(number is not None for number in self.ids.find(names))

    def choose(self, run: str) -> None:
        """Take note of the run that is served from now on."""
        self._write({"kind": "run", "run": run})
        self.run = run

    def take(self, model: TreeModel) -> None:
        """Go on with another model over the same items, such as one whose parts were made again."""
        self.now, self._anybody = self.now._replace(version=self.version + 1, model=model), None

    # What is known

    @property
    def model(self) -> TreeModel:
        """What is searched."""
        return self.now.model

    @property
    def version(self) -> int:
        """How many changes were applied."""
        return self.now.version

    @property
    def catalogue(self) -> Catalogue:
        """Titles and categories."""
        return self.now.catalogue

    @property
    def ids(self) -> Any:
        """The ids of the items, of removed ones too."""
        return self.model.ids

    def holds(self, item: str) -> bool:
        """Whether an item is there to be found."""
        (number,) = self.ids.find([item])
        return number is not None and bool(self._placed([number]))

    def history(self, user: str) -> History | None:
        """What a user of the log did, and has done since; None where nothing is known."""
        try:
            before = None if self._data is None else history_of_user(self._data, user)
        except ValueError:  # who is not in the log
            before = None
        since = self.events.get(as_id(user))
        if since is None:
            return before
        found = read_history(self.ids, since)
        return History([*(before.items if before else []), *found.items], found.unknown)

    def close(self) -> None:
        """Nothing is held that others would want."""

    # Inside

    def _write(self, entry: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(entry)

    def _publish(self, model: TreeModel, catalogue: Catalogue, facts: Mapping[str, NewItem]) -> None:
        self._facts |= facts
        self.now = Now(self.version + 1, model, catalogue)

    def _removed(self, name: str) -> None:
        """Remove an item that is there."""
        self._publish(self._without([name]), self.catalogue, {})
        self._facts.pop(name, None)

    def _without(self, names: Sequence[str]) -> TreeModel:
        """The model without items that are there; their slots rest."""
        numbers, tree = self.ids.known(names), self.model.tree
        slots = (self._leaves(numbers) - tree.level(tree.height).start).tolist()
        self._freed += [(time.monotonic(), slot) for slot in slots]
        return without_items(self.model, numbers) if numbers else self.model

    def _resting(self) -> list[int]:
        """Slots in which a search may still look for an item that was removed."""
        self._freed = [(when, slot) for when, slot in self._freed if time.monotonic() < when + self._rest]
        return [slot for _, slot in self._freed]

    def _added(self, new: Mapping[str, NewItem]) -> tuple[TreeModel, Catalogue]:
        """The model and the catalogue with new items, and with new facts of those that are there.

        Where an item that was learned from the log stands is not changed.
        """
        moved = [name for name in new if self.holds(name) and name in self._facts]
        fresh = {name: facts for name, facts in new.items() if name in moved or not self.holds(name)}
        model, height = self._without(moved), self.model.tree.height
        if fresh:
            likes = {name: self._likeness(facts) for name, facts in fresh.items()}
            model = with_items(model, likes, self._resting())
        if model.tree.height > height:  # rows of its own
            self._freed.clear()
        return model, _with_facts(self.catalogue, model.ids, new)

    def _likeness(self, new: NewItem) -> Likeness:
        """What a new item is like: the mean of all that it comes with, and its category where that is all."""
        found = []
        if like := self._placed(self.ids.known([as_id(each) for each in new.like])):
            found.append(of_items(torch.tensor(like)))
        histories = [self._placed(self.ids.known([as_id(item) for item in each])) for each in new.histories]
        if any(histories):
            found.append(self._learned([each for each in histories if each]))
        if new.vector is not None:
            if self._vectors is None:
                raise ValueError("this model was not made from vectors: add the item with like, histories or category")
            found.append(of_vectors(self._vectors, new.vector, self._leaves(range(len(self._vectors))) != PAD))
        if not found and new.category and (same := self.catalogue.of_category(new.category)):
            found.append(of_popular(self.model, torch.tensor(same)))
        return mixed(found)

    def _learned(self, histories: list[list[int]]) -> Likeness:
        """What an item is like that was chosen after these histories: by regression where the log is there."""
        if self._data is None or not len(self._data.train) or not isinstance(self.model.scorer, SumScorer):
            return of_histories(self.model, histories)
        return learned(self.model, histories, self._ask_anybody(self._data))

    def make_ready(self) -> None:
        """Do now what the first item with histories would wait for; in any thread, while others search and change."""
        if self._data is not None and len(self._data.train) and isinstance(self.model.scorer, SumScorer):
            self._ask_anybody(self._data)

    def _ask_anybody(self, data: Prepared) -> Anybody:
        with ASKING:
            self._anybody = found = self._anybody or Anybody(self.model, data)
            return found

    def _placed(self, numbers: list[int]) -> list[int]:
        return [number for number, leaf in zip(numbers, self._leaves(numbers).tolist(), strict=True) if leaf != PAD]

    def _leaves(self, numbers: Sequence[int]) -> Tensor:
        tree = self.model.tree
        return tree.leaf_of_item(torch.tensor(numbers, dtype=torch.int64, device=tree.device)).cpu()

    # After a crash

    def _replay(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Apply entries in order; items that do not speak of each other are added together."""
        waiting: dict[str, NewItem] = {}

        def apply() -> None:
            if waiting:
                self._publish(*self._added(waiting), dict(waiting))
                waiting.clear()

        for entry in entries:
            if entry["kind"] == "add":
                new = new_item({key: entry[key] for key in NewItem._fields if key in entry})
                if waiting.keys() & {entry["item"], *new.like, *(item for each in new.histories for item in each)}:
                    apply()
                waiting[entry["item"]] = new
            elif entry["kind"] == "remove":
                apply()
                if self.holds(entry["item"]):
                    self._removed(entry["item"])
            elif entry["kind"] == "events":
                self.events.setdefault(entry["user"], []).extend(entry["items"])
            elif entry["kind"] == "run":
                self.run = entry["run"]
            elif entry["kind"] != "before":
                raise ValueError(unknown_kind(entry["kind"]))
        apply()
        self.now = self.now._replace(version=count(entries))


def _as_entry(new: NewItem) -> dict[str, Any]:
    """What is known of an item, as JSON, without what is not."""
    return {key: value for key, value in new._asdict().items() if value not in (None, ())}


def _with_facts(catalogue: Catalogue, ids: Any, new: Mapping[str, NewItem]) -> Catalogue:
    """A catalogue that knows more."""
    spare = [None] * (len(ids) - len(catalogue.titles))
    titles, categories = [*catalogue.titles, *spare], [*catalogue.categories, *spare]
    for name, facts in new.items():
        (number,) = ids.find([name])
        titles[number], categories[number] = facts.title, facts.category
    return replace(catalogue, ids=ids, titles=titles, categories=categories)

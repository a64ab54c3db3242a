"""A model that changes while it is searched: items come and go, and users go on choosing."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.answers import History, history_of_user, read_history
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.data.ids import as_id
from beamtree.live.changes import hiding, with_items, without_items
from beamtree.live.journal import Journal, count, events_entry, events_of, is_before, requests_of, unknown_kind
from beamtree.live.known import Event, Log
from beamtree.live.learned import Anybody, learned
from beamtree.live.likeness import (
    Likeness,
    NewItem,
    given,
    mixed,
    of_histories,
    of_items,
    of_popular,
    of_vectors,
    placing,
)
from beamtree.live.times import Time, now
from beamtree.model import TreeModel
from beamtree.scorers import SumScorer
from beamtree.tree import PAD

log = logging.getLogger("beamtree")
ASKING = threading.Lock()  # held while anybody's searches are made
Facts = Mapping[str, Any]  # what is told of an item: a field that is not told stays as it is


class Now(NamedTuple):
    """What a search reads: all of one moment."""

    version: int  # how many changes were applied
    model: TreeModel
    catalogue: Catalogue


class Saved(NamedTuple):
    """What was changed before a model was saved, and is no part of the model itself."""

    facts: Mapping[str, NewItem]  # of items that were added or changed
    added: Sequence[str]  # items that were not learned from the log
    events: Mapping[str, Sequence[Event]]  # that users chose since


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
        saved: what was changed before the model was saved.
        journal: where changes are written; whoever opened it closes it.
        digest: tells this very model from others that changes of the journal were made to.
        rest: seconds for which the slot of a forgotten item is not used again, where searches run beside changes.
    """

    def __init__(
        self,
        model: TreeModel,
        *,
        catalogue: Catalogue | None = None,
        data: Prepared | None = None,
        vectors: Tensor | None = None,
        saved: Saved | None = None,
        journal: Journal | None = None,
        digest: str = "",
        rest: float = 0.0,
    ) -> None:
        if model.ids is None:
            raise ValueError("the items of this model have numbers and no ids: only ids can come and go")
        self.now = Now(0, model, catalogue or Catalogue.plain(model.ids))
        self.events: dict[str, list[Event]] = {}  # that users chose since, oldest first
        self.run: str | None = None  # the run that was last chosen to be served
        self._data, self._vectors, self._journal, self._digest = data, vectors, journal, digest
        self._log = None if data is None else Log(data)
        self._facts: dict[str, NewItem] = {}  # of items that were added or changed
        self._added: set[str] = set()  # items that stand where these facts put them
        self._timed: set[tuple[str, str, Time]] = set()  # user, item and time of events
        self._requests: dict[str, int] = {}  # that events came with, and when
        self._before: Time | None = None  # events of before are retired
        self._anybody: Anybody | None = None
        self._rest, self._freed = rest, list[tuple[float, int]]()  # when, and which slot
        if saved is not None:
            self._facts, self._added = dict(saved.facts), set(saved.added)
            self.events = {user: list(events) for user, events in saved.events.items()}
            told = {name: given(name, facts) for name, facts in saved.facts.items()}
            self.now = self.now._replace(catalogue=_with_facts(self.catalogue, model.ids, told))
        if journal is not None:
            self._replay(journal.entries)
        self._note_times(self.events)

    # Changes of items

    def add(self, item: str, new: NewItem | Facts) -> bool:
        """Add or show an item, or change what is known of it; False where nothing changes."""
        return self.add_all({item: new}) == 1

    def add_all(self, items: Mapping[str, NewItem | Facts]) -> int:
        """Add several items, all or none of them; how many were new, hidden, or told something new of.

        An item that is hidden is shown as it was. A field that is not told stays as it is, and None clears it.
        """
        new = {_checked_id(item): given(item, facts) for item, facts in items.items()}
        now, facts, changed = self.now, dict[str, NewItem](), dict[str, Facts]()
        for group in _groups(new.items()):
            for name, told in group.items():
                facts[name] = self._facts.get(name, NewItem())._replace(**told)
                if not _holds(now.model, name) or facts[name] != self._facts.get(name, NewItem()):
                    changed[name] = told
            now = self._with(now, {name: new[name] for name in group if name in changed}, facts, strict=True)
        if changed:
            self._write(*({"kind": "add", "item": name, **told} for name, told in changed.items()))
            self._publish(now, len(changed), {name: facts[name] for name in changed})
        return len(changed)

    def remove(self, item: str) -> bool:
        """Hide an item: nothing finds it until it is added again; False where it was not there."""
        return self.remove_all([item]) == 1

    def remove_all(self, items: Iterable[str]) -> int:
        """Hide several items; how many were there."""
        names = [name for name in dict.fromkeys(map(as_id, items)) if self.holds(name)]
        if names:
            self._write(*({"kind": "remove", "item": name} for name in names))
            self._publish(self.now._replace(model=self._hiding(self.now, names)), len(names))
        return len(names)

    def forget(self, item: str) -> bool:
        """Forget an item: added again it comes as a new one; False where there is none."""
        return self.forget_all([item]) == 1

    def forget_all(self, items: Iterable[str]) -> int:
        """Forget several items, whose slots are free again; how many there were."""
        names = [name for name in dict.fromkeys(map(as_id, items)) if _is_placed(self.model, name)]
        if names:
            self._write(*({"kind": "forget", "item": name, "model": self._digest} for name in names))
            self._forgotten(names)
        return len(names)

    # Changes of users

    def record(self, user: str, items: Sequence[str], time: Time | None = None, request: str | None = None) -> int:
        """Take note of what a user chose, newest last; how many were known items."""
        return self.record_all([(user, items, time)], request)

    def record_all(self, chosen: Iterable[tuple[str, Sequence[str], Time | None]], request: str | None = None) -> int:
        """Take note of what users chose, and when where that is known; how many were known items.

        The same request counts once, and so do the same user, item and time.
        """
        if request is not None and request in self._requests:
            return 0
        received, rows = now(), dict[str, list[Event]]()
        for user, items, at in chosen:
            rows.setdefault(as_id(user), []).extend(Event(as_id(item), at, received) for item in items)
        fresh = {user: events for user, row in rows.items() if (events := self._fresh(user, row))}
        entries = [events_entry(user, events, self._digest) for user, events in fresh.items()]
        if not entries:
            return 0
        if request is not None:
            entries[0]["id"] = request
        self._write(*entries)
        if request is not None:
            self._requests[request] = received
        self._note_times(fresh)
        for user, events in fresh.items():
            self.events.setdefault(user, []).extend(events)
        self.now = self.now._replace(version=self.version + len(entries))
        names = [each.item for events in fresh.values() for each in events]
        return sum(number is not None for number in self.ids.find(names))

    def retire(self, before: Time) -> int:
        """Leave out all events of before a time, those that come later too; how many there were."""
        count = sum(is_before(each, before) for events in self.events.values() for each in events)
        if self._before is None or before > self._before:
            self._write({"kind": "retire", "before": before})
            self._retired(before)
            self.now = self.now._replace(version=self.version + 1)
        return count

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
        return _holds(self.model, item)

    def knows(self, items: Sequence[str]) -> list[bool]:
        """Which items are known, hidden ones too."""
        numbers = self.ids.find(items)
        leaves = _leaves(self.model, [PAD if number is None else number for number in numbers])
        return [leaf != PAD for leaf in leaves.tolist()]

    def history(self, user: str) -> History | None:
        """What a user of the log did, and has done since; None where nothing is known."""
        try:
            before = None if self._data is None else history_of_user(self._data, user)
        except ValueError:  # who is not in the log
            before = None
        since = self.events.get(as_id(user))
        if not since:
            return before
        found = read_history(self.ids, [each.item for each in since])
        return History([*(before.items if before else []), *found.items], found.unknown)

    def saved(self) -> Saved:
        """What is to be saved beside the model."""
        return Saved(self._facts, sorted(self._added), {user: each for user, each in self.events.items() if each})

    def close(self) -> None:
        """Nothing is held that others would want."""

    # Inside

    def _write(self, *entries: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(*entries)

    def _publish(self, changed: Now, count: int, facts: Mapping[str, NewItem] | None = None) -> None:
        """Have searches see a change, of items of which these facts are known."""
        for name, known in (facts or {}).items():
            if not _is_placed(self.model, name):
                self._added.add(name)
            self._facts[name] = known
        self.now = changed._replace(version=self.version + count)

    def _forgotten(self, names: Sequence[str]) -> None:
        for name in names:
            self._facts.pop(name, None)
            self._added.discard(name)
        nothing = {name: {"title": None, "category": None} for name in names}
        found = self.now._replace(model=self._without(self.now, names))
        self._publish(found._replace(catalogue=_with_facts(found.catalogue, self.ids, nothing)), len(names))

    def _hiding(self, now: Now, names: Sequence[str]) -> TreeModel:
        return hiding(now.model, now.model.tree.hidden().tolist() + _ids(now.model).known(names))

    def _without(self, now: Now, names: Sequence[str]) -> TreeModel:
        """The model without items that have a slot; their slots rest."""
        numbers, tree = _ids(now.model).known(names), now.model.tree
        slots = (_leaves(now.model, numbers) - tree.level(tree.height).start).tolist()
        self._freed += [(time.monotonic(), slot) for slot in slots]
        return without_items(now.model, numbers) if numbers else now.model

    def _resting(self) -> list[int]:
        """Slots in which a search may still look for an item that was forgotten."""
        self._freed = [(when, slot) for when, slot in self._freed if time.monotonic() < when + self._rest]
        return [slot for _, slot in self._freed]

    def _with(self, now: Now, new: Mapping[str, Facts], facts: Mapping[str, NewItem], *, strict: bool) -> Now:
        """What is searched with new items, with hidden ones shown, and with more facts of those that are there.

        Where an item stands that was learned from the log is not changed. With `strict`, an item that is like one that
        is not known is refused; else that one is left out.
        """
        if not new:
            return now
        likes, moved, shown = {}, [], set[int]()
        for name, told in new.items():
            if strict:
                self._check(now, name, told)
            if _is_placed(now.model, name):
                shown.update(_ids(now.model).known([name]))
                if name not in self._added or placing(self._facts.get(name, NewItem())) == placing(facts[name]):
                    continue
                moved.append(name)
            likes[name] = self._likeness(now, name, facts[name])
        hidden = now.model.tree.hidden().tolist()
        model, height = now.model, now.model.tree.height
        if shown & set(hidden):
            model = hiding(model, [number for number in hidden if number not in shown])
        if moved:
            model = self._without(now._replace(model=model), moved)
        if likes:
            model = with_items(model, likes, self._resting())
        if model.tree.height > height:  # rows of its own
            self._freed.clear()
        return now._replace(model=model, catalogue=_with_facts(now.catalogue, model.ids, new))

    def _check(self, now: Now, name: str, told: Facts) -> None:
        """Raise a ValueError where an item is said to be like one that is not known, or has a vector of no use."""
        unknown = next((each for each in told.get("like") or () if not _is_placed(now.model, each)), None)
        if unknown is not None:
            raise ValueError(f"item {name!r} is like {unknown!r}, which is not known: add that first, or leave it out")
        vector = told.get("vector")
        if vector is not None and self._vectors is None:
            raise ValueError("this model was not made from vectors: add the item with like, histories or category")
        if vector is not None and self._vectors is not None and len(vector) != self._vectors.shape[1]:
            count = self._vectors.shape[1]
            raise ValueError(f"the vector has {len(vector)} numbers, and those of the items have {count}")

    def _likeness(self, now: Now, name: str, new: NewItem) -> Likeness:
        """What a new item is like: the mean of all that it comes with, and its category where that is all."""
        found, ids = [], _ids(now.model)
        like = _placed(now.model, ids.known(new.like))
        if len(like) < len(new.like):
            log.warning("item %r: %d items that it is like are not known", name, len(new.like) - len(like))
        if like:
            found.append(of_items(torch.tensor(like)))
        histories = [_placed(now.model, ids.known(each)) for each in new.histories]
        if any(histories):
            found.append(self._learned(now, [each for each in histories if each]))
        if new.vector is not None and self._vectors is not None and len(new.vector) == self._vectors.shape[1]:
            placed = _leaves(now.model, range(len(self._vectors))) != PAD
            found.append(of_vectors(self._vectors, new.vector, placed))
        elif new.vector is not None:
            log.warning("item %r: its vector is not one of those that this model was made from", name)
        if not found and new.category and (same := now.catalogue.of_category(new.category)):
            found.append(of_popular(now.model, torch.tensor(same)))
        return mixed(found)

    def _learned(self, now: Now, histories: list[list[int]]) -> Likeness:
        """What an item is like that was chosen after these histories: by regression where the log is there."""
        if self._data is None or not len(self._data.train) or not isinstance(now.model.scorer, SumScorer):
            return of_histories(now.model, histories)
        return learned(now.model, histories, self._ask_anybody(self._data))

    def make_ready(self) -> None:
        """Do now what the first item with histories would wait for; in any thread, while others search and change."""
        if self._data is not None and len(self._data.train) and isinstance(self.model.scorer, SumScorer):
            self._ask_anybody(self._data)

    def _ask_anybody(self, data: Prepared) -> Anybody:
        with ASKING:
            self._anybody = found = self._anybody or Anybody(self.model, data)
            return found

    # Events that are known

    def _fresh(self, user: str, events: Sequence[Event]) -> list[Event]:
        """Events that are recorded: not those with a time that were recorded before, are in the log, or are retired."""
        timed = list(dict.fromkeys(event for event in events if event.time is not None))
        logged = [False] * len(timed) if self._log is None or not timed else self._log.holds(user, timed)
        known = {event for event, is_logged in zip(timed, logged, strict=True) if is_logged}
        known |= {event for event in timed if (user, event.item, event.time) in self._timed}
        known |= {event for event in timed if is_before(event, self._before)}
        found = []
        for event in events:
            if event not in known:
                found.append(event)
            if event.time is not None:
                known.add(event)  # once in a request as well
        return found

    def _note_times(self, events: Mapping[str, Sequence[Event]]) -> None:
        timed = ((user, each.item, each.time) for user, row in events.items() for each in row)
        self._timed |= {(user, item, at) for user, item, at in timed if at is not None}

    def _retired(self, before: Time) -> None:
        self._before = before if self._before is None else max(self._before, before)
        for user, events in self.events.items():
            self.events[user] = [each for each in events if not is_before(each, before)]
        self._timed = {each for each in self._timed if each[2] >= before}
        self._requests = {name: at for name, at in self._requests.items() if at >= before}

    # After a crash

    def _replay(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Apply entries in order; items that do not speak of each other are added together."""
        waiting: list[tuple[str, Facts]] = []
        rows: dict[str, list[tuple[Event, bool]]] = {}  # of each user, and whether it was recorded on this very model

        def apply() -> None:
            for group in _groups(waiting):
                facts = {name: self._facts.get(name, NewItem())._replace(**told) for name, told in group.items()}
                self._publish(self._with(self.now, group, facts, strict=False), 0, facts)
            waiting.clear()

        for entry in entries:
            if entry["kind"] == "add":
                told = {key: value for key, value in entry.items() if key in NewItem._fields}
                waiting.append((entry["item"], given(entry["item"], told)))
            elif entry["kind"] == "remove":
                apply()
                if self.holds(entry["item"]):
                    self._publish(self.now._replace(model=self._hiding(self.now, [entry["item"]])), 0)
            elif entry["kind"] == "forget":
                apply()
                self._replay_forget(entry)
            elif entry["kind"] == "events":
                own = bool(self._digest) and entry.get("model") == self._digest
                rows.setdefault(entry["user"], []).extend((each, own) for each in events_of(entry))
                self._requests |= requests_of(entry)
            elif entry["kind"] == "requests":
                self._requests |= requests_of(entry)
            elif entry["kind"] == "retire":
                self._before = entry["before"] if self._before is None else max(self._before, entry["before"])
            elif entry["kind"] == "run":
                self.run = entry["run"]
            elif entry["kind"] != "before":
                raise ValueError(unknown_kind(entry["kind"]))
        apply()
        self._replay_events(rows)
        self.now = self.now._replace(version=count(entries))

    def _replay_forget(self, entry: Mapping[str, Any]) -> None:
        """Forget an item; one that a later run has learned is only hidden, for what this run knows was not meant."""
        name = entry["item"]
        if not _is_placed(self.model, name):
            return
        if name in self._added or entry.get("model", "") == self._digest:
            self._forgotten([name])
        else:
            self._facts.pop(name, None)
            self._publish(self.now._replace(model=self._hiding(self.now, [name])), 0)

    def _replay_events(self, rows: Mapping[str, Sequence[tuple[Event, bool]]]) -> None:
        """Record what users chose, less what the log of this run holds of what was recorded on others."""
        for user, row in rows.items():
            self._note_times({user: [event for event, _ in row]})
            others = [event for event, own in row if not own]
            known = iter(self._log.knows(user, others) if self._log is not None else [False] * len(others))
            left = [event for event, own in row if own or not next(known)]
            saved = set(self.events.get(user, ()))
            left = [each for each in left if each.time is None or each not in saved]
            self.events.setdefault(user, []).extend(left)
        if self._before is not None:
            self._retired(self._before)


def _groups(new: Iterable[tuple[str, Facts]]) -> Iterator[dict[str, Facts]]:
    """Items in their order, in groups of which no item speaks of another."""
    group: dict[str, Facts] = {}
    for name, told in new:
        speaks_of = {name, *(told.get("like") or ()), *(item for each in told.get("histories") or () for item in each)}
        if group.keys() & speaks_of:
            yield group
            group = {}
        group[name] = told
    if group:
        yield group


def _checked_id(item: object) -> str:
    name = as_id(item)
    if not name or not name.isprintable():
        raise ValueError(f"{item!r} is no id: give one line of text")
    return name


def _ids(model: TreeModel) -> Ids:
    assert model.ids is not None
    return model.ids


def _leaves(model: TreeModel, numbers: Sequence[int]) -> Tensor:
    tree = model.tree
    return tree.leaf_of_item(torch.tensor(numbers, dtype=torch.int64, device=tree.device)).cpu()


def _placed(model: TreeModel, numbers: list[int]) -> list[int]:
    """Those of some items that have a leaf, hidden ones too."""
    return [number for number, leaf in zip(numbers, _leaves(model, numbers).tolist(), strict=True) if leaf != PAD]


def _is_placed(model: TreeModel, item: str) -> bool:
    return bool(_placed(model, _ids(model).known([item])))


def _holds(model: TreeModel, item: str) -> bool:
    """Whether an item is there to be found."""
    leaves = _leaves(model, _ids(model).known([item])).to(model.tree.device)
    return len(leaves) > 0 and bool((leaves != PAD).all() and model.tree.mask.allows(leaves).all())


def _with_facts(catalogue: Catalogue, ids: Any, new: Mapping[str, Facts]) -> Catalogue:
    """A catalogue that knows more."""
    told = {name: facts for name, facts in new.items() if facts.keys() & {"title", "category"}}
    if not told and len(ids) == len(catalogue.titles):
        return catalogue if catalogue.ids is ids else replace(catalogue, ids=ids)
    spare = [None] * (len(ids) - len(catalogue.titles))
    titles, categories = [*catalogue.titles, *spare], [*catalogue.categories, *spare]
    for name, facts in told.items():
        (number,) = ids.find([name])
        for column, field in ((titles, "title"), (categories, "category")):
            if field in facts:
                column[number] = facts[field]
    return replace(catalogue, ids=ids, titles=titles, categories=categories)

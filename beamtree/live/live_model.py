"""A live model: items are added, hidden and removed, and user events recorded, while searches run."""

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.data.ids import as_id
from beamtree.live.content import Content
from beamtree.live.edits import with_hidden, with_items, without_items
from beamtree.live.events import Event, Time, TrainingLog, UserEvents, events_entry, now
from beamtree.live.journal import Journal, count_changes, unknown_kind
from beamtree.live.placement import (
    BackgroundUsers,
    NewItem,
    Placement,
    average,
    is_placed_by_content,
    item_fields,
    learn_placement,
    like_histories,
    like_items,
    like_popular,
    like_vector,
    placement_fields,
)
from beamtree.live.users import Users
from beamtree.model import TreeModel
from beamtree.query import History
from beamtree.scorers import SumScorer
from beamtree.tree import PAD

log = logging.getLogger("beamtree")
BACKGROUND_LOCK = threading.Lock()  # background users are searched for once, by one thread
ItemFields = Mapping[str, Any]  # fields of a `NewItem`; a field that is left out keeps its value


class Snapshot(NamedTuple):
    """A consistent state that a search reads."""

    version: int  # how many changes were applied
    model: TreeModel
    catalogue: Catalogue


class SavedChanges(NamedTuple):
    """Changes made before a model was saved that are not part of the model itself."""

    items: Mapping[str, NewItem]  # that were added or changed
    added: Sequence[str]  # items that are not in the training log
    events: Mapping[str, Sequence[Event]]  # recorded since the training log ended
    dislikes: Mapping[str, Sequence[str]] = {}  # since then, items by user


class LiveModel:
    """A model with its catalogue and user events, all of which can change.

    `snapshot` is what to search: it is replaced on every change and never modified. With a journal, every change is on
    disk before it is visible, and the changes in the journal are applied on opening. Changes come from one thread at a
    time.

    Args:
        model: with ids.
        catalogue: titles and categories; ids only unless given.
        data: the training log, if available.
        vectors: of the items [M, dim], if the tree was built from vectors.
        saved: changes made before the model was saved.
        journal: where changes are written; the caller closes it.
        digest: identifies this model among those that entries of the journal belong to.
        slot_cooldown: seconds before the slot of a forgotten item is used again, where searches run beside changes.
    """

    def __init__(
        self,
        model: TreeModel,
        *,
        catalogue: Catalogue | None = None,
        data: Prepared | None = None,
        vectors: Tensor | None = None,
        saved: SavedChanges | None = None,
        journal: Journal | None = None,
        digest: str = "",
        slot_cooldown: float = 0.0,
    ) -> None:
        if model.ids is None:
            raise ValueError("the items of this model have no ids: only items with ids can change")
        saved = saved or SavedChanges({}, (), {})
        catalogue = catalogue or Catalogue.of_ids(model.ids)
        self.snapshot = Snapshot(0, model, with_saved_fields(catalogue, model.ids, saved))
        self._data, self._vectors, self._journal, self._digest = data, vectors, journal, digest
        self._items = dict(saved.items)  # that were added or changed
        self._added = set(saved.added)  # items placed by what is in `_items`, and not by training
        self._user_events = UserEvents(None if data is None else TrainingLog(data), saved.events)
        self._dislikes = {user: list(items) for user, items in saved.dislikes.items()}
        self._background: BackgroundUsers | None = None
        self._content: Content | None = None
        self._slot_cooldown, self._freed = slot_cooldown, list[tuple[float, int]]()  # (time, slot)
        if journal is not None:
            self._replay(journal.entries)

    # Reading

    @property
    def model(self) -> TreeModel:
        return self.snapshot.model

    @property
    def version(self) -> int:
        """How many changes were applied."""
        return self.snapshot.version

    @property
    def catalogue(self) -> Catalogue:
        """Titles and categories."""
        return self.snapshot.catalogue

    @property
    def ids(self) -> Ids:
        """The ids of the items, including removed ones."""
        return _ids(self.model)

    @property
    def events(self) -> Mapping[str, Sequence[Event]]:
        """The events recorded since the training log ended, by user, oldest first."""
        return self._user_events.by_user

    def is_visible(self, item: str) -> bool:
        """Whether searches can return an item."""
        return bool(_visible(self.model, [item]))

    def has_items(self, items: Sequence[str]) -> list[bool]:
        """Which items the model has, including hidden ones."""
        placed = _placed(self.model, items)
        return [item in placed for item in items]

    @property
    def users(self) -> Users:
        """The users of the training log and of later events."""
        return Users(self._data, self.events, self._dislikes)

    def history(self, user: str, ids: Ids | None = None) -> History | None:
        """The items of a user's events, in the training log and since; None for an unknown user.

        `ids` are those of the model that is searched; those of the present one unless given.
        """
        return self.users.histories([user], ids or self.ids)[0]

    def saved_changes(self) -> SavedChanges:
        """The changes to save beside the model."""
        events = {user: list(row) for user, row in self.events.items() if row}
        dislikes = {user: list(items) for user, items in self._dislikes.items()}
        return SavedChanges(dict(self._items), sorted(self._added), events, dislikes)

    # Changes of items

    def add_items(self, items: Mapping[str, NewItem | ItemFields], catalogue: Catalogue | None = None) -> int:
        """Add or update items, all or none of them; returns how many were new, hidden, or changed.

        A hidden item becomes visible as it was. A field that is left out keeps its value, and None clears it. With a
        `catalogue` go on with that one: it has the items too, in their order.
        """
        new = {_valid_id(item): item_fields(item, fields) for item, fields in items.items()}
        snapshot, freed, content = self.snapshot, list(self._freed), self._content
        if catalogue is not None:
            saved = SavedChanges(self._items, (), {})
            snapshot = snapshot._replace(catalogue=with_saved_fields(catalogue, catalogue.ids, saved))
            self._content = None
        try:
            return self._add_items(snapshot, new)
        except BaseException:
            self._freed, self._content = freed, content
            raise

    def _add_items(self, snapshot: Snapshot, new: Mapping[str, ItemFields]) -> int:
        updated, changed = dict[str, NewItem](), dict[str, ItemFields]()
        for group in _independent_groups(new.items()):
            visible = _visible(snapshot.model, group)
            for name, fields in group.items():
                updated[name] = self._items.get(name, NewItem())._replace(**fields)
                if name not in visible or updated[name] != self._items.get(name, NewItem()):
                    changed[name] = fields
            group = {name: fields for name, fields in group.items() if name in changed}
            for name, fields in group.items():
                self._check_fields(snapshot, name, fields)
            snapshot = self._with_items(snapshot, group, updated)
        if changed:
            self._write(*({"kind": "add", "item": name, **fields} for name, fields in changed.items()))
            self._publish(snapshot, len(changed), {name: updated[name] for name in changed})
        return len(changed)

    def remove_items(self, items: Iterable[str]) -> int:
        """Hide items until they are added again; returns how many were visible."""
        names = [name for name in dict.fromkeys(map(as_id, items)) if self.is_visible(name)]
        if names:
            self._write(*({"kind": "remove", "item": name} for name in names))
            self._hide(names)
        return len(names)

    def forget_items(self, items: Iterable[str]) -> int:
        """Forget items and free their slots: added again, they are new; returns how many there were."""
        names = list(_placed(self.model, dict.fromkeys(map(as_id, items))))
        if names:
            self._write(*({"kind": "forget", "item": name, "model": self._digest} for name in names))
            self._forget(names)
        return len(names)

    def replace_model(self, model: TreeModel) -> None:
        """Continue with another model of the same items, such as one with refitted parts."""
        self.snapshot = self.snapshot._replace(version=self.version + 1, model=model)
        self._background = self._content = None

    def record_run(self, run: str) -> None:
        """Record that this model, whose run has this name, is served from now on."""
        self._write({"kind": "run", "run": run, **({"model": self._digest} if self._digest else {})})
        self.snapshot = self.snapshot._replace(version=self.version + (self._journal is not None))

    def warm_up(self) -> None:
        """Prepare what the first new item needs; safe in any thread, beside searches and changes."""
        if self._background_users() is not None and self.catalogue.table is not None:
            self._content_of(self.snapshot)

    # Changes of events

    def record_events(
        self, events: Iterable[tuple[str, Sequence[str], Time | None]], request: str | None = None
    ) -> int:
        """Record (user, items, time) of events, items oldest first; returns how many of the items the model has.

        The same request counts once, and so does the same user, item and time.
        """
        if request is not None and self._user_events.has_request(request):
            return 0
        received, rows = now(), dict[str, list[Event]]()
        for user, items, at in events:
            rows.setdefault(as_id(user), []).extend(Event(as_id(item), at, received) for item in items)
        new = {user: row for user, all_rows in rows.items() if (row := self._user_events.new_events(user, all_rows))}
        entries = [events_entry(user, row, self._digest) for user, row in new.items()]
        if not entries:
            return 0
        if request is not None:
            entries[0]["id"] = request
        self._write(*entries)
        self._user_events.add(new, {} if request is None else {request: received})
        self._publish(self.snapshot, len(entries))
        return len(self.ids.find_known(event.item for row in new.values() for event in row))

    def record_dislikes(self, dislikes: Mapping[str, Sequence[str]]) -> None:
        """Record the items that users dislike: those of a log, which is not written to a journal."""
        for user, items in dislikes.items():
            self._dislikes[user] = list(dict.fromkeys([*self._dislikes.get(user, ()), *items]))

    def retire_events(self, before: Time) -> int:
        """Drop all events before a time, also those that arrive later; returns how many there were."""
        count = self._user_events.count_before(before)
        if not self._user_events.is_retired(before):
            self._write({"kind": "retire", "before": before})
            self._user_events.retire(before)
            self._publish(self.snapshot, 1)
        return count

    # Applying changes

    def _write(self, *entries: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(*entries)

    def _publish(self, changed: Snapshot, count: int, items: Mapping[str, NewItem] | None = None) -> None:
        """Make changes visible to searches.

        Args:
            changed: the state to search from now on; its version is set here.
            count: how many changes it includes.
            items: that were added or changed.
        """
        self._added.update((items or {}).keys() - _placed(self.model, items or {}).keys())
        self._items.update(items or {})
        self.snapshot = changed._replace(version=self.version + count)

    def _hide(self, names: Sequence[str]) -> None:
        hidden = self.model.tree.hidden().tolist() + self.ids.find_known(names)
        self._publish(self.snapshot._replace(model=with_hidden(self.model, hidden)), len(names))

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._items.pop(name, None)
            self._added.discard(name)
        cleared = {name: {"title": None, "category": None} for name in names}
        catalogue = _with_fields(self.catalogue, self.ids, cleared)
        model = self._without_items(self.model, names)
        self._publish(self.snapshot._replace(model=model, catalogue=catalogue), len(names))

    def _without_items(self, model: TreeModel, names: Sequence[str]) -> TreeModel:
        """The model without items that have a slot; their slots are reserved for a while."""
        numbers, tree = _ids(model).find_known(names), model.tree
        slots = (_leaves(model, numbers) - tree.level(tree.height).start).tolist()
        self._freed += [(time.monotonic(), slot) for slot in slots]
        return without_items(model, numbers) if numbers else model

    def _with_items(self, snapshot: Snapshot, new: Mapping[str, ItemFields], items: Mapping[str, NewItem]) -> Snapshot:
        """A snapshot with new items, with hidden ones shown, and with new fields of existing ones.

        An item that was learned from the training log stays where it is.
        """
        if not new:
            return snapshot
        model, placed, moved, shown = snapshot.model, list[str](), list[str](), set[int]()
        has_leaf = _placed(model, new)
        for name in new:
            if name in has_leaf:
                shown.add(has_leaf[name])
                with_title = snapshot.catalogue.table is not None
                before = placement_fields(self._items.get(name, NewItem()), with_title)
                if name not in self._added or before == placement_fields(items[name], with_title):
                    continue
                moved.append(name)
            placed.append(name)
        ids = _ids(model)
        unknown = [name for name, number in zip(placed, ids.find(placed), strict=True) if number is None]
        catalogue = _with_fields(snapshot.catalogue, ids.extended(unknown) if unknown else ids, new)
        placements = self._placements(snapshot, {name: items[name] for name in placed}, catalogue)
        hidden = model.tree.hidden().tolist()
        if shown & set(hidden):
            model = with_hidden(model, [number for number in hidden if number not in shown])
        if moved:
            model = self._without_items(model, moved)
        if placements:
            self._freed = [(at, slot) for at, slot in self._freed if time.monotonic() < at + self._slot_cooldown]
            model = with_items(model, placements, [slot for _, slot in self._freed])
        if model.tree.height > snapshot.model.tree.height:  # its tables are new: no search reads their slots
            self._freed.clear()
        return snapshot._replace(model=model, catalogue=_with_fields(catalogue, _ids(model), {}))

    def _check_fields(self, snapshot: Snapshot, name: str, fields: ItemFields) -> None:
        """Raise a ValueError for an unknown item in `like`, and for a vector that does not fit."""
        like = fields.get("like") or ()
        placed = _placed(snapshot.model, like) if like else {}
        unknown = next((item for item in like if item not in placed), None)
        if unknown is not None:
            raise ValueError(f"item {name!r} is like {unknown!r}, which is not known: add that first, or leave it out")
        vector = fields.get("vector")
        if vector is None:
            return
        if self._vectors is None:
            raise ValueError("this model was not built from vectors: add the item with like, histories or category")
        if len(vector) != self._vectors.shape[1]:
            raise ValueError(f"the vector has {len(vector)} numbers, and those of the items {self._vectors.shape[1]}")
        if not all(map(math.isfinite, vector)):
            raise ValueError("the vector holds NaN or infinity: give finite numbers")

    def _placements(
        self, snapshot: Snapshot, items: Mapping[str, NewItem], catalogue: Catalogue
    ) -> dict[str, Placement]:
        """Where items go: by what they are where there is a table of the items and nothing else is known of them.

        The catalogue has these items already.
        """
        by_content = [name for name, item in items.items() if is_placed_by_content(item)]
        found = {}
        if by_content and catalogue.table is not None:
            rows = catalogue.attributes[catalogue.ids.find_known(by_content)]
            placed = self._content_of(snapshot).placements(snapshot.model, rows, self._background_users())
            found = {name: each for name, each in zip(by_content, placed, strict=True) if len(each.items)}
        return {name: found.get(name) or self._placement(snapshot, name, item) for name, item in items.items()}

    def _placement(self, snapshot: Snapshot, name: str, new: NewItem) -> Placement:
        """Where a new item goes: the mean of what it comes with; its category only if there is nothing else."""
        parts, ids = [], _ids(snapshot.model)
        like = _with_leaf(snapshot.model, ids.find_known(new.like))
        if len(like) < len(new.like):
            log.warning("item %r: %d items that it is like are not known", name, len(new.like) - len(like))
        if like:
            parts.append(like_items(torch.tensor(like)))
        histories = [_with_leaf(snapshot.model, ids.find_known(history)) for history in new.histories]
        if any(histories):
            parts.append(self._placement_by_histories(snapshot.model, [history for history in histories if history]))
        if new.vector is not None and self._vectors is not None and len(new.vector) == self._vectors.shape[1]:
            has_leaf = _leaves(snapshot.model, range(len(self._vectors))) != PAD
            parts.append(like_vector(self._vectors, new.vector, has_leaf))
        elif new.vector is not None:
            log.warning("item %r: its vector does not fit those that this model was built from", name)
        if not parts and new.category:
            same = [number for number in snapshot.catalogue.in_category(new.category) if number < len(ids)]
            parts += [like_popular(snapshot.model, torch.tensor(same))] if same else []
        return average(parts)

    def _placement_by_histories(self, model: TreeModel, histories: list[list[int]]) -> Placement:
        """Learned by regression where the training log is available."""
        background = self._background_users()
        return like_histories(model, histories) if background is None else learn_placement(model, histories, background)

    def _background_users(self) -> BackgroundUsers | None:
        """Users to learn from; None without a training log, and for a scorer that cannot."""
        if self._data is None or not len(self._data.train) or not isinstance(self.model.scorer, SumScorer):
            return None
        with BACKGROUND_LOCK:
            self._background = users = self._background or BackgroundUsers(self.model, self._data)
            return users

    def _content_of(self, snapshot: Snapshot) -> Content:
        """The features of the items, read once."""
        with BACKGROUND_LOCK:
            self._content = content = self._content or Content(snapshot.catalogue, snapshot.model)
            return content

    # Replaying the journal

    def apply(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Apply entries of a journal that another process writes, in order, while searches run."""
        self._replay(entries, more_follow=True)

    def _replay(self, entries: Sequence[Mapping[str, Any]], more_follow: bool = False) -> None:
        """Apply entries in order; items that do not refer to each other are added together."""
        version = self.version + count_changes(entries)
        pending: list[tuple[str, ItemFields]] = []

        def add_pending() -> None:
            for group in _independent_groups(pending):
                items = {name: self._items.get(name, NewItem())._replace(**fields) for name, fields in group.items()}
                self._publish(self._with_items(self.snapshot, group, items), len(items), items)
            pending.clear()

        for entry in entries:
            kind, name = entry["kind"], entry.get("item", "")
            if kind == "add":
                fields = {key: value for key, value in entry.items() if key in NewItem._fields}
                pending.append((name, item_fields(name, fields)))
            elif kind == "remove":
                add_pending()
                if self.is_visible(name):
                    self._hide([name])
            elif kind == "forget":
                add_pending()
                self._replay_forget(name, entry.get("model", ""))
            elif kind not in ("events", "requests", "retire", "run", "before"):
                raise unknown_kind(kind)
        add_pending()
        self._user_events.replay(entries, self._digest, more_follow)
        self.snapshot = self.snapshot._replace(version=version)

    def _replay_forget(self, name: str, digest: str) -> None:
        """Forget an item; one that this model has learned, and an earlier one forgot, is only hidden."""
        if not _placed(self.model, [name]):
            return
        if name in self._added or digest == self._digest:
            self._forget([name])
        else:
            self._items.pop(name, None)
            self._hide([name])


def _independent_groups(new: Iterable[tuple[str, ItemFields]]) -> Iterator[dict[str, ItemFields]]:
    """Items in order, in groups in which no item refers to another."""
    group: dict[str, ItemFields] = {}
    for name, fields in new:
        histories = fields.get("histories") or ()
        if group.keys() & {name, *(fields.get("like") or ()), *(item for history in histories for item in history)}:
            yield group
            group = {}
        group[name] = fields
    if group:
        yield group


def _valid_id(item: object) -> str:
    name = as_id(item)
    if not name or not name.isprintable():
        raise ValueError(f"{item!r} is not an id: give one line of text")
    return name


def _ids(model: TreeModel) -> Ids:
    assert model.ids is not None
    return model.ids


def _leaves(model: TreeModel, numbers: Sequence[int]) -> Tensor:
    tree = model.tree
    return tree.leaf_of_item(torch.tensor(numbers, dtype=torch.int64, device=tree.device)).cpu()


def _with_leaf(model: TreeModel, numbers: list[int]) -> list[int]:
    """The items that have a leaf, including hidden ones."""
    return [number for number, leaf in zip(numbers, _leaves(model, numbers).tolist(), strict=True) if leaf != PAD]


def _placed(model: TreeModel, items: Iterable[str]) -> dict[str, int]:
    """The items that have a leaf, including hidden ones, and their numbers."""
    names = list(items)
    numbers = [PAD if number is None else number for number in _ids(model).find(names)]
    rows = zip(names, numbers, _leaves(model, numbers).tolist(), strict=True)
    return {name: number for name, number, leaf in rows if leaf != PAD}


def _visible(model: TreeModel, items: Iterable[str]) -> set[str]:
    """The items that searches can return."""
    placed = _placed(model, items)
    allowed = model.tree.mask.allows(_leaves(model, list(placed.values())).to(model.tree.device))
    return {name for name, is_allowed in zip(placed, allowed.tolist(), strict=True) if is_allowed}


def with_saved_fields(catalogue: Catalogue, ids: Ids, saved: SavedChanges) -> Catalogue:
    """The catalogue with the titles and categories of saved changes."""
    fields = {name: item_fields(name, item) for name, item in saved.items.items()}
    return _with_fields(catalogue, ids, fields) if fields else catalogue


def _with_fields(catalogue: Catalogue, ids: Ids, new: Mapping[str, ItemFields]) -> Catalogue:
    """The catalogue with new titles and categories."""
    changed = {name: fields for name, fields in new.items() if fields.keys() & {"title", "category"}}
    if not changed and len(ids) == len(catalogue.titles):
        return catalogue if catalogue.ids is ids else replace(catalogue, ids=ids)
    missing = [None] * (len(ids) - len(catalogue.titles))
    titles, categories = [*catalogue.titles, *missing], [*catalogue.categories, *missing]
    for name, fields in changed.items():
        (number,) = ids.find([name])
        assert number is not None
        for column, field in ((titles, "title"), (categories, "category")):
            if field in fields:
                column[number] = fields[field]
    return replace(catalogue, ids=ids, titles=titles, categories=categories)

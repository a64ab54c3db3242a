"""A live model: items are added, hidden and removed, and user events recorded, while searches run."""

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import ROLES, Catalogue
from beamtree.data.ids import as_id, is_integer
from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY, MICRO, Time, as_date
from beamtree.live.content import Content
from beamtree.live.edits import with_hidden, with_items, without_items
from beamtree.live.events import Event, TrainingLog, UserEvents, events_entry, is_date, now
from beamtree.live.item_update import (
    ItemFields,
    ItemUpdate,
    independent_groups,
    parse_update,
    placing_fields,
    recorded_update,
    valid_id,
)
from beamtree.live.journal import Journal, added_values, count_changes, set_entries, unknown_kind
from beamtree.live.part_events import PartEvents
from beamtree.live.placement import (
    BackgroundUsers,
    NewItem,
    Placement,
    average,
    is_placed_by_content,
    learn_placement,
    like_histories,
    like_items,
    like_popular,
    like_vector,
)
from beamtree.live.users import Users
from beamtree.model import TreeModel
from beamtree.query import History
from beamtree.tree import PAD

log = logging.getLogger("beamtree")
BACKGROUND_LOCK = threading.Lock()  # background users are searched for once, by one thread


class Snapshot(NamedTuple):
    """A consistent state that a search reads."""

    version: int  # how many changes were applied
    model: TreeModel
    catalogue: Catalogue


class UnknownItemError(LookupError):
    """An item that should be changed and that the model does not have."""


class ItemCounts(NamedTuple):
    """How many items an update added, and how many it changed or showed."""

    new: int
    changed: int

    @property
    def total(self) -> int:
        return self.new + self.changed


class ItemChange(NamedTuple):
    """What an update of items does."""

    update: ItemUpdate
    snapshot: Snapshot  # after it
    is_new: np.ndarray  # which of the items the model did not have [n]
    differs: np.ndarray  # which are new, changed or shown [n]
    has_entry: np.ndarray  # which have an entry of their own in a journal: new, moved or shown ones [n]
    stays_hidden: np.ndarray  # which of these stay hidden [n]
    known: Mapping[str, NewItem]  # what says where items are placed, where that changes
    since: Mapping[str, int]  # when new items began, where the log has a clock

    @property
    def counts(self) -> ItemCounts:
        """How many items are new and changed."""
        new = int(self.is_new.sum())
        return ItemCounts(new, int(self.differs.sum()) - new)

    @property
    def num_changes(self) -> int:
        """How many changes a journal counts."""
        return int(self.differs.sum() + self.stays_hidden.sum())

    def entries(self) -> Iterator[dict[str, Any]]:
        """The changes as entries of a journal."""
        items, catalogue, own = self.update.items, self.snapshot.catalogue, dict[int, dict[str, Any]]()
        for rows, values in self.update.batches:
            by_field = {catalogue.field_of(column): catalogue.as_json(each) for column, each in values.items()}
            only = (self.differs & ~self.has_entry)[rows].nonzero()[0].tolist()
            changed = {field: [each[index] for index in only] for field, each in by_field.items()}
            yield from set_entries([items[row] for row in rows[only].tolist()], changed)
            for index in self.has_entry[rows].nonzero()[0].tolist():
                own.setdefault(int(rows[index]), {}).update({name: each[index] for name, each in by_field.items()})
        for row in self.has_entry.nonzero()[0].tolist():
            more: dict[str, Any] = {"values": own[row]} if row in own else {}
            more |= {"since": self.since[items[row]]} if items[row] in self.since else {}
            yield {"kind": "add", "item": items[row], **self.update.fields_of(row), **more}
        for row in self.stays_hidden.nonzero()[0].tolist():
            yield {"kind": "remove", "item": items[row]}


class SavedChanges(NamedTuple):
    """Changes made before a model was saved that are not part of the model itself."""

    items: Mapping[str, NewItem]  # what says where items are placed; titles and categories where there is no table
    added: Sequence[str]  # items that are not in the training log
    events: Mapping[str, Sequence[Event]]  # recorded since the training log ended
    dislikes: Mapping[str, Sequence[str]] = {}  # since then, items by user
    since: Mapping[str, int] = {}  # when those of `added` were, in seconds since 1970, where the log has a clock


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
        if data is not None:
            catalogue = catalogue.with_starts(data.starts)
        self.snapshot = Snapshot(0, model, with_starts(with_saved_texts(catalogue, saved), saved.since))
        self._opened, self._unchanged = catalogue, self.catalogue  # the latter with saved changes, before the journal
        self._data, self._vectors, self._journal, self._digest = data, vectors, journal, digest
        known = {name: item._replace(title=None, category=None) for name, item in saved.items.items()}
        self._items = {name: item for name, item in known.items() if item != NewItem()}  # what says where they are
        # Items that are placed by that or by their attributes, and not by training, and since when, where it is known.
        self._added: dict[str, int | None] = {name: saved.since.get(name) for name in saved.added}
        self._absent: dict[str, dict[str, Any]] = {}  # recorded values of items that this model does not have
        self._user_events = UserEvents(None if data is None else TrainingLog(data), saved.events)
        self._dislikes = {user: list(items) for user, items in saved.dislikes.items()}
        self._part_events = PartEvents()
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
        """What is known about the items."""
        return self.snapshot.catalogue

    @property
    def has_vectors(self) -> bool:
        """Whether the model was built from vectors of the items, which new items may have, too."""
        return self._vectors is not None

    @property
    def has_changed_table(self) -> bool:
        """Whether the table of the items is another one than at first."""
        return self.catalogue.table is not self._opened.table

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
        model = self.model
        (number,) = _ids(model).find([item])
        leaves = _leaves(model, [PAD if number is None else number])
        return bool(model.tree.mask.allows(leaves.to(model.tree.device)))

    def has_items(self, items: Sequence[str]) -> list[bool]:
        """Which items the model has, including hidden ones."""
        placed = _placed(self.model, items)
        return [item in placed for item in items]

    @property
    def users(self) -> Users:
        """The users of the training log and of later events."""
        return Users(self._data, self.events, self._dislikes)

    def history(self, user: str, ids: Ids | None = None) -> History:
        """The items of a user's events, in the training log and since; not `is_known` for a user without events.

        `ids` are those of the model that is searched; those of the present one unless given.
        """
        return self.users.histories([user], ids or self.ids)[0]

    def saved_changes(self) -> SavedChanges:
        """The changes to save beside the model."""
        events = {user: list(row) for user, row in self.events.items() if row}
        dislikes = {user: list(items) for user, items in self._dislikes.items()}
        items = dict(self._items)
        if self.catalogue.table is None:  # which has them otherwise
            for number, (title, category) in enumerate(
                zip(self.catalogue.titles, self.catalogue.categories, strict=True)
            ):
                if title is not None or category is not None:
                    name = self.ids.name(number)
                    items[name] = items.get(name, NewItem())._replace(title=title, category=category)
        since = {name: at for name, at in sorted(self._added.items()) if at is not None}
        return SavedChanges(items, sorted(self._added), events, dislikes, since)

    # Changes of items

    def update_items(
        self,
        items: Any,
        *,
        show: bool = False,
        add: bool = True,
        model: TreeModel | None = None,
        since: Mapping[str, int] = {},
    ) -> ItemCounts:
        """Add items and change those that there are, all or none of them.

        Args:
            items: what `parse_update` takes, or what it returns.
            show: whether hidden items become visible, as they were, also if they come with changes.
            add: whether to add items that the model does not have; an UnknownItemError if not.
            model: to go on with instead of the present one; it has the same items.
            since: when new items began, in seconds since 1970; now, where it is not given.
        """
        update = items if isinstance(items, ItemUpdate) else self.parse_update(items)
        freed, background, content = list(self._freed), self._background, self._content
        if model is not None:
            self._background = None
        if model is not None or update.new is not None:
            self._content = None
        try:
            snapshot = self.snapshot if model is None else self.snapshot._replace(model=model)
            change = self._change(snapshot, update, show, add, since=since)
            if change.num_changes and self._journal is not None:
                self._journal.append(*change.entries())
        except BaseException:
            self._freed, self._background, self._content = freed, background, content
            raise
        self._apply(change)
        return change.counts

    def parse_update(self, items: Any) -> ItemUpdate:
        """Changes of items: a mapping from id to fields, ids, or a table."""
        return parse_update(items, self.catalogue, self.has_vectors)

    def preview(self, update: ItemUpdate) -> Catalogue:
        """What would be known of the present items after an update by a table."""
        catalogue = self.catalogue if update.new is None else self.catalogue.with_columns(update.new)
        numbers = self.ids.numbers(update.items)
        for rows, values in update.batches:
            is_known = numbers[rows] != PAD
            known = {name: each.filter(is_known.tolist()) for name, each in values.items()}
            catalogue = catalogue.changed(numbers[rows][is_known], known)[0]
        return catalogue

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
        """Continue with another model of the same items, such as one with parts refitted to all recorded events."""
        model = self._part_events.refitted(model)
        self.snapshot = self.snapshot._replace(version=self.version + 1, model=model)
        self._background = self._content = None

    def record_run(self, run: str) -> None:
        """Record that this model, whose run has this name, is served from now on."""
        self._write({"kind": "run", "run": run, **({"model": self._digest} if self._digest else {})})
        self.snapshot = self.snapshot._replace(version=self.version + (self._journal is not None))

    def warm_up(self) -> None:
        """Prepare what the first new item needs; safe in any thread, beside searches and changes."""
        if self._background_users() is not None and self.catalogue.table is not None:
            self._content_of(self.catalogue, self.model)

    # Changes of events

    def record_events(
        self, events: Iterable[tuple[str, Sequence[str], Time | None]], request: str | None = None
    ) -> int:
        """Record (user, items, time) of events, items oldest first; returns how many of the items the model has.

        The same request counts once, and so does the same user, item and time. A ValueError for an event of the future.
        """
        if request is not None and self._user_events.has_request(request):
            return 0
        received, rows = now(), dict[str, list[Event]]()
        for user, items, at in events:
            if at is not None and self.is_future(at):
                raise ValueError(f"time: an event of {as_date(at)} is in the future: give when it happened")
            rows.setdefault(as_id(user), []).extend(Event(as_id(item), at, received) for item in items)
        new = {user: row for user, all_rows in rows.items() if (row := self._user_events.new_events(user, all_rows))}
        entries = [events_entry(user, row, self._digest) for user, row in new.items()]
        if not entries:
            return 0
        if request is not None:
            entries[0]["id"] = request
        self._write(*entries)
        self._user_events.add(new, {} if request is None else {request: received})
        self._publish(self.snapshot._replace(model=self._part_events.add(self.model, new)), len(entries))
        return len(self.ids.find_known(event.item for row in new.values() for event in row))

    def is_future(self, time: Time) -> bool:
        """Whether this is a date of more than a day from now, and after the log, which may be ahead of this clock."""
        end = NO_TIME if self._data is None else self._data.end
        if end == NO_TIME and not is_date(time):
            return False
        return time > max(now(), end * MICRO) + DAY * MICRO

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
            self._publish(self.snapshot._replace(model=self._part_events.retire(self.model, before)), 1)
        return count

    # Applying changes

    def _write(self, *entries: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(*entries)

    def _publish(self, changed: Snapshot, count: int) -> None:
        """Make changes visible to searches: `count` of them, whose number is added to the version."""
        self.snapshot = changed._replace(version=self.version + count)

    def _apply(self, change: ItemChange) -> None:
        """Make an update of items visible to searches."""
        new = [change.update.items[row] for row in change.is_new.nonzero()[0].tolist()]
        self._added.update((name, change.since.get(name)) for name in new)
        for name in new if self._absent else ():
            self._absent.pop(name, None)
        self._items.update(change.known)
        for name in [name for name, item in change.known.items() if item == NewItem()]:
            del self._items[name]
        model = self._part_events.add_items(change.snapshot.model, new)
        self._publish(change.snapshot._replace(model=model), change.num_changes)

    def _hide(self, names: Sequence[str]) -> None:
        hidden = self.model.tree.hidden().tolist() + self.ids.find_known(names)
        self._publish(self.snapshot._replace(model=with_hidden(self.model, hidden)), len(names))

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._items.pop(name, None)
            self._added.pop(name, None)
        catalogue = self.catalogue.cleared(np.array(self.ids.find_known(names)))
        model = self._without_items(self.model, names)
        self._publish(self.snapshot._replace(model=model, catalogue=catalogue), len(names))

    def _without_items(self, model: TreeModel, names: Sequence[str]) -> TreeModel:
        """The model without items that have a slot; their slots are reserved for a while."""
        numbers, tree = _ids(model).find_known(names), model.tree
        slots = (_leaves(model, numbers) - tree.level(tree.height).start).tolist()
        self._freed += [(time.monotonic(), slot) for slot in slots]
        return without_items(model, numbers) if numbers else model

    def _change(
        self,
        snapshot: Snapshot,
        update: ItemUpdate,
        show: bool,
        add: bool = True,
        check: bool = True,
        since: Mapping[str, int] = {},
    ) -> ItemChange:
        """What an update does to a snapshot.

        Args:
            snapshot: the present one.
            update: of items.
            show: whether all hidden items of the update become visible, and not only those without changes.
            add: whether items that the model does not have are added.
            check: whether what says where items are placed must be valid: in a journal it was, for another model.
            since: when new items began, as in `update_items`.
        """
        names, model = update.items, snapshot.model
        numbers = _ids(model).numbers(names)
        leaves = model.tree.leaf_of_item(torch.from_numpy(numbers).to(model.tree.device)).cpu()
        is_new = (leaves == PAD).numpy()
        is_hidden = ~is_new & ~model.tree.mask.allows(leaves.to(model.tree.device)).cpu().numpy()
        if not add and is_new.any():
            raise UnknownItemError(f"there is no item {names[int(is_new.argmax())][:80]!r}")
        # Attributes
        catalogue = snapshot.catalogue if update.new is None else snapshot.catalogue.with_columns(update.new)
        unknown = [valid_id(names[row]) for row in (numbers == PAD).nonzero()[0].tolist()]
        if unknown:
            numbers[numbers == PAD] = len(_ids(model)) + np.arange(len(unknown))
            catalogue = catalogue.grown(_ids(model).extended(unknown), unknown)
        began: dict[str, int] = {}
        if catalogue.starts is not None and is_new.any():
            began = {names[row]: since.get(names[row], now() // MICRO) for row in is_new.nonzero()[0].tolist()}
            catalogue = catalogue.with_starts(catalogue.starts.changed(numbers[is_new].tolist(), [*began.values()]))
        if self._absent:
            catalogue = self._with_absent(catalogue, [names[row] for row in is_new.nonzero()[0].tolist()])
        differs = is_new.copy()
        for rows, values in update.batches:
            catalogue, changed = catalogue.changed(numbers[rows], values)
            differs[rows] |= changed
        # Places: an item that was learned from the training log stays where it is
        known = self._known(update, is_new)
        for row, item in known.items():
            differs[row] |= item != self._items.get(names[row], NewItem())
        moved = {
            row
            for row in ((differs & ~is_new).nonzero()[0].tolist() if self._added else ())
            if names[row] in self._added
            and self._is_moved(names[row], known.get(row), int(numbers[row]), snapshot.catalogue, catalogue)
        }
        is_placed = is_new.copy()
        is_placed[[*moved]] = True
        checked = [row for row, name in enumerate(names) if name in update.placing] if update.placing else []
        read = sorted({*is_placed.nonzero()[0].tolist(), *known, *checked})
        row_of = {names[row]: row for row in read}
        for group in independent_groups((names[row], update.fields_of(row)) for row in read):
            for name, fields in group.items() if check else ():
                self._check_fields(model, name, fields)
            items = {
                name: known.get(row_of[name]) or self._items.get(name, NewItem())
                for name in group
                if is_placed[row_of[name]]
            }
            model = self._placed(model, items, [name for name in items if row_of[name] in moved], catalogue)
        # Hidden items: one that is moved is visible at first
        is_shown = is_hidden.copy()
        if is_hidden.any() and not show:
            is_shown &= np.array([name in update.bare for name in names])
        if (is_hidden & (is_shown | is_placed)).any():
            hidden = set(snapshot.model.tree.hidden().tolist()) - set(numbers[is_shown].tolist())
            model = with_hidden(model, sorted(hidden))
        differs |= is_shown
        has_entry = is_placed | is_shown
        has_entry[[row for row in known if differs[row]]] = True
        return ItemChange(
            update,
            snapshot._replace(model=model, catalogue=catalogue),
            is_new,
            differs,
            has_entry,
            has_entry & is_hidden & ~is_shown,
            {names[row]: item for row, item in known.items() if differs[row]},
            began,
        )

    def _known(self, update: ItemUpdate, is_new: np.ndarray) -> dict[int, NewItem]:
        """What is known of items that come with anything that says where they are placed, by row of the update.

        A vector says nothing about an item that was learned from the training log.
        """
        known = {}
        for row, name in enumerate(update.items) if update.placing or update.vectors is not None else ():
            is_learned = not is_new[row] and name not in self._added
            if name in update.placing or (update.vectors is not None and not is_learned):
                fields = update.fields_of(row)
                used = {field: value for field, value in fields.items() if field != "vector" or not is_learned}
                if used:
                    known[row] = self._items.get(name, NewItem())._replace(**used)
        return known

    def _is_moved(self, name: str, known: NewItem | None, number: int, before: Catalogue, after: Catalogue) -> bool:
        """Whether something changes by which an item was placed."""
        item = self._items.get(name, NewItem())
        if known is not None and known != item:
            return True
        roles = ROLES if after.table is not None else ("category",)  # titles are compared with those of a table
        return is_placed_by_content(item) and any(
            before.text(role, number) != after.text(role, number) for role in roles
        )

    def _with_absent(self, catalogue: Catalogue, names: Sequence[str]) -> Catalogue:
        """The catalogue with what was recorded about new items before the model had them."""
        names, values = [name for name in names if name in self._absent], defaultdict[str, dict[str, Any]](dict)
        for name in names:
            for field, value in self._absent[name].items():
                values[field][name] = value
        catalogue, update = recorded_update(names, values, catalogue)
        numbers = np.array(catalogue.ids.find_known(names), np.int64)
        for rows, columns in update.batches:
            catalogue = catalogue.changed(numbers[rows], columns)[0]
        return catalogue

    def _placed(
        self, model: TreeModel, items: Mapping[str, NewItem], moved: Sequence[str], catalogue: Catalogue
    ) -> TreeModel:
        """The model with items on new places, of which some have moved."""
        if not items:
            return model
        placements = self._placements(model, items, catalogue)
        before = model.tree.height
        if moved:
            model = self._without_items(model, moved)
        self._freed = [(at, slot) for at, slot in self._freed if time.monotonic() < at + self._slot_cooldown]
        model = with_items(model, placements, [slot for _, slot in self._freed])
        if model.tree.height > before:  # its tables are new: no search reads their slots
            self._freed.clear()
        return model

    def _check_fields(self, model: TreeModel, name: str, fields: ItemFields) -> None:
        """Raise a ValueError for an unknown item in `like`, and for a vector that does not fit."""
        like = fields.get("like") or ()
        placed = _placed(model, like) if like else {}
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

    def _placements(self, model: TreeModel, items: Mapping[str, NewItem], catalogue: Catalogue) -> dict[str, Placement]:
        """Where items go: by what they are where there is a table of the items and nothing else is known of them."""
        by_content = [name for name, item in items.items() if is_placed_by_content(item)]
        found = {}
        if by_content and catalogue.table is not None:
            rows = catalogue.rows(catalogue.ids.find_known(by_content))
            placed = self._content_of(catalogue, model).placements(model, rows, self._background_users())
            found = {name: each for name, each in zip(by_content, placed, strict=True) if len(each.items)}
        return {name: found.get(name) or self._placement(model, name, item, catalogue) for name, item in items.items()}

    def _placement(self, model: TreeModel, name: str, new: NewItem, catalogue: Catalogue) -> Placement:
        """Where a new item goes: the mean of what it comes with; its category only if there is nothing else."""
        parts, ids = [], _ids(model)
        like = _with_leaf(model, ids.find_known(new.like))
        if len(like) < len(new.like):
            log.warning("item %r: %d items that it is like are not known", name, len(new.like) - len(like))
        if like:
            parts.append(like_items(torch.tensor(like)))
        histories = [known for history in new.histories if (known := _with_leaf(model, ids.find_known(history)))]
        if histories:  # by regression, where there are users to learn from
            users = self._background_users()
            parts.append(
                like_histories(model, histories) if users is None else learn_placement(model, histories, users)
            )
        if new.vector is not None and self._vectors is not None and len(new.vector) == self._vectors.shape[1]:
            has_leaf = _leaves(model, range(len(self._vectors))) != PAD
            parts.append(like_vector(self._vectors, new.vector, has_leaf))
        elif new.vector is not None:
            log.warning("item %r: its vector does not fit those that this model was built from", name)
        (number,) = catalogue.ids.find([name])
        category = None if number is None else catalogue.text("category", number)
        if not parts and category:
            same = [other for other in catalogue.in_category(category) if other < len(ids) and other != number]
            parts += [like_popular(model, torch.tensor(same))] if same else []
        return average(parts)

    def _background_users(self) -> BackgroundUsers | None:
        """Users to learn from; None without a training log, and for a scorer that cannot."""
        if self._data is None or not len(self._data.train) or not self.model.scorer.names:
            return None
        with BACKGROUND_LOCK:
            self._background = users = self._background or BackgroundUsers(self.model, self._data)
            return users

    def _content_of(self, catalogue: Catalogue, model: TreeModel) -> Content:
        """The features of the items, read once."""
        with BACKGROUND_LOCK:
            self._content = content = self._content or Content(catalogue, model)
            return content

    # Replaying the journal

    def apply(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Apply entries of a journal that another process writes, in order, while searches run."""
        self._replay(entries, more_follow=True)

    def _replay(self, entries: Sequence[Mapping[str, Any]], more_follow: bool = False) -> None:
        """Apply entries in order, those of a kind together."""
        version = self.version + count_changes(entries)
        added: list[tuple[str, Mapping[str, Any]]] = []  # entries of items
        values = defaultdict[str, dict[str, Any]](dict)  # by field and item

        def apply_pending() -> None:
            for group in independent_groups(added):
                self._replay_added(group)
            added.clear()
            self._replay_values(values)
            values.clear()

        for entry in entries:
            kind, name = entry["kind"], entry.get("item", "")
            if kind in ("add", "set") and (values if kind == "add" else added):
                apply_pending()
            if kind == "add" and self.ids.integer and not is_integer(name):  # written for another model
                log.warning("item %r is left out: the ids of this model are whole numbers", name)
            elif kind == "add":
                added.append((name, entry))
            elif kind == "set":
                for field, given in entry["values"].items():
                    values[field].update(zip(entry["items"], given, strict=True))
            elif kind == "remove":
                apply_pending()
                if self.is_visible(name):
                    self._hide([name])
            elif kind == "forget":
                apply_pending()
                self._replay_forget(name, entry.get("model", ""))
            elif kind not in ("events", "requests", "retire", "run", "before"):
                raise unknown_kind(kind)
        apply_pending()
        added_events = self._user_events.replay(entries, self._digest, more_follow)
        model = self._part_events.add(self.model, added_events)
        for entry in entries:
            if entry["kind"] == "retire":
                model = self._part_events.retire(model, entry["before"])
        self.snapshot = self.snapshot._replace(version=version, model=model)

    def _replay_added(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Add items, or show them, with what their entries say."""
        values, placing = defaultdict[str, dict[str, Any]](dict), dict[str, ItemFields]()
        for name, entry in entries.items():
            for field, value in added_values(entry).items():
                values[field][name] = value
            placing[name] = placing_fields(entry)
        catalogue, update = recorded_update(list(entries), values, self.catalogue)
        update = update._replace(placing=placing)
        since = {name: int(entry["since"]) for name, entry in entries.items() if "since" in entry}
        snapshot = self.snapshot._replace(catalogue=catalogue)
        self._apply(self._change(snapshot, update, show=True, check=False, since=since))

    def _replay_values(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Change attributes. Those of an item that this model does not have wait until it is added."""
        if not values:
            return
        placed = _placed(self.model, dict.fromkeys(name for by_item in values.values() for name in by_item))
        for field, by_item in values.items():
            for name in by_item.keys() - placed.keys():
                self._absent.setdefault(name, {})[field] = by_item[name]
        known = {
            field: {name: by_item[name] for name in by_item if name in placed} for field, by_item in values.items()
        }
        catalogue, update = recorded_update(list(placed), known, self.catalogue)
        self._apply(self._change(self.snapshot._replace(catalogue=catalogue), update, show=False, check=False))

    def _replay_forget(self, name: str, digest: str) -> None:
        """Forget an item; one that this model has learned, and an earlier one forgot, is only hidden."""
        self._absent.pop(name, None)
        if not _placed(self.model, [name]):
            return
        if name in self._added or digest == self._digest:
            self._forget([name])
        else:
            self._items.pop(name, None)
            self._hide([name])
            catalogue = self.catalogue.restored(np.array(self.ids.find_known([name])), self._unchanged)
            self._publish(self.snapshot._replace(catalogue=catalogue), 0)


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


def with_starts(catalogue: Catalogue, since: Mapping[str, int]) -> Catalogue:
    """The catalogue with items that were added since the log ended."""
    found = zip(since.values(), catalogue.ids.find(since), strict=True)
    known = {number: at for at, number in found if number is not None}
    if catalogue.starts is None or not known:
        return catalogue
    return catalogue.with_starts(catalogue.starts.changed([*known], [*known.values()]))


def with_saved_texts(catalogue: Catalogue, saved: SavedChanges) -> Catalogue:
    """The catalogue with the titles and categories of saved changes; those of a run with a table are in the table."""
    for role in ROLES:
        texts = {name: getattr(item, role) for name, item in saved.items.items() if getattr(item, role) is not None}
        names = [name for name, number in zip(texts, catalogue.ids.find(texts), strict=True) if number is not None]
        if names:
            column, values = catalogue.typed(role, [texts[name] for name in names], names)
            catalogue, _ = catalogue.changed(np.array(catalogue.ids.find_known(names)), {column: values})
    return catalogue

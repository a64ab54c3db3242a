"""Changes of a recommender without training: new and removed items, and new events in closed form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.builder import ClosedFormBuilder
from beamtree.data import HISTORY, Events, Prepared
from beamtree.errors import requires
from beamtree.live.edits import ADDED, edges_of, memory_of
from beamtree.live.events import as_time
from beamtree.live.live_model import LiveModel, SavedChanges
from beamtree.live.opening import load_changes, open_live, save_changes
from beamtree.live.placement import NewItem
from beamtree.model import TreeModel
from beamtree.query import id_list
from beamtree.scorers import MemoryScorer, Scorer, SumScorer
from beamtree.train.options import TrainingOptions

EXAMPLES = 10  # histories by which a new item of a log is placed, at most

NewEvents = Mapping[str, Sequence[tuple[str, int | None]]]  # (item, time) of each user, oldest first


class CatalogueUpdates:
    """The methods of a recommender that change its items and events without training."""

    _live: LiveModel | None = None
    _options: TrainingOptions
    _run: dict[str, Any]
    _loaded: Path | None = None  # the run that was loaded

    @property
    def model(self) -> TreeModel:
        """The tree and the scorer."""
        raise NotImplementedError

    def add_items(self, items: Mapping[str, NewItem | Mapping[str, Any]] | Iterable[object]) -> int:
        """Add items that can be recommended at once, all or none of them; returns how many were new or changed.

        Args:
            items: ids with what each comes with: `{"B9": {"like": ["B1"], "histories": [["B2", "B3"]]}}`. `like` names
                similar items, `histories` are of users who chose it next, `category` is a category of other items,
                `vector` is in the space of those the tree was built from, `title` is for display. A plain list of ids
                adds items without any information.

        An item that was removed is recommended as before. A field that is left out of an existing item keeps its value;
        None clears it.
        """
        new = items if isinstance(items, Mapping) else {str(item): NewItem() for item in id_list(items)}
        return self._live_model().add_items(new)

    def remove_items(self, items: Iterable[object]) -> int:
        """Hide items: they are not recommended until they are added again. Returns how many were visible."""
        return self._live_model().remove_items(map(str, id_list(items)))

    def forget_items(self, items: Iterable[object]) -> int:
        """Forget items: they are not recommended, and added again they are new. Returns how many there were."""
        return self._live_model().forget_items(map(str, id_list(items)))

    def update(
        self,
        log: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
    ) -> "CatalogueUpdates":
        """Learn from new events in closed form, without gradients and with the same hyperparameters.

        Args:
            log: of new events only, in any form that `fit` takes.
            user: the column of users, if it has an unusual name.
            item: the column of items, likewise.
            time: the column of times, likewise.
            time_format: how dates are written, as in strptime; detected unless given.

        New items are placed by the histories of the users who chose them. Recommendations for users follow their new
        events at once. Co-occurrence, transitions and factors are refitted on all events. Events with times count once,
        however often they are given.
        """
        with requires("", "reading a log"):
            from beamtree.ingest.user_events import read_events

        live, events = self._live_model(), read_events(log, user, item, time, time_format)
        live.add_items({name: NewItem(histories=rows) for name, rows in _new_items(live, events).items()})
        live.record_events(
            (name, [chosen], None if at is None else as_time(at)) for name, row in events.items() for chosen, at in row
        )
        data = self._training_data()
        if data is not None and isinstance(live.model.scorer, SumScorer) and live.model.scorer.made:
            live.replace_model(_refitted(live, live.model.scorer, data, self._options.seed))
        return self

    def _training_data(self) -> Prepared | None:
        raise NotImplementedError

    def _live_model(self) -> LiveModel:
        if self._live is None:
            self._live = self._open_live()
        return self._live

    def _open_live(self, saved: SavedChanges | None = None) -> LiveModel:
        tables = {"items": self._options.items, "vectors": self._options.vectors}
        return open_live(self.model, self._run, self._loaded, data=self._training_data(), saved=saved, **tables)

    def _save_changes(self, folder: Path) -> None:
        save_changes(folder, self._live)

    def _load_changes(self, folder: Path) -> None:
        saved = load_changes(folder)
        self._live = None if saved is None else self._open_live(saved)


def _new_items(live: LiveModel, events: NewEvents) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The items that the model does not have, each with histories of users before they chose it."""
    result: dict[str, list[tuple[str, ...]]] = {}
    for user, row in events.items():
        items = [item for item, _ in row]
        new = [index for index, is_known in enumerate(live.has_items(items)) if not is_known]
        if not new:
            continue
        history = live.history(user)
        past = [live.ids[number] for number in history.items] if history is not None else []
        for index in new:
            examples = result.setdefault(items[index], [])
            if len(examples) < EXAMPLES:
                examples.append(tuple([*past, *items[:index]][-HISTORY:]))
    return {item: tuple(example for example in examples if example) for item, examples in result.items()}


def _refitted(live: LiveModel, scorer: SumScorer, data: Prepared, seed: int) -> TreeModel:
    """The model with its closed-form parts refitted on all events, old and new."""
    model, count, device = live.model, live.model.tree.num_items, str(live.model.tree.device)
    events = _all_events(data, live)
    data = replace(data, description={**data.description, "num_items": count})
    parts = ClosedFormBuilder(
        model.tree, data, seed, device, model.first_level, events=events, choices=dict(scorer.made)
    ).all_parts()
    changed: dict[str, Scorer] = {name: parts.part(name).to(device) for name in parts.names}
    popularity = events.popularity(count)
    if ADDED in scorer.names:
        added = scorer.part(ADDED)
        assert isinstance(added, MemoryScorer)
        edges = edges_of(added)
        unseen = popularity.cpu() == 0  # the refitted parts know nothing about these items
        changed[ADDED] = memory_of(edges.select(unseen[edges.source] | unseen[edges.target]), count).to(device)
    result = model.with_scorer(scorer.with_parts(changed))
    result.popularity = popularity
    return result.eval()


def _all_events(data: Prepared, live: LiveModel) -> Events:
    """The training and validation events, with recorded events after those of each user; new users come last."""
    events, names = data.training_users()
    rows = {name: row for row, name in enumerate(names)}
    for user in live.events:
        rows.setdefault(user, len(rows))
    owners, items = [], []
    for user, recorded in live.events.items():
        numbers = live.ids.find_known(event.item for event in recorded)
        owners += [rows[user]] * len(numbers)
        items += numbers
    owner = torch.cat([torch.repeat_interleave(events.counts()), torch.tensor(owners, dtype=torch.int64)])
    item = torch.cat([events.item_numbers().long(), torch.tensor(items, dtype=torch.int64)])
    order: Tensor = owner.argsort(stable=True)
    offsets = pad(torch.bincount(owner, minlength=len(rows)).cumsum(0), (1, 0))
    return Events(offsets, item[order].int(), f"{events.name}, {len(items)} more", events.ids)

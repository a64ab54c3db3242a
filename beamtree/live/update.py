"""Learning from new events in closed form: new items are placed, events recorded, and closed-form parts refitted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from beamtree.closed_form.builder import ClosedFormBuilder
from beamtree.data import HISTORY, Events, Prepared
from beamtree.data.csr import group_rows
from beamtree.evaluate import FittedUsers
from beamtree.live.edits import ADDED, CONTENT, MEMORY, edges_of, memory_of
from beamtree.live.events import Event, as_time
from beamtree.live.live_model import LiveModel
from beamtree.live.placement import NewItem
from beamtree.model import TreeModel
from beamtree.scorers import MemoryScorer, Scorer, SumScorer, context_part
from beamtree.scorers.context import CONTEXT
from beamtree.train.context import refit_context

EXAMPLES = 10  # histories by which a new item of a log is placed, at most

NewEvents = Mapping[str, Sequence[tuple[str, int | None]]]  # (item, time) of each user, oldest first


def update_model(
    live: LiveModel, events: NewEvents, dislikes: Mapping[str, Sequence[str]], data: Prepared | None, seed: int
) -> None:
    """Add the new items of some events, record them, and refit the closed-form parts if the log is available.

    Args:
        live: the model.
        events: new ones.
        dislikes: the items that users dislike, which are recorded too.
        data: the training log, if available.
        seed: of the refit.
    """
    live.update_items({name: NewItem(histories=rows) for name, rows in _new_items(live, events).items()})
    live.record_events(
        (name, [chosen], None if at is None else as_time(at)) for name, row in events.items() for chosen, at in row
    )
    live.record_dislikes(dislikes)
    if data is not None and _has_closed_form(live.model):
        live.replace_model(refit_parts(live.model, data, _all_events(data, live), seed))


def fitted_users(
    model: TreeModel, data: Prepared, run: Mapping[str, Any], events: Mapping[str, Sequence[Event]] | None
) -> FittedUsers:
    """The users that the model of a run was fitted to: in training, and by updates.

    Args:
        model: the model.
        data: the training log.
        run: the content of run.json.
        events: those of updates since, by user; None for none.
    """
    updated = events if events and _has_closed_form(model) else {}
    times = (event.time for recorded in updated.values() for event in recorded)
    until = max((math.inf if time is None else time for time in times), default=-math.inf)
    return FittedUsers(data, bool(run.get("refit") or updated), frozenset(updated), until)


def _has_closed_form(model: TreeModel) -> bool:
    return isinstance(model.scorer, SumScorer) and bool(model.scorer.hyperparameters)


def _new_items(live: LiveModel, events: NewEvents) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The items that the model does not have, each with histories of users before they chose it."""
    result: dict[str, list[tuple[str, ...]]] = {}
    for user, row in events.items():
        items = [item for item, _ in row]
        new = [index for index, is_known in enumerate(live.has_items(items)) if not is_known]
        if not new:
            continue
        history = live.history(user)
        past = [live.ids.name(number) for number in history.items] if history is not None else []
        for index in new:
            examples = result.setdefault(items[index], [])
            if len(examples) < EXAMPLES:
                examples.append(tuple([*past, *items[:index]][-HISTORY:]))
    return {item: tuple(example for example in examples if example) for item, examples in result.items()}


def refit_parts(model: TreeModel, data: Prepared, events: Events, seed: int) -> TreeModel:
    """The model with its closed-form parts fitted again, to these events, with the penalties and weights that it has.

    Partners of items that were added later stay where the events do not contain the item.
    """
    scorer, count, device = model.scorer, model.tree.num_items, str(model.tree.device)
    assert isinstance(scorer, SumScorer)
    data = replace(data, description={**data.description, "num_items": count})
    parts = ClosedFormBuilder(
        model.tree, data, seed, device, model.first_level, events=events, hyperparameters=dict(scorer.hyperparameters)
    ).all_parts()
    # Parts with a weight of 0 were not saved.
    changed: dict[str, Scorer] = {name: parts.part(name).to(device) for name in parts.names if name in scorer.names}
    if CONTENT in scorer.hyperparameters and MEMORY in changed:  # features do not change
        before, fitted = scorer.part(MEMORY), changed[MEMORY]
        assert isinstance(before, MemoryScorer)
        assert isinstance(fitted, MemoryScorer)
        changed[MEMORY] = fitted.with_list(*before.last_list())
    popularity = events.popularity(count)
    if ADDED in scorer.names:
        added = scorer.part(ADDED)
        assert isinstance(added, MemoryScorer)
        edges = edges_of(added)
        unseen = popularity.cpu() == 0  # the refitted parts know nothing about these items
        changed[ADDED] = memory_of(edges.select(unseen[edges.source] | unseen[edges.target]), count).to(device)
    context = context_part(scorer)
    if context is not None and events.contexts is not None:
        changed[CONTEXT] = refit_context(context, model.tree, events, count, seed)
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
    weights = events.own_weights()
    weights = None if weights is None else torch.cat([weights, torch.ones(len(items))])
    by_user = group_rows(owner, item.int(), len(rows), weights)
    return Events(by_user.offsets, by_user.columns, f"{events.name}, {len(items)} more", events.ids, by_user.values)

"""What is learned from new events without a gradient: the parts in closed form, made again with every choice kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.builder import Start
from beamtree.data import HISTORY, Events, Prepared
from beamtree.live.likeness import NewItem
from beamtree.live.live import Live
from beamtree.live.memory import ADDED, as_memory, entries_of
from beamtree.live.times import as_time
from beamtree.model import TreeModel
from beamtree.scorers import MemoryScorer, Scorer, SumScorer

EXAMPLES = 10  # histories that a new item is placed by


Rows = Mapping[str, Sequence[tuple[str, int | None]]]  # of each user, items and their times, oldest first


def update(live: Live, rows: Rows, data: Prepared | None, seed: int) -> None:
    """Take in new events: new items are placed, users have gone on, and the closed form is made again.

    Args:
        live: what changes.
        rows: what each user chose and when, oldest first.
        data: what the model was learned from; without it nothing is made again.
        seed: of all that is drawn.
    """
    live.add_all({item: NewItem(histories=histories) for item, histories in _new_items(live, rows).items()})
    live.record_all(
        (user, [item], None if time is None else as_time(time)) for user, row in rows.items() for item, time in row
    )
    if data is not None and isinstance(live.model.scorer, SumScorer) and live.model.scorer.made:
        live.take(_refitted(live, data, seed))


def _new_items(live: Live, rows: Rows) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The items that the model does not know, each with what some users had before they chose it."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for user, events in rows.items():
        row = [item for item, _ in events]
        fresh = [place for place, known in enumerate(live.knows(row)) if not known]
        if not fresh:
            continue
        before = live.history(user)
        past = [live.ids[number] for number in before.items] if before is not None else []
        for place in fresh:
            examples = found.setdefault(row[place], [])
            if len(examples) < EXAMPLES:
                examples.append(tuple([*past, *row[:place]][-HISTORY:]))
    return {item: tuple(each for each in examples if each) for item, examples in found.items()}


def _refitted(live: Live, data: Prepared, seed: int) -> TreeModel:
    """The model with its parts made from all events, old and new."""
    model, scorer = live.model, live.model.scorer
    assert isinstance(scorer, SumScorer)
    count = model.tree.num_items
    events = with_events(data, live)
    known = replace(data, description={**data.description, "num_items": count})
    device = str(model.tree.device)
    made = dict(scorer.made)
    parts = Start(model.tree, known, seed, device, model.first_level, events=events, made=made).all_parts()
    changed: dict[str, Scorer] = {name: parts.part(name).to(device) for name in parts.names}
    popularity = events.popularity(count)
    if ADDED in scorer.names:
        added = scorer.part(ADDED)
        assert isinstance(added, MemoryScorer)
        old = entries_of(added)
        unseen = popularity.cpu() == 0  # of these nothing else is known
        kept = old.of(unseen[old.source] | unseen[old.target])
        changed[ADDED] = as_memory(kept, count).to(device)
    whole = scorer.with_parts(changed)
    found = model.with_scorer(whole)
    found.popularity = popularity
    return found.eval()


def with_events(data: Prepared, live: Live) -> Events:
    """All events that may be learned from, with those since at the end of each user's own; new users come last."""
    events, names = data.learnable()
    known = {name: row for row, name in enumerate(names)}
    others = {name: len(known) + place for place, name in enumerate(each for each in live.events if each not in known)}
    rows, items = [], []
    for user, chosen in live.events.items():
        numbers = live.ids.known(each.item for each in chosen)
        rows += [known.get(user, others.get(user, 0))] * len(numbers)
        items += numbers
    return _appended(events, torch.tensor(rows, dtype=torch.int64), torch.tensor(items, dtype=torch.int64), len(others))


def _appended(events: Events, rows: Tensor, items: Tensor, more: int) -> Events:
    """Events with others [n] at the ends of their users' rows [n], and so many more users."""
    users = len(events) + more
    owner = torch.cat([torch.repeat_interleave(events.counts()), rows])
    whole = torch.cat([events.item_numbers().long(), items])
    order = owner.argsort(stable=True)
    offsets = pad(torch.bincount(owner, minlength=users).cumsum(0), (1, 0))
    return Events(offsets, whole[order].int(), f"{events.name}, {len(items)} more", events.ids)

"""Learning from new events in closed form: new items are placed, events recorded, and closed-form parts refitted."""

import warnings
from collections.abc import Collection, Mapping, Sequence

import torch

from beamtree.data import HISTORY, BeforeAfter, Events, Prepared
from beamtree.data.csr import offsets_of
from beamtree.data.inputs import NO_TIME
from beamtree.data.times import MICRO, as_date, as_seconds, as_time, convert
from beamtree.live.events import in_seconds, now
from beamtree.live.live_model import LiveModel
from beamtree.live.placement import NewItem
from beamtree.live.refit import fitted_sections, has_closed_form, refit_parts, seed_of
from beamtree.parts import Part

EXAMPLES = 10  # histories by which a new item of a log is placed, at most

NewEvents = Mapping[str, Sequence[tuple[str, int | None]]]  # (item, time) of each user, oldest first


def update_model(
    live: LiveModel,
    events: NewEvents,
    dislikes: Mapping[str, Sequence[str]],
    data: Prepared | None,
    run: Mapping[str, object],
    parts: Sequence[Part] = (),
) -> None:
    """Add the new items of some events, record them, and refit the closed-form parts if the log is available.

    Args:
        live: the model.
        events: new ones.
        dislikes: the items that users dislike, which are recorded too.
        data: the training log, if available.
        run: the content of run.json.
        parts: those from outside the package.
    """
    events = _until_now(live, events)
    new = {name: NewItem(histories=rows) for name, rows in _new_items(live, events).items()}
    live.update_items(new, since=_first_times(events, new))
    live.record_events(
        (name, [chosen], None if at is None else as_time(at)) for name, row in events.items() for chosen, at in row
    )
    live.record_dislikes(dislikes)
    if data is not None and has_closed_form(live.model):
        joined = _all_events(data, fitted_sections(data, run, updated=True), live)
        live.replace_model(refit_parts(live.model, data, joined, seed_of(run), parts=parts))


def _new_items(live: LiveModel, events: NewEvents) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The items that the model does not have, each with histories of users before they chose it."""
    result: dict[str, list[tuple[str, ...]]] = {}
    for user, row in events.items():
        items = [item for item, _ in row]
        new = [index for index, is_known in enumerate(live.has_items(items)) if not is_known]
        if not new:
            continue
        past = [live.ids.name(number) for number in live.history(user).items]
        for index in new:
            examples = result.setdefault(items[index], [])
            if len(examples) < EXAMPLES:
                examples.append(tuple([*past, *items[:index]][-HISTORY:]))
    return {item: tuple(example for example in examples if example) for item, examples in result.items()}


def _until_now(live: LiveModel, events: NewEvents) -> NewEvents:
    """The events without those dated in the future, of which a warning tells."""
    future = {time for row in events.values() for _, time in row if time is not None and live.is_future(as_time(time))}
    if not future:
        return events
    kept = {user: [(item, time) for item, time in row if time not in future] for user, row in events.items()}
    count = sum(len(row) - len(kept[user]) for user, row in events.items())
    latest = as_date(max(map(as_time, future)))
    message = f"{count:,} of the events are dated in the future, up to {latest}: they are left out"
    warnings.warn(message, UserWarning, stacklevel=4)
    return {user: row for user, row in kept.items() if row}


def _first_times(events: NewEvents, items: Collection[str]) -> dict[str, int]:
    """When each of some items was first chosen, in seconds since 1970, where the times are a clock."""
    result: dict[str, int] = {}
    for item, time in (event for row in events.values() for event in row if event[0] in items):
        seconds = None if time is None else as_seconds(time)
        if seconds is not None:
            result[item] = min(seconds, result.get(item, seconds))
    return result


def _all_events(data: Prepared, sections: Sequence[BeforeAfter], live: LiveModel) -> Events:
    """The events of some sections with those recorded since, by user; new users come last.

    Where the log has a clock, the events of a user are in the order of their times, and recorded ones without a time of
    their own come after those in the log. Elsewhere all recorded ones do.
    """
    events = data.joined(sections)
    rows = {name: row for row, name in enumerate(data.joined_users(sections))}
    for user in live.events:
        rows.setdefault(user, len(rows))
    owners, items, moments = list[int](), list[int](), list[int]()
    for user, recorded in live.events.items():
        logged = _newest(events, rows[user])
        for event, number in zip(recorded, live.ids.find([event.item for event in recorded]), strict=True):
            if number is not None:
                owners.append(rows[user])
                items.append(number)
                moments.append(NO_TIME if events.clock is None else in_seconds(event, logged, events.clock))
    owner = torch.cat([torch.repeat_interleave(events.counts()), torch.tensor(owners, dtype=torch.int64)])
    item = torch.cat([events.item_numbers().long(), torch.tensor(items, dtype=torch.int64)])
    weights = events.own_weights()
    weights = None if weights is None else torch.cat([weights, torch.ones(len(items))])
    times, order = None, owner.argsort(stable=True)
    if events.times is not None:  # recorded events without any time are as old as the newest of the log
        newest, clock = int(events.times.max()) if len(events.times) else 0, events.clock
        later = torch.tensor(moments, dtype=torch.int64)
        if clock is not None:  # a date in the future is a mistake
            later = later.clamp(max=max(newest, int(convert(now(), MICRO, clock))))
        later = later.where(later != NO_TIME, newest)
        times = torch.cat([events.times, later])
        if clock is not None:
            by_time = times.argsort(stable=True)
            order = by_time[owner[by_time].argsort(stable=True)]
        times = times[order]
    offsets = offsets_of(torch.bincount(owner, minlength=len(rows)))
    weights, name = None if weights is None else weights[order], f"{events.name}, {len(items)} more"
    return Events(offsets, item.int()[order], name, events.ids, weights, times, clock=events.clock)


def _newest(events: Events, row: int) -> int:
    """The time of the newest event of a user; NO_TIME where there is none."""
    if events.times is None or row >= len(events) or events.offsets[row] == events.offsets[row + 1]:
        return NO_TIME
    return int(events.times[events.offsets[row + 1] - 1])

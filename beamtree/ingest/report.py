"""The report of a prepared log as text: what was read, what was dropped, and why."""

from collections.abc import Mapping
from time import time as now
from typing import Any

from beamtree.data.times import DAY, MICRO, as_date, convert
from beamtree.evaluate.metrics import few_users
from beamtree.ingest.columns import KIND, RATING, usual_column

DROPPED = {  # texts for the counts of a report
    "missing_user": "rows without a user",
    "missing_item": "rows without an item",
    "unreadable_time": "rows whose time cannot be read",
    "future_time": "rows dated in the future, more than a day from now",
    "missing_weight": "rows without a weight, or of other kinds",
    "dislikes": "rows that are dislikes, kept apart",
    "duplicates": "rows that repeat user, item and time of another",
    "events_of_items_with_few_events": "rows of items with fewer than {min_item_events} events",
    "events_of_users_with_few_events": "rows of users with fewer than {min_events} events",
    "events_of_users_without_training_events": "rows of users who have none before {date}",
}
OWNERS = {  # the counts of users or items of such rows
    "events_of_items_with_few_events": ("items_with_few_events", "items"),
    "events_of_users_with_few_events": ("users_with_few_events", "users"),
    "events_of_users_without_training_events": ("users_without_training_events", "users"),
}


def describe_columns(description: Mapping[str, Any]) -> str:
    """Which columns of a log were used, and which were not."""
    settings, ignored = description["settings"], description["report"]["ignored_columns"]
    in_order = "no time" if is_of_pairs(description) else "no time: the rows are assumed to be in order"
    time = in_order if settings["time"] is None else f"time {settings['time']}"
    context = f", context {' and '.join(settings['context'])}" if "context" in settings else ""
    unused = f"; not used: {', '.join(ignored)}" if ignored else ""
    return f"user {settings['user']}, item {settings['item']}, {time}{_describe_weights(settings)}{context}{unused}"


def _describe_weights(settings: Mapping[str, Any]) -> str:
    """Which weights events have, and what is to be predicted."""
    if "weight" not in settings:
        return ""
    kinds, target = settings["kinds"], settings["target"]
    values = "" if kinds is None else f" ({', '.join(f'{kind} {value:g}' for kind, value in kinds.items())})"
    wanted = f"at least {target:g}" if isinstance(target, int | float) else " and ".join(target or ())
    return f", weight {settings['weight']}{values}{wanted and ', to predict: ' + wanted}"


def unused_hint(description: Mapping[str, Any], dashes: str = "") -> str:
    """How unused columns could be used, if one looks like ratings or kinds of events; else "".

    Args:
        description: of prepared data.
        dashes: before the name of an option.
    """
    columns = description["report"]["ignored_columns"]
    rating, kind = usual_column(columns, RATING), usual_column(columns, KIND)
    if "weight" in description["settings"] or (rating is None and kind is None):
        return ""
    if rating is not None:
        return f"with {dashes}weight={rating} events count by their {rating}"
    return f"with {dashes}kinds=view=1,buy=10 or the like events count by their {kind}"


def describe_times(description: Mapping[str, Any]) -> str | None:
    """Whether the times of a log are a clock; None where it has none, or was prepared by an earlier version."""
    times = description.get("times")
    if times is None:
        return None
    if times["unit"] is None:
        return "The times of this log are only an order."
    first, last = (_date(times, name) for name in ("first", "last"))
    ahead = ", which is in the future" if convert(times["last"], times["unit"], 1) > now() + DAY else ""
    line = f"The times of this log are a clock (from {first} to {last}{ahead})."
    if "both" in times:
        line += (
            f" It is split by users: {times['both']:,} have events before and in its newest tenth, which is too few."
        )
    return line


def describe_split(description: Mapping[str, Any]) -> str | None:
    """What a split by time or of pairs holds out; None for other splits."""
    times = description.get("times", {})
    if is_of_pairs(description):
        return f"{_share_of_pairs(description)} of each user are to be found from the others"
    if "cut" not in times:
        return None
    if times["unit"] is None:
        return f"events from {times['cut']} on are to be predicted"
    return f"events of the last {_days(times)}, from {_date(times, 'cut')} on, are to be predicted"


def describe_choice(description: Mapping[str, Any]) -> str | None:
    """On what a model of a split by time or of pairs is chosen; None for other splits."""
    times, count = description.get("times", {}), description["users"]["val"]
    if is_of_pairs(description) and count:
        return f"The model was chosen on {_share_of_pairs(description)} of {count:,} users."
    if "cut" not in times or not count:
        return None
    when = f"from {times['cut']} on" if times["unit"] is None else f"in the last {_days(times)}"
    return f"The model was chosen on what {count:,} users did {when}."


def is_of_pairs(description: Mapping[str, Any]) -> bool:
    """Whether the pairs of a log were split."""
    return str(description["settings"].get("split", "")).partition(":")[0] == "pairs"


def _share_of_pairs(description: Mapping[str, Any]) -> str:
    """How many pairs were held out, in words."""
    share = float(description["settings"]["split"].partition(":")[2])
    return f"{'a tenth' if share == 0.1 else f'{share * 100:g} %'} of the pairs"


def _days(times: Mapping[str, Any]) -> str:
    """How much of the log is after the cut."""
    hours = max(1, round((times["last"] - times["cut"]) / times["unit"] / 3600))
    if hours < 48:
        return "hour" if hours == 1 else f"{hours} hours"
    return f"{round(hours / 24):,} days"


def _date(times: Mapping[str, Any], name: str) -> str:
    """The day of a time."""
    return as_date(convert(times[name], times["unit"], MICRO))


def dropped_rows(description: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Why rows were dropped, and how many."""
    settings, report = description["settings"], description["report"]
    date = settings.get("split", "").partition(":")[2]  # in folders of earlier versions
    return [(text.format(**settings, date=date), report[name]) for name, text in DROPPED.items() if report.get(name)]


def describe_log(description: Mapping[str, Any]) -> list[str]:
    """A report of a few lines: rows and columns, what was dropped and why, and what is left."""
    settings, report, users = (description[key] for key in ("settings", "report", "users"))
    lines = [f"Read {report['rows']:,} rows: {describe_columns(description)}."]
    if report["ignored_columns"] and "weight" not in settings:
        hint = unused_hint(description)
        lines.append(f"Every row counts as one event, whatever the unused columns say{hint and '; ' + hint}.")
    reasons = [f"{count:,} {text}" for text, count in dropped_rows(description)]
    owners = [f"{report[name]:,} {kind}" for name, kind in OWNERS.values() if report.get(name)]
    counts = f" ({', '.join(owners)})" if owners else ""
    lines.append(f"Dropped {'; '.join(reasons)}{counts}." if reasons else "Dropped nothing.")
    split = describe_split(description)
    kind = "Split of pairs" if is_of_pairs(description) else "Split by time"
    lines += [line for line in (describe_times(description), split and f"{kind}: {split}.") if line]
    least = f", who have at least {settings['min_eval_events']} events" if "min_eval_events" in settings else ""
    counts = f"{description['num_users']:,} users, {description['num_items']:,} items and "
    counts += f"{description['num_events']:,} events are left"
    lines.append(f"{counts}; {users['val']:,} users validate and {users['test']:,} test{least}.")
    if few := few_test_users(description):
        lines.append(f"{few[0].upper()}{few[1:]}.")
    return lines


def few_test_users(description: Mapping[str, Any]) -> str | None:
    """A warning where there are few test users; None where there are enough, or none."""
    count = description["users"]["test"]
    return few_users(count) if count else None

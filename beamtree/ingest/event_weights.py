"""What the events of a log are worth: a column of numbers such as ratings, or of kinds such as view and buy.

In the pipeline the weight of an event is one number: above 0 for an event that may be predicted, below 0 for one that
is only history, 0 for a dislike, and null where a row has no weight.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from beamtree.errors import as_float
from beamtree.ingest.columns import KIND, usual_column

Kinds = Mapping[str, float] | str
Target = str | float | Iterable[str]
WEIGHING = ("weight", "kinds", "target", "dislike")  # the settings of prepared data that say what events are worth


def weighing_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings of prepared data say about the weights of events, as arguments of `open_logs`."""
    return {name: settings[name] for name in WEIGHING if name in settings}


class EventWeights(NamedTuple):
    """How the weights of events are read.

    Args:
        column: of numbers, or of kinds.
        kinds: the weight of each kind; None for a column of numbers.
        target: the kinds that are predicted, or the lowest number that is; None for all events that are no dislikes.
        dislike: events of at most this weight are dislikes.
    """

    column: str
    kinds: dict[str, float] | None
    target: tuple[str, ...] | float | None
    dislike: float

    def expression(self) -> pl.Expr:
        """The weight of a row, float32."""
        value = pl.col(self.column)
        if self.kinds is None:
            weight = value.cast(pl.Float64, strict=False)
            predicted = pl.lit(True) if self.target is None else weight >= pl.lit(self.target)
        else:
            kind = value.cast(pl.String).str.strip_chars()
            weight = kind.replace_strict(self.kinds, default=None, return_dtype=pl.Float64)
            predicted = kind.is_in(self.target) if isinstance(self.target, tuple) else pl.lit(True)
        signed = pl.when(weight <= self.dislike).then(0.0).when(predicted).then(weight).otherwise(-weight)
        return pl.when(weight.is_finite()).then(signed).cast(pl.Float32)

    def settings(self) -> dict[str, object]:
        """What a description of prepared data records."""
        return {"weight": self.column, "kinds": self.kinds, "target": self.target, "dislike": self.dislike}


def event_weights(
    columns: Sequence[str], weight: str | None, kinds: Kinds | None, target: Target | None, dislike: float | None
) -> EventWeights | None:
    """How to read the weights of a log with these columns; None where every event counts the same.

    Args:
        columns: of the log.
        weight: the column of numbers, or of kinds if `kinds` are given; then it is found by usual names unless given.
        kinds: the weight of each kind, as a dict or as text: view=1,cart=3,buy=10. Rows of other kinds are dropped.
        target: what is to be predicted: kinds, or the lowest number. Default: every event that is no dislike.
        dislike: events of at most this weight are dislikes. Default: 0.
    """
    if weight is None and kinds is None:
        given = "target" if target is not None else "dislike" if dislike is not None else None
        if given is not None:
            raise ValueError(f"`{given}` needs weights of events: name their column with `weight`, or give `kinds`")
        return None
    values = None if kinds is None else _parse_kinds(kinds)
    column = weight if weight is not None else usual_column(columns, KIND)
    if column is None or column not in columns:
        what = "no column of kinds was found" if column is None else f"there is no column {column!r} for `weight`"
        raise ValueError(f"{what}: name one with `weight`; the columns are {', '.join(columns)}")
    least = 0.0 if dislike is None else as_float(dislike)
    if not least >= 0:
        raise ValueError(f"dislike={dislike}: weights of 0 and below are dislikes anyway; give a number above 0")
    return EventWeights(column, values, _parse_target(target, values, least), least)


def _parse_kinds(kinds: Kinds) -> dict[str, float]:
    pairs = dict(kinds) if isinstance(kinds, Mapping) else {}
    for text in kinds.split(",") if isinstance(kinds, str) else ():
        kind, _, value = text.rpartition("=")
        if not kind.strip() or kind.strip() in pairs:
            raise ValueError(f"kinds={kinds!r}: give each kind once with its weight, such as view=1,cart=3,buy=10")
        pairs[kind.strip()] = value  # type: ignore[assignment]
    try:
        values = {str(kind): as_float(value) for kind, value in pairs.items()}
    except (TypeError, ValueError):
        raise ValueError(f"kinds={kinds!r}: a weight is a number, such as view=1,cart=3,buy=10") from None
    if not values or not all(map(math.isfinite, values.values())):
        raise ValueError(f"kinds={kinds!r}: give each kind a finite weight, such as view=1,cart=3,buy=10")
    if max(values.values()) <= 0:
        raise ValueError(f"kinds={kinds!r}: one kind at least needs a weight above 0")
    return values


def _parse_target(
    target: Target | None, kinds: dict[str, float] | None, least: float
) -> tuple[str, ...] | float | None:
    if target is None:
        return None
    if kinds is None:
        try:
            lowest = as_float(target)
        except (TypeError, ValueError):
            raise ValueError(f"target={target!r}: give the lowest weight that is to be predicted, such as 4") from None
        if not lowest > least:
            raise ValueError(f"target={target}: weights of at most {least:g} are dislikes, and are never predicted")
        return lowest
    names = target.split(",") if isinstance(target, str) else target if isinstance(target, Iterable) else [target]
    wanted = tuple(dict.fromkeys(str(name).strip() for name in names))
    if not wanted or not set(wanted) <= kinds.keys():
        raise ValueError(f"target={target!r}: choose from the kinds {', '.join(kinds)}")
    disliked = next((kind for kind in wanted if kinds[kind] <= least), None)
    if disliked is not None:
        raise ValueError(f"target={target!r}: {disliked} is a dislike (weight {kinds[disliked]:g}), never predicted")
    return wanted

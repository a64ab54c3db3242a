"""Rules on an answer: boosts, at most n items of one kind, pins, diversity and places for new items.

The definition. Allowed are the items that pass the filter of a request and that the history does not exclude. The score
of an item is its probability (of popular items: its share of all events) times the factors of all boosts for it.

1. A pin holds if its place is at most m, its item is allowed, and the pins at places before it that hold leave room for
   it under `at_most`. Other pins are ignored.
2. The answer has m items, or as many as there can be: the largest number of allowed items that include those of the
   pins that hold and keep `at_most`.
3. Places are filled from the first. A place with a pin gets its item; a pin at a place beyond the end of the answer
   comes as late as possible. Any other place gets a candidate: an allowed item that is neither in the answer nor
   pinned, that keeps `at_most` together with all these, and with which the answer can still get as many items as it
   must have. Without `diversity` it is the candidate with the highest score.
4. With a `diversity` d it is, of the POOL best candidates, the one with the highest (1 - d) · score / best - d · cos:
   `best` is the highest score of an allowed item that is not pinned, and `cos` the highest cosine between the item's
   vector and those of the items at the places before, 0 at the first place.

5. With `fresh`, at least so many items of the answer are new, where that is possible: as soon as no more places are
   left that have no pin than new items are missing, only new items are candidates, unless there is none.

`at_most` takes one or two columns. Whether m items can be had under the limits of three is a problem that nobody can
solve fast (three-dimensional matching); of two it is a flow.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beamtree.data.ages import AGE
from beamtree.data.ids import as_id
from beamtree.query.history import id_list

POOL = 100  # candidates that diversity chooses from
MAX_BOOSTS = 6  # every combination of boosts is searched separately
MAX_PINS = 100


@dataclass(frozen=True)
class Boost:
    """Multiplies the scores of some items, given by ids or by an expression over their attributes."""

    factor: float  # above 1 for more of them, below 1 for fewer
    items: tuple[str, ...] = ()
    where: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float):
            raise ValueError(f"boosts: a factor is a number above 0, not {str(self.factor)[:80]!r}")
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"boosts: the factor {self.factor} is not a number above 0")
        object.__setattr__(self, "items", tuple(as_id(item) for item in id_list(self.items)))
        if bool(self.items) == (self.where is not None) or not isinstance(self.where, str | None):
            raise ValueError("boosts: give each boost a factor, and items or where")

    def __str__(self) -> str:
        if self.where is not None:
            return f"boost {self.factor:g} where {self.where}"
        return f"boost {self.factor:g}"


@dataclass(frozen=True)
class Fresh:
    """Reserves places for new items."""

    days: float  # items whose age in days is below this are new
    least: int = 1  # how many of an answer are new, at least, where so many are allowed

    def __post_init__(self) -> None:
        days, least = self.days, self.least
        if isinstance(days, bool) or not isinstance(days, int | float) or not (math.isfinite(days) and days > 0):
            raise ValueError(f"fresh: days={str(days)[:80]}: give a number above 0")
        if type(least) is not int or least < 1:
            raise ValueError(f"fresh: least={str(least)[:80]}: give a whole number from 1")

    @property
    def where(self) -> str:
        """The expression that is true for new items."""
        return f"{AGE} < {float(self.days)!r}"

    def __str__(self) -> str:
        return f"at least {self.least} under {self.days:g} days"


@dataclass(frozen=True)
class Rules:
    """What an answer must keep to, beside a filter; `beamtree.query.rules` has the exact definition.

    Args:
        boosts: factors of scores: `[{"where": "stock > 100", "factor": 1.5}, {"items": ["B7"], "factor": 0.2}]`.
        at_most: how many items of an answer may have the same value in a column: `{"brand": 2, "category": 3}`. One or
            two columns; items without a value are not limited.
        pins: ids for the first places, `["B1", "B2"]`, or by place, `{3: "B1"}`.
        diversity: from 0, only the score counts, to 1, only how different an item is from those before it (maximal
            marginal relevance).
        fresh: how many items of an answer are new, at least: `{"days": 30, "least": 2}`. It needs a log with a clock.
    """

    boosts: Any = ()  # stored as tuples, so that rules can be compared and hashed
    at_most: Any = ()
    pins: Any = ()
    diversity: float = 0.0
    fresh: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "boosts", tuple(_boosts(self.boosts)))
        object.__setattr__(self, "at_most", tuple(_limits(self.at_most)))
        object.__setattr__(self, "pins", tuple(sorted(_pins(self.pins))))
        number = self.diversity
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
            raise ValueError(f"diversity={str(number)[:80]}: give a number from 0 to 1")
        object.__setattr__(self, "fresh", _fresh(self.fresh))

    @property
    def is_empty(self) -> bool:
        """Whether no rule is given."""
        return not (self.boosts or self.at_most or self.pins or self.diversity or self.fresh)

    @property
    def needs_attributes(self) -> bool:
        """Whether they depend on attributes of the items."""
        return bool(self.at_most or self.fresh) or any(boost.where is not None for boost in self.boosts)

    @property
    def reads_age(self) -> bool:
        """Whether they depend on the age of items."""
        return self.fresh is not None or any(AGE in (boost.where or "") for boost in self.boosts)

    def as_dict(self) -> dict[str, Any]:
        """The rules as JSON values, from which they can be made again."""
        boosts = [
            {"factor": boost.factor, **({"items": list(boost.items)} if boost.items else {"where": boost.where})}
            for boost in self.boosts
        ]
        pins = {str(place): item for place, item in self.pins}
        fresh = {} if self.fresh is None else {"fresh": vars(self.fresh).copy()}
        return {"boosts": boosts, "at_most": dict(self.at_most), "pins": pins, "diversity": self.diversity, **fresh}


def parse_rules(rules: Rules | Mapping[str, Any] | None) -> Rules | None:
    """Rules from a dict; None if there are none."""
    if rules is None:
        return None
    if not isinstance(rules, Rules):
        fields = Rules.__dataclass_fields__
        if not isinstance(rules, Mapping) or not rules.keys() <= fields.keys():
            raise ValueError(f"rules: give a dict with some of {', '.join(fields)}")
        rules = Rules(**rules)
    return None if rules.is_empty else rules


def read_rules(text: str | None) -> Rules | None:
    """Rules from JSON, or from a file of it."""
    if text is None:
        return None
    is_json = text.lstrip().startswith("{")
    try:
        return parse_rules(json.loads(text if is_json else Path(text).read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"rules={text[:80]} is not JSON: {str(error)[:80]}") from error


def _boosts(boosts: Any) -> Iterable[Boost]:
    if not isinstance(boosts, list | tuple) or len(boosts) > MAX_BOOSTS:
        raise ValueError(f"boosts: give a list of at most {MAX_BOOSTS}")
    for boost in boosts:
        if isinstance(boost, Mapping) and "factor" in boost and boost.keys() <= Boost.__dataclass_fields__.keys():
            boost = Boost(**boost)
        if not isinstance(boost, Boost):
            raise ValueError("boosts: give each boost a factor, and items or where")
        yield boost


def _fresh(fresh: Any) -> Fresh | None:
    if isinstance(fresh, Mapping) and "days" in fresh and fresh.keys() <= Fresh.__dataclass_fields__.keys():
        fresh = Fresh(**fresh)
    if not isinstance(fresh, Fresh | None):
        raise ValueError('fresh: give a dict of days and how many items at least, {"days": 30, "least": 2}')
    return fresh


def _limits(at_most: Any) -> Iterable[tuple[str, int]]:
    try:
        limits = dict(at_most)
    except (TypeError, ValueError) as error:
        raise ValueError('at_most: give a dict from column to number, {"brand": 2}') from error
    if len(limits) > 2:
        raise ValueError(f"at_most has {len(limits)} columns: give one or two")
    for column, limit in limits.items():
        if type(limit) is not int or limit < 1 or not isinstance(column, str):
            raise ValueError(
                f"at_most: {str(limit)[:80]!r} of {str(column)[:80]!r}: give a column, and a number from 1"
            )
        yield column, limit


def _pins(pins: Any) -> list[tuple[int, str]]:
    if isinstance(pins, tuple) and all(isinstance(pin, tuple) for pin in pins):
        pins = dict(pins)
    if isinstance(pins, Mapping):
        pairs = [(_place(place), as_id(item)) for place, item in pins.items()]
    elif isinstance(pins, list | tuple):
        pairs = [(place, as_id(item)) for place, item in enumerate(pins, 1)]
    else:
        raise ValueError('pins: give a list of ids, or a dict from place to id, {3: "B1"}')
    if len(pairs) > MAX_PINS:
        raise ValueError(f"pins: at most {MAX_PINS} are possible")
    if len({place for place, _ in pairs}) < len(pairs) or len({item for _, item in pairs}) < len(pairs):
        raise ValueError("pins: an item or a place occurs twice")
    return pairs


def _place(place: object) -> int:
    if isinstance(place, str) and place.isascii() and place.isdecimal():
        place = int(place[:9])
    if type(place) is not int or place < 1:
        raise ValueError(f"pins: {str(place)[:80]!r} is not a place: the first is 1")
    return place

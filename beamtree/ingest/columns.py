"""Which columns of a log are the user, the item and the time; and whether its first row is a header."""

import csv
import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TextIO

# Usual names, in order of preference; compared in lower case, without spaces and punctuation.
USER = (
    *("user", "userid", "uid", "visitor", "visitorid", "reviewerid", "customer", "customerid", "member", "memberid"),
    *("account", "accountid", "client", "clientid", "author", "authorid", "session", "sessionid"),
)
ITEM = (
    *("item", "itemid", "iid", "product", "productid", "asin", "movie", "movieid", "article", "articleid", "sku"),
    *("book", "bookid", "isbn", "track", "trackid", "song", "songid", "video", "videoid", "business", "businessid"),
    *("news", "newsid", "listing", "listingid", "page", "pageid", "content", "contentid"),
)
TIME = (
    *("timestamp", "time", "ts", "datetime", "unixreviewtime", "unixtime", "eventtime", "eventtimestamp", "date"),
    *("eventdate", "createdat", "created", "when"),
)
RATING = ("rating", "ratings", "stars", "score", "overall", "weight", "count", "plays", "playcount", "quantity")
KIND = (
    *("event", "eventtype", "kind", "action", "behavior", "behaviour", "behaviortype", "behaviourtype"),
    *("interaction", "interactiontype", "actiontype", "type"),
)

# Column names of well-known files without a header: the paper's two data sets.
FORMATS = {
    "amazon-ratings": ("user", "item", "rating", "timestamp"),
    "user-behavior": ("user", "item", "category", "behaviour", "timestamp"),
}

MAX_LINE = 1 << 20  # characters of a first line

Kinds = Mapping[str, float] | str
Target = str | float | Iterable[str]


@dataclass(frozen=True, kw_only=True)
class LogColumns:
    """Which columns of a log are read, and how: the one list of these arguments, which a test compares with all others.

    Args:
        user: the column of users.
        item: the column of items.
        time: the column of times.
        time_format: the format of dates as in strptime, such as "%d/%m/%Y %H:%M".
        weight: the column of what events are worth, such as ratings; of kinds, if `kinds` are given.
        kinds: the weight of each kind of event: {"view": 1, "cart": 3, "buy": 10}. Other kinds are dropped.
        target: what is to be predicted: kinds such as "buy", or the lowest weight, such as 4.
        dislike: events of at most this weight are dislikes: they are not part of histories, never predicted, and their
            items are never recommended to their users.
        context: columns of what was known when an event happened, such as ["country", "device", "hour"]; `hour` and
            `day` (1 to 7, from Monday) are taken from the times, in UTC, if no column has that name. Requests can give
            theirs.
    """

    user: str | None = None
    item: str | None = None
    time: str | None = None
    time_format: str | None = None
    weight: str | None = None
    kinds: Kinds | None = None
    target: Target | None = None
    dislike: float | None = None
    context: str | Iterable[str] | None = None

    def given(self) -> dict[str, Any]:
        """What is not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def or_as_in(self, settings: Mapping[str, Any]) -> "LogColumns":
        """What is not given is as in the settings of prepared data."""
        return LogColumns(**{field.name: settings.get(field.name) for field in fields(self)} | self.given())


USUAL_COLUMNS = LogColumns()  # users, items and times are found by their usual names


class Columns(NamedTuple):
    """The names of the columns that are read; a log without times is in order."""

    user: str
    item: str
    time: str | None


def open_text(path: Path) -> TextIO:
    """A text file, which may be compressed."""
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", errors="replace", newline="")


def first_row(path: Path) -> tuple[list[str], str]:
    """The fields of a text file's first row, and the separator."""
    with open_text(path) as file:
        line = file.readline(MAX_LINE)
    if len(line) == MAX_LINE:
        raise ValueError(f"{path}: its first line is longer than {MAX_LINE:,} characters, so it is not a log")
    if not line.strip():
        raise ValueError(f"{path} is empty, or begins with an empty line")
    if "\0" in line:
        raise ValueError(f"{path} is not UTF-8 (perhaps it is UTF-16): save it as UTF-8")
    separator = max(",\t;|", key=line.count)
    try:
        return next(csv.reader([line], delimiter=separator)), separator
    except csv.Error as error:  # a field of more than 131,072 characters
        raise ValueError(f"{path}: the first line cannot be read: {error}") from error


def is_header(row: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a first row is a header; `wanted` are columns that the user named, by name or by position from 1."""
    fields = [field.strip() for field in row]
    if any(name in fields for name in wanted):
        return True
    if any(re.fullmatch(r"[-+]?\d+(\.\d*)?", field) for field in fields):  # no column is called 5.0
        return False
    if any(_plain(field) in USER + ITEM + TIME for field in fields):
        return True
    by_position = any(name.isdigit() for name in wanted)
    return not by_position and not any(character.isdigit() for field in fields for character in field)


def positions(count: int) -> list[str]:
    """The names of columns without a header: 1, 2, 3, …"""
    return [str(number + 1) for number in range(count)]


def find_columns(columns: Sequence[str], wanted: LogColumns = USUAL_COLUMNS) -> Columns:
    """The columns given; otherwise by usual names, or by usual positions in a log without a header."""
    last = positions(len(columns))[-1] if len(columns) > 2 else None
    usual = {"user": (USER, "1"), "item": (ITEM, "2"), "time": (TIME, last)}
    by_name = {column.strip(): column for column in columns} | {column: column for column in columns}
    result = {}
    for role, name in (("user", wanted.user), ("item", wanted.item), ("time", wanted.time)):
        if name is not None and name not in by_name:
            raise ValueError(f"there is no column {name!r} for `{role}`: {_listed(columns)}")
        if name is not None:
            result[role] = by_name[name]
    has_no_header = list(columns) == positions(len(columns))
    for role in usual.keys() - result.keys():
        names, position = usual[role]
        guess = position if has_no_header and position in columns else usual_column(columns, names)
        if guess is not None and guess not in result.values():
            result[role] = guess
    for role in ("user", "item"):
        if role not in result:
            raise ValueError(f"no column for the {role} was found: name it with `{role}`; {_listed(columns)}")
    if len(set(result.values())) < len(result):
        raise ValueError(f"user, item and time must be different columns: {_listed(columns)}")
    return Columns(result["user"], result["item"], result.get("time"))


def usual_column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """The column with one of some usual names, in order of preference."""
    by_name = {_plain(column): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def shown(columns: Sequence[str], name: str) -> str:
    """The name of a column in a text, also of one without a name, such as the index of a frame of pandas in a CSV."""
    return name if name.strip() else f"column {columns.index(name) + 1} (unnamed)"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _listed(columns: Sequence[str]) -> str:
    if list(columns) == positions(len(columns)):
        return f"the log has no header; its columns are 1 … {len(columns)}"
    return f"the columns are {', '.join(shown(columns, name) for name in columns)} (or 1, 2, … if that is not a header)"

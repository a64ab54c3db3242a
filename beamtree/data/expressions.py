"""`where`: an expression over the columns of a table, read and evaluated as docs/rules.md says.

    expression = both {"or" both}
    both       = test {"and" test}
    test       = {"not"} comparison
    comparison = sum [sign sum | "is" ["not"] ("null" | "true" | "false")
                 | ["not"] ("in" list | ("like" | "ilike") text | "between" sum "and" sum)]
    sum        = product {("+" | "-") product}
    product    = factor {("*" | "/" | "%") factor}
    factor     = {"+" | "-"} value
    value      = number | text | "null" | "true" | "false" | column | function list | "(" expression ")"
    list       = "(" expression {"," expression} ")"

Every part is evaluated as it is read, for all rows at once. The text and the kinds of its values are checked on no
rows first, so an expression with an error costs nothing. A constant is a series of one value.
"""

import operator
import re
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from beamtree.data.attributes import no_column
from beamtree.errors import short_message

MAX_LENGTH = 2000  # characters of an expression
MAX_TOKENS = 1000
MAX_DEPTH = 32  # parentheses and functions inside each other

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
COMPARISONS = (*SIGNS, "is", "not", "in", "like", "ilike", "between")
KEYWORDS = {*COMPARISONS[len(SIGNS) :], "and", "or", "null", "true", "false"}
TOKEN = re.compile(
    r"""(?P<space>\s++)
    | (?P<text>'(?:[^'\ud800-\udfff]|'')*+')(?!['"\w])
    | (?P<quoted>"(?:[^"]|"")++")(?!['"\w])  # a column with an unusual name
    | (?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)(?!['"\w])
    | (?P<word>\w++)(?!['"])(?P<call>(?=\s*+\())?
    | (?P<comment>--|/\*)
    | (?P<sign>==|!=|<>|<=|>=|[=<>+\-*/%(),])""",
    re.VERBOSE,
)

# What a value can be; columns of all other types can only be compared with null.
NUMBER, BOOLEAN, TEXT, DATE, LIST, NULL = "a number", "true or false", "text", "a date", "a list", "null"
KINDS: dict[Any, str] = {
    pl.Int64: NUMBER, pl.Int128: NUMBER, pl.Float64: NUMBER, pl.Boolean: BOOLEAN,
    pl.String: TEXT, pl.Datetime: DATE, pl.List: LIST, pl.Null: NULL,
}  # fmt: skip
NULLS = {NUMBER: pl.Int64(), BOOLEAN: pl.Boolean(), TEXT: pl.String(), LIST: pl.List(pl.Boolean)}
WIDER = [pl.Boolean(), pl.Int64(), pl.Int128(), pl.Float64()]  # two of these meet in the wider one
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def rows_where(frame: pl.DataFrame, where: str) -> np.ndarray:
    """Which rows an expression such as `category == 'lamps' and price < 50` is true for, bool [rows].

    A ValueError in one line for anything that is not an expression over the columns.
    """
    tokens = _tokens(frame.columns, where)
    used = frame.select({token.text for token in tokens if token.kind == "column"})
    try:
        for rows in (used.clear(), used):
            result = _Reader(rows, where, tokens).read()
    except (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(f"where={_quote(where)} cannot be used: {short_message(error, 160)}") from error
    if _kind(result) not in (BOOLEAN, NULL):
        raise ValueError(f"where={_quote(where)} is {_kind(result)}, not true or false: compare it with something")
    passes: np.ndarray = result.cast(pl.Boolean).fill_null(False).to_numpy()
    return np.broadcast_to(passes, (len(frame),)) if len(passes) == 1 else passes


def columns_read(where: str, columns: Sequence[str]) -> list[str]:
    """The columns that an expression reads, of some that there are; a ValueError as in `rows_where`."""
    return list(dict.fromkeys(token.text for token in _tokens(columns, where) if token.kind == "column"))


# Reading


class Token(NamedTuple):
    """A word or sign of an expression."""

    kind: str  # number, text, column, function, end; otherwise the keyword or sign itself
    text: str
    start: int


def _tokens(columns: Sequence[str], where: str) -> list[Token]:
    """The words and signs of an expression; a ValueError for a word that is no keyword, column or function."""
    if len(where) > MAX_LENGTH:
        raise ValueError(f"where has {len(where):,} characters: at most {MAX_LENGTH:,} are possible")
    tokens, position = list[Token](), 0
    while position < len(where):
        match = TOKEN.match(where, position)
        if match is None or match["comment"]:
            raise ValueError(f"where={_quote(where)} cannot be used: {_error_at(where, position)}")
        kind, text, position = str(match.lastgroup), match.group(), match.end()
        if kind in ("word", "call"):
            kind = text.lower() if text.lower() in KEYWORDS else "column" if kind == "word" else "function"
        if kind == "function" and text.lower() not in FUNCTIONS:
            raise ValueError(f"where: {text[:80]!r} is no function: use {', '.join(sorted(FUNCTIONS))}")
        if kind in ("quoted", "text"):
            text = text[1:-1].replace(text[0] * 2, text[0])
        if kind in ("quoted", "column") and text not in columns:
            hint = " (text has single quotes)" if kind == "quoted" else ""
            raise ValueError(f"where: {no_column(text, columns)}{hint}")
        kind = {"quoted": "column", "sign": text}.get(kind, kind)
        if kind != "space":
            tokens.append(Token(kind, text, match.start()))
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"where has {len(tokens):,} words and signs: at most {MAX_TOKENS:,} are possible")
    return [*tokens, Token("end", "", len(where))]


def _error_at(where: str, position: int) -> str:
    return f"it has an error at {_quote(where[position:], 20)}" if where[position:] else "it ends too early"


def _quote(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else f"{text[:limit]}…")


class _Reader:
    """Reads an expression from left to right, one method for each line of the grammar, and returns its values."""

    def __init__(self, frame: pl.DataFrame, where: str, tokens: list[Token]) -> None:
        self._frame, self._where, self._tokens = frame, where, tokens
        self._position, self._depth = 0, 0
        self._columns: dict[str, pl.Series] = {}

    def read(self) -> pl.Series:
        value = self._expression()
        self._expect("end")
        return value

    def _next(self) -> str:
        return self._tokens[self._position].kind

    def _accept(self, *kinds: str) -> str | None:
        """The text of the next token if it is of one of these kinds; it is then read."""
        token = self._tokens[self._position]
        if token.kind not in kinds:
            return None
        self._position += 1
        return token.text if token.kind in ("number", "text", "column", "function") else token.kind

    def _expect(self, *kinds: str) -> str:
        text = self._accept(*kinds)
        if text is None:
            raise ValueError(_error_at(self._where, self._tokens[self._position].start))
        return text

    def _expression(self) -> pl.Series:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        value = self._both()
        while self._accept("or"):
            value = _as(BOOLEAN, "or", value) | _as(BOOLEAN, "or", self._both())
        self._depth -= 1
        return value

    def _both(self) -> pl.Series:
        value = self._test()
        while self._accept("and"):
            value = _as(BOOLEAN, "and", value) & _as(BOOLEAN, "and", self._test())
        return value

    def _test(self) -> pl.Series:
        count = 0
        while self._accept("not"):
            count += 1
        value = self._comparison()
        for _ in range(count):
            value = ~_as(BOOLEAN, "not", value)
        return value

    def _comparison(self) -> pl.Series:
        left = self._sum()
        if self._next() not in COMPARISONS:
            return left
        if sign := self._accept(*SIGNS):
            value = _compare(sign, left, self._sum())
        else:
            is_test, negated = self._accept("is"), self._accept("not")
            value = self._is(left) if is_test else self._in_like_between(left)
            value = ~value if negated else value
        if self._next() in COMPARISONS:
            raise ValueError("comparisons cannot be chained: join them with and, or use parentheses")
        return value

    def _is(self, left: pl.Series) -> pl.Series:
        word = self._expect("null", "true", "false")
        if word == "null":
            return left.is_null()
        left = _as(BOOLEAN, f"is {word}", left)
        return (left if word == "true" else ~left).fill_null(False)

    def _in_like_between(self, left: pl.Series) -> pl.Series:
        word = self._expect("in", "like", "ilike", "between")
        if word == "in":
            return _is_in(left, self._list())
        if word == "between":
            low = self._sum()
            self._expect("and")
            return _compare(">=", left, low) & _compare("<=", left, self._sum())
        return _like(_as(TEXT, word, left), self._expect("text"), ignore_case=word == "ilike")

    def _sum(self) -> pl.Series:
        value = self._product()
        while sign := self._accept("+", "-"):
            value = _calculate(sign, value, self._product())
        return value

    def _product(self) -> pl.Series:
        value = self._factor()
        while sign := self._accept("*", "/", "%"):
            value = _calculate(sign, value, self._factor())
        return value

    def _factor(self) -> pl.Series:
        signs = []
        while sign := self._accept("+", "-"):
            signs.append(sign)
        value = self._value()
        for sign in reversed(signs):
            value = _calculate(sign, pl.Series([0]), value)
        return value

    def _value(self) -> pl.Series:
        kind = self._next()
        text = self._expect("number", "text", "null", "true", "false", "column", "function", "(")
        if kind == "number":
            return _number(text)
        if kind == "text":
            return pl.Series([text])
        if kind in ("null", "true", "false"):
            return pl.Series([{"null": None, "true": True, "false": False}[kind]])
        if kind == "column":
            if text not in self._columns:
                self._columns[text] = _column(self._frame[text])
            return self._columns[text]
        if kind == "function":
            return _call(text.lower(), self._list())
        value = self._expression()
        self._expect(")")
        return value

    def _list(self) -> list[pl.Series]:
        self._expect("(")
        values = [self._expression()]
        while self._accept(","):
            values.append(self._expression())
        self._expect(")")
        return values


# Values


def _column(column: pl.Series) -> pl.Series:
    """A column as integers of 64 bits, floats without NaN, text, times without a zone, or lists of these."""
    dtype = column.dtype
    if dtype.is_integer():
        return column.cast(pl.Int64 if _end(column.min()) >= LOWEST and _end(column.max()) <= HIGHEST else pl.Int128)
    if dtype.is_float() or dtype.is_decimal():
        return column.cast(pl.Float64).fill_nan(None)
    if dtype in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if dtype == pl.Datetime:
        column = column.dt.replace_time_zone(None)
    if dtype in (pl.Date, pl.Datetime):
        moments = column.cast(pl.Datetime("us"), strict=False)  # Polars panics where it describes what is beyond
        if moments.null_count() > column.null_count():
            raise ValueError(f"column {column.name[:80]!r} has dates beyond the range of microseconds")
        return moments
    if isinstance(dtype, pl.List | pl.Array):
        lists = column.cast(pl.List(dtype.inner))
        return lists.cast(pl.List(_column(lists.explode()).dtype))
    return column


def _number(text: str) -> pl.Series:
    """A number of an expression: an integer if it looks like one and has at most 64 bits."""
    if text.isdecimal() and (value := int(text)) < 2**64:
        return pl.Series([value], dtype=pl.Int64 if value <= HIGHEST else pl.Int128)
    if np.isinf(float(text)):
        raise ValueError(f"{_quote(text, 20)} is beyond the range of floats")
    return pl.Series([float(text)])


def _kind(value: pl.Series) -> str:
    return KINDS.get(value.dtype.base_type(), str(value.dtype))


def _as(kind: str, user: str, value: pl.Series) -> pl.Series:
    """A value of this kind, for an operator or function; a ValueError where it is of another."""
    if value.dtype == pl.Null or (kind == NUMBER and value.dtype == pl.Boolean):
        return value.cast(NULLS[kind])
    if _kind(value) != kind:
        raise ValueError(f"{user} takes {kind}, not {_kind(value)}")
    return value


def _alike(*values: pl.Series) -> list[pl.Series]:
    """Values that can be compared, all of one type; a ValueError where there is none."""
    types = [value.dtype for value in values if value.dtype != pl.Null]
    if not types:
        return list(values)
    if all(dtype in WIDER for dtype in types):
        common = max(types, key=WIDER.index)
    elif types[0] in (pl.String, pl.Datetime) and all(dtype == types[0] for dtype in types):
        common = types[0]
    else:
        kinds = list(dict.fromkeys(_kind(value) for value in values))
        hints = {DATE: ": write date('2026-12-31')", LIST: ": use array_contains"}
        raise ValueError(f"{' and '.join(kinds)} cannot be compared{hints.get(kinds[0], hints.get(kinds[-1], ''))}")
    return [value.cast(common) for value in values]


def _broadcast(*values: pl.Series) -> list[pl.Series]:
    """Constants as often as there are rows."""
    rows = next((len(value) for value in values if len(value) != 1), 1)
    return [value if len(value) == rows else value.new_from_index(0, rows) for value in values]


# Comparisons


def _compare(sign: str, left: pl.Series, right: pl.Series) -> pl.Series:
    result: pl.Series = SIGNS[sign](*_alike(left, right))
    return result


def _is_in(left: pl.Series, values: list[pl.Series]) -> pl.Series:
    """As `left = value or left = value …`, with one search for all constants of a type."""
    found = pl.Series([False])
    for (_, is_constant), group in groupby(values, key=lambda value: (str(value.dtype), len(value) == 1)):
        same = list(group)
        if not is_constant or len(same) == 1:
            found = reduce(operator.or_, (_compare("=", left, value) for value in same), found)
            continue
        searched, constants = _alike(left, pl.concat(same))
        found |= searched.is_in(constants.drop_nulls().implode())
        if constants.has_nulls():
            found |= pl.Series([None], dtype=pl.Boolean)
    return found


def _like(text: pl.Series, pattern: str, ignore_case: bool) -> pl.Series:
    """Whether a text is of a pattern in which % stands for any characters and _ for one."""
    if ignore_case:
        text, pattern = text.str.to_lowercase(), pattern.lower()
    wildcards = {"%": ".*", "_": "."}
    parts = (wildcards.get(each, f"\\x{{{ord(each):x}}}") for each in re.sub("%+", "%", pattern))
    return text.str.contains(rf"(?s)\A{''.join(parts)}\z")


# Numbers


def _calculate(sign: str, left: pl.Series, right: pl.Series) -> pl.Series:
    left, right = _as(NUMBER, sign, left), _as(NUMBER, sign, right)
    if sign == "/" or pl.Float64 in (left.dtype, right.dtype):
        return _floats(FLOATS[sign], left, right)
    return _remainder(left, right) if sign == "%" else _integers(INTEGERS[sign], left, right)


def _floats(function: Callable[..., np.ndarray], *values: pl.Series) -> pl.Series:
    """A function of floats; null where the result is not a number."""
    with np.errstate(all="ignore"):
        return pl.Series(function(*(value.cast(pl.Float64).to_numpy() for value in values)), nan_to_null=True)


def _integers(function: Callable[[Any, Any], Any], left: pl.Series, right: pl.Series) -> pl.Series:
    """A sum, difference or product of integers; a ValueError where one has more than 64 bits."""
    ends = [(_end(value.min()), _end(value.max())) for value in (left, right)]
    if not all(LOWEST <= function(one, other) <= HIGHEST for one in ends[0] for other in ends[1]):
        left, right = left.cast(pl.Int128), right.cast(pl.Int128)
    try:
        result: pl.Series = function(left, right).cast(pl.Int64)
    except pl.exceptions.InvalidOperationError as error:
        raise ValueError("an integer gets beyond 64 bits: multiply by 1.0 to calculate with floats") from error
    return result


def _end(value: Any) -> int:
    return int(value or 0)  # None where all are null


def _remainder(left: pl.Series, right: pl.Series) -> pl.Series:
    """Of integers, with the sign of the left one; null for a division by 0."""
    floored = left % right  # has the sign of the right one
    too_high = (floored != 0) & ((left < 0) != (right < 0))
    return (floored - right * too_high.cast(pl.Int64)).cast(pl.Int64)


def _divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    result: np.ndarray = left / np.where(right == 0, np.nan, right)
    return result


INTEGERS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": _divide, "%": np.fmod,
}  # fmt: skip


def _whole(function: Callable[..., np.ndarray]) -> Callable[[pl.Series], pl.Series]:
    """A function that leaves integers as they are."""
    return lambda value: _floats(function, value) if value.dtype == pl.Float64 else value


def _absolute(value: pl.Series) -> pl.Series:
    return _floats(np.abs, value) if value.dtype == pl.Float64 else _integers(operator.mul, value, value.sign())


def _round(value: pl.Series, digits: pl.Series | None = None) -> pl.Series:
    """Half away from zero."""
    places = [0] if digits is None else digits.to_list()
    if len(places) != 1 or type(places[0]) is not int or not 0 <= places[0] <= 15:
        raise ValueError("round takes a number of digits from 0 to 15")
    scale = 10.0 ** places[0]

    def nearest(numbers: np.ndarray) -> np.ndarray:
        scaled = numbers * scale
        whole = np.trunc(scaled)
        rounded = (whole + np.sign(scaled) * (np.abs(scaled - whole) >= 0.5)) / scale
        return np.where(np.isinf(scaled), numbers, rounded)

    return _whole(nearest)(value)


# Functions


def _coalesce(*values: pl.Series) -> pl.Series:
    known = [value for value in values if value.dtype != pl.Null] or values[:1]
    return reduce(lambda first, other: first.zip_with(first.is_not_null(), other), _broadcast(*_alike(*known)))


def _date(text: pl.Series) -> pl.Series:
    """The days of texts such as 2026-12-31; null for others, and an error for a constant."""
    days = text.str.to_date("%Y-%m-%d", strict=False)
    if len(text) == 1 and text[0] is not None and days[0] is None:
        raise ValueError(f"{_quote(text[0], 20)} is no date: write it as 2026-12-31")
    return days.cast(pl.Datetime("us"))


def _array_contains(values: pl.Series, value: pl.Series) -> pl.Series:
    _, value = _alike(pl.Series(dtype=values.dtype.inner), value)  # type: ignore[attr-defined]
    values, value = _broadcast(values.cast(pl.List(value.dtype)), value)
    return values.list.contains(value).zip_with(value.is_not_null(), pl.Series([None], dtype=pl.Boolean))


def _starts_with(text: pl.Series, other: pl.Series) -> pl.Series:
    text, other = _broadcast(text, other)
    return text.str.starts_with(other)  # type: ignore[arg-type]


def _ends_with(text: pl.Series, other: pl.Series) -> pl.Series:
    text, other = _broadcast(text, other)
    return text.str.ends_with(other)  # type: ignore[arg-type]


class Function(NamedTuple):
    """What a function computes, and the kinds of its arguments."""

    compute: Callable[..., pl.Series]
    kinds: tuple[str | None, ...]  # None: any
    least: int | None = None  # how many arguments it needs, if not all


FUNCTIONS = {
    "lower": Function(lambda text: text.str.to_lowercase(), (TEXT,)),
    "upper": Function(lambda text: text.str.to_uppercase(), (TEXT,)),
    "length": Function(lambda text: text.str.len_chars().cast(pl.Int64), (TEXT,)),
    "starts_with": Function(_starts_with, (TEXT, TEXT)),
    "ends_with": Function(_ends_with, (TEXT, TEXT)),
    "array_contains": Function(_array_contains, (LIST, None)),
    "abs": Function(_absolute, (NUMBER,)),
    "round": Function(_round, (NUMBER, NUMBER), least=1),
    "floor": Function(_whole(np.floor), (NUMBER,)),
    "ceil": Function(_whole(np.ceil), (NUMBER,)),
    "coalesce": Function(_coalesce, (None,) * MAX_TOKENS, least=1),
    "date": Function(_date, (TEXT,)),
}


def _call(name: str, values: list[pl.Series]) -> pl.Series:
    function = FUNCTIONS[name]
    if not (function.least or len(function.kinds)) <= len(values) <= len(function.kinds):
        raise ValueError(f"{name} cannot take {len(values)} argument{'s' * (len(values) > 1)}")
    pairs = zip(values, function.kinds, strict=False)
    return function.compute(*(_as(kind, name, value) if kind else value for value, kind in pairs))

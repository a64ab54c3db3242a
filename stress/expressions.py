"""Random expressions of `where` over random tables: the same rows as SQLite finds.

SQLite decides differently in some places, so each expression is also written in its words: floats are divided, integers
that meet a float are cast, remainders of floats, upper and lower case are functions of Python, dates are texts of equal
length, lists are JSON. SQLite turns an integer beyond 64 bits into a float; here it must be an error.
"""

import json
import math
import random
import sqlite3
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import polars as pl

from beamtree.data.expressions import FUNCTIONS, MAX_LENGTH, rows_where
from stress.sandbox import Sandbox

ROWS = 60
BATCH = 100  # expressions for each table
OR, AND, NOT, COMPARISON, SUM, PRODUCT, SIGN, VALUE = range(8)  # how strongly parts of an expression hold together
NUMBERS = ("integer", "float", "boolean")
DAY = date(2026, 1, 1)
WORDS = (
    "",
    "a",
    "A",
    "lamp",
    "Lamp",
    "it's",
    "50%",
    "a_b",
    'say "x"',
    "Ünïcode",
    "ünïcode",
    "日本",
    "2026-01-03",
    "x\ny",
)


class Expression(NamedTuple):
    """An expression, the same for SQLite, and how strongly it holds together."""

    kind: str  # integer, float, boolean, text or date
    text: str
    sql: str
    strength: int = VALUE


# The table


def random_frame(rng: random.Random) -> pl.DataFrame:
    """A table of items with columns of all types."""

    def column(draw: Callable[[], Any], dtype: Any) -> pl.Series:
        return pl.Series([None if rng.random() < 0.15 else draw() for _ in range(ROWS)], dtype=dtype)

    def integers(low: int, high: int) -> Callable[[], int]:
        return lambda: rng.choice((low, high, *(rng.randint(max(low, -9), min(high, 9)) for _ in range(6))))

    def number() -> float:
        special = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, 2.0**53)
        return rng.choice(special) if rng.random() < 0.15 else rng.randint(-40, 40) / rng.choice((1, 2, 4, 10))

    def moment() -> datetime:
        return datetime(2026, 1, 1) + timedelta(days=rng.randint(0, 5), microseconds=rng.choice((0, 0, 1, 10**10)))

    def word() -> str:
        return rng.choice(WORDS)

    return pl.DataFrame(
        {
            "item": [f"i{row:02}" for row in range(ROWS)],
            "u8": column(integers(0, 2**8 - 1), pl.UInt8),
            "u16": column(integers(0, 2**16 - 1), pl.UInt16),
            "u32": column(integers(0, 2**32 - 1), pl.UInt32),
            "u64": column(integers(0, 2**63 - 1), pl.UInt64),  # SQLite has no more; tests/test_expressions.py has
            "i8": column(integers(-(2**7), 2**7 - 1), pl.Int8),
            "i16": column(integers(-(2**15), 2**15 - 1), pl.Int16),
            "i32": column(integers(-(2**31), 2**31 - 1), pl.Int32),
            "i64": column(integers(-(2**63), 2**63 - 1), pl.Int64),
            "f32": column(number, pl.Float32),
            "f64": column(number, pl.Float64),
            "decimal": column(lambda: f"{rng.randint(-999, 999) / 100:.2f}", pl.String).cast(pl.Decimal(9, 2)),
            "flag": column(lambda: rng.random() < 0.5, pl.Boolean),
            "word": column(word, pl.String),
            "a brand": column(word, pl.Categorical),
            "day": column(lambda: DAY + timedelta(days=rng.randint(0, 5)), pl.Date),
            "moment": column(moment, pl.Datetime("us")),
            "tags": column(lambda: [rng.choice((*WORDS, None)) for _ in range(rng.randint(0, 3))], pl.List(pl.String)),
            "sizes": column(lambda: [rng.randint(0, 9) for _ in range(rng.randint(0, 3))], pl.List(pl.UInt8)),
        }
    )


def open_table(frame: pl.DataFrame) -> sqlite3.Connection:
    """The table in SQLite, with columns of no type, so that values are compared as they are."""
    table = sqlite3.connect(":memory:")
    table.execute("pragma case_sensitive_like = on")
    table.execute(f"create table items ({', '.join(json.dumps(name) for name in frame.columns)})")
    marks = ", ".join("?" * frame.width)
    table.executemany(
        f"insert into items values ({marks})", ([_stored(value) for value in row] for row in frame.rows())
    )
    functions: dict[str, Callable[..., Any]] = {
        "lower": str.lower, "upper": str.upper, "floor": _whole(math.floor), "ceil": _whole(math.ceil),
        "fmod": lambda x, y: None if y == 0 or math.isinf(x) else math.fmod(x, y),
    }  # fmt: skip
    for name, function in functions.items():
        table.create_function(name, 2 if name == "fmod" else 1, _of_values(function), deterministic=True)
    return table


def _stored(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return moment.isoformat(" ", "microseconds")
    return value if isinstance(value, int | float | str | None) else float(value)


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: None if None in values else function(*values)


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: float(function(x)) if math.isfinite(x) else x


# Expressions


class Writer:
    """Writes random expressions; `integers` are all integer parts of them, for SQLite."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.integers: list[str] = []

    def expression(self, kind: str, depth: int) -> Expression:
        """A random expression of a kind."""
        if depth <= 0 or self.rng.random() < 0.1:
            return self._leaf(kind)
        written: Expression = getattr(self, f"_{kind}")(depth - 1)
        if kind == "integer":
            self.integers.append(written.sql)
        return written

    def _leaf(self, kind: str) -> Expression:
        rng = self.rng
        if rng.random() < 0.05:
            return Expression(kind if kind != "float" else "integer", self._word("null"), "null")
        if rng.random() < 0.65:
            columns = {
                "integer": ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"),
                "float": ("f32", "f64", "decimal"),
                "boolean": ("flag",),
                "text": ("item", "word", "a brand"),
                "date": ("day", "moment"),
            }
            name = rng.choice(columns[kind])
            return Expression(kind, f'"{name}"' if " " in name or rng.random() < 0.1 else name, f'"{name}"')
        if kind == "integer":
            number = rng.choice((0, 1, 2, 3, 7, 10, 255, 256, 2**31, 2**53 + 1, 2**63 - 1))
            return Expression(kind, str(number), str(number))
        if kind == "float":
            text = rng.choice(("0.0", ".5", "2.", "1.5", "2.50", "1e3", "2.5E-1", "0.1", "1e300", "9007199254740993.0"))
            return Expression(kind, text, repr(float(text)))
        if kind == "boolean":
            text = rng.choice(("true", "false"))
            return Expression(kind, self._word(text), text)
        if kind == "text":
            text = _quoted(rng.choice(WORDS))
            return Expression(kind, text, text)
        day = (DAY + timedelta(days=rng.randint(0, 5))).isoformat()
        return Expression(kind, f"{self._word('date')}('{day}')", f"'{day} 00:00:00.000000'")

    def _integer(self, depth: int) -> Expression:
        rng = self.rng
        form = rng.choice(("operator", "operator", "sign", "length", "abs", "whole", "coalesce"))
        if form == "operator":
            return self._operator(depth, rng.choice("+-*%"), ("integer", "integer", "boolean"))
        if form == "length":
            text = self.expression("text", depth)
            return Expression("integer", f"{self._word('length')}({text.text})", f"length({text.sql})")
        number = self.expression("integer", depth)
        if form == "sign":
            return Expression("integer", f"- {_within(number, SIGN)}", f"(-{number.sql})", SIGN)
        if form == "abs":
            sql = f"(case when {number.sql} < 0 then -{number.sql} else {number.sql} end)"
            return Expression("integer", f"abs({number.text})", sql)
        if form == "whole":
            return Expression("integer", f"{rng.choice(('round', 'floor', 'ceil'))}({number.text})", number.sql)
        return self._coalesce(depth, ("integer", "boolean"), first=number)

    def _float(self, depth: int) -> Expression:
        rng = self.rng
        form = rng.choice(("operator", "/", "%", "sign", "abs", "round", "digits", "floor", "ceil", "coalesce"))
        if form == "operator":
            return self._operator(depth, rng.choice("+-*"), NUMBERS, first=self.expression("float", depth))
        if form in "/%":
            left, right = (self.expression(rng.choice(NUMBERS), depth) for _ in range(2))
            text = f"{_within(left, PRODUCT)} {form} {_within(right, SIGN)}"
            if form == "/":
                return Expression("float", text, f"({_real(left)} / {_real(right)})", PRODUCT)
            if "float" not in (left.kind, right.kind):
                self.integers.append(f"({left.sql} % {right.sql})")
                return Expression("integer", text, self.integers[-1], PRODUCT)
            return Expression("float", text, f"fmod({_real(left)}, {_real(right)})", PRODUCT)
        number = self.expression("float", depth)
        real = _real(number)
        if number.kind == "integer":  # a null
            return number
        if form == "sign":
            return Expression("float", f"-{_within(number, VALUE)}", f"(-{real})", SIGN)
        if form == "digits":
            digits = rng.randint(0, 3)
            scaled = f"({real} * 1e{digits})"
            sql = f"(case when abs({scaled}) = 9e999 then {real} else round({scaled}) / 1e{digits} end)"
            return Expression("float", f"round({number.text}, {digits})", sql)
        if form == "coalesce":
            return self._coalesce(depth, NUMBERS, first=number)
        return Expression("float", f"{self._word(form)}({number.text})", f"{form}({real})")

    def _operator(self, depth: int, sign: str, kinds: tuple[str, ...], first: Expression | None = None) -> Expression:
        left = first or self.expression(self.rng.choice(kinds), depth)
        right = self.expression(self.rng.choice(kinds), depth)
        if self.rng.random() < 0.5:
            left, right = right, left
        strength = SUM if sign in "+-" else PRODUCT
        kind = "float" if "float" in (left.kind, right.kind) else "integer"
        sql = f"({left.sql} {sign} {right.sql})" if kind == "integer" else f"({_real(left)} {sign} {_real(right)})"
        if kind == "integer":
            self.integers.append(sql)
        return Expression(kind, f"{_within(left, strength)} {sign} {_within(right, strength + 1)}", sql, strength)

    def _coalesce(self, depth: int, kinds: tuple[str, ...], first: Expression) -> Expression:
        values = [first, *(self.expression(self.rng.choice(kinds), depth) for _ in range(self.rng.randint(0, 2)))]
        kind = "float" if any(value.kind == "float" for value in values) else first.kind
        texts = [_real(value) if kind == "float" else value.sql for value in values]
        text = f"coalesce({', '.join(value.text for value in values)})"
        return Expression(kind, text, f"coalesce({', '.join([*texts, 'null'])})")

    def _text(self, depth: int) -> Expression:
        value = self.expression("text", depth)
        name = self.rng.choice(("lower", "upper", "coalesce"))
        if name == "coalesce":
            return self._coalesce(depth, ("text",), first=value)
        return Expression("text", f"{self._word(name)}({value.text})", f"{name}({value.sql})")

    def _date(self, depth: int) -> Expression:
        if self.rng.random() < 0.3:
            text = self._leaf("text")
            if text.text.startswith("'") or text.sql == "null":
                return self._leaf("date")
            day = f"(case when {text.sql} = '2026-01-03' then {text.sql} || ' 00:00:00.000000' end)"
            return Expression("date", f"date({text.text})", day)
        return self._coalesce(depth, ("date",), first=self.expression("date", depth))

    def _boolean(self, depth: int) -> Expression:
        rng = self.rng
        form = rng.choice(
            ("logic", "logic", "compare", "compare", "compare", "in", "between", "like", "is", "function")
        )
        negated = rng.random() < 0.3
        no, sql_no = (f"{self._word('not')} ", "not ") if negated else ("", "")
        if form == "logic":
            return self._logic(depth)
        if form == "function":
            return self._predicate(depth)
        if form == "is":
            word = rng.choice(("null", "true", "false"))
            value = self.expression("boolean" if word != "null" else rng.choice((*NUMBERS, "text", "date")), depth)
            sql = f"({value.sql} is {sql_no}{word})"
            return Expression("boolean", f"{_within(value, SUM)} {self._word('is')} {no}{word}", sql, COMPARISON)
        if form == "like":
            value, word = self.expression("text", depth), rng.choice(("like", "ilike"))
            pattern = "".join(rng.choice(("%", "%", "_", *rng.choice(WORDS)[:2])) for _ in range(rng.randint(0, 4)))
            pattern = rng.choice((pattern, f"{rng.choice(WORDS)[:2]}%"))
            pair = (value.sql, _quoted(pattern))
            sql = " like ".join(pair if word == "like" else (f"lower({part})" for part in pair))
            text = f"{_within(value, SUM)} {no}{self._word(word)} {_quoted(pattern)}"
            return Expression("boolean", text, f"({sql_no}({sql}))", COMPARISON)
        kinds = rng.choice((NUMBERS, NUMBERS, NUMBERS, ("text",), ("date",)))
        count = {"compare": 1, "between": 2, "in": rng.randint(1, 5)}[form]
        left = self.expression(rng.choice(kinds), depth)
        below = 0 if form == "in" and rng.random() < 0.5 else depth
        values = [self.expression(rng.choice(kinds), below) for _ in range(count)]
        if form == "compare":
            sign = rng.choice(("=", "==", "!=", "<>", "<", "<=", ">", ">="))
            text = f"{_within(left, SUM)} {sign} {_within(values[0], SUM)}"
            return Expression("boolean", text, _compared(left, sign, values[0]), COMPARISON)
        if form == "between":
            low, high = values
            sql = f"({sql_no}({_compared(left, '>=', low)} and {_compared(left, '<=', high)}))"
            between, both = self._word("between"), self._word("and")
            text = f"{_within(left, SUM)} {no}{between} {_within(low, SUM)} {both} {_within(high, SUM)}"
            return Expression("boolean", text, sql, COMPARISON)
        sql = f"({sql_no}({' or '.join(_compared(left, '=', value) for value in values)}))"
        if all(value.kind == left.kind for value in values):
            sql = f"({left.sql} {sql_no}in ({', '.join(value.sql for value in values)}))"
        text = f"{_within(left, SUM)} {no}{self._word('in')} ({', '.join(value.text for value in values)})"
        return Expression("boolean", text, sql, COMPARISON)

    def _logic(self, depth: int) -> Expression:
        word, left = self.rng.choice(("and", "or", "not")), self.expression("boolean", depth)
        if word == "not":
            return Expression("boolean", f"{self._word('not')} {_within(left, NOT)}", f"(not {left.sql})", NOT)
        right, strength = self.expression("boolean", depth), AND if word == "and" else OR
        text = f"{_within(left, strength)} {self._word(word)} {_within(right, strength + 1)}"
        return Expression("boolean", text, f"({left.sql} {word} {right.sql})", strength)

    def _predicate(self, depth: int) -> Expression:
        name = self.rng.choice(("starts_with", "ends_with", "array_contains", "coalesce"))
        if name == "coalesce":
            return self._coalesce(depth, ("boolean",), first=self.expression("boolean", depth))
        if name == "array_contains":
            column = self.rng.choice(("tags", "sizes"))
            value = self.expression("text" if column == "tags" else self.rng.choice(("integer", "float")), depth)
            found = _compared(Expression("text" if column == "tags" else "integer", "", "value"), "=", value)
            sql = f"exists (select 1 from json_each({column}) where {found})"
            nulls = f"{column} is null or {value.sql} is null"
            called = f"{self._word(name)}({column}, {value.text})"
            return Expression("boolean", called, f"(case when {nulls} then null else {sql} end)")
        whole, part = self.expression("text", depth), self.expression("text", depth)
        begin = f"1, length({part.sql})" if name == "starts_with" else f"length({whole.sql}) - length({part.sql}) + 1"
        same = f"length({part.sql}) <= length({whole.sql}) and substr({whole.sql}, {begin}) = {part.sql}"
        nulls = f"{whole.sql} is null or {part.sql} is null"
        called = f"{self._word(name)}({whole.text}, {part.text})"
        return Expression("boolean", called, f"(case when {nulls} then null else {same} end)")

    def _word(self, word: str) -> str:
        return word.upper() if self.rng.random() < 0.2 else word


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _within(part: Expression, strength: int) -> str:
    """The text of a part, in parentheses only where they are needed."""
    return part.text if part.strength >= strength else f"({part.text})"


def _real(value: Expression) -> str:
    return value.sql if value.kind == "float" else f"cast({value.sql} as real)"


def _compared(left: Expression, sign: str, right: Expression) -> str:
    if "float" in (left.kind, right.kind):
        return f"({_real(left)} {sign} {_real(right)})"
    return f"({left.sql} {sign} {right.sql})"


# Trials


def comparison_fault(frame: pl.DataFrame, table: sqlite3.Connection, rng: random.Random) -> str | None:
    """How the rows of a random expression differ from those of SQLite: None where they are the same."""
    written = Expression("boolean", " " * (MAX_LENGTH + 1), "")
    while len(written.text) > MAX_LENGTH:
        writer = Writer(rng)
        written = writer.expression("boolean", rng.randint(1, 4))
    expected = [row for (row,) in table.execute(f"select rowid - 1 from items where {written.sql} order by rowid")]
    beyond = (table.execute(f"select max(typeof({part}) = 'real') from items").fetchone() for part in writer.integers)
    is_beyond = any(found for (found,) in beyond)
    try:
        found = rows_where(frame, written.text).nonzero()[0].tolist()
    except ValueError as error:
        return None if is_beyond and "beyond 64 bits" in str(error) else f"{written.text}: {error}"
    if is_beyond:
        return f"{written.text}: an integer beyond 64 bits is no error"
    return None if found == expected else f"{written.text}: rows {found}, in SQLite {expected}"


def nonsense(rng: random.Random, depth: int) -> str:
    """Any values joined by any operators and functions, sometimes with a character too many."""
    if not depth:
        return rng.choice(("1", "1.5", "'a'", "true", "null", "u8", "u64", "f64", "decimal", "flag", "word", "day",
                           "moment", "tags", "sizes", '"a brand"', rng.choice("()'\"%<,é٣")))  # fmt: skip
    parts = [nonsense(rng, depth - 1) for _ in range(3)]
    operator = rng.choice(("+", "-", "*", "/", "%", "=", "<", "and", "or", "like", "in", "is", "not"))
    return rng.choice(
        (
            f"{rng.choice(sorted(FUNCTIONS))}({', '.join(parts[: rng.randint(1, 3)])})",
            f"{parts[0]} between {parts[1]} and {parts[2]}",
            f"{parts[0]} in ({parts[1]}, {parts[2]})",
            f"{rng.choice(('not', '-', ''))} ({parts[0]} {operator} {parts[1]})",
            f"({parts[0]} {operator} {parts[1]})",
        )
    )


def refusal_fault(frame: pl.DataFrame, text: str) -> str | None:
    """What is wrong with how an expression is answered: None for rows, and for an error in one line."""
    try:
        rows = rows_where(frame, text)
    except ValueError as error:
        if "\n" in str(error) or isinstance(error.__cause__, pl.exceptions.PanicException):
            return f"{text}: {error}"
        return None
    return None if rows.shape == (len(frame),) else f"{text}: {rows.shape} for {len(frame)} items"


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials of an expression and one that means nothing, many over each table: (description, faults)."""
    while True:
        frame = random_frame(rng)
        table = open_table(frame)
        for _ in range(BATCH):
            faults = (comparison_fault(frame, table, rng), refusal_fault(frame, nonsense(rng, rng.randint(1, 4))))
            yield "expression against SQLite", [fault for fault in faults if fault]
        table.close()

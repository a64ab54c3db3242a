"""Features of items from the columns of a table: categories, numbers, texts, vectors, any mix, with missing values.

Every column becomes a block of features. A text is its words, the text itself and, if it is a path such as
`Books/Fiction`, the paths above it, all weighted by how rare they are; a list of texts is all of them. A number lies
between two quantiles of its column; a whole number may also be the number of a category. Where most texts of a column
have a number in them, such as the year of a film, that is one more column of numbers. The block of an item has length
1, and is empty where its value is missing.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from beamtree.data.catalogue import SEPARATORS
from beamtree.data.csr import CSR, group_rows

WORDS = r"[\p{L}\p{N}]+"
DEPTH = 12  # steps of a path that are features, at most
KNOTS = 12  # quantiles of a column of numbers
NUMBER_IN_TEXT = r"([0-9]{1,15})[^0-9]*$"  # the last one
LEAST = 2  # items that must have a feature of a text
TEXT, NUMBER, VECTOR = "text", "number", "vector"


class ItemFeatures(NamedTuple):
    """How the columns of a table become features.

    Args:
        kinds: the columns that are used, each a text, number or vector.
        knots: the quantiles of the columns of numbers, and of the numbers in texts.
        vocabulary: the name, weight and number of each feature.
    """

    kinds: dict[str, str]
    knots: dict[str, list[float]]
    vocabulary: pl.DataFrame

    @classmethod
    def fit(cls, frame: pl.DataFrame, leave_out: Iterable[str] = ()) -> "ItemFeatures":
        """The features that the rows of a table have, in all columns but some."""
        kinds = {name: kind for name, dtype in frame.schema.items() if (kind := _kind(dtype))}
        kinds = {name: kind for name, kind in kinds.items() if name not in set(leave_out)}
        knots = {name: _quantiles(frame[name]) for name, kind in kinds.items() if kind == NUMBER}
        for name in (name for name in kinds if frame.schema[name] == pl.String):
            numbers = frame[name].str.extract(NUMBER_IN_TEXT)
            if 2 * numbers.count() > frame[name].count():
                knots[name] = _quantiles(numbers.cast(pl.Float64))
        features = cls(kinds, knots, pl.DataFrame(schema={"feature": pl.String, "weight": pl.Float64}))
        counts = [block.group_by("feature", "is_text").len() for block in features._blocks(frame)]
        if counts:
            rarity = ((1 + len(frame)) / (1 + pl.col("len"))).log() + 1
            common = pl.concat(counts).filter((pl.col("len") >= LEAST) | ~pl.col("is_text")).sort("feature")
            vocabulary = common.select("feature", weight=pl.when("is_text").then(rarity).otherwise(1.0))
            features = features._replace(vocabulary=vocabulary)
        return features._replace(vocabulary=features.vocabulary.with_row_index("number"))

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.vocabulary)

    def transform(self, frame: pl.DataFrame) -> CSR:
        """The features of the rows of a table, which may lack some of the columns."""
        value = pl.col("value") * pl.col("weight")
        unit = value / value.pow(2).sum().sqrt().over("row")
        blocks = [
            block.join(self.vocabulary, on="feature").filter(pl.col("value") != 0).select("row", "number", value=unit)
            for block in self._blocks(frame)
        ]
        schema = {"row": pl.UInt32, "number": pl.UInt32, "value": pl.Float64}
        entries = pl.concat([pl.DataFrame(schema=schema), *blocks]).sort("row", "number")
        row, number, values = (torch.from_numpy(column.to_numpy().astype(dtype)) for column, dtype in zip(
            entries.get_columns(), (np.int64, np.int32, np.float32), strict=True))  # fmt: skip
        return group_rows(row, number, len(frame), values)

    def _blocks(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """For each column the row, name and value of every feature, and whether it is of a text."""
        for name, kind in self.kinds.items():
            if name not in frame.columns:
                continue
            rows = frame.select(value=name).with_row_index("row").drop_nulls()
            parts = []
            if kind == VECTOR:
                parts.append(_entries_of_vectors(rows))
            if kind == NUMBER and self.knots[name]:
                parts.append(_between_knots(rows, np.array(self.knots[name])))
            if kind == TEXT or frame.schema[name].is_integer():
                parts.append(_tokens(rows))
            feature = (pl.lit(f"{name}\n") + pl.col("feature")).alias("feature")
            columns = ("row", feature, pl.col("value").cast(pl.Float64), "is_text")
            yield from (pl.concat(part.select(columns) for part in parts),) if parts else ()
            if kind == TEXT and self.knots.get(name) and frame.schema[name] == pl.String:
                numbers = rows.select("row", pl.col("value").str.extract(NUMBER_IN_TEXT).cast(pl.Float64)).drop_nulls()
                yield _between_knots(numbers, np.array(self.knots[name])).select(columns)


def _kind(dtype: pl.DataType) -> str | None:
    """What a column holds; None if it cannot be used."""
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else None
    if inner is not None:
        return VECTOR if inner.is_numeric() else TEXT if _is_text(inner) else None
    if dtype.is_numeric() or dtype.is_temporal():
        return NUMBER
    return TEXT if _is_text(dtype) else None


def _is_text(dtype: object) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum | pl.Boolean)


def _numbers(column: pl.Series) -> pl.Series:
    """Numbers, or times as numbers; null where they are not finite."""
    numbers = column.to_physical().cast(pl.Float64, strict=False)
    return pl.select(pl.when(numbers.is_finite()).then(numbers)).to_series()


def _quantiles(column: pl.Series) -> list[float]:
    """Distinct quantiles of a column of numbers; none where all are equal."""
    numbers = _numbers(column).drop_nulls().to_numpy()
    if not len(numbers):
        return []
    knots = np.unique(np.quantile(numbers, np.linspace(0, 1, KNOTS)))
    return knots.tolist() if len(knots) > 1 else []


def _between_knots(rows: pl.DataFrame, knots: np.ndarray) -> pl.DataFrame:
    """A number between two knots has both as features, the nearer one more."""
    rows = rows.with_columns(value=_numbers(rows["value"])).drop_nulls()
    number = rows["value"].to_numpy().clip(knots[0], knots[-1])
    left = np.searchsorted(knots[1:-1], number, side="right")
    share = (number - knots[left]) / (knots[left + 1] - knots[left])
    return pl.DataFrame(
        {
            "row": np.tile(rows["row"].to_numpy(), 2),
            "feature": np.concatenate([left, left + 1]),
            "value": np.concatenate([1 - share, share]),
        }
    ).with_columns(feature=pl.lit("#") + pl.col("feature").cast(pl.String), is_text=pl.lit(False))


def _entries_of_vectors(rows: pl.DataFrame) -> pl.DataFrame:
    """Every entry of a vector is a feature; a vector with a value that is no number has none."""
    lists = rows.select("row", pl.col("value").cast(pl.List(pl.Float64), strict=False))
    finite = pl.col("value").list.eval(pl.element().is_finite().fill_null(False)).list.all()
    entries = lists.filter(finite).explode("value", empty_as_null=False)
    index = pl.int_range(pl.len()).over("row").cast(pl.String)
    return entries.select("row", "value", feature=pl.lit("[") + index, is_text=pl.lit(False))


def _tokens(rows: pl.DataFrame) -> pl.DataFrame:
    """The text itself, its words, and the paths above it; each counts once for a row."""
    while isinstance(rows.schema["value"], pl.List | pl.Array):
        rows = rows.explode("value")
    text = pl.col("value").cast(pl.String).str.strip_chars().str.to_lowercase()
    rows = rows.select("row", text=text).filter(pl.col("text") != "")
    path = pl.col("text").str.replace_all(SEPARATORS, "/").str.strip_chars("/").str.split("/")
    rows = rows.with_columns(path=path)
    words = rows.select("row", feature=pl.col("text").str.extract_all(WORDS)).explode("feature").drop_nulls()
    parts = [rows.select("row", feature=pl.lit("=") + pl.col("text")), words]
    deepest = rows["path"].list.len().max()
    for depth in range(1, min(DEPTH, int(deepest) if isinstance(deepest, int) else 0)):
        above = rows.filter(pl.col("path").list.len() > depth)
        parts.append(above.select("row", feature=pl.lit("/") + pl.col("path").list.head(depth).list.join("/")))
    return pl.concat(parts).unique().with_columns(value=pl.lit(1.0), is_text=pl.lit(True))

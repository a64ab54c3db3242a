"""Titles and categories of items, from a table."""

from pathlib import Path

import polars as pl

from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.ingest.columns import ITEM, usual_column
from beamtree.ingest.items import CATEGORY, by_item, open_table

TITLE = ("title", "name", "itemname", "itemtitle", "productname", "producttitle", "label", "headline", "product")


def read_catalogue(path: Path, ids: Ids) -> Catalogue:
    """The titles and categories of a table with an item column and at least one of the two.

    Items without a row, and rows without a text, have None. Rows of other items do not matter.
    """
    frame, item = open_table(path)
    columns = frame.collect_schema().names()
    taken = usual_column(columns, ITEM)
    others = [name for name in columns if name != taken]
    title, category = usual_column(others, TITLE), usual_column(others, CATEGORY)
    if title is None and category is None:
        raise ValueError(f"{path} has no column of titles or categories: call one title or category")
    texts = {role: name for role, name in (("title", title), ("category", category)) if name is not None}
    table = frame.select(item.alias("item"), *(_text(frame, name).alias(role) for role, name in texts.items()))
    found = by_item(path, table, ids)

    def column(role: str) -> list[str | None]:
        return found[role].to_list() if role in texts else [None] * len(ids)

    return Catalogue(ids, column("title"), column("category"))


def _text(frame: pl.LazyFrame, column: str) -> pl.Expr:
    """A column as text without white space around it; of a list its entries as the steps of a path; null for none."""
    dtype = frame.collect_schema()[column]
    value = pl.col(column)
    if isinstance(dtype, pl.List):
        value = value.list.eval(pl.element().cast(pl.String)).list.join("/", ignore_nulls=True)
    text = value.cast(pl.String).str.strip_chars()
    return pl.when(text != "").then(text)

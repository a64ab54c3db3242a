"""Time of changing attributes of items, and of the next filter that reads them.

    python benchmarks/speed/bench_attributes.py [--items 1000000] [--json FILE]

The model is random: only its items matter. The first filter after a change is compared with another filter that no
change came before. A change of one item must not take longer where there are more items.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import polars as pl
import torch

import beamtree as bt
from beamtree.data import Ids
from beamtree.ingest.item_tables import read_catalogue
from beamtree.live import Journal, LiveModel
from beamtree.query import Filter, MaskCache

REPEATS = 9


def table(items: int) -> pl.DataFrame:
    """Items with a title and seven more columns."""
    number = pl.int_range(items, eager=True)
    return pl.DataFrame(
        {
            "item": "i" + number.cast(pl.String),
            "title": "Title " + number.cast(pl.String),
            "category": "group " + (number % 100).cast(pl.String),
            "price": (number * 7919 % 10_000) / 100,
            "stock": number % 50,
            "brand": "brand " + (number % 1000).cast(pl.String),
            "new": number % 2 == 0,
            "tags": pl.Series([["all", "some"]]).gather(number * 0),
        }
    )


def live_model(items: int, journal: Journal | None = None) -> LiveModel:
    """A random model of so many items."""
    tree = bt.random_tree(items, seed=0)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, dim=4, seed=0), first_level=2).eval()
    about = table(items)
    model.ids, model.popularity = Ids(about["item"].to_list()), torch.ones(items)
    return LiveModel(model, catalogue=read_catalogue(about, model.ids), journal=journal)


def median(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Milliseconds of a call, without what is called before it."""
    times = []
    for _ in range(REPEATS):
        before()
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def measure(items: int, folder: Path) -> dict[str, float]:
    """Times in milliseconds."""
    journal = Journal(folder)
    live, masks, number = live_model(items, journal), MaskCache(), count(1)

    def change(**fields: object) -> None:
        live.update_items({f"i{next(number)}": fields or {"price": 0.5 + next(number)}})

    def find(where: str = "price < 50 and stock > 3") -> None:
        masks.get(Filter(where=where), live.model, live.ids, live.catalogue)

    find()
    times = {"one price": median(change), "next filter": median(find, change)}
    times["another filter"] = median(lambda: find(f"price < {next(number)} and stock > 3"))
    times["the same filter"] = median(find)
    times["filter after another column"] = median(find, lambda: change(brand=f"new {next(number)}"))
    prices = table(items).select("item", price=pl.col("price") + 1)
    began = time.perf_counter()
    assert live.update_items(prices).changed >= 0.99 * items
    times["all prices, a frame"] = 1000 * (time.perf_counter() - began)
    began = time.perf_counter()
    find()
    times["filter after that"] = 1000 * (time.perf_counter() - began)
    given = {name: {"price": 1000.0 + row} for row, name in enumerate(live.ids.names[:items])}
    began = time.perf_counter()
    assert live.update_items(given).changed >= items - 1
    times["all prices, a dict"] = 1000 * (time.perf_counter() - began)
    assert len(live.catalogue.where("price >= 1000")) == items
    journal.close()
    began = time.perf_counter()
    again = Journal(folder)
    times["reading the journal"] = 1000 * (time.perf_counter() - began)
    began = time.perf_counter()
    assert len(live_model(items, again).catalogue.where("price >= 1000")) == items
    times["opening with it"] = 1000 * (time.perf_counter() - began)
    again.close()
    began = time.perf_counter()
    live_model(items)
    times["opening without"] = 1000 * (time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sizes = (args.items // 100, args.items)
    times = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            times.append(measure(size, Path(folder)))
    print(f"{'milliseconds':32} {sizes[0]:>12,} {sizes[1]:>12,}  ratio")
    for name, few in times[0].items():
        print(f"{name:32} {few:12.2f} {times[1][name]:12.2f} {times[1][name] / few:6.1f}")
    if args.json:
        args.json.write_text(json.dumps(dict(zip(map(str, sizes), times, strict=True))) + "\n")


if __name__ == "__main__":
    main()

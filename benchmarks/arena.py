"""Arenas: our rows beside those that others published, by the same protocol on the same log.

    python benchmarks/arena.py beauty amazon-beauty.parquet --json results/arena-beauty.json && python docs/fill.py
    python benchmarks/arena.py movielens-1m
    python benchmarks/arena.py yelp2018 yelp2018/
    python benchmarks/arena.py my-log.parquet

- beauty and movielens-1m: the last event of every user is for testing, the one before for validation (leave-one-out).
  MovieLens is downloaded where no file is given.
- yelp2018: LightGCN's folder with train.txt and test.txt, one user a line. A tenth of the pairs of train.txt validates,
  then the model is fitted to all of them. Seen items are left out.
- Any other folder with these two files, and any other log, is measured likewise.

All items are ranked. Published rows are in `results/published.toml`. Rows of `benchmarks/quality/compare_rows.py` from
a GPU are added with --also.
"""

import argparse
import json
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import beamtree as bt
from beamtree.evaluate import Evaluation, leaving_out, measure
from beamtree.live.refit import refit_parts
from beamtree.parts.sequence import SEQUENCE
from beamtree.research.baselines import TUNED, build

PUBLISHED = Path(__file__).parent.parent / "results" / "published.toml"
METRICS = ("recall", "ndcg")
SEEN = {True: "left out", False: "kept"}
LAST_TWO, LAST, TRAIN = "all but the last two", "all but the last", "all of train.txt"
LEAVE_ONE_OUT_M, LIGHTGCN_M = 10, 20
MIN_EVENTS = 5  # of a user in leave-one-out; those of both logs have them
UNORDERED = ("popularity", "ease", "ials", "user-knn")  # rows that do not read the order of events

Row = dict[str, Any]


def rows_of(name: str, fitted: str, knows: str, m: int, evaluate: Callable[[bool], Evaluation]) -> list[Row]:
    """A row of ours with seen items left out, and one with them where it is not of LightGCN's protocol."""
    rows = []
    for exclude_seen in (True,) if fitted == TRAIN else (True, False):
        found = evaluate(exclude_seen)
        scores = {metric: round(found[metric, m], 4) for metric in METRICS}
        rows.append({"row": name, "fitted": fitted, "knows": knows, "seen": SEEN[exclude_seen], **scores})
        print(rows[-1], flush=True)
    return rows


def name_of(model: bt.TreeModel) -> str:
    return "beamtree" if SEQUENCE in model.scorer.names else "beamtree, closed form"


def leave_one_out(log: Any, m: int, seed: int, how: dict[str, Any], also: Sequence[Path]) -> list[Row]:
    """The rows of a log whose last two events of every user validate and test."""

    def of_tree(model: bt.TreeModel) -> Callable[[bool], Evaluation]:
        return lambda exclude_seen: bt.evaluate(
            model, data.test, beam_size=400, m=m, metrics=METRICS, exclude_seen=exclude_seen
        )

    def of_baseline(name: str) -> Callable[[bool], Evaluation]:
        find = leaving_out(build(name, data.train.events, data.num_items, data.val).retrieve, m)
        return lambda exclude_seen: measure(find, data.test, m=m, metrics=METRICS, exclude_seen=exclude_seen)

    with tempfile.TemporaryDirectory() as folder:
        bt.prepare(log, Path(folder) / "data", split="leave-one-out", min_events=MIN_EVENTS, seed=seed)
        data = bt.load_data(Path(folder) / "data")
        model = bt.Recommender(seed=seed, refit=False, **how).fit(data).model
        knows = "order" if data.train.events.clock is None else "order, times, time of the request"
        rows = rows_of(name_of(model), LAST_TWO, knows, m, of_tree(model))
        if SEQUENCE not in model.scorer.names:
            refitted = refit_parts(model, data, data.joined(data.sections[:2]), seed)
            rows += rows_of(f"{name_of(model)}, refitted", LAST, knows, m, of_tree(refitted))
        for name in TUNED:
            rows += rows_of(name, LAST_TWO, "" if name in UNORDERED else "order", m, of_baseline(name))
    for file in also:
        cells = {(cell["metric"], cell.get("m")): cell for cell in json.loads(file.read_text())}
        scores = {metric: round(cells[metric, m]["value"], 4) for metric in METRICS}
        name = cells["recall", m]["row"]
        rows.append({"row": name, "fitted": LAST_TWO, "knows": "order", "seen": SEEN[True], **scores})
    return rows


def lightgcn(folder: Path, m: int, seed: int, how: dict[str, Any]) -> list[Row]:
    """The row of a folder with train.txt and test.txt."""
    shop = bt.Recommender(seed=seed, **how).fit(folder / "train.txt", split="pairs")

    def evaluate(exclude_seen: bool) -> Evaluation:
        test = folder / "test.txt"
        return shop.evaluate(m, beam_size=400, metrics=METRICS, data=test, exclude_seen=exclude_seen)

    return rows_of(name_of(shop.model), TRAIN, "", m, evaluate)


def table(arena: dict[str, Any], rows: Sequence[Row]) -> str:
    """All rows as text, the highest recall first."""
    m = arena["m"]
    heads = ("row", "source", "fitted to", "also knows", "seen items", f"recall@{m}", f"NDCG@{m}")
    lines = [heads]
    for row in sorted([*rows, *arena["rows"]], key=lambda row: -row["recall"]):
        scores = (f"{row[metric]:.4f}" for metric in METRICS)
        source = row.get("source", "measured here")
        lines.append((row["row"], source, row.get("fitted", ""), row["knows"], row["seen"], *scores))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([arena["title"], "", *texts])


def main() -> None:
    published = tomllib.loads(PUBLISHED.read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arena", help=f"{', '.join(published)}, or the path of a log or of a folder like LightGCN's.")
    parser.add_argument("log", nargs="?", help="The log or folder of an arena with a name.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sequence", action=argparse.BooleanOptionalAction, help="The sequence part. Default: on a GPU."
    )
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="Files of compare_rows.py --exclude-seen.")
    parser.add_argument("--json", type=Path, help="Also write our rows to this file.")
    args = parser.parse_args()
    path = args.log if args.arena in published else args.arena
    if path is None and args.arena != "movielens-1m":
        parser.error(f"{args.arena} needs a log: python benchmarks/arena.py {args.arena} PATH")
    sequence = args.device != "cpu" if args.sequence is None else args.sequence
    how = {"device": args.device, "steps": 0, "sequence": sequence}
    is_folder = path is not None and (Path(path) / "train.txt").exists()
    m = LIGHTGCN_M if is_folder else LEAVE_ONE_OUT_M
    arena = published.get(args.arena, {"title": args.arena, "m": m, "rows": []})
    if is_folder:
        rows = lightgcn(Path(path), arena["m"], args.seed, how)
    else:
        log = bt.datasets.movielens_1m().log if path is None else path
        rows = leave_one_out(log, arena["m"], args.seed, how, args.also)
    print(table(arena, rows))
    if args.json is not None:
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        args.json.write_text(f'{{\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()

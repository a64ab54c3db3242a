"""Arenas: our rows beside those that others published, by the same protocol on the same log.

    python benchmarks/arena.py beauty amazon-beauty.parquet --json results/arena-beauty.json && python docs/fill.py
    python benchmarks/arena.py movielens-1m
    python benchmarks/arena.py yelp2018 yelp2018/ --seeds 3 --parts
    python benchmarks/arena.py my-log.parquet

- beauty and movielens-1m: the last event of every user is for testing, the one before for validation (leave-one-out).
  MovieLens is downloaded where no file is given.
- yelp2018: LightGCN's folder with train.txt and test.txt, one user a line, or a Parquet file of integers with the
  columns user, item and split (train or test). A tenth of the pairs for training validates, then the model is fitted to
  all of them. Seen items are left out.
- Any other log is measured likewise: by LightGCN's split where it has one, else by its last events.

All items are ranked. Published rows are in `results/published.toml`. Rows of `benchmarks/quality/compare_rows.py` from
a GPU are added with --also. Rows of the file of --json that a run does not make stay in it.
"""

import argparse
import json
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import polars as pl
import torch

import beamtree as bt
from beamtree.evaluate import Evaluation, leaving_out, measure
from beamtree.ingest.user_events import read_users
from beamtree.live.refit import refit_parts
from beamtree.live.users import Users
from beamtree.parts.memory import MemoryPart
from beamtree.parts.sequence import SEQUENCE
from beamtree.research.baselines import TUNED, build
from beamtree.scorers import as_sum

PUBLISHED = Path(__file__).parent.parent / "results" / "published.toml"
METRICS = ("recall", "ndcg")
SEEN = {True: "left out", False: "kept"}
LAST_TWO, LAST, TRAIN = "all but the last two", "all but the last", "all of train.txt"
SPLITS = ("train", "test")
LIGHTGCN, LEAVE_ONE_OUT = "lightgcn", "leave-one-out"
NEEDS = {
    LIGHTGCN: "by LightGCN's split: give a folder with train.txt and test.txt, or a Parquet file with a column split",
    LEAVE_ONE_OUT: "by the last events of every user: give a log that is not split",
}
MS = {LEAVE_ONE_OUT: 10, LIGHTGCN: 20}
MIN_EVENTS = 5  # of a user in leave-one-out; those of both logs have them
UNORDERED = ("popularity", "ease", "ials", "user-knn")  # rows that do not read the order of events

Row = dict[str, Any]


def rows_of(name: str, fitted: str, knows: str, m: int, evaluate: Callable[[bool], Evaluation]) -> list[Row]:
    """A row of ours with seen items left out, and one with them where it is not of LightGCN's protocol."""
    rows = []
    for exclude_seen in (True,) if fitted == TRAIN else (True, False):
        found, seen = evaluate(exclude_seen), SEEN[exclude_seen]
        scores = {metric: found[metric, m] for metric in METRICS}
        rows.append({"row": name, "fitted": fitted, "knows": knows, "seen": seen, **scores})
        texts = (f"{metric} {value:.4f}" for metric, value in scores.items())
        print(f"{name}, fitted to {fitted}, seen items {seen}: {', '.join(texts)}", flush=True)
    return rows


def name_of(model: bt.TreeModel) -> str:
    return "beamtree" if SEQUENCE in model.scorer.names else "beamtree, closed form"


def leave_one_out(
    log: Any, m: int, seed: int, how: dict[str, Any], name: str | None = None, baselines: Sequence[str] = ()
) -> list[Row]:
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
        name = name or name_of(model)
        rows = rows_of(name, LAST_TWO, knows, m, of_tree(model))
        if SEQUENCE not in model.scorer.names:
            refitted = refit_parts(model, data, data.joined(data.sections[:2]), seed)
            rows += rows_of(f"{name}, refitted", LAST, knows, m, of_tree(refitted))
        for other in baselines:
            rows += rows_of(other, LAST_TWO, "" if other in UNORDERED else "order", m, of_baseline(other))
    return rows


def compared(files: Sequence[Path], m: int) -> list[Row]:
    """The rows of files of compare_rows.py."""
    rows = []
    for file in files:
        cells = {(cell["metric"], cell.get("m")): cell for cell in json.loads(file.read_text())}
        scores = {metric: cells[metric, m]["value"] for metric in METRICS}
        name = cells["recall", m]["row"]
        rows.append({"row": name, "fitted": LAST_TWO, "knows": "order", "seen": SEEN[True], **scores})
    return rows


def lightgcn(
    folder: Path, m: int, seed: int, how: dict[str, Any], name: str | None = None, parts: bool = False
) -> list[Row]:
    """The rows of a folder with train.txt and test.txt: the tree, every item scored, and without each part."""
    shop = bt.Recommender(seed=seed, **how).fit(folder / "train.txt", split="pairs")
    model, name = shop.model, name or name_of(shop.model)
    known = partial(Users(shop.data, {}, {}).items, ids=model.ids)
    users = read_users(folder / "test.txt", model.ids, items_of=known)

    def row(name: str, model: bt.TreeModel, beam_size: int = 400) -> Row:
        def evaluate(exclude_seen: bool) -> Evaluation:
            return bt.evaluate(model, users, beam_size=beam_size, m=m, metrics=METRICS, exclude_seen=exclude_seen)

        return rows_of(name, TRAIN, "", m, evaluate)[0]

    of_tree = row(name, model)
    details = [row(f"{name}, every item scored", model, beam_size=model.tree.num_nodes)]
    for part, weight in model.scorer.hyperparameters["weights"].items() if parts else ():
        without_it = f"{name}, without {part}"
        details.append(row(without_it, without(model, part)) if weight else {**of_tree, "row": without_it})
    return [of_tree, *({**each, "detail": True} for each in details)]


def without(model: bt.TreeModel, part: str) -> bt.TreeModel:
    """The model with the weight 0 for a part, or for a list of partners of its memory."""
    scorer = as_sum(model.scorer)
    assert scorer is not None
    if part in scorer.names:
        return model.with_scorer(scorer.with_parts({}).set_weights(**{part: 0.0}))
    memory = deepcopy(scorer.part(MemoryPart.name))
    lists = [name for name in MemoryPart.stages if scorer.hyperparameters["weights"].get(name)]
    memory.recency[lists.index(part)] = 0
    return model.with_scorer(scorer.with_parts({MemoryPart.name: memory}))


def key_of(row: Row) -> tuple[str, str, str]:
    return row["row"], row["fitted"], row["seen"]


def means(rows: Iterable[Row]) -> list[Row]:
    """One row for each that several seeds gave; prints the standard deviation over seeds."""
    of_key: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        of_key.setdefault(key_of(row), []).append(row)
    result = []
    for (name, *about), same in of_key.items():
        values = {metric: [row[metric] for row in same] for metric in METRICS}
        if len(same) > 1:
            texts = (f"{metric} {mean(found):.4f} ± {stdev(found):.4f}" for metric, found in values.items())
            print(f"{name}, {', '.join(about)}, {len(same)} seeds: {', '.join(texts)}")
        result.append(same[0] | {metric: round(mean(found), 4) for metric, found in values.items()})
    return result


def write(rows: Sequence[Row], file: Path) -> None:
    """Put rows into a file, in the place of those of the same name, fitted and measured likewise; others stay."""
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    merged = {key_of(row): row for row in (*old, *rows)}
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in merged.values())
    file.write_text(f'{{\n "rows": [\n  {lines}\n ]\n}}\n')


def protocol_of(path: Path) -> str:
    """How a log is split."""
    if path.is_dir():
        return LIGHTGCN if all((path / f"{split}.txt").exists() for split in SPLITS) else LEAVE_ONE_OUT
    is_split = path.suffix == ".parquet" and "split" in pl.read_parquet_schema(path)
    return LIGHTGCN if is_split else LEAVE_ONE_OUT


def write_lines(log: Path, folder: Path) -> None:
    """A log with the columns user, item and split as LightGCN's two files."""
    rows = pl.read_parquet(log, columns=["user", "item", "split"])
    if {*rows["split"]} != {*SPLITS}:
        raise SystemExit(f"{log}: the column split has {', '.join(map(str, {*rows['split']}))}: give train and test")
    for split in SPLITS:
        of_users = rows.filter(pl.col("split") == split).group_by("user").agg("item").sort("user").rows()
        lines = (f"{user} {' '.join(map(str, items))}\n" for user, items in of_users)
        (folder / f"{split}.txt").write_text("".join(lines))


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
    seed = parser.add_mutually_exclusive_group()
    seed.add_argument("--seed", type=int, default=0)
    seed.add_argument("--seeds", type=int, choices=range(1, 100), metavar="N", help="The means of seeds 0 to N - 1.")
    parser.add_argument("--name", help="The name of our row. Default: beamtree, and what it leaves out.")
    parser.add_argument(
        "--sequence", action=argparse.BooleanOptionalAction, help="The sequence part. Default: on a GPU."
    )
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="Files of compare_rows.py --exclude-seen.")
    parser.add_argument("--json", type=Path, help="Also put our rows into this file.")
    parser.add_argument("--parts", action="store_true", help="Of LightGCN's split: also without each part.")
    args = parser.parse_args()
    path = args.log if args.arena in published else args.arena
    if path is None and args.arena != "movielens-1m":
        parser.error(f"{args.arena} needs a log: python benchmarks/arena.py {args.arena} PATH")
    if path is not None and not Path(path).exists():
        parser.error(f"there is no {path}")
    protocol = LEAVE_ONE_OUT if path is None else protocol_of(Path(path))
    arena = {"title": args.arena, "m": MS[protocol], "rows": [], "protocol": protocol}
    arena = published.get(args.arena, arena)
    if arena["protocol"] != protocol:
        parser.error(f"{path} does not fit: {args.arena} is measured {NEEDS[arena['protocol']]}")
    if args.parts and protocol != LIGHTGCN:
        parser.error(f"--parts is for a log that is measured {NEEDS[LIGHTGCN]}")
    sequence = args.device != "cpu" if args.sequence is None else args.sequence
    how = {"device": args.device, "steps": 0, "sequence": sequence}
    seeds = [args.seed] if args.seeds is None else range(args.seeds)
    rows, m = list[Row](), arena["m"]
    with tempfile.TemporaryDirectory() as folder:
        if protocol == LIGHTGCN and Path(path).is_file():
            write_lines(Path(path), Path(folder))
            path = folder
        for seed in seeds:
            if protocol == LIGHTGCN:
                rows += lightgcn(Path(path), m, seed, how, args.name, args.parts)
            else:
                log = bt.datasets.movielens_1m().log if path is None else path
                rows += leave_one_out(log, m, seed, how, args.name, TUNED if seed == seeds[0] else ())
    rows = means([*rows, *compared(args.also, m)])
    print(table(arena, rows))
    if args.json is not None:
        write(rows, args.json)


if __name__ == "__main__":
    main()

"""`beamtree demo`: every step on simulated data, in a few minutes."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import retrieve
from beamtree.builders import random_tree
from beamtree.cli.console import print_table, write
from beamtree.cli.evaluate import evaluate_run
from beamtree.cli.inspect import inspect_run
from beamtree.cli.prepare import prepare
from beamtree.cli.simulate import simulate
from beamtree.cli.train import train
from beamtree.data import gaussian
from beamtree.evaluate import evaluate
from beamtree.methods import otm_mixed, tdm
from beamtree.model import TreeModel
from beamtree.query import history_of_user
from beamtree.recommender import Recommender
from beamtree.scorers import LinearScorer
from beamtree.theory import regret
from beamtree.train import Schedule, constant, fit

WHEN_TO_USE = (
    "When to use a tree: with tens of thousands of items or more, because the cost of a query grows with their "
    "logarithm. Filters do not reduce the number of results, and it has the best recall on the four public logs of "
    "docs/comparison.md. With a few thousand items, as here, scoring every item is as fast, and EASE or iALS are "
    "simpler and nearly as good."
)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="The folder for all files.")] = Path("demo"),
    users: Annotated[int, typer.Option(min=100, help="Number of users.")] = 8_000,
    items: Annotated[int, typer.Option(min=100, help="Number of items.")] = 4_000,
    epochs: Annotated[int, typer.Option(min=0, help="Passes that train a network, too.")] = 0,
) -> None:
    """Simulate a log, prepare it, build a tree, train a model, compare it with baselines, and inspect its beam."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"{folder} exists: remove it, or choose another folder with --out")
    start = time.monotonic()
    market, prepared, run = folder / "market.parquet", folder / "prepared", folder / "run"
    folder.mkdir(parents=True, exist_ok=True)
    _heading("1. Simulate a market: users with a few interests each, and items that match them")
    simulate(market, users=users, items=items, events=users * 20)
    _heading("2. Prepare the log: clean it, and split it into training, validation and test users")
    prepare([str(market)], prepared, split="halves")
    and_more = ", and train a network on the nodes of the beam" if epochs else ""
    _heading(f"3. Build a tree over the items, and fit the closed form{and_more}")
    train(prepared, run, beam_size=100, batch_size=50, epochs=epochs or None, sequence=False)
    _heading("4. Evaluate on the test users, beside baselines tuned on the same validation users")
    rows = "ease,ials,user-knn,rules,item-cf,popularity" if find_spec("scipy") else "popularity"
    evaluate_run(run, beam_size="200", against=rows, json=folder / "scores.json")
    _heading("5. Inspect what the beam saves and loses compared with scoring every item")
    inspect_run(run, beam_size="200", users=100, plot=folder / "inspect.png")
    _heading("6. Why train on the nodes of the beam: synthetic users with a known optimum, and a beam of 10 nodes")
    _compare_narrow_beams()
    user = (prepared / "users.txt").read_text(encoding="utf-8").split("\n")[-2]
    _heading(f"7. Ten recommendations for {user}, one of the test users")
    _recommend(run, user, market.with_name("market.items.parquet"))
    pictures = [path for path in (prepared / "summary.png", folder / "inspect.png") if path.exists()]
    _heading(f"Done in {time.monotonic() - start:.0f} seconds.{' Pictures:' if pictures else ''}")
    write(*(f"  {picture}" for picture in pictures), WHEN_TO_USE)
    item = (prepared / "items.txt").read_text(encoding="utf-8").split("\n", 1)[0]
    write(
        "Next:",
        f'  beamtree retrieve {run} --history "{item}" --beam-size 200',
        "  beamtree prepare YOUR_LOG.csv --out prepared/yours",
        "  beamtree train prepared/yours --out runs/yours",
    )


def _compare_narrow_beams() -> None:
    """One scorer on one tree, trained on random nodes (TDM) and on the nodes that the beam visits (OTM)."""
    data, k = gaussian(bias=-4.0, train=5_000, test=500), 10
    tree = random_tree(1_000, seed=0)
    table = Table(caption=f"regret: mean probability of the best {k} items less that of the items found")
    for head in ("trained by", "on", f"recall@{k}, %", f"regret@{k}"):
        table.add_column(head, justify="left" if head in ("trained by", "on") else "right")
    for name, nodes, method in (
        ("TDM", "random nodes", tdm(2 * k)),
        ("OTM", "the nodes of the beam, and random leaves", otm_mixed(beam_size=k, extra=2 * k)),
    ):
        model = TreeModel(tree, LinearScorer(tree.num_nodes, dim=10))
        fit(model, data.train, method, epochs=10, batch_size=100, schedule=Schedule(1e-2, constant))
        recall = evaluate(model, data.test, beam_size=k, m=k, metrics="recall")["recall", k]
        items, _ = retrieve(model, data.test.x, beam_size=k, m=k)
        lost = float(regret(data.eta(data.test.x), items, m=k).mean())
        table.add_row(name, nodes, f"{recall * 100:.2f}", f"{lost:.3f}")
    print_table(table)


def _recommend(run: Path, user: str, items: Path) -> None:
    """The last items of a user and the recommendations, by name."""
    import polars as pl  # takes a moment to import

    recommender = Recommender.load(run)
    names = dict(pl.read_parquet(items, columns=["item", "name"]).iter_rows())
    recent = history_of_user(recommender.data, user).items[-5:]
    write(*(f"  recent: {names[recommender.ids.name(number)]}" for number in recent))
    table = Table()
    for head in ("", "item", "name", "probability"):
        table.add_column(head, justify="right" if head in ("", "probability") else "left")
    best = recommender.recommend(users=user, m=10, beam_size=200, exclude_seen=True)
    for rank, item, score in best.select("rank", "item", "score").iter_rows():
        table.add_row(str(rank), item, names[item], f"{score:.3f}")
    print_table(table)


def _heading(text: str) -> None:
    write("")
    write(text, bold=True)

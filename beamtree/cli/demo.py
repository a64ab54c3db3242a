"""`beamtree demo`: the whole story on a made-up market, in a few minutes."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import retrieve
from beamtree.builders import random_tree
from beamtree.cli.data import prepare
from beamtree.cli.evaluate import evaluate_run
from beamtree.cli.inspect import inspect_run
from beamtree.cli.screen import out, print_table
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


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where everything goes.")] = Path("demo"),
    users: Annotated[int, typer.Option(min=100, help="How many users.")] = 8_000,
    items: Annotated[int, typer.Option(min=100, help="How many items.")] = 4_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training users.")] = 1,
) -> None:
    """Simulate a market, prepare its log, learn a tree, train a model, compare it, and see what the beam loses."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"{folder} is there already: remove it, or choose another folder with --out")
    began = time.monotonic()
    market, prepared, run = folder / "market.parquet", folder / "prepared", folder / "run"
    folder.mkdir(parents=True, exist_ok=True)
    _say("1. A market: users with a few interests each, items that some of them like")
    simulate(market, users=users, items=items, events=users * 20)
    _say("2. Its log, cleaned and split into training, validation and test users")
    prepare([str(market)], prepared)
    _say("3. A tree over the items, what is known without a gradient, and a network trained on the beam's nodes")
    train(prepared, run, beam_size=100, batch_size=50, epochs=epochs)
    _say("4. How well it finds what test users chose next, beside what else people use, tuned on the same users")
    rows = "ease,ials,user-knn,rules,item-cf,popularity" if find_spec("scipy") else "popularity"  # what is installed
    evaluate_run(run, beam_size="200", against=rows, json=folder / "scores.json")
    _say("5. What the beam saves and loses on its way down, against scoring every item")
    inspect_run(run, beam_size="200", users=100, plot=folder / "inspect.png")
    _say("6. Why the beam is trained on: made-up users of whom the truth is known, and a beam of 10 nodes")
    narrow_beams()
    user = (prepared / "users.txt").read_text(encoding="utf-8").split("\n")[-2]
    _say(f"7. Ten recommendations for {user}, one of the test users")
    recommend(run, user, market.with_name("market.items.parquet"))
    pictures = [path for path in (prepared / "summary.png", folder / "inspect.png") if path.exists()]
    _say(f"That was all, in {time.monotonic() - began:.0f} seconds.{' Pictures:' if pictures else ''}")
    for picture in pictures:
        out.print(f"  {picture}", highlight=False)
    say_when()
    item = (prepared / "items.txt").read_text(encoding="utf-8").split("\n", 1)[0]
    out.print("Next:")
    for command in (
        f'beamtree retrieve {run} --history "{item}" --beam-size 200',
        "beamtree prepare YOUR_LOG.csv --out prepared/yours",
        "beamtree train prepared/yours --out runs/yours",
    ):
        out.print(f"  {command}", highlight=False)


def narrow_beams() -> None:
    """One scorer on one tree, trained on random nodes and on those that the beam visits."""
    data, k = gaussian(bias=-4.0, train=5_000, test=500), 10
    tree, table = (
        random_tree(1_000, seed=0),
        Table(caption=f"regret: what the best {k} items have more than those found"),
    )
    for head in ("trained by", "on", f"recall@{k}, %", f"regret@{k}"):
        table.add_column(head, justify="left" if head in ("trained by", "on") else "right")
    for name, nodes, method in (
        ("TDM", "random nodes", tdm(2 * k)),
        ("OTM", "the beam's nodes, and random leaves", otm_mixed(beam_size=k, extra=2 * k)),
    ):
        model = TreeModel(tree, LinearScorer(tree.num_nodes, dim=10))
        fit(model, data.train, method, epochs=10, batch_size=100, schedule=Schedule(1e-2, constant))
        recall = evaluate(model, data.test, beam_size=k, m=k, metrics="recall")["recall", k]
        items, _ = retrieve(model, data.test.x, beam_size=k, m=k)
        lost = float(regret(data.eta(data.test.x), items, m=k).mean())
        table.add_row(name, nodes, f"{recall * 100:.2f}", f"{lost:.3f}")
    print_table(table)


def recommend(run: Path, user: str, items: Path) -> None:
    """What a user had last, and what comes next, by name."""
    import polars as pl  # takes a moment

    shop = Recommender.load(run)
    names = dict(pl.read_parquet(items, columns=["item", "name"]).iter_rows())
    for item in (shop.ids[number] for number in history_of_user(shop.data, user).items[-5:]):
        out.print(f"  had lately: {names[item]}", highlight=False)
    table = Table()
    for head in ("", "item", "name", "probability"):
        table.add_column(head, justify="right" if head in ("", "probability") else "left")
    found = shop.recommend(users=user, m=10, beam_size=200, exclude_seen=True)
    for rank, item, score in found.select("rank", "item", "score").iter_rows():
        table.add_row(str(rank), item, names[item], f"{score:.3f}")
    print_table(table)


def say_when() -> None:
    """When a tree is worth it."""
    out.print(
        "Use this with tens of thousands of items or more: the cost of a query grows with their logarithm, filters "
        "keep their word, and it found most on the four public logs of docs/comparison.md. Otherwise, with a few "
        "thousand items as here, scoring everything is as fast, and EASE or iALS are simpler and near it in the table.",
        highlight=False,
    )


def _say(text: str) -> None:
    out.print(f"\n[bold]{text}[/bold]", highlight=False)

"""`beamtree demo`: the whole story on a made-up market, in a few minutes."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.data import prepare
from beamtree.cli.evaluate import evaluate_run
from beamtree.cli.inspect import inspect_run
from beamtree.cli.retrieve import retrieve_items
from beamtree.cli.screen import out
from beamtree.cli.simulate import simulate
from beamtree.cli.train import train


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
    prepare([market], prepared)
    _say("3. A tree over the items, what is known without a gradient, and a network trained on the beam's nodes")
    train(prepared, run, beam_size=100, batch_size=50, epochs=epochs)
    _say("4. How well it finds what test users chose next, beside what else people use, tuned on the same users")
    rows = "ease,ials,user-knn,rules,item-cf,popularity" if find_spec("scipy") else "popularity"  # what is installed
    evaluate_run(run, beam_size=200, against=rows, json=folder / "scores.json")
    _say("5. What the beam loses on its way down, against scoring every item")
    inspect_run(run, beam_size=200, users=100, plot=folder / "inspect.png")
    user = (prepared / "users.txt").read_text(encoding="utf-8").split("\n")[-2]
    _say(f"6. Ten recommendations for {user}, one of the test users")
    retrieve_items(run, users=user, beam_size=200, exclude_seen=True)
    pictures = [path for path in (prepared / "summary.png", folder / "inspect.png") if path.exists()]
    _say(f"That was all, in {time.monotonic() - began:.0f} seconds.{' Pictures:' if pictures else ''}")
    for picture in pictures:
        out.print(f"  {picture}", highlight=False)
    item = (prepared / "items.txt").read_text(encoding="utf-8").split("\n", 1)[0]
    out.print("Next:")
    for command in (
        f'beamtree retrieve {run} --history "{item}" --beam-size 200',
        "beamtree prepare YOUR_LOG.csv --out prepared/yours",
        "beamtree train prepared/yours --out runs/yours",
    ):
        out.print(f"  {command}", highlight=False)


def _say(text: str) -> None:
    out.print(f"\n[bold]{text}[/bold]", highlight=False)

"""The command `beamtree`: its help and its subcommands."""

from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from beamtree import __version__
from beamtree.cli import errors
from beamtree.cli.check import check
from beamtree.cli.classify import classify
from beamtree.cli.compare import compare_rows
from beamtree.cli.console import write
from beamtree.cli.demo import demo
from beamtree.cli.evaluate import evaluate_run
from beamtree.cli.explain import explain_items
from beamtree.cli.explore import explore
from beamtree.cli.export import export_run
from beamtree.cli.inspect import inspect_run
from beamtree.cli.items import change_items
from beamtree.cli.options import command
from beamtree.cli.paper import paper
from beamtree.cli.prepare import prepare
from beamtree.cli.renew import renew_run
from beamtree.cli.retrieve import retrieve_items
from beamtree.cli.serve import serve_run
from beamtree.cli.similar import similar_items
from beamtree.cli.simulate import simulate
from beamtree.cli.train import train
from beamtree.cli.tree import tree
from beamtree.cli.tune import tune_run

app = typer.Typer(
    name="beamtree",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Retrieve the right few items out of millions with a learned tree.\n\n"
    "Items are the leaves of a tree. A scorer rates nodes for a user, and beam search walks down from the root. "
    "beamtree trains the scorer on the nodes that the beam visits, so that the beam does not lose relevant items "
    "(Learning Optimal Tree Models under Beam Search, ICML 2020).\n\n"
    "Start with [bold]beamtree demo[/bold], which shows every step on simulated data in a few minutes. With a log of "
    "your own: [bold]prepare[/bold], [bold]train[/bold], [bold]evaluate[/bold], [bold]retrieve[/bold] or "
    "[bold]serve[/bold]. For documents and their labels: [bold]classify[/bold].\n\n"
    "beamtree COMMAND --help describes a command.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "simulate": simulate,
    "prepare": prepare,
    "train": train,
    "tree": tree,
    "renew": renew_run,
    "items": change_items,
    "evaluate": evaluate_run,
    "compare": compare_rows,
    "retrieve": retrieve_items,
    "similar": similar_items,
    "explain": explain_items,
    "inspect": inspect_run,
    "serve": serve_run,
    "explore": explore,
    "tune": tune_run,
    "export": export_run,
    "check": check,
}
for name, function in COMMANDS.items():
    command(app, name)(function)
app.add_typer(classify, name="classify")
app.add_typer(paper, name="paper")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        write(f"beamtree {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """The console command."""
    errors.run(app)

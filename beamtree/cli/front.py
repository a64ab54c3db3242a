"""The front of the command: help, version, and what becomes of errors."""

import sys
from concurrent.futures import BrokenExecutor
from typing import Annotated

import typer

from beamtree._version import VERSION
from beamtree.cli.paper import paper
from beamtree.cli.screen import out

app = typer.Typer(
    name="beamtree",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Retrieve the right few items out of millions with a learned tree.\n\n"
    "Items are the leaves of a tree, a scorer judges a user against a node, and beam search walks down. "
    "beamtree trains the scorer on the nodes the beam visits, so that the beam loses nothing "
    "(Learning Optimal Tree Models under Beam Search, ICML 2020).\n\n"
    "Start with [bold]beamtree paper table1[/bold]: half a minute, and the paper's first table beside ours.",
)
app.add_typer(paper, name="paper")


def main() -> None:
    """The console command: an error that a user can cause is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        code = _fail(error.format_message())
    except BrokenExecutor:
        code = _fail("a worker process ended before its time, perhaps for want of memory")
    except (ValueError, OSError) as error:
        code = _fail(str(error))
    if code == 130:
        print("stopped", file=sys.stderr)
    sys.exit(code)


def _fail(message: str) -> int:
    if message:  # there is none where help was printed instead
        print("beamtree: " + " ".join(message.split()), file=sys.stderr)
    return 2


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        out.print(f"beamtree {VERSION}")
        raise typer.Exit

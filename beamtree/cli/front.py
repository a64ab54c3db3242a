"""The front of the command: help, version, and what becomes of errors."""

import os
import re
import sys
import threading
from concurrent.futures import BrokenExecutor
from functools import cache
from typing import Annotated

import typer

from beamtree import __version__
from beamtree.cli import paper_real  # noqa: F401  (adds commands to `paper`)
from beamtree.cli.check import check
from beamtree.cli.compare import compare_rows
from beamtree.cli.data import prepare
from beamtree.cli.demo import demo
from beamtree.cli.evaluate import evaluate_run
from beamtree.cli.explore import explore
from beamtree.cli.export import export_run
from beamtree.cli.inspect import inspect_run
from beamtree.cli.paper import paper
from beamtree.cli.retrieve import retrieve_items
from beamtree.cli.screen import out, printable
from beamtree.cli.serve import serve_run
from beamtree.cli.simulate import simulate
from beamtree.cli.train import train
from beamtree.cli.trees import tree
from beamtree.cli.tune import tune_run
from beamtree.distributed.group import LostError, tells
from beamtree.train.loop import DivergedError

LESS = "use a smaller --batch-size or --beam-size, or a log with fewer events at once"
LONGEST = 1000  # characters of an error

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
    "Start with [bold]beamtree demo[/bold]: a few minutes, and the whole story on a made-up market.",
)
app.command()(demo)
app.command()(simulate)
app.command()(prepare)
app.command()(train)
app.command()(tree)
app.command("evaluate")(evaluate_run)
app.command("compare")(compare_rows)
app.command("retrieve")(retrieve_items)
app.command("inspect")(inspect_run)
app.command("serve")(serve_run)
app.command()(explore)
app.command("tune")(tune_run)
app.command("export")(export_run)
app.command()(check)
app.add_typer(paper, name="paper")


def main() -> None:
    """The console command: an error that a user can cause is one line and exit code 2."""
    threading.excepthook = beside
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        code = _fail(error.format_message())
    except DivergedError as error:
        code = _fail(str(error)) and 1
    except BrokenExecutor:
        code = _fail("a worker process ended before its time, perhaps for want of memory")
    except LostError as error:
        _fail(str(error))
        sys.stdout.flush()
        os._exit(2)  # what waits for the lost one still would not end
    except MemoryError as error:
        code = _fail(too_little(str(error)))
    except RuntimeError as error:  # which is how torch says it, and Python that a link leads to itself
        if str(error).startswith("Symlink loop"):
            code = _fail(str(error))
        elif re.search(r"allocate memory|out of memory", str(error)[:1000]):
            code = _fail(too_little(str(error)))
        else:
            raise
    except (ValueError, OSError) as error:
        code = _fail(str(error))
    if code == 130:
        print("stopped", file=sys.stderr)
    sys.exit(code)


def beside(error: threading.ExceptHookArgs) -> None:
    """What becomes of an error in a thread of a library, such as TensorBoard's on a full disk: a note."""
    if isinstance(error.exc_value, OSError):
        name = error.thread.name if error.thread is not None else "a thread"
        print(f"note: {name} could not write: {error.exc_value.strerror or error.exc_value}", file=sys.stderr)
    else:
        threading.__excepthook__(error)


def too_little(error: str) -> str:
    """What to say where memory is too little: how much was wanted, and what wants less."""
    asked = re.search(r"(\d+) bytes|([\d.]+ [KMGT]iB)", error[:1000])
    wanted = "" if asked is None else f" for {asked[2] or f'{int(asked[1]) / 2**20:,.0f} MiB'} more"
    return f"there is too little memory{wanted}: {LESS}"


def _fail(message: str) -> int:
    if message and tells():  # there is none where help was printed instead
        line = printable(" ".join(message[: 10 * LONGEST].split()))
        line = line if len(line) <= LONGEST else f"{line[: LONGEST - 200]} … {line[-190:]}"
        print("beamtree: " + as_flags(line), file=sys.stderr)
    return 2


@cache
def flags() -> dict[str, str]:
    """The flag of every argument of the library that some command takes."""
    found = {"names": "--format"}
    groups = [typer.main.get_command(app)]
    for group in groups:
        for command in getattr(group, "commands", {}).values():
            groups.append(command)
            found |= {each.name: each.opts[0] for each in command.params if each.name and each.opts[0][0] == "-"}
    return found


def as_flags(message: str) -> str:
    """A message of the library in the words of the command: `val_users` and min_events=1 become flags."""
    message = re.sub(r"`([a-z_]+)`", lambda word: flags().get(word[1], word[0]), message)
    # Not inside a path or a call: event_date=2020 may be a folder, and beam(beam_size=3) is one value.
    pattern = r"(?<![\w/.(=-])([a-z_]+)=(?=\S)"
    return re.sub(pattern, lambda word: f"{flags()[word[1]]} " if word[1] in flags() else word[0], message)


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        out.print(f"beamtree {__version__}")
        raise typer.Exit

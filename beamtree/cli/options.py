"""Options shared by several commands, and the parsing of their text."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, as_text
from beamtree.cli.console import note
from beamtree.data import BeforeAfter, Prepared
from beamtree.errors import is_number, parse_int
from beamtree.evaluate import ALL_METRICS
from beamtree.evaluate.metrics import METRICS
from beamtree.files.atomic import check_writable
from beamtree.ingest.columns import FORMATS
from beamtree.recommender import Recommender
from beamtree.search.choice import SCAN, SEARCHES
from beamtree.storage.tuned import load_tuned_beam

if TYPE_CHECKING:
    from beamtree.batch.ray_cluster import Cluster

Command = TypeVar("Command", bound=Callable[..., None])
OLD_SPELLINGS = {  # until 0.3.0, with a note
    "--cost": "--C",
    "--least": "--min-weight",
    "--slow": "--degrade-after-ms",
    "--window": "--batch-window-ms",
}


@cache
def training_help() -> dict[str, str]:
    """The help of every training option, from the docstring of `Recommender`."""
    arguments = (inspect.getdoc(Recommender) or "").split("Args:\n")[1]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, flags=re.MULTILINE)
    texts = {name: " ".join(text.split()).partition(" In Python ")[0] for name, text in entries}
    return {name: text[0].upper() + text[1:] for name, text in texts.items()}


def training_option(name: str, **limits: Any) -> Any:
    """The command-line option of a training option."""
    return typer.Option(help=training_help()[name], **limits)


def command(app: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Add a function to an app as a command. Its help is its docstring, wrapped to the width of the terminal."""

    def add(function: Command) -> Command:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        types = get_type_hints(function)
        numbers = {each for each, kind in types.items() if {int, float} & {kind, *get_args(kind)}}

        class CheckedCommand(typer.core.TyperCommand):
            """A command that takes numbers in the digits 0 to 9 only."""

            def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
                args = in_new_spelling(args, {option for each in self.params for option in each.opts})
                given = self.make_parser(ctx).parse_args(args=list(args))[0]
                for parameter in (each for each in self.params if each.name in numbers):
                    value = parameter.consume_value(ctx, given)[0]
                    if isinstance(value, str) and not is_number(value):
                        raise ValueError(f"{parameter.opts[0]} {value[:40]!r}: this is not a number")
                return super().parse_args(ctx, args)

        app.command(name, cls=CheckedCommand, help=text)(function)
        return function

    return add


def in_new_spelling(args: list[str], options: set[str]) -> list[str]:
    """The arguments of a command that has these options, with a note for those that were called otherwise before."""
    renamed = {old: new for old, new in OLD_SPELLINGS.items() if new in options and old not in options}
    result = []
    for word in args:
        name, equals, value = word.partition("=")
        if name in renamed:
            note(f"note: {name} is called {renamed[name]} now")
        result.append(renamed.get(name, name) + equals + value)
    return result


# Runs and data
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder written by `beamtree train`.")]
PreparedFolder = Annotated[Path, typer.Argument(metavar="DATA", help="A folder written by `beamtree prepare`.")]
DataFolder = Annotated[Path | None, typer.Option(help="Prepared data. Default: the training data of the run.")]
Split = Annotated[str, typer.Option(help="Whose users: test, val or train.")]

# Columns of a log
LogFormat = Annotated[
    str | None, typer.Option("--format", help=f"A known format without a header: {' or '.join(FORMATS)}.")
]
UserColumn = Annotated[
    str | None, typer.Option("--user", help="The column of users: a name, or 1, 2, 3, … without a header.")
]
ItemColumn = Annotated[str | None, typer.Option("--item", help="The column of items.")]
TimeColumn = Annotated[
    str | None, typer.Option("--time", help="The column of times: numbers, or dates such as 2020-12-31 23:59.")
]
TimeFormat = Annotated[
    str | None, typer.Option(help='The format of dates as in strptime: "%d/%m/%Y %H:%M". Default: detected.')
]
WeightColumn = Annotated[
    str | None,
    typer.Option(
        "--weight",
        help="The column of what events are worth, such as ratings; with --kinds, the column of kinds. Default: all "
        "events count the same.",
    ),
]
Kinds = Annotated[
    str | None,
    typer.Option(metavar="KIND=WEIGHT,…", help="The weight of each kind of event: view=1,cart=3,buy=10,dislike=-1."),
]
Target = Annotated[
    str | None,
    typer.Option(help="What is to be predicted: kinds such as buy, or the lowest weight, such as 4. Default: all."),
]
Dislike = Annotated[
    float | None,
    typer.Option(
        help="Events of at most this weight are dislikes: no part of histories, never predicted, and never "
        "recommended to their users. Default: 0."
    ),
]

# Trees
TreeName = Annotated[str, training_option("tree")]
Arity = Annotated[int, training_option("arity", min=2)]
ItemsFile = Annotated[Path | None, training_option("items")]
VectorsFile = Annotated[Path | None, training_option("vectors")]

# Search and measurement
BeamText = Annotated[
    str, typer.Option(help="The beam size k, one width per searched level separated by commas, or tuned.")
]
DEFAULT_BEAM = str(DEFAULT_BEAM_SIZE)
OptionalBeam = Annotated[
    str | None,
    typer.Option(
        "--beam-size",
        help="The beam size k, one width per searched level separated by commas, or tuned. Default: 400 or m.",
    ),
]
SearchName = Annotated[
    str,
    typer.Option(
        "--search",
        metavar="|".join(SEARCHES),
        help="[bold]beam[/bold]; [bold]scan[/bold], which scores every item; or [bold]auto[/bold]: a beam with "
        "--beam-size, else the faster one, which is measured once.",
    ),
]
Size = Annotated[int, typer.Option(min=1, help="Number of items to retrieve.")]
Cuts = Annotated[str, typer.Option(help="Numbers of items to retrieve, separated by commas.")]
Metrics = Annotated[str, typer.Option(help=f"Any of {', '.join(METRICS)}, separated by commas.")]
EvaluateMetrics = Annotated[str, typer.Option(help=f"Any of {', '.join(ALL_METRICS)}, separated by commas.")]
ExcludeSeen = Annotated[
    bool,
    typer.Option("--exclude-seen", help="Leave items a user has seen out of the results and of the expected items."),
]
AllowedFile = Annotated[Path | None, typer.Option(help="A file of ids, one per line: retrieve only these.")]
ExcludeFile = Annotated[Path | None, typer.Option(help="A file of ids, one per line: retrieve none of these.")]
Where = Annotated[
    str | None,
    typer.Option(
        help="Retrieve only items for which this is true: an expression over the columns of the table of items that "
        "the run was trained with, such as \"category == 'lamps' and price < 50\"."
    ),
]
RequestTime = Annotated[
    str | None,
    typer.Option(
        "--request-time",
        metavar="TIME",
        help="When the request is made: a date or a Unix time, for parts that know the time. Default: for --users the "
        "end of the log.",
    ),
]
Device = Annotated[str, training_option("device")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="CPU threads. Default: OMP_NUM_THREADS, or the CPUs available to this process."),
]

# Output
Json = Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file, as JSON.")]
PICTURES = (".png", ".pdf", ".svg")

# Ray
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where the work is done. [bold]local[/bold]: in this process. [bold]ray[/bold]: by the workers of a Ray "
        "cluster, which must see the same files.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="With --engine ray: a running cluster, as HOST:PORT, ray://HOST:PORT or auto. Default: start a local one.",
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="With --engine ray: number of workers. Default: all CPUs.")]


def uses_ray(engine: str, *ray_options: object) -> bool:
    """Whether --engine is ray; a ValueError where options of Ray were given without it."""
    if engine == "here":
        note("note: --engine here is called local now")
        engine = "local"
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine {engine!r} is unknown: choose from local, ray")
    if engine == "local" and any(value is not None for value in ray_options):
        raise ValueError("--address, --workers and --gpus are for a cluster: add --engine ray")
    return engine == "ray"


@contextmanager
def ray_cluster(address: str | None, workers: int | None, *, gpus: bool = False) -> "Iterator[Cluster]":
    """A Ray cluster while it is connected: a running one, or one started here."""
    from beamtree.batch.ray_cluster import connect  # Ray is optional

    note("starting Ray …" if address is None else f"connecting to Ray at {address} …")
    with connect(address, workers, gpus=gpus) as cluster:
        yield cluster


def parse_list(text: str) -> tuple[str, ...]:
    """The entries of a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_beam(text: str, run: Path | None = None) -> BeamSize:
    """The beam of --beam-size: a number, one width per level, or tuned for a run."""
    if text == "tuned" and run is not None:
        return load_tuned_beam(run)
    try:
        widths = tuple(parse_int(word) for word in text.split(","))
        if min(widths) < 1:
            raise ValueError
    except ValueError as error:
        raise ValueError(
            f"--beam-size {text!r}: give a whole number, or one for each searched level separated by commas"
        ) from error
    return widths if len(widths) > 1 else widths[0]


def parse_search(search: str, beam: str | None, run: Path) -> tuple[str, BeamSize | None]:
    """The search of --search and --beam-size, and the beam size if one is given."""
    if search not in SEARCHES:
        raise ValueError(f"--search {search!r} is unknown: choose from {', '.join(SEARCHES)}")
    if search == SCAN and beam is not None:
        raise ValueError("--search scan scores every item and has no beam: leave out --beam-size")
    return search, None if beam is None else parse_beam(beam, run)


def check_size(m: int, beam_size: BeamSize, option: str = "--beam-size") -> None:
    """Raise a ValueError where a beam is too narrow for m items."""
    width = beam_size if isinstance(beam_size, int) else beam_size[-1]
    if m > width:
        raise ValueError(f"--m {m} with {option} {as_text(beam_size)}: the beam holds fewer items than that")


def parse_cuts(text: str, beam_size: BeamSize | None, option: str = "--beam-size") -> tuple[int, ...]:
    """Every m of --m: whole numbers from 1 to the beam size, where there is one."""
    try:
        cuts = tuple(parse_int(word) for word in parse_list(text))
        if not cuts or min(cuts) < 1:
            raise ValueError
    except ValueError as error:
        raise ValueError(f"--m {text!r}: give whole numbers separated by commas, such as 10,50") from error
    if beam_size is not None:
        check_size(max(cuts), beam_size, option)
    return cuts


def parse_context(pairs: list[str] | None) -> dict[str, str] | None:
    """A context from pairs such as country=DE; None where there are none."""
    wrong = next((pair for pair in pairs or () if "=" not in pair), None)
    if wrong is not None:
        raise ValueError(f"--context {wrong!r}: give COLUMN=VALUE, such as country=DE")
    return {column.strip(): value for column, _, value in (pair.partition("=") for pair in pairs)} if pairs else None


def users_of(data: Prepared, split: str) -> BeforeAfter:
    """The users of a split; a ValueError where there are none."""
    splits = {"test": data.test, "val": data.val, "train": data.train}
    if split not in splits:
        raise ValueError(f"--split {split!r}: choose test, val or train")
    if not len(splits[split]):
        raise ValueError(f"{data.folder} has no {split} users: choose another --split, or prepare with --{split}-users")
    return splits[split]


def check_outputs(*paths: Path | None) -> None:
    """Raise a ValueError where an output cannot be written: before the work, not after it."""
    for path in paths:
        if path is not None:
            check_writable(path)


def check_picture(path: Path) -> None:
    """Raise a ValueError where a picture has an unknown ending."""
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path}: the name of a picture must end in {', '.join(PICTURES)}")


def read_ids(path: Path | None) -> list[str] | None:
    """The ids of a file, one per line."""
    if path is None:
        return None
    if not path.is_file():
        raise ValueError(f"{path} is not a file of ids")
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]

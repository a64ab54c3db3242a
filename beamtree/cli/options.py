"""Options that several commands take, and what becomes of their text."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.beam import BeamSize, as_text
from beamtree.data import BeforeAfter, Prepared
from beamtree.metrics import METRICS
from beamtree.storage.tuned import tuned_beam

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `beamtree train` wrote.")]
DataFolder = Annotated[Path | None, typer.Option(help="Prepared data; those it was trained on unless given.")]
Split = Annotated[str, typer.Option(help="test, val or train.")]
BeamText = Annotated[
    str, typer.Option(help="k; or one width per searched level, between commas, first to last; or tuned.")
]
Cuts = Annotated[str, typer.Option(help="How many items are retrieved: numbers separated by commas.")]
Metrics = Annotated[str, typer.Option(help=f"Of {', '.join(METRICS)}; separated by commas.")]
ExcludeSeen = Annotated[
    bool, typer.Option("--exclude-seen", help="What a user has seen is neither retrieved nor expected.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="CPU threads; unless given, OMP_NUM_THREADS, or the CPUs that this process may use."),
]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the cells to this file.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="WHO",
        help="[bold]here[/bold]: this process. [bold]ray[/bold]: the workers of a Ray cluster, who see the same files.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="With --engine ray: a cluster that is there already, HOST:PORT, ray://HOST:PORT or auto. Unless given, "
        "a local one is started and ended.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="With --engine ray: how many work at the same time; all CPUs unless given.")
]
ENGINES = {"here": False, "ray": True}  # and whether it is a cluster


def on_ray(engine: str, *given: object) -> bool:
    """Whether --engine is a cluster; a ValueError where options that only a cluster has were given without one."""
    if engine not in ENGINES:
        raise ValueError(f"--engine {engine!r} is unknown: choose from {', '.join(ENGINES)}")
    if not ENGINES[engine] and any(each is not None for each in given):
        raise ValueError("--address, --workers and --gpus say how to work on a cluster: add --engine ray")
    return ENGINES[engine]


def words(text: str) -> tuple[str, ...]:
    """The words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def beam_of(text: str, run: Path) -> BeamSize:
    """What --beam-size says: a number, one width per level, or those that `beamtree tune` found for the run."""
    if text == "tuned":
        return tuned_beam(run)
    return beam_words(text)


def beam_words(text: str) -> BeamSize:
    """A number, or one width per level between commas."""
    try:
        found = tuple(int(word) for word in text.split(","))
        if min(found) < 1:
            raise ValueError
    except ValueError as error:
        raise ValueError(
            f"--beam-size {text!r}: give a whole number, or one for each searched level separated by commas"
        ) from error
    return found if len(found) > 1 else found[0]


def most_items(beam_size: BeamSize) -> int:
    """How many items a beam can give: its width on the leaves."""
    return beam_size if isinstance(beam_size, int) else beam_size[-1]


def cuts(text: str, beam_size: BeamSize, option: str = "--beam-size") -> tuple[int, ...]:
    """Every m of --m: whole numbers from 1 up to the beam's size."""
    try:
        found = tuple(int(word) for word in words(text))
        if not found or min(found) < 1:
            raise ValueError
    except ValueError as error:
        raise ValueError(f"--m {text!r}: give whole numbers separated by commas, such as 10,50") from error
    if max(found) > most_items(beam_size):
        raise ValueError(f"--m {max(found)} with {option} {as_text(beam_size)}: the beam holds fewer items than that")
    return found


def split_of(data: Prepared, name: str) -> BeforeAfter:
    """One of the three groups of users."""
    splits = {"test": data.test, "val": data.val, "train": data.train}
    if name not in splits:
        raise ValueError(f"--split {name!r}: choose test, val or train")
    if not len(splits[name]):
        raise ValueError(f"{data.folder} has no {name} users: choose another --split, or prepare with --{name}-users")
    return splits[name]

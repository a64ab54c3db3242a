"""`beamtree renew`: add new events to a run and renew its model."""

from typing import Annotated

import typer

from beamtree.cli import options
from beamtree.cli.console import write
from beamtree.errors import lookup
from beamtree.files.atomic import write_json
from beamtree.ingest.columns import FORMATS
from beamtree.kernels.threads import use_threads
from beamtree.live.renewal import PREVIOUS, renew, roll_back

WORSE = 3  # the exit code if the renewed model is worse and was not saved


def renew_run(
    run: options.RunFolder,
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG", help="New events: files, folders or patterns, as for `beamtree prepare`."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Save the renewed model even if it is worse.")] = False,
    back: Annotated[
        bool, typer.Option("--roll-back", help="Restore the run before the last renewal; again: undo that.")
    ] = False,
    steps: Annotated[
        int, typer.Option(min=0, help="Training steps of the network, kept if validation users find more.")
    ] = 0,
    format: options.LogFormat = None,
    user: options.UserColumn = None,
    item: options.ItemColumn = None,
    time: options.TimeColumn = None,
    time_format: options.TimeFormat = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    json: options.Json = None,
) -> None:
    """Add new events to the log of a run, and renew its model with yesterday's penalties, weights and tree.

    Columns, kinds of events and targets are those of the first log. Events with times count once, so the last days can
    be given every night.

    Both models are compared on the newest events of some users. The renewed one is saved unless it is worse. A log in
    which nothing is new leaves the run unchanged. Exit codes: 0 saved or unchanged, 3 worse and not saved, 2 an error
    with a message; after 2 and 3 the run is as it was.

    The run before the renewal is kept in RUN.previous.
    """
    if back:
        if sources:
            raise ValueError("--roll-back takes no LOG")
        roll_back(run)
        write(f"{run} is again as it was before its last renewal, which is now {run.name}{PREVIOUS}.")
        return
    if not sources:
        raise ValueError("give the new events: beamtree renew RUN LOG")
    options.check_outputs(json)
    use_threads(threads)
    names = None if format is None else lookup(FORMATS, "--format", format)
    result = renew(
        run, sources, force=force, steps=steps, names=names, user=user, item=item, time=time, time_format=time_format,
        device=device,
    )  # fmt: skip
    if json is not None:
        write_json(json, result.as_dict())
    write(str(result))
    if result.result == "worse":
        raise typer.Exit(WORSE)

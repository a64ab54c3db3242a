"""`beamtree tune`: one beam width per level for a run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import DEFAULT_BEAM_SIZE, as_text
from beamtree.cli import options
from beamtree.cli.console import draw, note, print_table, write
from beamtree.cli.evaluate import honest_model
from beamtree.diagnose.tune import USERS, TuneResult, tune
from beamtree.files.atomic import write_json
from beamtree.storage.runs import open_data, open_model, read_run
from beamtree.storage.tuned import TUNE, save_tuned_beam

DEFAULT_RECALL = 0.99  # share of the widest beam's recall


def tune_run(
    run: options.RunFolder,
    recall: Annotated[
        float | None,
        typer.Option(
            help=f"Keep this share of the widest beam's recall. Default: {DEFAULT_RECALL}, unless a time is given."
        ),
    ] = None,
    milliseconds: Annotated[
        float | None, typer.Option(help="Instead of --recall: the time one query may take on this machine.")
    ] = None,
    m: options.Size = 10,
    widest: Annotated[
        int, typer.Option(min=1, help="k of the widest beam, which others are compared with.")
    ] = DEFAULT_BEAM_SIZE,
    users: Annotated[int, typer.Option(min=2, help="Number of validation users.")] = USERS,
    seed: Annotated[int, typer.Option(help="Draws the users that choose the beam and those that check it.")] = 0,
    data: options.DataFolder = None,
    device: options.Device = "cpu",
    json: Annotated[Path | None, typer.Option("--json", help="Also write the content of RUN/tune.json here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="The picture. Default: RUN/tune.png.")] = None,
) -> None:
    """Find one beam width per level: wide where the choice is hard, narrow where it is easy.

    Half of the validation users choose the beam and the other half check it, beside beams of one width.

    The beam is saved in RUN/tune.json: use it with --beam-size tuned in retrieve, evaluate and inspect. Times are
    medians of single queries on this machine, so run nothing else at the same time.
    """
    read_run(run)
    picture = plot or run / "tune.png"
    options.check_picture(picture)
    options.check_outputs(run / TUNE, picture, json)
    share = DEFAULT_RECALL if recall is None and milliseconds is None else recall
    served = open_model(run, device)
    prepared = open_data(run, served, data)
    val_users = options.users_of(prepared, "val")
    model, which, _ = honest_model(run, served, val_users, prepared)
    result = tune(
        model,
        val_users,
        recall=share,
        milliseconds=milliseconds,
        m=m,
        widest=widest,
        users=users,
        seed=seed,
        on_beam=lambda beam: note(f"measuring a beam of {_name(beam)}"),
    )
    save_tuned_beam(run, result.as_dict())
    if json is not None:
        write_json(json, result.as_dict())
    pictures = draw(lambda plots: plots.plot_tuned(result, picture), picture)
    show(result)
    if which:
        write(
            f"The numbers are of the model {which}; both have the same tree, and the beam is for the one that serves."
        )
    write(*(f"Saved {path}" for path in (run / TUNE, *pictures)))
    write(f"Next: beamtree evaluate {run} --beam-size tuned --m {m}")


def _name(beam: tuple[int, ...]) -> str:
    return str(beam[0]) if len(set(beam)) == 1 else as_text(beam)


def show(result: TuneResult) -> None:
    """A table of every beam that was measured, the chosen one in bold."""
    table = Table(
        title=f"Beams on {result.users:,} users, target: {result.target}",
        caption="recall with the 95 % interval of its mean over users; ms: median of single queries",
    )
    table.add_column("beam, level by level", overflow="fold")
    for name in (f"recall@{result.m}, %", "nodes scored", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in result.tried:
        recall = f"{trial.recall * 100:.2f} [dim]{trial.low * 100:.2f} – {trial.high * 100:.2f}[/dim]"
        style = "bold" if trial is result.chosen else None
        table.add_row(_name(trial.beam_size), recall, f"{trial.nodes:,.0f}", f"{trial.milliseconds:.2f}", style=style)
    print_table(table)
    write(f"The tuned beam keeps {result.share:.2%} of the widest beam's recall.")

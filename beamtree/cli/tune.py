"""`beamtree tune`: one width per level for the beam of a run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import as_text
from beamtree.cli.options import DataFolder, Device, RunFolder, split_of
from beamtree.cli.screen import draw, err, out, print_table
from beamtree.diagnose.tune import USERS, TuneResult, tune
from beamtree.files.atomic import check_writable, write_json
from beamtree.storage.tuned import TUNE, write_tuned
from beamtree.train.runs import open_data, open_model, read_run

PICTURES = (".png", ".pdf", ".svg")
KEPT = 0.99  # of the widest beam's recall, where nothing is asked for


def tune_run(
    run: RunFolder,
    recall: Annotated[
        float | None, typer.Option(help=f"Keep this share of the widest beam's recall; {KEPT} unless a time is given.")
    ] = None,
    milliseconds: Annotated[
        float | None, typer.Option(help="Instead: what one query may take here, one at a time.")
    ] = None,
    m: Annotated[int, typer.Option(min=1, help="How many items are retrieved.")] = 10,
    widest: Annotated[int, typer.Option(min=1, help="k of the beam that all are measured by.")] = 400,
    users: Annotated[int, typer.Option(min=2, help="How many validation users to look at.")] = USERS,
    seed: Annotated[int, typer.Option(help="Which users, and which of them choose or check.")] = 0,
    data: DataFolder = None,
    device: Device = "cpu",
    json: Annotated[Path | None, typer.Option("--json", help="Also write what RUN/tune.json holds here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="The picture; RUN/tune.png unless given.")] = None,
) -> None:
    """Find one beam width per level: wide where the choice is hard, narrow where it is not.

    It looks at validation users, half of them to choose by and half to check, and compares with beams of one width.

    The beam is kept in RUN/tune.json, where --beam-size tuned of retrieve, evaluate and inspect finds it. Times are
    medians of one query at a time on this machine: let nothing else run beside.
    """
    read_run(run)
    picture = plot or run / "tune.png"
    if picture.suffix.lower() not in PICTURES:
        raise ValueError(f"{picture}: pictures are written to {', '.join(PICTURES)}; end the name in one of these")
    for path in (run / TUNE, picture, *([json] if json else [])):
        check_writable(path)
    share = KEPT if recall is None and milliseconds is None else recall
    model = open_model(run, device)
    people = split_of(open_data(run, model, data), "val")
    found = tune(
        model, people, recall=share, milliseconds=milliseconds, m=m, widest=widest, users=users, seed=seed,
        on_beam=_say,
    )  # fmt: skip
    write_tuned(run, found.as_dict())
    if json is not None:
        write_json(json, found.as_dict())
    saved = [run / TUNE, *draw(lambda plots: plots.plot_tuned(found, picture), picture)]
    show(found)
    for line in (*(f"Saved {path}" for path in saved), f"Next: beamtree evaluate {run} --beam-size tuned --m {m}"):
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def _say(beam: tuple[int, ...]) -> None:
    err.print(f"measuring a beam of {_name(beam)}", highlight=False, soft_wrap=True)


def _name(beam: tuple[int, ...]) -> str:
    return str(beam[0]) if len(set(beam)) == 1 else as_text(beam)


def show(found: TuneResult) -> None:
    """Every beam that was measured, the chosen one in bold."""
    table = Table(
        title=f"Beams on {found.users:,} users, asked: {found.target}",
        caption="recall with the 95 % interval of its mean over users; ms: the median of one query at a time",
    )
    table.add_column("beam, level by level", overflow="fold")
    for name in (f"recall@{found.m}, %", "nodes scored", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in found.tried:
        recall = f"{trial.recall * 100:.2f} [dim]{trial.low * 100:.2f} – {trial.high * 100:.2f}[/dim]"
        style = "bold" if trial is found.chosen else None
        table.add_row(_name(trial.beam_size), recall, f"{trial.nodes:,.0f}", f"{trial.milliseconds:.2f}", style=style)
    print_table(table)
    out.print(f"The tuned beam keeps {found.share:.2%} of the widest beam's recall.", highlight=False)

"""`beamtree inspect`: where the beam of a run loses relevant items."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import as_text
from beamtree.cli import options
from beamtree.cli.console import draw, print_table, progress, write
from beamtree.cli.evaluate import honest_model
from beamtree.diagnose.inspect import USERS, Inspection, inspect, num_users
from beamtree.files.atomic import write_json
from beamtree.storage.runs import open_data, open_model, read_run


def inspect_run(
    run: options.RunFolder,
    data: options.DataFolder = None,
    split: options.Split = "test",
    beam_size: options.BeamText = options.DEFAULT_BEAM,
    m: options.Cuts = "10,50,100,200",
    users: Annotated[
        int | None, typer.Option(min=1, help=f"Number of users, from the first. Default: {USERS:,}.")
    ] = None,
    device: options.Device = "cpu",
    json: options.Json = None,
    plot: Annotated[Path | None, typer.Option(help="The picture. Default: RUN/inspect.png.")] = None,
) -> None:
    """Show where the beam loses relevant items: level by level, and compared with brute force over all leaves.

    The last line says what may help: a wider beam, training on the nodes of the beam (OTM), or better leaf scores.
    """
    beam = options.parse_beam(beam_size, run)
    cuts = options.parse_cuts(m, beam)
    read_run(run)
    picture = plot or run / "inspect.png"
    options.check_picture(picture)
    options.check_outputs(picture, json)
    served = open_model(run, device)
    prepared = open_data(run, served, data)
    split_users = options.users_of(prepared, split)
    model, which, _ = honest_model(run, served, split_users, prepared)
    with progress(num_users(split_users, users), "users") as (advance, _):
        result = inspect(model, split_users, beam_size=beam, m=cuts, users=users, on_users=advance)
    if json is not None:
        write_json(json, result.records())
    pictures = draw(lambda plots: plots.plot_inspection(result, picture), picture)
    show(result)
    write(result.advice, bold=True)
    if which:
        write(f"The numbers are of the model {which}.")
    write(*(f"Saved {path}" for path in pictures), f"Next: {next_command(result, run)}")


def next_command(result: Inspection, run: Path) -> str:
    """A wider beam where this one loses much, otherwise a beam of half the size and cost."""
    beam = result.beam_size
    widths = [beam] if isinstance(beam, int) else beam
    half = [max(1, width // 2) for width in widths]
    if result.verdict > 0 or half[-1] >= result.cuts[-1].m:
        other = [2 * width for width in widths] if result.verdict > 0 else half
        return f"beamtree inspect {run} --beam-size {as_text(other)}"
    return f"beamtree evaluate {run} --against item-cf,item-cf-nearest,popularity"


def show(result: Inspection) -> None:
    """Two tables; the level that loses most is in bold."""
    largest = result.cuts[-1].m
    table = Table(
        title=f"Relevant items in the beam, {result.users:,} users, k = {as_text(result.beam_size)}, %",
        caption=f"avoidable: lost here, though brute force has it among its first {largest}",
    )
    for name in ("level", "nodes", "scored per user", "still in the beam", "lost here", "avoidable"):
        table.add_column(name, justify="right")
    worst = max(result.levels, key=lambda level: level.lost)
    for level in result.levels:
        shares = (_percent(share) for share in (level.survival, level.lost, level.avoidable))
        style = "bold" if level is worst and level.lost > 0 else None
        table.add_row(str(level.level), f"{level.nodes:,}", f"{level.candidates:,.1f}", *shares, style=style)
    print_table(table)
    scored = sum(level.candidates for level in result.levels)
    write(f"A query scores {scored:,.0f} nodes, and brute force {result.levels[-1].nodes:,} leaves.")
    table = Table(
        title="The beam / brute force over all leaves, %",
        caption="overlap: share of brute force's items; ranked below: relevant, in the beam, not among its first m;\n"
        "regret: mean p_g of brute force's items less the beam's",
    )
    for name in ("m", "precision", "recall", "f1", "mean p_g", "overlap", "ranked below", "regret"):
        table.add_column(name, justify="right")
    for cut in result.cuts:
        pairs = (f"{_percent(a)} / {_percent(b)}" for a, b in zip(cut.beam, cut.brute_force, strict=True))
        others = (_percent(cut.overlap), _percent(cut.ranked_below), f"{cut.regret * 100:.2g}")
        table.add_row(str(cut.m), *pairs, *others)
    print_table(table)


def _percent(share: float) -> str:
    return f"{share * 100:.2f}"

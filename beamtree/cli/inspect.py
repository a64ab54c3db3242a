"""`beamtree inspect`: where a run loses the items that users chose next."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.beam import as_text
from beamtree.cli.options import BeamText, Cuts, DataFolder, Device, RunFolder, Split, beam_of, cuts, split_of
from beamtree.cli.screen import draw, out, print_table, progress
from beamtree.diagnose.inspect import USERS, Inspection, inspect, num_users
from beamtree.files.atomic import check_writable, write_json
from beamtree.train.runs import open_data, open_model, read_run

PICTURES = (".png", ".pdf", ".svg")


def inspect_run(
    run: RunFolder,
    data: DataFolder = None,
    split: Split = "test",
    beam_size: BeamText = "400",
    m: Cuts = "10,50,100,200",
    users: Annotated[
        int | None, typer.Option(min=1, help=f"How many users to look at, from the first; {USERS:,} unless given.")
    ] = None,
    device: Device = "cpu",
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="The picture; RUN/inspect.png unless given.")] = None,
) -> None:
    """Show where the beam loses relevant items: level by level, and against brute force over all leaves.

    It tells what may pay on these data: a wider beam, training on the beam's nodes (OTM), or better leaves.
    """
    beam = beam_of(beam_size, run)
    sizes = cuts(m, beam)
    read_run(run)
    picture = plot or run / "inspect.png"
    if picture.suffix.lower() not in PICTURES:
        raise ValueError(f"{picture}: pictures are written to {', '.join(PICTURES)}; end the name in one of these")
    for path in (picture, *([json] if json else [])):
        check_writable(path)
    model = open_model(run, device)
    people = split_of(open_data(run, model, data), split)
    with progress(num_users(people, users), "users") as (advance, _):
        found = inspect(model, people, beam_size=beam, m=sizes, users=users, on_users=advance)
    if json is not None:
        write_json(json, found.records())
    saved = draw(lambda plots: plots.plot_inspection(found, picture), picture)
    show(found)
    out.print(f"[bold]{found.advice}[/bold]", highlight=False, soft_wrap=True)
    for line in (*(f"Saved {path}" for path in saved), f"Next: {next_command(found, run)}"):
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def next_command(found: Inspection, run: Path) -> str:
    """A wider beam where this one loses much; else whether half of it would do, at half the cost."""
    beam = found.beam_size
    sizes = [beam] if isinstance(beam, int) else beam
    half = [max(1, width // 2) for width in sizes]
    if found.verdict > 0 or half[-1] >= found.cuts[-1].m:
        other = [2 * width for width in sizes] if found.verdict > 0 else half
        return f"beamtree inspect {run} --beam-size {as_text(other)}"
    return f"beamtree evaluate {run} --against item-cf,item-cf-nearest,popularity"


def show(found: Inspection) -> None:
    """Two tables for people; the level that loses most is in bold."""
    largest = found.cuts[-1].m
    table = Table(
        title=f"Relevant items in the beam, {found.users:,} users, k = {as_text(found.beam_size)}, %",
        caption=f"avoidable: lost here, though brute force has it among its first {largest}",
    )
    for name in ("level", "nodes", "scored per user", "still in the beam", "lost here", "avoidable"):
        table.add_column(name, justify="right")
    most = max(found.levels, key=lambda each: each.lost)
    for each in found.levels:
        shares = (_percent(share) for share in (each.survival, each.lost, each.avoidable))
        style = "bold" if each is most and each.lost > 0 else None
        table.add_row(str(each.level), f"{each.nodes:,}", f"{each.candidates:,.1f}", *shares, style=style)
    print_table(table)
    scored = sum(each.candidates for each in found.levels)
    out.print(
        f"A query scores {scored:,.0f} nodes, and brute force {found.levels[-1].nodes:,} leaves.", highlight=False
    )
    table = Table(
        title="The beam / brute force over all leaves, %",
        caption="overlap: of brute force's items; ranked below: relevant, in the beam, not among its first m;\n"
        "regret: mean p_g of brute force's items less the beam's",
    )
    for name in ("m", "precision", "recall", "f1", "mean p_g", "overlap", "ranked below", "regret"):
        table.add_column(name, justify="right")
    for cut in found.cuts:
        pairs = (f"{_percent(a)} / {_percent(b)}" for a, b in zip(cut.beam, cut.brute_force, strict=True))
        others = (_percent(cut.overlap), _percent(cut.ranked_below), f"{cut.regret * 100:.2g}")
        table.add_row(str(cut.m), *pairs, *others)
    print_table(table)


def _percent(share: float) -> str:
    return f"{share * 100:.2f}"

"""`beamtree inspect`: where a run loses the items that users chose next."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli.options import BeamSize, Cuts, DataFolder, Device, RunFolder, Split, cuts, split_of
from beamtree.cli.screen import out, print_table, progress
from beamtree.data.files import check_writable, write_json
from beamtree.inspect import USERS, Inspection, inspect, num_users
from beamtree.train.runs import open_data, open_model, read_run

PICTURES = (".png", ".pdf", ".svg")


def inspect_run(
    run: RunFolder,
    data: DataFolder = None,
    split: Split = "test",
    beam_size: BeamSize = 400,
    m: Cuts = "10,50,100,200",
    users: Annotated[int | None, typer.Option(min=1, help=f"The first so many users; {USERS:,} unless given.")] = None,
    device: Device = "cpu",
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="The picture; RUN/inspect.png unless given.")] = None,
) -> None:
    """Show where the beam loses relevant items: level by level, and against brute force over all leaves.

    It tells what may pay on these data: a wider beam, training on the beam's nodes (OTM), or better leaves.
    """
    sizes = cuts(m, beam_size)
    read_run(run)
    picture = plot or run / "inspect.png"
    if picture.suffix.lower() not in PICTURES:
        raise ValueError(f"{picture}: pictures are written to {', '.join(PICTURES)}; end the name in one of these")
    for path in (picture, *([json] if json else [])):
        check_writable(path)
    model = open_model(run, device)
    log = split_of(open_data(run, data), split)
    with progress(num_users(log, users), "users") as (advance, _):
        found = inspect(model, log, beam_size=beam_size, m=sizes, users=users, on_users=advance)
    if json is not None:
        write_json(json, found.records())
    draw(found, picture)
    show(found)
    out.print(f"[bold]{found.advice}[/bold]", highlight=False, soft_wrap=True)
    for line in (f"Saved {picture}", f"Next: {next_command(found, run)}"):
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def next_command(found: Inspection, run: Path) -> str:
    """A wider beam where this one loses much; else whether half of it would do, at half the cost."""
    if found.verdict > 0:
        return f"beamtree inspect {run} --beam-size {2 * found.beam_size}"
    half = found.beam_size // 2
    if half >= found.cuts[-1].m:
        return f"beamtree inspect {run} --beam-size {half}"
    return f"beamtree evaluate {run} --against item-cf,item-cf-nearest,popularity"


def show(found: Inspection) -> None:
    """Two tables for people; the level that loses most is in bold."""
    largest = found.cuts[-1].m
    table = Table(
        title=f"Relevant items in the beam, {found.users:,} users, k = {found.beam_size}, %",
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


def draw(found: Inspection, path: Path) -> None:
    """How many relevant items are left after each level, and where the others went."""
    from beamtree.paper.plots import save, two_panels  # matplotlib takes a second to import

    figure, (left, right) = two_panels(11, 4.4)
    levels = [each.level for each in found.levels]
    left.plot(levels, [each.survival * 100 for each in found.levels], "o-", color="#4477aa", label="in the beam")
    last = found.cuts[-1]
    for recall, dashes, name in ((last.beam.recall, "--", "beam"), (last.brute_force.recall, ":", "brute force")):
        left.axhline(recall * 100, ls=dashes, color="#777777", label=f"recall at {last.m}, {name}")
    left.set(title=f"Relevant items left, k = {found.beam_size}", xlabel="level", ylabel="%", ylim=(0, 103))
    left.set_xticks(levels)
    left.legend(fontsize="small")
    labels = [*(f"level {level}" for level in levels), *(f"rank > {cut.m}" for cut in found.cuts)]
    places = range(len(levels))
    right.bar(places, [each.lost * 100 for each in found.levels], color="#4477aa", label="not in the beam")
    avoidable = [each.avoidable * 100 for each in found.levels]
    right.bar(places, avoidable, color="#ee6677", label=f"of these, brute force finds at {last.m}")
    below = [cut.ranked_below * 100 for cut in found.cuts]
    right.bar(range(len(levels), len(labels)), below, color="#ccbb44", label="in the last beam, but ranked below m")
    right.set(title="Where relevant items are lost", ylabel="% of relevant items")
    right.set_xticks(range(len(labels)), labels=labels, rotation=60, ha="right", fontsize="small")
    right.margins(y=0.35)  # room for the legend
    right.legend(fontsize="small")
    for axis in (left, right):
        axis.grid(axis="y", alpha=0.3)
    save(figure, path)

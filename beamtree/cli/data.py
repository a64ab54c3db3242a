"""`beamtree prepare`: a log of users, items and times becomes data to train on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from beamtree.cli.options import choose
from beamtree.cli.screen import err, out
from beamtree.data.columns import FORMATS
from beamtree.data.files import check_writable, write_json

BAR = 40  # characters of the longest bar of the histogram
SHOWN = (0.001, 0.01, 0.1, 0.5)  # of the popularity curve; the picture and the JSON have more
DROPPED = {  # the report's names, and what they say to people
    "missing_user": "rows without a user",
    "missing_item": "rows without an item",
    "unreadable_time": "rows whose time cannot be read",
    "duplicates": "rows that repeat user, item and time of another",
    "events_of_users_with_few_events": "rows of users with fewer than {min_events} events",
}

Sources = Annotated[
    list[Path],
    typer.Argument(metavar="LOG", help="Files (.csv, .tsv, .parquet, .jsonl; .csv.gz) or folders of them."),
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write; one prepared before is replaced.")]
Format = Annotated[
    str | None, typer.Option("--format", help=f"A well-known file without a header: {' or '.join(FORMATS)}.")
]
User = Annotated[str | None, typer.Option(help="The column of users: a name, or 1, 2, 3, … without a header.")]
Item = Annotated[str | None, typer.Option(help="The column of items.")]
Time = Annotated[str | None, typer.Option(help="The column of times: numbers or dates such as 2020-12-31 23:59.")]
MinEvents = Annotated[int, typer.Option(min=2, help="Users with fewer events are dropped.")]
ValUsers = Annotated[
    int | None, typer.Option(min=0, help="Users for validation; 5 % of all, at most 1,000, if not given.")
]
TestUsers = Annotated[
    int | None, typer.Option(min=0, help="Users for testing; 5 % of all, at most 1,000, if not given.")
]
Seed = Annotated[int, typer.Option(min=0, help="Draws the users for validation and testing: same seed, same files.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the description to this file.")]


def prepare(
    sources: Sources,
    folder: Out,
    format: Format = None,
    user: User = None,
    item: Item = None,
    time: Time = None,
    min_events: MinEvents = 10,
    val_users: ValUsers = None,
    test_users: TestUsers = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Prepare a log of users, items and times for training; it may be larger than memory.

    Columns are found by their usual names (user_id, asin, timestamp, …), or by place: user, item, …, time.

    Ids stay as they are, less white space around them. Without a column of times, the rows are taken to be in order.

    Rows without a user, an item or a readable time are dropped, and so are repeats; every count is shown.

    Users are drawn at random for training, validation and testing.
    """
    from beamtree.data import interactions  # polars takes a moment to import

    names = choose(FORMATS, "--format", format) if format is not None else None
    if json is not None:
        check_writable(json)
    description = interactions.prepare(
        sources,
        folder,
        names=names,
        user=user,
        item=item,
        time=time,
        min_events=min_events,
        val_users=val_users,
        test_users=test_users,
        seed=seed,
        on_stage=lambda stage: err.print(f"{stage} …", highlight=False, soft_wrap=True),
    )
    picture = folder / "summary.png"
    draw_summary(description["summary"], picture)
    if json is not None:
        write_json(json, description)
    print_summary(description)
    for line in (f"Saved {folder}", f"  and {picture}", f"Next: beamtree train {folder} --out runs/{folder.name}"):
        out.print(line, highlight=False, soft_wrap=True)


def print_summary(description: Mapping[str, Any]) -> None:
    """What is in a prepared folder, and what was left out of it and why."""
    settings, report, users = (description[key] for key in ("settings", "report", "users"))
    ignored = f"; not used: {', '.join(report['ignored_columns'])}" if report["ignored_columns"] else ""
    time = f"time {settings['time']}" if settings["time"] is not None else "no time: the rows are taken to be in order"
    _say(f"Columns: user {settings['user']}, item {settings['item']}, {time}{ignored}")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows in the log", f"{report['rows']:,}")
    for name, text in DROPPED.items():
        if report.get(name):
            table.add_row(f"less {text.format(min_events=settings['min_events'])}", f"{report[name]:,}")
    table.add_row("[bold]events[/bold]", f"[bold]{description['num_events']:,}[/bold]", end_section=True)
    table.add_row("[bold]users[/bold]", f"[bold]{description['num_users']:,}[/bold]")
    for split, name in (("train", "training"), ("val", "validation"), ("test", "testing")):
        table.add_row(f"  for {name}", f"{users[split]:,}")
    table.add_row("[bold]items[/bold]", f"[bold]{description['num_items']:,}[/bold]")
    out.print(table)
    for kind in ("users", "items"):
        if merged := report[f"merged_{kind}"]:
            _say(f"{merged:,} ids of {kind} differ from others only in white space around them: each pair is now one")
    _print_shape(description["summary"])


def _print_shape(summary: Mapping[str, Any]) -> None:
    events = summary["events_per_user"]
    numbers = ", ".join(f"{name} {events[name]:,.4g}" for name in ("min", "median", "mean", "p90", "p99"))
    _say(f"Events per user: {numbers}, max {events['max']:,}")
    most = max(bar["users"] for bar in events["histogram"])
    for bar in events["histogram"]:
        label = f"{bar['from']:,} – {bar['to']:,}" if bar["from"] < bar["to"] else f"{bar['from']:,}"
        _say(f"{label:>20}  {'█' * max(1, round(BAR * bar['users'] / most)):<{BAR}}  {bar['users']:,}")
    shares = [
        f"{point['top'] * 100:g} % hold {point['share'] * 100:.0f} %"
        for point in summary["popularity"]
        if point["top"] in SHOWN
    ]
    _say(f"Popularity: of the items, the top {', '.join(shares)} of the events")


def _say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True, markup=False)


def draw_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Events per user as a histogram, and the popularity curve."""
    from beamtree.paper.plots import save, two_panels  # matplotlib takes a second to import

    figure, (left, right) = two_panels(10, 4.2)
    bars = summary["events_per_user"]["histogram"]
    left.bar([f"{bar['from']:,}" for bar in bars], [bar["users"] for bar in bars], color="#4477aa")
    left.tick_params(axis="x", rotation=50)
    left.set(title="Events per user", xlabel="events, from", ylabel="users")
    curve = summary["popularity"]
    right.plot([point["top"] for point in curve], [point["share"] for point in curve], "o-", color="#ee6677")
    right.set(title="Popularity", xlabel="share of items, the most popular first", ylabel="share of events")
    right.set(xscale="log", ylim=(0, 1.02))
    for axis in (left, right):
        axis.grid(axis="y", alpha=0.3)
    save(figure, path)

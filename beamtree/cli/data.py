"""`beamtree prepare`: a log of users, items and times becomes data to train on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from beamtree.cli.options import EngineName, RayAddress, Workers, on_ray
from beamtree.cli.screen import draw, err, out
from beamtree.data.report import columns_in_words, dropped
from beamtree.files.atomic import check_writable, write_json
from beamtree.ingest.columns import FORMATS
from beamtree.train.recipes import chosen

BAR = 40  # characters of the longest bar of the histogram
SHOWN = (0.001, 0.01, 0.1, 0.5)  # of the popularity curve; the picture and the JSON have more
PROTOCOLS = {  # of --split, and what they ask
    "halves": "users are drawn apart, and the second half of each one's events is to be predicted",
    "leave-one-out": "every user's last event is to be predicted; for validation, the last but one",
    "time": "what users do from {date} on is to be predicted",
}

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG",
        help="Files (.csv, .tsv, .parquet, .jsonl; .csv.gz), folders of them, patterns such as 'log/*.parquet', or "
        "addresses of Parquet files such as s3://bucket/log.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write; one prepared before is replaced.")]
Format = Annotated[
    str | None, typer.Option("--format", help=f"A well-known file without a header: {' or '.join(FORMATS)}.")
]
User = Annotated[str | None, typer.Option(help="The column of users: a name, or 1, 2, 3, … without a header.")]
Item = Annotated[str | None, typer.Option(help="The column of items.")]
Time = Annotated[str | None, typer.Option(help="The column of times: numbers or dates such as 2020-12-31 23:59.")]
TimeFormat = Annotated[
    str | None, typer.Option(help='How dates are written, as in strptime: "%d/%m/%Y %H:%M". Found out unless given.')
]
MinEvents = Annotated[int | None, typer.Option(min=1, help="Users with fewer events are dropped; nobody unless given.")]
MinEvalEvents = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="With halves, validation and test users have at least so many events; unless given, --min-events, or 10, "
        "or fewer where few users have 10.",
    ),
]
MinItemEvents = Annotated[
    int, typer.Option(min=1, help="Items with fewer events are dropped, then users and items until all have enough.")
]
Split = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="[bold]halves[/bold]: users are drawn apart for training, validation and testing; the first half of each "
        "one's events is history, the second is to be predicted. [bold]leave-one-out[/bold]: every user's last event "
        "is for testing, the last but one for validation, those before for training. [bold]time:2020-12-31[/bold]: "
        "all events before a date are for training; what some users did later is for validation and testing. Give a "
        "number instead where times are numbers other than Unix times.",
    ),
]
USUAL = "unless given, 5 %, at most 1,000; with leave-one-out, all."
ValUsers = Annotated[int | None, typer.Option(min=0, help=f"Users for validation; {USUAL}")]
TestUsers = Annotated[int | None, typer.Option(min=0, help=f"Users for testing; {USUAL}")]
Seed = Annotated[int, typer.Option(min=0, help="Draws the users for validation and testing: same seed, same files.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the description to this file.")]


def prepare(
    sources: Sources,
    folder: Out,
    format: Format = None,
    user: User = None,
    item: Item = None,
    time: Time = None,
    time_format: TimeFormat = None,
    min_events: MinEvents = None,
    min_item_events: MinItemEvents = 1,
    min_eval_events: MinEvalEvents = None,
    split: Split = "halves",
    val_users: ValUsers = None,
    test_users: TestUsers = None,
    seed: Seed = 0,
    json: Json = None,
    engine: EngineName = "here",
    address: RayAddress = None,
    workers: Workers = None,
) -> None:
    """Prepare a log of users, items and times for training; it may be larger than memory.

    Columns are found by their usual names (user_id, asin, timestamp, …), or by place: user, item, …, time.

    Ids stay as they are, less white space around them. Without a column of times, the rows are taken to be in order.

    Rows without a user, an item or a readable time are dropped, and so are repeats; every count is shown.

    With --engine ray the workers of a cluster read and sort the log. The files are the same, byte for byte.
    """
    from beamtree.ingest.prepare import prepare as prepare_log  # polars takes a moment to import

    if json is not None:
        check_writable(json)
    with _engine(on_ray(engine, address, workers), address, workers) as chosen_engine:
        description = prepare_log(
            sources,
            folder,
            names=chosen(FORMATS, "--format", format) if format is not None else None,
            user=user,
            item=item,
            time=time,
            time_format=time_format,
            min_events=min_events,
            min_eval_events=min_eval_events,
            min_item_events=min_item_events,
            split=split,
            val_users=val_users,
            test_users=test_users,
            seed=seed,
            engine=chosen_engine,
            on_stage=_stage,
        )
    _tell(description, folder, json)


@contextmanager
def _engine(cluster: bool, address: str | None, workers: int | None) -> Iterator[Any]:
    """The executor: this process, or a cluster that is used for as long as it takes."""
    from beamtree.ingest.prepare import LOCAL  # Polars is slow to import

    if not cluster:
        yield LOCAL
        return
    from beamtree.serve.batch.ray_cluster import connect  # Ray may not be there

    _stage("starting Ray" if address is None else f"connecting to Ray at {address}")
    with connect(address, workers) as ray:
        yield ray.engine


def _stage(stage: str) -> None:
    err.print(f"{stage} …", highlight=False, soft_wrap=True)


def _tell(description: Mapping[str, Any], folder: Path, json: Path | None) -> None:
    """Draw, write and print what was prepared, and say what comes next."""
    picture = folder / "summary.png"
    drawn = draw(lambda plots: plots.plot_summary(description["summary"], picture), picture)
    if json is not None:
        write_json(json, description)
    print_summary(description)
    lines = [f"Saved {folder}", *(f"  and {path}" for path in drawn)]
    for line in (*lines, f"Next: beamtree train {folder} --out runs/{folder.name}"):
        _say(line)


def print_summary(description: Mapping[str, Any]) -> None:
    """What is in a prepared folder, and what was left out of it and why."""
    settings, report, users = (description[key] for key in ("settings", "report", "users"))
    protocol, _, date = settings.get("split", "halves").partition(":")
    _say(f"Columns: {columns_in_words(description)}")
    _say(f"Split: {protocol}: {PROTOCOLS[protocol].format(date=date)}")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows in the log", f"{report['rows']:,}")
    for text, count in dropped(description):
        table.add_row(f"less {text}", f"{count:,}")
    table.add_row("[bold]events[/bold]", f"[bold]{description['num_events']:,}[/bold]", end_section=True)
    table.add_row("[bold]users[/bold]", f"[bold]{description['num_users']:,}[/bold]")
    least = f", of at least {settings['min_eval_events']} events" if "min_eval_events" in settings else ""
    for split, name in (("train", "training"), ("val", f"validation{least}"), ("test", f"testing{least}")):
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

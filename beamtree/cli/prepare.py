"""`beamtree prepare`: turn a log of users, items and times into training data."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from beamtree.cli import options
from beamtree.cli.console import draw, note, out, write
from beamtree.errors import lookup
from beamtree.files.atomic import write_json
from beamtree.ingest.columns import FORMATS
from beamtree.ingest.report import (
    describe_columns,
    describe_split,
    describe_times,
    dropped_rows,
    few_test_users,
    unused_hint,
)

BAR_WIDTH = 40  # characters of the longest bar of the histogram
SHOWN = (0.001, 0.01, 0.1, 0.5)  # points of the popularity curve; the picture and the JSON have more
PROTOCOLS = {  # of --split
    "halves": "separate users, and the second half of each user's events is to be predicted",
    "leave-one-out": "the last event of every user is to be predicted; for validation, the last but one",
    "time": "the newest events are to be predicted",
}
HELD_OUT = "Default: 5 %, at most 1,000; with leave-one-out all"


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help="Files (.csv, .tsv, .parquet, .jsonl; .csv.gz), folders, patterns such as 'log/*.parquet', or "
            "URLs of Parquet files such as s3://bucket/log.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", help="The folder to write. Data prepared before are replaced.")],
    format: options.LogFormat = None,
    user: options.UserColumn = None,
    item: options.ItemColumn = None,
    time: options.TimeColumn = None,
    time_format: options.TimeFormat = None,
    weight: options.WeightColumn = None,
    kinds: options.Kinds = None,
    target: options.Target = None,
    dislike: options.Dislike = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,…",
            help="Columns of what was known when an event happened: country,device. hour and day are taken from the "
            "times, in UTC, if no column has that name.",
        ),
    ] = None,
    min_events: Annotated[
        int | None, typer.Option(min=1, help="Drop users with fewer events. Default: keep all.")
    ] = None,
    min_item_events: Annotated[
        int, typer.Option(min=1, help="Drop items with fewer events, then users and items until all have enough.")
    ] = 1,
    min_eval_events: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="With halves: the fewest events of a validation or test user. Default: --min-events, or 10, or fewer "
            "where few users have 10.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="[bold]halves[/bold]: separate users for training, validation and testing; the first half of each "
            "user's events is the history, the second half is to be predicted. [bold]leave-one-out[/bold]: the last "
            "event of every user is for testing, the last but one for validation, the others for training. "
            "[bold]time[/bold]: the newest tenth of the events is held out; what some users did then is for validation "
            "and testing, and the finished model is fitted to all events. [bold]time:30d[/bold] holds out the last 30 "
            "days, also in hours (h) or weeks (w), and [bold]time:2020-12-31[/bold] what happened from a date on: a "
            "number where times are not Unix times. [bold]pairs:0.1[/bold]: a random tenth of each user's pairs is to "
            "be found from the others, and the finished model is fitted to all events. Default: time where times are "
            "dates or Unix times and at least 200 users have events before and after that; pairs:0.1 where there are "
            "no times and the rows are in no order; halves elsewhere.",
        ),
    ] = None,
    val_users: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Number of validation users. {HELD_OUT}; with time or pairs all who do not test, at most 6,000.",
        ),
    ] = None,
    test_users: Annotated[
        int | None,
        typer.Option(min=0, help=f"Number of test users. {HELD_OUT}; with time or pairs a quarter, at most 1,000."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Draws the validation and test users: the same seed gives the same files.")
    ] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the description to this file.")] = None,
    engine: options.EngineName = "local",
    address: options.RayAddress = None,
    workers: options.Workers = None,
) -> None:
    """Prepare a log of users, items and times for training. It may be larger than memory.

    Columns are found by their usual names (user_id, asin, timestamp, …), or by position: user, item, …, time.

    Ids are kept as text, without surrounding white space. Without a column of times, the rows must be in order.

    Rows without a user, an item or a valid time are dropped, and so are duplicates; all counts are shown.

    With --engine ray the workers of a cluster read and sort the log. The files are identical.
    """
    from beamtree.ingest.prepare import LOCAL  # polars takes a moment to import
    from beamtree.ingest.prepare import prepare as prepare_log

    options.check_outputs(json)
    with ExitStack() as stack:
        on_ray = options.uses_ray(engine, address, workers)
        chosen = stack.enter_context(options.ray_cluster(address, workers)).engine if on_ray else LOCAL
        description = prepare_log(
            sources,
            folder,
            names=lookup(FORMATS, "--format", format) if format is not None else None,
            user=user,
            item=item,
            time=time,
            time_format=time_format,
            weight=weight,
            kinds=kinds,
            target=target,
            dislike=dislike,
            context=context,
            min_events=min_events,
            min_eval_events=min_eval_events,
            min_item_events=min_item_events,
            split=split,
            val_users=val_users,
            test_users=test_users,
            seed=seed,
            engine=chosen,
            on_stage=lambda stage: note(f"{stage} …"),
        )
    picture = folder / "summary.png"
    pictures = draw(lambda plots: plots.plot_summary(description["summary"], picture), picture)
    if json is not None:
        write_json(json, description)
    show(description)
    if few := few_test_users(description):
        note(f"note: {few}")
    write(f"Saved {folder}", *(f"  and {path}" for path in pictures))
    write(f"Next: beamtree train {folder} --out runs/{folder.name}")


def show(description: Mapping[str, Any]) -> None:
    """The content of a prepared folder, and what was dropped and why."""
    settings, report, users = (description[key] for key in ("settings", "report", "users"))
    protocol = settings.get("split", "halves").partition(":")[0]
    write(f"Columns: {describe_columns(description)}")
    if hint := unused_hint(description, "--"):
        write(f"Every row counts as one event; {hint}")
    if (times := describe_times(description)) is not None:
        write(times)
    write(f"Split: {protocol}: {describe_split(description) or PROTOCOLS[protocol]}")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows in the log", f"{report['rows']:,}")
    for text, count in dropped_rows(description):
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
            write(f"{merged:,} ids of {kind} differ from others only in white space around them: each pair is now one")
    events = description["summary"]["events_per_user"]
    numbers = ", ".join(f"{name} {events[name]:,.4g}" for name in ("min", "median", "mean", "p90", "p99"))
    write(f"Events per user: {numbers}, max {events['max']:,}")
    most = max(bar["users"] for bar in events["histogram"])
    for bar in events["histogram"]:
        label = f"{bar['from']:,} – {bar['to']:,}" if bar["from"] < bar["to"] else f"{bar['from']:,}"
        length = max(1, round(BAR_WIDTH * bar["users"] / most))
        write(f"{label:>20}  {'█' * length:<{BAR_WIDTH}}  {bar['users']:,}")
    shares = [
        f"{point['top'] * 100:g} % have {point['share'] * 100:.0f} %"
        for point in description["summary"]["popularity"]
        if point["top"] in SHOWN
    ]
    write(f"Popularity: of the items, the top {', '.join(shares)} of the events")

"""`beamtree evaluate`: how well a run finds what users chose next."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from beamtree.cli.data import Item, Time, TimeFormat, User
from beamtree.cli.options import (
    BeamText,
    Cuts,
    DataFolder,
    Device,
    ExcludeSeen,
    Json,
    Metrics,
    RunFolder,
    Split,
    Threads,
    beam_of,
    cuts,
    split_of,
    words,
)
from beamtree.cli.screen import print_table, progress
from beamtree.data import BeforeAfter
from beamtree.evaluate import Evaluation, evaluate, leaving_out, measure, named_metrics
from beamtree.files.atomic import check_writable, write_json
from beamtree.research.baselines import BASELINES, build
from beamtree.threads import use_threads
from beamtree.train.recipes import chosen
from beamtree.train.runs import open_data, open_model


def evaluate_run(
    run: RunFolder,
    data: DataFolder = None,
    log: Annotated[
        str | None, typer.Option(help="A log of other users instead: half of each one's events is to be found.")
    ] = None,
    user: User = None,
    item: Item = None,
    time: Time = None,
    time_format: TimeFormat = None,
    split: Split = "test",
    beam_size: BeamText = "400",
    m: Cuts = "10,50,100,200",
    metrics: Metrics = "precision,recall,f1",
    exclude_seen: ExcludeSeen = False,
    against: Annotated[str, typer.Option(help=f"Baselines to compare with: {', '.join(BASELINES)}.")] = "",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Precision, recall and F at m over the test users, with 95 % intervals (bootstrap over users)."""
    use_threads(threads)
    beam, names = beam_of(beam_size, run), words(metrics)
    sizes = cuts(m, beam)
    named_metrics(names)
    rows = words(against)
    for row in rows:
        chosen(BASELINES, "row", row)
    columns = {"user": user, "item": item, "time": time, "time_format": time_format}
    if log is None and any(columns.values()):
        raise ValueError("--user, --item, --time and --time-format say what is in --log FILE")
    if json is not None:
        check_writable(json)
    model = open_model(run, device)
    prepared = open_data(run, model, data)
    users = split_of(prepared, split) if log is None else _users_of(log, model.ids, columns, exclude_seen)
    name = run.resolve().name
    found: dict[str, Evaluation] = {}
    with progress(len(users) * (1 + len(rows)), "users") as (advance, say):
        found[f"{name} (run)" if name in rows else name] = evaluate(
            model, users, beam_size=beam, m=sizes, metrics=names, exclude_seen=exclude_seen, on_users=advance
        )
        for row in rows:
            say(f"{row}: fitting, and choosing its settings by validation users")
            baseline = build(row, prepared.train.events, prepared.num_items, prepared.val)
            find = leaving_out(baseline.retrieve, max(sizes))
            found[row] = measure(
                find, users, m=sizes, metrics=names, exclude_seen=exclude_seen, batch_size=1000, on_users=advance
            )
    if json is not None:
        records = [{"row": row, **score.record()} for row, result in found.items() for score in result.scores]
        write_json(json, records)
    show(found, sizes, names, exclude_seen)


def _users_of(log: str, ids: Any, columns: dict[str, str | None], exclude_seen: bool) -> BeforeAfter:
    from beamtree.ingest.user_events import read_users  # polars takes a moment

    return read_users(log, ids, **columns, exclude_seen=exclude_seen)


def show(found: dict[str, Evaluation], sizes: Sequence[int], metrics: Sequence[str], exclude_seen: bool) -> None:
    """A table for people, in percent; the best row of each column in bold."""
    first = next(iter(found.values()))
    users = f"{first.users:,}" if first.users == first.users_asked else f"{first.users:,} of {first.users_asked:,}"
    seen = "seen items left out" if exclude_seen else "seen items left in"
    table = Table(title=f"{users} users, %, {seen}", caption="below: the 95 % interval of the mean over users")
    table.add_column("metric", no_wrap=True)
    table.add_column("row", no_wrap=True)
    for cut in sizes:
        table.add_column(f"@{cut}", justify="right", no_wrap=True)
    for metric in metrics:
        best = {cut: max(result[metric, cut] for result in found.values()) for cut in sizes}
        for index, (row, result) in enumerate(found.items()):
            cells = []
            for score in (score for score in result.scores if score.metric == metric):
                value = f"{score.value * 100:.2f}"
                if len(found) > 1 and score.value == best[score.m]:
                    value = f"[bold]{value}[/bold]"
                cells.append(f"{value}\n[dim]{score.low * 100:.2f} – {score.high * 100:.2f}[/dim]")
            table.add_row(metric if index == 0 else "", row, *cells)
    print_table(table)

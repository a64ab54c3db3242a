"""`beamtree retrieve`: the best items for a history, for users of the log, or for files of histories."""

import time as clock
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from beamtree.batch.job import BatchJob, BatchSummary, make_searcher
from beamtree.cli import options
from beamtree.cli.console import note, out, printable, progress, write
from beamtree.data.ids import is_integer
from beamtree.distributed.group import check_single
from beamtree.errors import lookup
from beamtree.files.atomic import write_json
from beamtree.ingest.columns import FORMATS, LogColumns
from beamtree.live.saved import users_of_run
from beamtree.model import TreeModel
from beamtree.query import (
    ERROR,
    POPULAR,
    Recommendation,
    RecommendRequest,
    Searcher,
    check_unknown,
    history_of_user,
    make_filter,
    parse_history,
    parse_ids,
    read_rules,
)
from beamtree.query.times import read_time
from beamtree.search.choice import AUTO
from beamtree.storage.runs import ids_of, open_data, open_model

if TYPE_CHECKING:
    from beamtree.batch.ray_cluster import Cluster


def retrieve_items(
    run: options.RunFolder,
    history: Annotated[
        str | None,
        typer.Option(
            help='Ids of items, oldest first: separated by commas, spaces or |, or as JSON, ["a b", "c"], also with '
            'the time of each event, [["a b", "2026-05-18 20:15"], ["c", "2026-05-19"]]. The newest 1,000 are used.'
        ),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(help="Ids of users of the log or of later events saved with the run, written like a history."),
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(
            metavar="popular|error", help="What unknown --users get: popular items with a note, or an error for all."
        ),
    ] = POPULAR,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="A file of histories (.csv, .tsv, .parquet, .jsonl), a folder, a pattern such as 'users/*.parquet', "
            "or a URL of Parquet files such as s3://bucket/users.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Where the answers to --input go: a file (.parquet, .csv, .jsonl), or a folder with one file for each "
            "file of --input. A folder is continued where it was stopped.",
        ),
    ] = None,
    format: options.LogFormat = None,
    user: options.UserColumn = None,
    item: options.ItemColumn = None,
    time: options.TimeColumn = None,
    time_format: options.TimeFormat = None,
    m: options.Size = 10,
    beam_size: options.OptionalBeam = None,
    search: options.SearchName = AUTO,
    exclude_seen: Annotated[
        bool,
        typer.Option(
            "--exclude-seen",
            help="Leave out the items of the history; with --users also those that were dropped from training.",
        ),
    ] = False,
    allowed: options.AllowedFile = None,
    exclude: options.ExcludeFile = None,
    where: options.Where = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="Rules on the answers, as JSON or a file of it: boosts, at_most, pins, diversity, fresh; see "
            "docs/rules.md."
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="What is known of the request, such as country=DE; repeatable."),
    ] = None,
    request_time: options.RequestTime = None,
    data: options.DataFolder = None,
    device: options.Device = "cpu",
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the answer to --history or --users, as JSON.")
    ] = None,
    engine: options.EngineName = "local",
    address: options.RayAddress = None,
    workers: options.Workers = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="With --engine ray: GPUs per worker. Default: one with --device cuda."),
    ] = None,
) -> None:
    """Retrieve the items that users are likely to want next, for a history given here or for files of any size.

    --input has one row per user, with the columns user and history: a list, or ids separated by spaces, commas or |,
    oldest first; a column times may have the time of each event, likewise. Or it has one row per event, with user, item
    and, unless the rows are in order, timestamp; the rows of a user may be anywhere. --format, --user, --item, --time
    and --time-format describe its columns.

    --output as Parquet or CSV has the columns user, rank, item and score, which is a probability. JSON lines have one
    object per user with lists of items and scores.

    Unknown items are skipped with a note. Users without a known item, and unknown --users, get popular items.

    Ids of items in Parquet, JSON lines and --json are integers where they were integers in the log of the run, and
    those of users where they are integers in the file of --input; else they are text.

    Where --output is a folder, each file of --input is answered separately: all events of a user must be in one file.
    With --engine ray the workers of a cluster do it, each with its own copy of the model.
    """
    check_single("retrieve")
    if sum(value is not None for value in (history, users, input)) != 1 or (input is None) != (output is None):
        raise ValueError('give --history "ID,ID,…", or --users "ID,…", or --input FILE and --output FILE')
    check_unknown(unknown)
    columns = LogColumns(user=user, item=item, time=time, time_format=time_format)
    if input is None and (format or columns.given()):
        raise ValueError("--format, --user, --item, --time and --time-format describe the columns of --input FILE")
    if input is not None and json is not None:
        raise ValueError("--json is for --history and --users: for JSON lines end the name of --output in .jsonl")
    options.check_outputs(json)
    in_folder = output is not None and not output.suffix
    if input is not None and output is not None:
        from beamtree.batch.files import check_output  # polars takes a moment to import

        if not in_folder:
            check_output(output)
        if Path(input).resolve() == output.resolve():
            raise ValueError(f"{output} is the input too: choose another name")
    names = lookup(FORMATS, "--format", format) if format else None
    search, beam = options.parse_search(search, beam_size, run)
    if beam is not None:
        options.check_size(m, beam)
    filter = make_filter(options.read_ids(allowed), options.read_ids(exclude), where=where)
    request = RecommendRequest(m=m, beam_size=beam, search=search, exclude_seen=exclude_seen, filter=filter)
    request = request._replace(rules=read_rules(rules))
    request = request._replace(context=options.parse_context(context), time=read_time(request_time))
    job = BatchJob(run, request, columns, names)
    ray = options.uses_ray(engine, address, workers, gpus)
    if ray and not in_folder:
        raise ValueError("--engine ray writes a folder: give --input FOLDER and --output FOLDER")
    if in_folder and input is not None and output is not None:
        cluster = options.ray_cluster(address, workers, gpus=device != "cpu") if ray else None
        _answer_folder(job._replace(run=run.absolute()), input, output, device, cluster, gpus)
        return

    model = open_model(run, device)
    if input is not None and output is not None:
        _answer_file(model, job, input, output)
    elif users is not None:
        log = open_data(run, model, data)
        known, ids = users_of_run(run, log), ids_of(run, model)
        searcher = make_searcher(run, model, request, lambda names: known.histories(names, ids), data)
        all_users = known.ids()
        asked = list(dict.fromkeys(parse_ids(users, all_users)))
        for name in asked if unknown == ERROR else ():
            if not known.histories([name], ids)[0].is_known:
                history_of_user(log, name)  # raises an error that says why
        _answer_here(searcher, request._replace(users=asked), json, all_users.integer)
    elif history is not None:
        searcher = make_searcher(run, model, request, data=data)
        items, times = parse_history(history, searcher.ids)
        _answer_here(searcher, request._replace(histories=[items], times=[times]), json)


def _answer_here(searcher: Searcher, request: RecommendRequest, json: Path | None, integer_users: bool = False) -> None:
    """Print the answers to a few histories, or to users, who are integers or text in the log."""
    if not request.rows:
        raise ValueError("--users is empty: give ids of users of the log")
    response = searcher.recommend(request)
    results, summary = response.results, BatchSummary(unknown_users=list(response.unknown_users))
    summary.add(results)
    if summary.empty == len(results):
        raise ValueError("no item is left to retrieve: drop --exclude-seen, --allowed, --exclude or --where")
    _print_notes(summary)
    users = request.users or [""]
    named = [int(user) if integer_users and is_integer(user) else user for user in users]
    if json is not None:
        records = [
            {
                **({"user": user} if request.users else {}),
                "rank": rank,
                "item": item,
                "score": score,
                **({} if result.rules is None else {"rules": list(result.rules[rank - 1])}),
                **({"popular": result.is_popular} if request.users else {}),
            }
            for user, result in zip(named, results, strict=True)
            for rank, (item, score) in enumerate(
                zip(searcher.ids.as_logged(result.items), result.scores, strict=True), 1
            )
        ]
        write_json(json, records)
    for user, result in zip(users, results, strict=True):
        show_items(user, result)


def show_items(title: str, result: Recommendation) -> None:
    """Print the items of one result as a table."""
    table = Table(title=escape(printable(title)) or None)
    table.add_column("", justify="right")
    table.add_column("item", overflow="fold")
    table.add_column("share of events" if result.is_popular else "probability", justify="right", no_wrap=True)
    if result.rules is not None:
        table.add_column("rules", overflow="fold")
    for rank, (item, score) in enumerate(zip(result.items, result.scores, strict=True), 1):
        names = [] if result.rules is None else [escape(printable("; ".join(result.rules[rank - 1])))]
        table.add_row(str(rank), escape(printable(item)), f"{score:.4g}", *names)
    out.print(table)


def _answer_file(model: TreeModel, job: BatchJob, source: str, output: Path) -> None:
    """Answer a file of histories."""
    from beamtree.batch.files import open_histories, write_results  # polars takes a moment to import

    histories = open_histories(source, job.columns, job.names)
    start = clock.monotonic()
    with progress(histories.rows, histories.unit) as (advance, _):
        summary = write_results(
            make_searcher(job.run, model, job.request), job.request, histories, output, on_rows=advance
        )
    _print_summary(summary, clock.monotonic() - start, output)


def _answer_folder(
    job: BatchJob,
    source: str,
    output: Path,
    device: str,
    cluster: "AbstractContextManager[Cluster] | None",
    gpus: float | None,
) -> None:
    """Answer the files of a folder that are not answered yet, in this process or on a cluster."""
    from beamtree.batch.folder import find_tasks, pending_tasks, run_locally, run_on_cluster

    start, total = clock.monotonic(), BatchSummary()
    tasks = find_tasks(job, source, output)
    with pending_tasks(job, tasks, output) as pending, progress(len(tasks), "parts") as (advance, print_line):
        if len(pending) < len(tasks):
            print_line(f"{len(tasks) - len(pending):,} parts are already answered")
            advance(len(tasks) - len(pending))
        if pending:
            with ExitStack() as stack:
                if cluster is None:
                    run_tasks = run_locally(device)
                else:
                    run_tasks = run_on_cluster(stack.enter_context(cluster), device, gpus)
                for summary in run_tasks(job, pending):
                    total.merge(summary)
                    advance(1)
    _print_summary(total, clock.monotonic() - start, output)


def _print_summary(summary: BatchSummary, seconds: float, output: Path) -> None:
    _print_notes(summary)
    note(f"{summary.users:,} users, {summary.users / seconds:,.0f} per second")
    write(f"Saved {output}")


def _print_notes(summary: BatchSummary) -> None:
    note(*(f"note: {printable(line)}" for line in summary.notes()))

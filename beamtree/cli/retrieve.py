"""`beamtree retrieve`: the best items for a history, for users of the log, or for a file of histories."""

import time as clock
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from beamtree.beam import BeamSize
from beamtree.cli.options import (
    BeamText,
    DataFolder,
    Device,
    EngineName,
    RayAddress,
    RunFolder,
    Workers,
    beam_of,
    most_items,
)
from beamtree.cli.parts import Who, answer_folder, note
from beamtree.cli.screen import err, out, printable, progress
from beamtree.distributed.command import OpenModel, wherever
from beamtree.distributed.group import join
from beamtree.files.atomic import check_writable, write_json
from beamtree.ingest.columns import FORMATS
from beamtree.model import TreeModel
from beamtree.query import Recommendation, RecommendRequest, Searcher, history_of_user, make_filter, parse_ids
from beamtree.serve.batch.job import BatchJob, BatchSummary, make_searcher
from beamtree.train.recipes import chosen
from beamtree.train.runs import ids_of, open_data

HistoryText = Annotated[
    str | None,
    typer.Option(help='Ids, oldest first: between commas, spaces or |, or as JSON, ["a b", "c"]; the last 69 count.'),
]
UsersText = Annotated[
    str | None, typer.Option(help="Ids of users of the log, written like a history: their events are known.")
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="A file of histories (.csv, .tsv, .parquet, .jsonl), a folder of them, a pattern such as "
        "'users/*.parquet', or an address of Parquet files such as s3://bucket/users.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        help="Where the answers to --input go: a file (.parquet, .csv, .jsonl), or a folder of parts, one for each "
        "file of --input. A folder is gone on with where it was left.",
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(min=0, help="With --engine ray: GPUs of each worker; unless given, one with --device cuda."),
]
Format = Annotated[str | None, typer.Option("--format", help=f"Of --input: {' or '.join(FORMATS)}.")]
User = Annotated[str | None, typer.Option(help="Of --input: the column of users, as in prepare.")]
Item = Annotated[str | None, typer.Option(help="Of --input: the column of items.")]
Time = Annotated[str | None, typer.Option(help="Of --input: the column of times.")]
Size = Annotated[int, typer.Option(min=1, help="How many items to retrieve.")]
NoSeen = Annotated[bool, typer.Option("--exclude-seen", help="Leave out the items of the history.")]
Allowed = Annotated[Path | None, typer.Option(help="A file of ids, one per line: retrieve these alone.")]
Exclude = Annotated[Path | None, typer.Option(help="A file of ids, one per line: retrieve none of these.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the answer to --history or --users.")]


class Asked(NamedTuple):
    """Who is asked for, in one of three ways, and where the answers go."""

    history: str | None
    users: str | None
    source: str | None
    output: Path | None
    data: Path | None
    json: Path | None

    def answer(self, job: BatchJob, model: TreeModel) -> None:
        """Search, and show or write the results."""
        if self.history is not None:
            searcher = make_searcher(job.run, model)
            history = parse_ids(self.history, searcher.ids)
            _answer_here(searcher, job.request._replace(histories=[history]), self.json)
        elif self.users is not None:
            log = open_data(job.run, model, self.data)
            searcher = Searcher(model, ids_of(job.run, model), user_history=lambda user: history_of_user(log, user))
            users = list(dict.fromkeys(parse_ids(self.users, log.users)))
            _answer_here(searcher, job.request._replace(users=users), self.json)
        elif self.source is not None and self.output is not None:
            _answer_file(make_searcher(job.run, model), job, self.source, self.output)


def retrieve_items(
    run: RunFolder,
    history: HistoryText = None,
    users: UsersText = None,
    input: Input = None,
    output: Output = None,
    format: Format = None,
    user: User = None,
    item: Item = None,
    time: Time = None,
    m: Size = 10,
    beam_size: BeamText = "400",
    exclude_seen: NoSeen = False,
    allowed: Allowed = None,
    exclude: Exclude = None,
    data: DataFolder = None,
    device: Device = "cpu",
    json: Json = None,
    engine: EngineName = "here",
    address: RayAddress = None,
    workers: Workers = None,
    gpus: Gpus = None,
) -> None:
    """Retrieve the items that a user will want next, from a history here or from a file of any size.

    A file has one row per user: the columns user and history, a list or ids between spaces, commas or |, oldest first.

    Or one row per event: user, item and, unless the rows are in order, timestamp; a user's rows may lie anywhere.

    Answers as Parquet or CSV have the columns user, rank, item and score, which is the probability.

    As JSON lines they have one object per user with lists of items and scores.

    Unknown items are passed over with a note. A user of whom nothing is known gets what is popular.

    Where --output is a folder, each file of --input is answered by itself, so all events of a user belong in one.
    With --engine ray the workers of a cluster answer them, each with a model of its own.
    A model that is too large for one device: `torchrun --nproc-per-node 4 -m beamtree retrieve …`, see docs/scale.md.
    """
    _check_words(history, users, input, output, json, any((format, user, item, time)))
    names = chosen(FORMATS, "--format", format) if format else None
    filter = make_filter(_lines(allowed), _lines(exclude))
    request = RecommendRequest(m=m, beam_size=_beam(run, beam_size, m), exclude_seen=exclude_seen, filter=filter)
    job = BatchJob(run, request, names, user, item, time)
    _ask(job, Who(engine, address, workers, gpus, device), Asked(history, users, input, output, data, json))


def _ask(job: BatchJob, who: Who, asked: Asked) -> None:
    """Run a job: by this process, by a cluster, or by all ranks that torchrun started."""
    in_parts = who.in_parts(asked.output)
    if in_parts and join(who.device).size > 1:
        raise ValueError("under torchrun all ranks answer one file: give --output a file, or answer parts without it")

    def retrieve(open_run: OpenModel) -> None:
        asked.answer(job, open_run(job.run))

    if in_parts and asked.source is not None and asked.output is not None:
        answer_folder(job._replace(run=job.run.absolute()), asked.source, asked.output, who)
    else:
        wherever("retrieve", job.run, who.device, retrieve)


def _beam(run: Path, text: str, m: int) -> BeamSize:
    """What --beam-size says; a ValueError where it is too narrow for m items."""
    beam = beam_of(text, run)
    if m > most_items(beam):
        raise ValueError(f"--m {m} with --beam-size {text}: the beam holds fewer items than that")
    return beam


def _check_words(
    history: str | None, users: str | None, source: str | None, output: Path | None, json: Path | None, columns: bool
) -> None:
    """Raise a ValueError where options do not go together, or an output cannot be written."""
    if sum(each is not None for each in (history, users, source)) != 1 or (source is None) != (output is None):
        raise ValueError('give --history "ID,ID,…", or --users "ID,…", or --input FILE and --output FILE')
    if source is None and columns:
        raise ValueError("--format, --user, --item and --time say what is in --input FILE")
    if source is not None and json is not None:
        raise ValueError("--json goes with --history and --users: end --output in .jsonl for JSON lines")
    if json is not None:
        check_writable(json)
    if output is not None and source is not None:
        from beamtree.serve.batch.files import check_output  # polars takes a moment

        if output.suffix:
            check_output(output)
        if Path(source).resolve() == output.resolve():
            raise ValueError(f"{output} is the input as well: choose another name")


def _lines(path: Path | None) -> list[str] | None:
    """The ids of a file, one per line."""
    if path is None:
        return None
    if not path.is_file():
        raise ValueError(f"{path} is no file of ids")
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _answer_here(searcher: Searcher, request: RecommendRequest, json: Path | None) -> None:
    if not request.rows:
        raise ValueError("--users names nobody: give ids of users of the log")
    results = searcher.recommend(request).results
    summary = BatchSummary()
    summary.add(results)
    if summary.empty == len(results):
        raise ValueError("nothing was found that may be found: drop --exclude-seen, --allowed or --exclude")
    note(summary)
    users = request.users or [""]
    if json is not None:
        records = []
        for user, result in zip(users, results, strict=True):
            ranked = enumerate(zip(result.items, result.scores, strict=True), 1)
            records += [
                {**({"user": user} if user else {}), "rank": rank, "item": item, "score": score}
                for rank, (item, score) in ranked
            ]
        write_json(json, records)
    for user, result in zip(users, results, strict=True):
        _show(user, result)


def _answer_file(searcher: Searcher, job: BatchJob, source: str, output: Path) -> None:
    from beamtree.serve.batch.files import open_histories, write_results  # polars takes a moment

    histories = open_histories(source, **job.columns)
    start = clock.monotonic()
    with progress(histories.rows, histories.unit) as (advance, _):
        summary = write_results(searcher, job.request, histories, output, on_rows=advance)
    note(summary)
    speed = summary.users / (clock.monotonic() - start)
    err.print(f"{summary.users:,} users, {speed:,.0f} per second", highlight=False)
    out.print(f"Saved {output}", highlight=False, soft_wrap=True, markup=False)


def _show(user: str, result: Recommendation) -> None:
    table = Table(title=escape(printable(user)) or None)
    table.add_column("", justify="right")
    table.add_column("item", overflow="fold")
    table.add_column("share of events" if result.is_popular else "probability", justify="right", no_wrap=True)
    for rank, (item, score) in enumerate(zip(result.items, result.scores, strict=True), 1):
        table.add_row(str(rank), escape(printable(item)), f"{score:.4g}")
    out.print(table)

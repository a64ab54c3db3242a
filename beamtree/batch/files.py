"""Files of histories in, files of results out: any number of users, a few of them in memory.

A file of histories has one of two layouts.

- One row per user: the columns user and history. A history is a list of ids, or text with the ids separated by
  spaces, commas or |, or a JSON list; oldest first. Every row gets a result, in the order of the file. A column times
  may have the time of each event, likewise: the events are then put in their order.
- One row per event, a log as `beamtree prepare` reads it: user, item and, unless the rows are in order, timestamp.
  The rows of a user may be anywhere; those dated in the future are left out, as in `prepare`. A log of more than
  MAX_EVENTS rows is read several times, each time for the users of one bucket of a hash of their ids; results come
  bucket by bucket, and within one in order of first appearance.

Ids have no white space around them. Items are integers if they were integers in the log of the model, and users if they
are integers in the input; else they are text. Results collect in a folder beside the output, become one file at the
end, and get their name in one move. Parquet and CSV have the columns user, rank, item and score, JSON lines one object
per user with lists of items and scores. With rules there is one more column or list, rules.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from beamtree.batch.job import BatchSummary
from beamtree.errors import explain_full_disk, short_message
from beamtree.files.atomic import check_writable
from beamtree.files.staging import move_into_place, staging_folder
from beamtree.ingest.columns import USUAL_COLUMNS, LogColumns, find_columns
from beamtree.ingest.readers import holds_numbers, is_integer_text, open_logs, scan_file, text_id, text_ids
from beamtree.ingest.sources import Location, find_files
from beamtree.ingest.times import WHITESPACE, latest_time
from beamtree.query import RecommendRequest, Searcher, parse_ids
from beamtree.query.times import Now, check_past, clock_seconds, in_order

MAX_USERS = 1 << 16  # histories in memory
MAX_EVENTS = 1 << 22  # events in memory, where the file is a log
BATCH = 256  # users that are searched together
MAX_RESULT_ITEMS = 1 << 18  # in memory before they are written
RESULTS: dict[str, pl.DataType] = {"user": pl.String(), "items": pl.List(pl.String), "scores": pl.List(pl.Float32)}

OnRows = Callable[[int], None]  # rows of the input done since the last call
Sink = Callable[[pl.LazyFrame, Path], object]


# Input


@dataclass(frozen=True)
class HistoryFile:
    """The histories of a file, not read yet."""

    rows: int
    unit: str  # of a row: users or events
    user: pl.DataType  # of the users in the results
    chunks: Callable[[], Iterator[pl.DataFrame]]  # user, history (a list or text), rows (of the file), times


def open_histories(
    path: str | Path, wanted: LogColumns = USUAL_COLUMNS, names: Sequence[str] | None = None
) -> HistoryFile:
    """Detect the layout and length of a file, or of a folder of files; the columns are as in `prepare`."""
    files = find_files(path)
    column_names = [name for name in (wanted.user, wanted.item, wanted.time) if name is not None]
    with _polars_errors(f"{path} cannot be read"):
        columns = scan_file(files[0], names, ["user", "history", *column_names]).collect_schema().names()
        by_name = {name.strip(): name for name in columns}
        history = by_name.get("history") if wanted.item is None and wanted.time is None else None
        try:
            matched = find_columns(columns, replace(wanted, item=history or wanted.item))
        except ValueError as error:
            if column_names:
                raise
            raise ValueError(
                f"{path} has the columns {', '.join(columns)}: give user and history, or user, item and timestamp"
            ) from error
        if history is not None:
            return _one_row_per_user(path, files, matched.user, history, by_name.get("times"))
        return _one_row_per_event(path, files, wanted, names)


def _one_row_per_user(
    path: str | Path, files: Sequence[Location], user: str, history: str, times: str | None
) -> HistoryFile:
    def select(file: Location) -> pl.LazyFrame:
        frame = scan_file(file, None, [user, history, *([] if times is None else [times])])
        types = frame.collect_schema()
        kind = types[history]
        given = [] if times is None else [pl.col(times).alias("times")]
        return frame.select(
            *given,
            user=text_id(user, types[user]).str.strip_chars(WHITESPACE),
            history=text_ids(history, kind) if isinstance(kind, pl.List | pl.Array) else text_id(history, kind),
            rows=1,
        )

    frame = pl.concat([select(file) for file in files])
    rows = _length(frame)

    def chunks() -> Iterator[pl.DataFrame]:
        for start in range(0, rows, MAX_USERS):
            with _polars_errors(f"{path} cannot be read"):
                chunk = frame.slice(start, MAX_USERS).collect(engine="streaming")
            yield chunk.filter(pl.col("user") != "")

    return HistoryFile(rows, "users", _user_type(files, None, user, frame), chunks)


def _one_row_per_event(
    path: str | Path, files: Sequence[Location], wanted: LogColumns, names: Sequence[str] | None
) -> HistoryFile:
    log = open_logs(files, wanted, names)
    rows = _length(log.events)
    trimmed = [pl.col(name).str.strip_chars(WHITESPACE) for name in ("user", "item")]
    is_valid = (pl.col("user") != "") & (pl.col("item") != "")
    columns = {"history": pl.col("item")}
    if log.columns.time is not None:
        is_valid &= pl.col("time").is_not_null()
        latest = latest_time(log.events, log.scale)
        if latest is not None:
            is_valid &= pl.col("time") <= latest
        columns = {
            name: pl.col(each).sort_by("time", maintain_order=True)
            for name, each in (("history", "item"), ("times", "time"))
        }
    valid = log.events.with_columns(trimmed).filter(is_valid)
    buckets = math.ceil(rows / MAX_EVENTS)

    def chunks() -> Iterator[pl.DataFrame]:
        for bucket in range(buckets):
            with _polars_errors(f"{path} cannot be read"):
                chunk = valid.filter(pl.col("user").hash(0) % buckets == bucket).collect(engine="streaming")
            yield chunk.group_by("user", maintain_order=True).agg(**columns, rows=pl.len())

    return HistoryFile(rows, "events", _user_type(files, names, log.columns.user, valid), chunks)


def _user_type(files: Sequence[Location], names: Sequence[str] | None, column: str, rows: pl.LazyFrame) -> pl.DataType:
    """The type of the users in the results: integers if the column of each file holds nothing else."""
    if not all(holds_numbers(file, scan_file(file, names, [column]), column) for file in files):
        return pl.String()
    integer = rows.filter(pl.col("user") != "").select(is_integer_text("user").all()).collect(engine="streaming").item()
    return pl.Int64() if integer else pl.String()


def _length(frame: pl.LazyFrame) -> int:
    return int(frame.select(pl.len()).collect(engine="streaming").item())


# Output


def write_results(
    searcher: Searcher,
    request: RecommendRequest,
    histories: HistoryFile,
    output: Path,
    *,
    on_rows: OnRows | None = None,
    allow_empty: bool = False,
) -> BatchSummary:
    """Write the recommendations for every history of a file; on failure a previous output stays.

    Args:
        searcher: of a model.
        request: without histories.
        histories: from `open_histories`.
        output: a file; its suffix decides the format.
        on_rows: called with the number of rows of the input done since its last call.
        allow_empty: whether an input without users gives an empty output; else it is an error.
    """
    check_output(output)
    summary = BatchSummary()
    schema = RESULTS if request.rules is None else {**RESULTS, "rules": pl.List(pl.String)}
    integers: dict[str, pl.DataType] = {"items": pl.List(pl.Int64)} if searcher.ids.integer else {}
    types = pl.Schema({**schema, "user": histories.user, **integers})

    def frames() -> Iterator[pl.DataFrame]:
        for chunk in histories.chunks():
            for batch in chunk.iter_slices(BATCH):
                of_events, reads_clock = histories.unit == "events", searcher.model.scorer.reads_clock
                rows, times = _histories_of(batch, of_events, reads_clock, searcher.end)
                results = searcher.recommend(request._replace(histories=rows, times=times)).results
                summary.add(results)
                count = int(batch["rows"].sum())
                summary.rows += count
                items, scores = [result.items for result in results], [result.scores for result in results]
                columns = {"user": batch["user"].to_list(), "items": items, "scores": scores}
                if "rules" in schema:
                    columns["rules"] = [["; ".join(names) for names in result.rules or ()] for result in results]
                yield pl.DataFrame(columns, schema=schema).cast(types)
                if on_rows is not None:
                    on_rows(count)

    with (
        explain_full_disk(output.parent),
        staging_folder(output) as folder,
        _polars_errors(f"{output} cannot be written"),
    ):
        _write_parts(frames(), folder, types, batches=max(1, MAX_RESULT_ITEMS // (BATCH * request.m)))
        if not summary.users and not allow_empty:
            raise ValueError("there is no user in the input: nothing to recommend")
        complete = folder / f"complete{output.suffix.lower()}"
        SINKS[complete.suffix](pl.scan_parquet(sorted(folder.glob("*.part")), glob=False), complete)
        move_into_place(complete, output)
    summary.skipped_rows = histories.rows - summary.rows
    return summary


def check_output(output: Path) -> None:
    """Raise a ValueError in one line where results cannot be written to this file."""
    if output.suffix.lower() not in SINKS:
        raise ValueError(f"{output}: the formats of results are {', '.join(SINKS)}; end the name in one of these")
    check_writable(output)


def _histories_of(
    batch: pl.DataFrame, of_events: bool, reads_clock: bool, end: Now
) -> tuple[list[list[str]], list[list[int]] | None]:
    """The ids of histories, and the times of their events where the file has them; those of events are in order."""
    rows = [_ids_of(history) for history in batch["history"].to_list()]
    if "times" not in batch.columns or (of_events and not reads_clock):
        return rows, None
    given = batch["times"].to_list()
    if of_events:
        return rows, clock_seconds(given)
    timed = []
    for user, row, times in zip(batch["user"].to_list(), rows, given, strict=True):
        moments = _times_of(times)
        try:
            timed.append(in_order(row, moments) if moments else (row, []))
            check_past([timed[-1][1]], end)
        except ValueError as error:
            raise ValueError(f"user {user[:80]!r}: {error}") from error
    return [row for row, _ in timed], [times for _, times in timed]


def _times_of(times: Any) -> list[Any]:
    """The times of a history: a list, or text with a JSON list, or separated by commas or |, or else by spaces."""
    if not isinstance(times, str):
        return [] if times is None else list(times) if isinstance(times, list) else [times]
    if times.lstrip().startswith("["):
        try:
            return list(json.loads(times))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"times {times[:80]!r} are no JSON list") from error
    return [text for text in re.split(r"\s*[,|]\s*" if re.search("[,|]", times) else r"\s+", times.strip()) if text]


def _ids_of(history: Sequence[str | None] | str | None) -> list[str]:
    if isinstance(history, str):
        return parse_ids(history)
    return [name.strip() for name in history or () if name is not None and name.strip()]


def _write_parts(frames: Iterator[pl.DataFrame], folder: Path, schema: Mapping[str, pl.DataType], batches: int) -> None:
    """Write files of so many batches each, whose names sort in order; at least one file."""
    part = 0
    while (group := list(islice(frames, batches))) or not part:
        pl.concat([pl.DataFrame(schema=schema), *group]).write_parquet(folder / f"{part:08}.part", compression="lz4")
        part += 1


def _one_row_per_item(results: pl.LazyFrame) -> pl.LazyFrame:
    results = results.filter(pl.col("items").list.len() > 0)
    results = results.with_columns(rank=pl.int_ranges(1, pl.col("items").list.len() + 1))
    results = results.explode(pl.selectors.exclude("user")).rename({"items": "item", "scores": "score"})
    return results.select("user", "rank", pl.exclude("user", "rank"))


SINKS: dict[str, Sink] = {
    ".parquet": lambda results, path: _one_row_per_item(results).sink_parquet(path),
    ".csv": lambda results, path: _one_row_per_item(results).sink_csv(path),
    ".jsonl": lambda results, path: results.sink_ndjson(path),
    ".ndjson": lambda results, path: results.sink_ndjson(path),
}


@contextmanager
def _polars_errors(prefix: str) -> Iterator[None]:
    """Raise errors of Polars as a ValueError in one line."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{prefix}: {short_message(error)}") from error

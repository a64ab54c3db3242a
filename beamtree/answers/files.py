"""Files of histories in, files of answers out: any number of users, a few of them in memory.

A file of histories has one of two shapes.

- One row per user: the columns user and history. A history is a list of ids, or text with the ids separated by
  spaces, commas or |, or a list as JSON; oldest first. Every row is answered, in the order of the file.
- One row per event, a log as `beamtree prepare` reads it: user, item and, unless the rows are in order, timestamp.
  A user's rows may lie anywhere. A log of more than EVENTS rows is read once for each part of its users, who are
  dealt out by a hash of their ids; the answers come part by part, and within one in the order of first appearance.

Ids are text from end to end, without white space around them. Answers collect in a folder beside the output,
become one file at the end, and get their name in one move. Parquet and CSV have the columns user, rank, item and score,
JSON lines one object per user with lists of items and scores.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from beamtree.answers.answer import Answer, Tally, answer, read_history, split_ids
from beamtree.beam import BeamSize
from beamtree.data import Ids
from beamtree.errors import explain_full_disk, short_message
from beamtree.files.atomic import check_writable
from beamtree.files.staging import move_into_place, staging_folder
from beamtree.ingest.columns import find_columns
from beamtree.ingest.readers import WHITE, find_files, open_events, scan, text_id, text_ids
from beamtree.ingest.urls import Place
from beamtree.mask import NodeMask
from beamtree.model import TreeModel

USERS = 1 << 16  # histories in memory at once
EVENTS = 1 << 22  # and events, where the file is a log
BATCH = 256  # users that go down the tree together
KEPT = 1 << 18  # items of answers in memory before they are written
ANSWERS: dict[str, pl.DataType] = {"user": pl.String(), "items": pl.List(pl.String), "scores": pl.List(pl.Float32)}

OnRows = Callable[[int], None]  # rows of the input done since the last call
Sink = Callable[[pl.LazyFrame, Path], object]


# In


@dataclass(frozen=True)
class Histories:
    """The histories of a file, unread."""

    rows: int
    unit: str  # what a row is: users or events
    parts: Callable[[], Iterator[pl.DataFrame]]  # user, history (a list or text), rows (how many it was made of)


def open_histories(
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
) -> Histories:
    """Find out which shape a file (or a folder of files) has, and how long it is; the columns are as in `prepare`."""
    files = find_files([path])
    asked = [name for name in (user, item, time) if name is not None]
    with _plain_errors(f"{path} cannot be read"):
        columns = scan(files[0], names, ["user", "history", *asked]).collect_schema().names()
        by_name = {name.strip(): name for name in columns}
        history = by_name.get("history") if item is None and time is None else None
        try:
            found = find_columns(columns, user, history or item, time)
        except ValueError as error:
            if asked:
                raise
            raise ValueError(
                f"{path} has the columns {', '.join(columns)}: give user and history, or user, item and timestamp"
            ) from error
        if history is not None:
            return _one_row_per_user(path, files, found.user, history)
        return _one_row_per_event(path, files, names, user, item, time)


def _one_row_per_user(path: str | Path, files: Sequence[Place], user: str, history: str) -> Histories:
    def select(file: Place) -> pl.LazyFrame:
        frame = scan(file, None, [user, history])
        types = frame.collect_schema()
        kind = types[history]
        return frame.select(
            user=text_id(user, types[user]).str.strip_chars(WHITE),
            history=text_ids(history, kind) if isinstance(kind, pl.List | pl.Array) else text_id(history, kind),
            rows=1,
        )

    frame = pl.concat([select(file) for file in files])
    rows = _length(frame)

    def parts() -> Iterator[pl.DataFrame]:
        for start in range(0, rows, USERS):
            with _plain_errors(f"{path} cannot be read"):
                part = frame.slice(start, USERS).collect(engine="streaming")
            yield part.filter(pl.col("user") != "")

    return Histories(rows, "users", parts)


def _one_row_per_event(
    path: str | Path,
    files: Sequence[Place],
    names: Sequence[str] | None,
    user: str | None,
    item: str | None,
    time: str | None,
) -> Histories:
    events, columns, _ = open_events(files, names, user, item, time)
    rows = _length(events)
    trimmed = [pl.col(name).str.strip_chars(WHITE) for name in ("user", "item")]
    usable = (pl.col("user") != "") & (pl.col("item") != "")
    history = pl.col("item")
    if columns.time is not None:
        usable &= pl.col("time").is_not_null()
        history = history.sort_by("time", maintain_order=True)
    usual = events.with_columns(trimmed).filter(usable)
    count = math.ceil(rows / EVENTS)

    def parts() -> Iterator[pl.DataFrame]:
        for part in range(count):
            with _plain_errors(f"{path} cannot be read"):
                some = usual.filter(pl.col("user").hash(0) % count == part).collect(engine="streaming")
            yield some.group_by("user", maintain_order=True).agg(history=history, rows=pl.len())

    return Histories(rows, "events", parts)


def _length(frame: pl.LazyFrame) -> int:
    return int(frame.select(pl.len()).collect(engine="streaming").item())


# Out


def write_answers(
    model: TreeModel,
    ids: Ids,
    histories: Histories,
    output: Path,
    *,
    beam_size: BeamSize = 400,
    m: int = 10,
    exclude_seen: bool = False,
    allowed: NodeMask | None = None,
    on_rows: OnRows | None = None,
    even_none: bool = False,
) -> Tally:
    """Answer every history of a file; one output stands at the end, or what stood there before.

    Args:
        model: what is searched.
        ids: of its items.
        histories: from `open_histories`.
        output: a file; its ending says of which kind.
        beam_size: k, or one width for each searched level.
        m: how many items.
        exclude_seen: whether items of a history are not to be found for it.
        allowed: the items that may be found; all unless given.
        on_rows: hears how many rows of the input were done since it was last called.
        even_none: whether an input without a user gets an output without an answer; else it is an error.
    """
    check_output(output)
    tally = Tally()

    def frames() -> Iterator[pl.DataFrame]:
        for batch in _batches(histories):
            known = [read_history(ids, _ids_of(history)) for history in batch["history"].to_list()]
            answers = answer(model, ids, known, beam_size=beam_size, m=m, exclude_seen=exclude_seen, allowed=allowed)
            tally.add(answers)
            tally.rows += (rows := int(batch["rows"].sum()))
            yield _frame(batch["user"].to_list(), answers)
            if on_rows is not None:
                on_rows(rows)

    with (
        explain_full_disk(output.parent),
        staging_folder(output) as folder,
        _plain_errors(f"{output} cannot be written"),
    ):
        _write(frames(), folder, together=max(1, KEPT // (BATCH * m)))
        if not tally.users and not even_none:
            raise ValueError("there is no user in the input: nothing to answer")
        whole = folder / f"whole{output.suffix.lower()}"
        SINKS[whole.suffix](pl.scan_parquet(sorted(folder.glob("*.part")), glob=False), whole)
        move_into_place(whole, output)
    tally.left_out = histories.rows - tally.rows
    return tally


def check_output(output: Path) -> None:
    """Raise a ValueError in one line where answers cannot be written under this name."""
    if output.suffix.lower() not in SINKS:
        raise ValueError(f"{output}: answers are written to {', '.join(SINKS)}; end the name in one of these")
    check_writable(output)


def _batches(histories: Histories) -> Iterator[pl.DataFrame]:
    for part in histories.parts():
        yield from part.iter_slices(BATCH)


def _ids_of(history: Sequence[str | None] | str | None) -> list[str]:
    if isinstance(history, str):
        return split_ids(history)
    return [name.strip() for name in history or () if name is not None and name.strip()]


def _frame(users: Sequence[str], answers: Sequence[Answer]) -> pl.DataFrame:
    items, scores = [each.items for each in answers], [each.scores for each in answers]
    return pl.DataFrame({"user": users, "items": items, "scores": scores}, schema=ANSWERS)


def _write(frames: Iterator[pl.DataFrame], folder: Path, together: int) -> None:
    """Files of answers, the batches of some `together` in each; they sort in order."""
    part = 0
    while (some := list(islice(frames, together))) or not part:
        pl.concat([pl.DataFrame(schema=ANSWERS), *some]).write_parquet(folder / f"{part:08}.part", compression="lz4")
        part += 1


def _long(answers: pl.LazyFrame) -> pl.LazyFrame:
    """One row for each item of each answer."""
    answers = answers.filter(pl.col("items").list.len() > 0)
    answers = answers.with_columns(rank=pl.int_ranges(1, pl.col("items").list.len() + 1))
    return answers.explode("rank", "items", "scores").select("user", "rank", item="items", score="scores")


SINKS: dict[str, Sink] = {
    ".parquet": lambda answers, path: _long(answers).sink_parquet(path),
    ".csv": lambda answers, path: _long(answers).sink_csv(path),
    ".jsonl": lambda answers, path: answers.sink_ndjson(path),
    ".ndjson": lambda answers, path: answers.sink_ndjson(path),
}


@contextmanager
def _plain_errors(trouble: str) -> Iterator[None]:
    """Polars' errors in one line."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{trouble}: {short_message(error)}") from error

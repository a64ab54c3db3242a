"""`beamtree retrieve`: the best items for a history, for users of the log, or for a file of histories."""

import time as clock
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from beamtree.answers import Answer, History, Tally, answer, history_of_user, item_filter, read_history, split_ids
from beamtree.beam import BeamSize
from beamtree.cli.options import BeamText, DataFolder, Device, RunFolder, beam_of, most_items
from beamtree.cli.over_ranks import OpenModel, wherever
from beamtree.cli.screen import err, out, printable, progress
from beamtree.data import Ids
from beamtree.files.small import check_writable, write_json
from beamtree.ingest.columns import FORMATS
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.train.recipes import chosen
from beamtree.train.runs import ids_of, open_data


class Search(NamedTuple):
    """What is asked of a run, whoever asks."""

    model: TreeModel
    ids: Ids
    m: int
    beam_size: BeamSize
    exclude_seen: bool
    allowed: NodeMask | None

    def __call__(self, histories: list[History]) -> list[Answer]:
        return answer(
            self.model,
            self.ids,
            histories,
            beam_size=self.beam_size,
            m=self.m,
            exclude_seen=self.exclude_seen,
            allowed=self.allowed,
        )


HistoryText = Annotated[
    str | None,
    typer.Option(help='Ids, oldest first: between commas, spaces or |, or as JSON, ["a b", "c"]; the last 69 count.'),
]
UsersText = Annotated[
    str | None, typer.Option(help="Ids of users of the log, written like a history: their events are known.")
]
Input = Annotated[
    Path | None, typer.Option("--input", help="A file of histories (.csv, .tsv, .parquet, .jsonl), or a folder.")
]
Output = Annotated[
    Path | None, typer.Option("--output", help="Where the answers to --input go (.parquet, .csv, .jsonl).")
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
) -> None:
    """Retrieve the items that a user will want next, from a history here or from a file of any size.

    A file has one row per user: the columns user and history, a list or ids between spaces, commas or |, oldest first.

    Or one row per event: user, item and, unless the rows are in order, timestamp; a user's rows may lie anywhere.

    Answers as Parquet or CSV have the columns user, rank, item and score, which is the probability.

    As JSON lines they have one object per user with lists of items and scores.

    Unknown items are passed over with a note. A user of whom nothing is known gets what is popular.

    A model that is too large for one device: `torchrun --nproc-per-node 4 -m beamtree retrieve …`, see docs/scale.md.
    """
    columns = {"names": format, "user": user, "item": item, "time": time}
    asked = Asked(history, users, input, output, columns, m, beam_size, exclude_seen, allowed, exclude, data, json)
    wherever("retrieve", run, device, lambda open_run: retrieve_from(run, asked, open_run))


class Asked(NamedTuple):
    """What the command was given."""

    history: str | None
    users: str | None
    input: Path | None
    output: Path | None
    columns: dict[str, Any]
    m: int
    beam_size: str
    exclude_seen: bool
    allowed: Path | None
    exclude: Path | None
    data: Path | None
    json: Path | None


def retrieve_from(run: Path, asked: Asked, open_run: OpenModel) -> None:
    """Open a run and answer."""
    beam, m, columns = beam_of(asked.beam_size, run), asked.m, asked.columns
    if m > most_items(beam):
        raise ValueError(f"--m {m} with --beam-size {asked.beam_size}: the beam holds fewer items than that")
    if columns["names"]:
        columns = {**columns, "names": chosen(FORMATS, "--format", columns["names"])}
    _check_words(asked.history, asked.users, asked.input, asked.output, asked.json, any(columns.values()))
    model = open_run(run)
    ids = ids_of(run, model)
    mask = item_filter(model, ids, _lines(asked.allowed), _lines(asked.exclude))
    search = Search(model, ids, m, beam, asked.exclude_seen, mask)
    if asked.history is not None:
        _answer_here(search, {"": read_history(ids, split_ids(asked.history, ids))}, asked.json)
    elif asked.users is not None:
        log = open_data(run, model, asked.data)
        histories = {name: history_of_user(log, name) for name in split_ids(asked.users, log.users)}
        _answer_here(search, histories, asked.json)
    elif asked.input is not None and asked.output is not None:
        _answer_file(search, asked.input, asked.output, columns)


def _check_words(
    history: str | None, users: str | None, source: Path | None, output: Path | None, json: Path | None, columns: bool
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
        from beamtree.answers.files import check_output  # polars takes a moment

        check_output(output)
        if source.resolve() == output.resolve():
            raise ValueError(f"{output} is the input as well: choose another name")


def _lines(path: Path | None) -> list[str] | None:
    """The ids of a file, one per line."""
    if path is None:
        return None
    if not path.is_file():
        raise ValueError(f"{path} is no file of ids")
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _answer_here(search: Search, histories: dict[str, History], json: Path | None) -> None:
    if not histories:
        raise ValueError("--users names nobody: give ids of users of the log")
    answers = search(list(histories.values()))
    tally = Tally()
    tally.add(answers)
    if tally.nothing_found == len(answers):
        raise ValueError("nothing was found that may be found: drop --exclude-seen, --allowed or --exclude")
    _note(tally)
    if json is not None:
        records = []
        for user, found in zip(histories, answers, strict=True):
            ranked = enumerate(zip(found.items, found.scores, strict=True), 1)
            records += [
                {**({"user": user} if user else {}), "rank": rank, "item": item, "score": score}
                for rank, (item, score) in ranked
            ]
        write_json(json, records)
    for user, found in zip(histories, answers, strict=True):
        _show(user, found)


def _answer_file(search: Search, source: Path, output: Path, columns: dict[str, Any]) -> None:
    from beamtree.answers.files import open_histories, write_answers  # polars takes a moment

    histories = open_histories(source, **columns)
    start = clock.monotonic()
    with progress(histories.rows, histories.unit) as (advance, _):
        tally = write_answers(
            search.model,
            search.ids,
            histories,
            output,
            beam_size=search.beam_size,
            m=search.m,
            exclude_seen=search.exclude_seen,
            allowed=search.allowed,
            on_rows=advance,
        )
    _note(tally)
    speed = tally.users / (clock.monotonic() - start)
    err.print(f"{tally.users:,} users, {speed:,.0f} per second", highlight=False)
    out.print(f"Saved {output}", highlight=False, soft_wrap=True, markup=False)


def _note(tally: Tally) -> None:
    for note in tally.notes():
        err.print(f"note: {printable(note)}", highlight=False, soft_wrap=True, markup=False)


def _show(user: str, found: Answer) -> None:
    table = Table(title=escape(printable(user)) or None)
    table.add_column("", justify="right")
    table.add_column("item", overflow="fold")
    table.add_column("share of events" if found.is_popular else "probability", justify="right", no_wrap=True)
    for rank, (item, score) in enumerate(zip(found.items, found.scores, strict=True), 1):
        table.add_row(str(rank), escape(printable(item)), f"{score:.4g}")
    out.print(table)

"""`beamtree retrieve`: the best items for a history, or for a file of histories."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from beamtree.cli.options import BeamSize, Device, RunFolder
from beamtree.cli.screen import err, out, progress
from beamtree.data import Ids
from beamtree.data.files import check_writable, write_json
from beamtree.model import TreeModel
from beamtree.serve import Answer, Tally, answer, split_ids
from beamtree.train.runs import open_ids, open_model


def retrieve_items(
    run: RunFolder,
    history: Annotated[
        str | None, typer.Option(help="Ids of items, oldest first, between commas, spaces or |; the last 69 count.")
    ] = None,
    input: Annotated[
        Path | None, typer.Option("--input", help="A file of histories (.csv, .tsv, .parquet, .jsonl), or a folder.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where the answers to --input go (.parquet, .csv, .jsonl).")
    ] = None,
    m: Annotated[int, typer.Option(min=1, help="How many items to retrieve.")] = 10,
    beam_size: BeamSize = 400,
    exclude_seen: Annotated[bool, typer.Option("--exclude-seen", help="Leave out the items of the history.")] = False,
    device: Device = "cpu",
    json: Annotated[Path | None, typer.Option("--json", help="Also write the answer to --history here.")] = None,
) -> None:
    """Retrieve the items that a user will want next, from a history here or from a file of any size.

    One row per user: the columns user and history, a list or ids between spaces, commas or |, oldest first.

    Or one row per event: user, item and, unless the rows are in order, timestamp; a user's rows may lie anywhere.

    Answers as Parquet or CSV have the columns user, rank, item and score, which is the probability.

    As JSON lines they have one object per user with lists of items and scores.

    Unknown items are passed over with a note. Where nothing is known, the answer is that to an empty history.
    """
    if m > beam_size:
        raise ValueError(f"--m {m} with --beam-size {beam_size}: at most beam_size items can be retrieved")
    if (history is None) == (input is None) or (input is None) != (output is None):
        raise ValueError('give --history "ID,ID,…", or --input FILE and --output FILE')
    if history is not None:
        _answer_one(run, history, m, beam_size, exclude_seen, device, json)
    elif input is not None and output is not None:
        if json is not None:
            raise ValueError("--json goes with --history: end --output in .jsonl for JSON lines")
        _answer_file(run, input, output, m, beam_size, exclude_seen, device)


def _answer_one(
    run: Path, history: str, m: int, beam_size: int, exclude_seen: bool, device: str, json: Path | None
) -> None:
    if json is not None:
        check_writable(json)
    model, ids = _open(run, device)
    answers = answer(model, ids, [split_ids(history)], beam_size=beam_size, m=m, exclude_seen=exclude_seen)
    tally = Tally()
    tally.add(answers)
    if tally.nothing_found:
        raise ValueError("nothing was found that is not in the history: raise --beam-size, or drop --exclude-seen")
    _note(tally)
    if json is not None:
        ranked = enumerate(zip(answers[0].items, answers[0].scores, strict=True), 1)
        write_json(json, [{"rank": rank, "item": item, "score": score} for rank, (item, score) in ranked])
    _show(answers[0])


def _answer_file(
    run: Path, source: Path, output: Path, m: int, beam_size: int, exclude_seen: bool, device: str
) -> None:
    from beamtree.serve.files import check_output, open_histories, write_answers  # polars takes a moment

    check_output(output)
    if source.resolve() == output.resolve():
        raise ValueError(f"{output} is the input as well: choose another name")
    model, ids = _open(run, device)
    histories = open_histories(source)
    start = time.monotonic()
    with progress(histories.rows, histories.unit) as (advance, _):
        tally = write_answers(
            model,
            ids,
            histories,
            output,
            beam_size=beam_size,
            m=m,
            exclude_seen=exclude_seen,
            on_rows=advance,
        )
    _note(tally)
    speed = tally.users / (time.monotonic() - start)
    err.print(f"{tally.users:,} users, {speed:,.0f} per second", highlight=False)
    out.print(f"Saved {output}", highlight=False, soft_wrap=True, markup=False)


def _open(run: Path, device: str) -> tuple[TreeModel, Ids]:
    return open_model(run, device), open_ids(run)


def _note(tally: Tally) -> None:
    for note in tally.notes():
        err.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)


def _show(found: Answer) -> None:
    table = Table()
    table.add_column("", justify="right")
    table.add_column("item", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    for rank, (item, score) in enumerate(zip(found.items, found.scores, strict=True), 1):
        table.add_row(str(rank), escape(item), f"{score:.4g}")
    out.print(table)

"""Parts in, parts out: a folder of answers with one file for each file of histories, made in any order by anybody.

    answers.json    the model, what was asked of it, and the parts that were asked for, with their sizes
    NAME.parquet    the answers to the part NAME.parquet (or NAME.csv, …), whole or not there

A part that is there is not made again, so a command that was stopped goes on where it was. Each part is read by itself:
all events of a user belong in one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.answers.answer import Tally
from beamtree.answers.files import open_histories
from beamtree.answers.question import Question, Search, open_search
from beamtree.files.atomic import read_json, write_json
from beamtree.files.staging import folder_lock
from beamtree.ingest.readers import LINES, PARQUET, TEXT, find_files, scan
from beamtree.ingest.urls import Place
from beamtree.storage.settings import fingerprint

RECORD, FORMAT = "answers.json", 1


class Part(NamedTuple):
    """A file of histories, and where its answers go."""

    source: Place
    output: Path


class Answerer:
    """Answers parts, with a model that is loaded once."""

    def __init__(self, question: Question, device: str) -> None:
        self.question, self.device = question, device

    @cached_property
    def _search(self) -> Search:
        return open_search(self.question, self.device)

    def answer(self, part: Part) -> Tally:
        """Write the answers to one part."""
        histories = open_histories(part.source, **self.question.columns)
        return self._search.write(histories, part.output, even_none=True)


Work = Callable[[Question, Sequence[Part]], Iterable[Tally]]


def here(device: str) -> Work:
    """Work that is done in this process."""
    return lambda question, parts: map(Answerer(question, device).answer, parts)


@contextmanager
def unanswered(question: Question, parts: Sequence[Part], folder: Path) -> Iterator[list[Part]]:
    """The parts that are not answered yet, with the folder of answers held by this process.

    A ValueError where the folder holds answers to another question, or something else.
    """
    with folder_lock(folder):
        _begin(question, parts, folder)
        yield [part for part in parts if not part.output.exists()]


def find_parts(question: Question, source: str | Path, folder: Path) -> list[Part]:
    """The parts of a folder; a ValueError where they are not alike, or two would be answered under one name."""
    parts: dict[str, Part] = {}
    columns: list[str] = []
    for file in find_files([source]):
        name = f"{_stem(file.name)}.parquet"
        if name in parts:
            raise ValueError(f"{parts[name].source} and {file} would both be answered in {name}: rename one")
        found = scan(file, question.names, ["user", "history"]).collect_schema().names()
        if parts and found != columns:
            first = next(iter(parts.values())).source
            listed = f"{first} has {', '.join(columns)}; {file} has {', '.join(found)}"
            raise ValueError(f"the parts differ in their columns: {listed}")
        columns = found
        parts[name] = Part(file, folder.absolute() / name)
    return list(parts.values())


def _stem(name: str) -> str:
    """The name of a file without its ending, which may have two dots."""
    kind = next(kind for kind in sorted((*TEXT, *LINES, *PARQUET), key=len)[::-1] if name.lower().endswith(kind))
    return name[: -len(kind)]


def _begin(question: Question, parts: Sequence[Part], folder: Path) -> None:
    """Write the record of a folder, or see that it is of the same question; more parts may have come since."""
    path = folder / RECORD
    asked = {"format": FORMAT, "model": fingerprint(question.run), "settings": question.record()}
    sizes = {part.output.name: _size(part.source) for part in parts}
    if not path.exists():
        others = sorted(each.name for each in folder.iterdir())
        if others:
            raise ValueError(f"{folder} exists and holds something else, such as {others[0]}: choose another folder")
        write_json(path, {**asked, "run": str(question.run), "parts": sizes})
        return
    before = read_json(path, "choose another folder")
    if not isinstance(before, dict) or not isinstance(before.get("parts"), dict):
        raise ValueError(f"{path} is damaged: choose another folder")
    difference = next(_differences(before, asked, sizes), None)
    if difference is not None and any((folder / name).exists() for name in before["parts"]):
        raise ValueError(f"{folder} holds answers of another run, {difference}: choose another folder, or remove it")
    known = before["parts"] if difference is None else {}
    write_json(path, {**asked, "run": str(question.run), "parts": {**known, **sizes}})


def _differences(before: dict[str, Any], asked: dict[str, Any], sizes: dict[str, int | None]) -> Iterator[str]:
    if before.get("format") != FORMAT or before.get("model") != asked["model"]:
        yield f"the model {before.get('model')} of {before.get('run')}, not {asked['model']}"
    for name, value in asked["settings"].items():
        theirs = before.get("settings", {}).get(name)
        if theirs != value:
            yield f"with {name} {theirs}, not {value}"
    for name, size in sizes.items():
        theirs = before["parts"].get(name, size)
        if theirs != size:
            yield f"for a part {name} of {theirs:,} bytes, not {size:,}"


def _size(source: Place) -> int | None:
    """The bytes of a part; None where it is not on this machine."""
    return source.stat().st_size if isinstance(source, Path) else None

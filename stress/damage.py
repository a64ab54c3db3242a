"""Damaged and hostile inputs: logs, prepared folders, models, histories, options.

No wrong answer, no traceback, no hang. What has a checksum must be refused or answer as if nothing had happened. A log
has none: any answer that is whole will do, and an error must be one line.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from beamtree.files.checksums import CHECKSUM, with_checksum
from stress.checksums import update_checksums
from stress.child import HANG, LONG, run
from stress.world import COMPARE, EVALUATE, PREPARE, RETRIEVE, TRAIN, World, digest

Damage = Callable[[Path, random.Random], None]
NUMBERS = ["0", "-1", "1e10", "1e38", "nan", "inf", "9" * 30, "", "x", "2.5", "\u00b2", "1_0", "0x10"]
ODD = ["\x1b[2J,\a,1", "u,,", ",,", "u,i", "u,i,1,2,3", "\ufeffu,i,1", "u;i;1", "u,i,99999999999999999999"]
VALUES: list[Any] = [None, -1, 0, 10**12, "x", "", [], {}, 1.5, True, "../x", "/etc/passwd", [[]], "\0", "é" * 100]


def flip(path: Path, draw: random.Random) -> None:
    """One bit."""
    content = bytearray(path.read_bytes() or b"\0")
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(path: Path, draw: random.Random) -> None:
    """The end is missing."""
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def overwrite(path: Path, draw: random.Random) -> None:
    """Some bytes are others."""
    content = bytearray(path.read_bytes() or b"\0")
    place, count = draw.randrange(len(content)), draw.randrange(1, 200)
    content[place : place + count] = draw.choice((bytes(count), draw.randbytes(count), b"9" * count, b'"' * count))
    path.write_bytes(content)


def grow(path: Path, draw: random.Random) -> None:
    """More at its end."""
    path.write_bytes(path.read_bytes() + draw.choice((b"\0", b"\n", draw.randbytes(100), path.read_bytes()[:500])))


def lose(path: Path, draw: random.Random) -> None:
    """The file is gone, or something else has its name."""
    content = path.read_bytes()
    path.unlink()
    kind = draw.randrange(5)
    if kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(draw.choice(("/etc/passwd", "/dev/zero", "../log.csv", "nowhere", path.name)))
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        path.write_bytes(content)
        path.chmod(0)


def lie(path: Path, draw: random.Random) -> None:
    """A JSON file says something else, and has its checksum made anew by somebody who knows how."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return flip(path, draw)
    sealed = content.pop(CHECKSUM, None) is not None if isinstance(content, dict) else False
    place = content
    while isinstance(place, dict | list) and len(place):
        key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
        if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.7:
            place = place[key]
            continue
        if draw.random() < 0.3 and isinstance(place, dict):
            del place[key]
        else:
            place[key] = draw.choice(VALUES)
        break
    path.write_text(json.dumps(with_checksum(content) if sealed else content))
    return None


def disguise(path: Path, draw: random.Random) -> None:
    """A file is damaged and its checksum made anew: nothing is known to be wrong until it is used."""
    overwrite(path, draw)
    for name in ("settings.json", "description.json"):
        if (path.parent / name).exists() and path.name != name:
            update_checksums(path.parent, name=name)


FILES: list[Damage] = [flip, cut, overwrite, grow, lose]


def trials(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """(what was tried, what went wrong): without end."""
    kinds = {"model": _model, "prepared": _prepared, "log": _log, "histories": _histories, "options": _options}
    while True:
        name = draw.choice(("model", "model", "prepared", "prepared", "log", "histories", "options"))
        place = world.copy()
        try:
            what, faults = kinds[name](world, place, draw)
        finally:
            for path in place.rglob("*"):
                if not path.is_symlink() and path.is_file():
                    path.chmod(0o644)
        yield f"damaged {name}", [f"{what}: {fault}" for fault in (*faults, *world.close(place))]


def _ask(world: World, place: Path, words: tuple[str, ...], out: str, *, trusted: bool) -> list[str]:
    """What is wrong with the answer to a command; where `trusted`, an answer must be the right one."""
    before = digest(place / out)
    ended = run(words, place, world.folder / "notes-damage", limit=LONG)
    faults = [] if ended.fault is None else [f"{ended.fault}: {ended.said[-400:]}"]
    if ended.code != 0 and ended.worked > HANG:
        faults.append(f"took {ended.worked:.0f} s to fail")
    if ended.code == 0 and trusted and digest(place / out) != digest(world.whole / out):
        faults.append("a wrong answer, in silence")
    if ended.code != 0 and digest(place / out) != before and words[0] not in ("train", "compare"):
        faults.append("changed its output and failed")
    text = (place / out).read_text(errors="replace") if (place / out).is_file() else ""
    if "NaN" in text or "Infinity" in text:
        faults.append("NaN in JSON")
    return faults


def _hit(folder: Path, draw: random.Random) -> tuple[str, bool]:
    """Damage a file of a folder: what was done, and whether a checksum can tell."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".png"]
    path = draw.choice([each for each in files if each.name not in ("log.jsonl",)])
    kind = draw.choice([*FILES, *FILES, lie, disguise])
    if kind is lie:
        path = draw.choice([each for each in files if each.suffix == ".json"])
    kind(path, draw)
    return f"{kind.__name__} {path.name}", kind not in (lie, disguise) and path.name != "run.json"


def _model(world: World, place: Path, draw: random.Random) -> tuple[str, list[str]]:
    what, trusted = _hit(place / "run", draw)
    words, out = draw.choice(((RETRIEVE, "found.csv"), (EVALUATE, "scores.json")))
    return what, _ask(world, place, words, out, trusted=trusted and out == "found.csv")


def _prepared(world: World, place: Path, draw: random.Random) -> tuple[str, list[str]]:
    what, trusted = _hit(place / "p", draw)
    if draw.random() < 0.3:
        shutil.rmtree(place / "run")
        return what, _ask(world, place, TRAIN, "run", trusted=trusted)
    words, out = draw.choice(((EVALUATE, "scores.json"), (COMPARE, "table")))
    return what, _ask(world, place, words, out, trusted=False)


def _log(world: World, place: Path, draw: random.Random) -> tuple[str, list[str]]:
    kind = draw.choice([*FILES[:4], _long_field, _odd_text])
    kind(place / "log.csv", draw)
    return kind.__name__, _ask(world, place, PREPARE, "p", trusted=False)


def _histories(world: World, place: Path, draw: random.Random) -> tuple[str, list[str]]:
    kind = draw.choice([*FILES, _long_field, _odd_text])
    kind(place / "asked.csv", draw)
    return kind.__name__, _ask(world, place, RETRIEVE, "found.csv", trusted=False)


def _options(world: World, place: Path, draw: random.Random) -> tuple[str, list[str]]:
    known: list[tuple[tuple[str, ...], str]] = [(PREPARE, "p"), (TRAIN, "run"), (RETRIEVE, "found.csv")]
    words, out = draw.choice([*known, (EVALUATE, "scores.json")])
    if words is TRAIN:
        shutil.rmtree(place / "run")
        words = (*words, "--lr", "0.001", "--seed", "3")
    changed = list(words)
    at = draw.randrange(1, len(words))
    changed[at] = draw.choice([*NUMBERS, "--" + "x" * draw.randrange(9), "/etc/passwd", "..", "\x1b[31m", "p", "run"])
    return f"option {at}: {changed[at][:20]!r}", _ask(world, place, tuple(changed), out, trusted=False)


def _long_field(path: Path, draw: random.Random) -> None:
    with path.open("a") as file:
        file.write(f'u1,"{draw.choice("a,9")}' * draw.choice((1, 100)) + "a" * draw.choice((10, 200_000)) + '"x,3\n')


def _odd_text(path: Path, draw: random.Random) -> None:
    lines = path.read_text(errors="replace").splitlines()
    lines.insert(draw.randrange(len(lines)), draw.choice(ODD))
    path.write_text("\n".join(lines), encoding=draw.choice(("utf-8", "utf-8", "utf-16")))

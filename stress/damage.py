"""Damaged and hostile inputs: logs, prepared folders, models, histories, options.

No wrong result, no traceback, no hang. Files with a checksum must be refused, or give the same result as before. A log
has no checksum: any complete result is fine, and an error must be one line.
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
from stress.forked_command import MAX_CPU_SECONDS, MAX_SECONDS, run
from stress.sandbox import COMPARE, EVALUATE, PREPARE, RETRIEVE, TRAIN, Sandbox, digest

Damage = Callable[[Path, random.Random], None]
NUMBERS = ["0", "-1", "1e10", "1e38", "nan", "inf", "9" * 30, "", "x", "2.5", "\u00b2", "1_0", "0x10"]
ODD = ["\x1b[2J,\a,1", "u,,", ",,", "u,i", "u,i,1,2,3", "\ufeffu,i,1", "u;i;1", "u,i,99999999999999999999"]
VALUES: list[Any] = [None, -1, 0, 10**12, "x", "", [], {}, 1.5, True, "../x", "/etc/passwd", [[]], "\0", "é" * 100]


def flip(path: Path, rng: random.Random) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes() or b"\0")
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    """Cut off the end."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def overwrite(path: Path, rng: random.Random) -> None:
    """Overwrite some bytes."""
    content = bytearray(path.read_bytes() or b"\0")
    start, count = rng.randrange(len(content)), rng.randrange(1, 200)
    content[start : start + count] = rng.choice((bytes(count), rng.randbytes(count), b"9" * count, b'"' * count))
    path.write_bytes(content)


def grow(path: Path, rng: random.Random) -> None:
    """Append bytes."""
    path.write_bytes(path.read_bytes() + rng.choice((b"\0", b"\n", rng.randbytes(100), path.read_bytes()[:500])))


def lose(path: Path, rng: random.Random) -> None:
    """Remove the file, or put something else in its place."""
    content = path.read_bytes()
    path.unlink()
    kind = rng.randrange(5)
    if kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "../log.csv", "nowhere", path.name)))
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        path.write_bytes(content)
        path.chmod(0)


def forge(path: Path, rng: random.Random) -> None:
    """Change a value of a JSON file and update its checksum."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return flip(path, rng)
    has_checksum = content.pop(CHECKSUM, None) is not None if isinstance(content, dict) else False
    node = content
    while isinstance(node, dict | list) and len(node):
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        if rng.random() < 0.3 and isinstance(node, dict):
            del node[key]
        else:
            node[key] = rng.choice(VALUES)
        break
    path.write_text(json.dumps(with_checksum(content) if has_checksum else content))
    return None


def overwrite_and_sign(path: Path, rng: random.Random) -> None:
    """Damage a file and update its checksum, so that only using it can show the damage."""
    overwrite(path, rng)
    for name in ("settings.json", "description.json"):
        if (path.parent / name).exists() and path.name != name:
            update_checksums(path.parent, name=name)


FILES: list[Damage] = [flip, cut, overwrite, grow, lose]


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials: (description, faults)."""
    kinds = {"model": _model, "prepared": _prepared, "log": _log, "histories": _histories, "options": _options}
    while True:
        name = rng.choice(("model", "model", "prepared", "prepared", "log", "histories", "options"))
        folder = sandbox.copy()
        try:
            description, faults = kinds[name](sandbox, folder, rng)
        finally:
            for path in folder.rglob("*"):
                if not path.is_symlink() and path.is_file():
                    path.chmod(0o644)
        yield f"damaged {name}", [f"{description}: {fault}" for fault in (*faults, *sandbox.close(folder))]


def _run(sandbox: Sandbox, folder: Path, words: tuple[str, ...], out: str, *, trusted: bool) -> list[str]:
    """Run a command on damaged input. Returns the faults; where `trusted`, the result must be correct."""
    before = digest(folder / out)
    outcome = run(words, folder, sandbox.folder / "logs-damage", limit=MAX_SECONDS)
    faults = [] if outcome.fault is None else [f"{outcome.fault}: {outcome.stderr[-400:]}"]
    if outcome.code != 0 and outcome.cpu_seconds > MAX_CPU_SECONDS:
        faults.append(f"took {outcome.cpu_seconds:.0f} s to fail")
    if outcome.code == 0 and trusted and digest(folder / out) != digest(sandbox.reference / out):
        faults.append("a wrong result without an error")
    if outcome.code != 0 and digest(folder / out) != before and words[0] not in ("train", "compare"):
        faults.append("changed its output and failed")
    text = (folder / out).read_text(errors="replace") if (folder / out).is_file() else ""
    if "NaN" in text or "Infinity" in text:
        faults.append("NaN in JSON")
    return faults


def _damage(folder: Path, rng: random.Random) -> tuple[str, bool]:
    """Damage a file of a folder: a description, and whether a checksum shows it."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".png"]
    path = rng.choice([each for each in files if each.name not in ("log.jsonl",)])
    kind = rng.choice([*FILES, *FILES, forge, overwrite_and_sign])
    if kind is forge:
        path = rng.choice([each for each in files if each.suffix == ".json"])
    kind(path, rng)
    return f"{kind.__name__} {path.name}", kind not in (forge, overwrite_and_sign) and path.name != "run.json"


def _model(sandbox: Sandbox, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    description, trusted = _damage(folder / "run", rng)
    words, out = rng.choice(((RETRIEVE, "results.csv"), (EVALUATE, "scores.json")))
    return description, _run(sandbox, folder, words, out, trusted=trusted and out == "results.csv")


def _prepared(sandbox: Sandbox, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    description, trusted = _damage(folder / "p", rng)
    if rng.random() < 0.3:
        shutil.rmtree(folder / "run")
        return description, _run(sandbox, folder, TRAIN, "run", trusted=trusted)
    words, out = rng.choice(((EVALUATE, "scores.json"), (COMPARE, "table")))
    return description, _run(sandbox, folder, words, out, trusted=False)


def _log(sandbox: Sandbox, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    kind = rng.choice([*FILES[:4], _long_field, _odd_text])
    kind(folder / "log.csv", rng)
    return kind.__name__, _run(sandbox, folder, PREPARE, "p", trusted=False)


def _histories(sandbox: Sandbox, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    kind = rng.choice([*FILES, _long_field, _odd_text])
    kind(folder / "histories.csv", rng)
    return kind.__name__, _run(sandbox, folder, RETRIEVE, "results.csv", trusted=False)


def _options(sandbox: Sandbox, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    commands: list[tuple[tuple[str, ...], str]] = [(PREPARE, "p"), (TRAIN, "run"), (RETRIEVE, "results.csv")]
    words, out = rng.choice([*commands, (EVALUATE, "scores.json")])
    if words is TRAIN:
        shutil.rmtree(folder / "run")
        words = (*words, "--lr", "0.001", "--seed", "3")
    changed = list(words)
    index = rng.randrange(1, len(words))
    changed[index] = rng.choice([*NUMBERS, "--" + "x" * rng.randrange(9), "/etc/passwd", "..", "\x1b[31m", "p", "run"])
    return f"option {index}: {changed[index][:20]!r}", _run(sandbox, folder, tuple(changed), out, trusted=False)


def _long_field(path: Path, rng: random.Random) -> None:
    with path.open("a") as file:
        file.write(f'u1,"{rng.choice("a,9")}' * rng.choice((1, 100)) + "a" * rng.choice((10, 200_000)) + '"x,3\n')


def _odd_text(path: Path, rng: random.Random) -> None:
    lines = path.read_text(errors="replace").splitlines()
    lines.insert(rng.randrange(len(lines)), rng.choice(ODD))
    path.write_text("\n".join(lines), encoding=rng.choice(("utf-8", "utf-8", "utf-16")))

"""Files that execute code where they are unpickled, in place of every file of a folder: the code must never run."""

import io
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beamtree.files.checksums import file_checksum
from stress.checksums import update_checksums
from stress.forked_command import run
from stress.sandbox import EVALUATE, RETRIEVE, TRAIN, Sandbox

COMMANDS = (RETRIEVE, EVALUATE, (*TRAIN, "--resume"), ("check", "."), ("check", "run"), ("inspect", "run"))
JSON = ("settings.json", "description.json", "classifier.json", "run.json")  # those that have checksums of files


class Payload:
    """Creates a folder where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


def _pickle(marker: Path) -> bytes:
    return pickle.dumps(Payload(marker))


def _array(marker: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    return file.getvalue()


def _archive(marker: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"x": Payload(marker)}, file)
    return file.getvalue()


PAYLOADS: dict[str, Callable[[Path], bytes]] = {"pickle": _pickle, "array": _array, "archive": _archive}


def plant(path: Path, payload: bytes, *, sign: bool) -> None:
    """Replace a file by a payload; with `sign`, update the checksums of its folder."""
    path.unlink(missing_ok=True)  # it may be a link to a file that others share
    path.write_bytes(payload)
    for name in JSON:
        if sign and path.name != name and (path.parent / name).exists():
            update_checksums(path.parent, name=name)


def plant_shards(folder: Path, payload: bytes) -> None:
    """Make a model one of several ranks as older versions wrote it: its list of files is a pickle."""
    (folder / "shards-0").mkdir()
    (folder / "shards-0" / ".metadata").write_bytes(payload)
    (folder / "shards-0" / "__0_0.distcp").write_bytes(payload)
    files = {path.name: file_checksum(path) for path in (folder / "shards-0").glob("__*")}
    shards = {"folder": "shards-0", "cut": 1, "ranks": 1, "rows": [], "lists": [], "files": files}
    update_checksums(folder, lambda settings: settings.update(shards=shards))


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials: (description, faults)."""
    while True:
        folder, marker = sandbox.copy(), sandbox.folder / "executed"
        words, payload = rng.choice(COMMANDS), PAYLOADS[rng.choice(list(PAYLOADS))](marker)
        place = "shards"
        if rng.random() < 0.1:
            plant_shards(rng.choice([path.parent for path in folder.rglob("settings.json")]), payload)
        else:
            path = rng.choice([path for path in files_in(folder) if path.parent != folder])
            plant(path, payload, sign=rng.random() < 0.7)
            place = str(path.relative_to(folder))
        outcome = run(words, folder, sandbox.folder / "logs-payloads")
        is_reported = words[0] == "check" and outcome.code == 1 and not outcome.stderr  # on standard output
        faults = [] if outcome.fault is None or is_reported else [f"{outcome.fault}: {outcome.stderr[-400:]}"]
        if marker.exists():
            faults.append("code of a file was executed")
            marker.rmdir()
        yield "payload", [f"{place}, {words[0]}: {fault}" for fault in (*faults, *sandbox.close(folder))]

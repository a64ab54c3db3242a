"""Files of a folder that are known by name, size and checksum, so that nothing damaged or foreign is read.

A file of up to 256 MiB is read whole when it is opened. Of a larger one 256 blocks of 1 MiB are read, spread evenly,
the first and the last among them: that takes the same fraction of a second however large it is, and finds what was cut,
overwritten or copied badly, but not every single flipped bit. `beamtree check` reads everything.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beamtree.files.small_files import read_json

BLOCK, SAMPLED = 1 << 20, 256  # bytes of a block, and blocks that are read of a large file
SEAL = "seal"  # where a JSON file keeps its own checksum


def whole_is_read(size: int) -> bool:
    """Whether a file of so many bytes is read whole when it is opened."""
    return size <= BLOCK * SAMPLED


def seal(path: Path) -> dict[str, Any]:
    """What a file is known by."""
    size = path.stat().st_size
    found = {"bytes": size, "sha256": _sum(path, size, whole=True)}
    return found if whole_is_read(size) else {**found, "sample": _sum(path, size, whole=False)}


def own_file(folder: Path, name: object, remedy: str) -> Path:
    """A plain file of a folder by its name; a ValueError for a path, a link out of the folder, a pipe or a device."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise ValueError(f"{folder} names {str(name)[:80]!r}, which is no file of its own: {remedy}")
    path = folder / name
    if not os.path.lexists(path):
        raise ValueError(f"{path} is missing: {remedy}")
    if path.is_symlink() and not _stays(path, folder):
        raise ValueError(f"{path} is a link out of its folder: {remedy}")
    if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is no plain file: {remedy}")
    return path


def _stays(link: Path, folder: Path) -> bool:
    """Whether a link leads to something in the folder; one that leads to itself does not."""
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def check_sealed(folder: Path, name: object, known: object, remedy: str, *, whole: bool = False) -> Path:
    """The file of a name, if it is what its seal says; with `whole` all of it is read, however large it is.

    A seal of an older version is a size alone.
    """
    path = own_file(folder, name, remedy)
    known = {"bytes": known} if isinstance(known, int) else known
    if not isinstance(known, dict) or not isinstance(known.get("bytes"), int):
        raise ValueError(f"{folder} does not say how large {name} is: {remedy}")
    size = path.stat().st_size
    if size != known["bytes"]:
        raise ValueError(f"{path} is damaged, {size:,} of {known['bytes']:,} bytes: {remedy}")
    kind = "sha256" if whole or whole_is_read(size) else "sample"
    if kind in known and known[kind] != _sum(path, size, whole=kind == "sha256"):
        raise ValueError(f"{path} is damaged: its checksum is another than when it was written; {remedy}")
    return path


def _sum(path: Path, size: int, *, whole: bool) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if whole:
            buffer = bytearray(4 * BLOCK)
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
            return digest.hexdigest()
        for place in range(SAMPLED):
            file.seek((size - BLOCK) * place // (SAMPLED - 1))
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def with_seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a JSON file will hold, with a checksum of it."""
    return {**content, SEAL: _sum_of(content)}


def read_sealed(path: Path, formats: tuple[int, ...], remedy: str) -> dict[str, Any]:
    """What a JSON file holds that is of a format this version reads; older ones have no seal."""
    content = read_json(path, remedy)
    if not isinstance(content, dict) or content.get("format") not in formats:
        known = " or ".join(map(str, formats))
        raise ValueError(f"{path} is not of format {known}, which this version of beamtree reads: {remedy}")
    said = content.pop(SEAL, None)
    if content["format"] != formats[0] and said is None:
        return content
    if said != _sum_of(content):
        raise ValueError(f"{path} is damaged: it was changed after it was written; {remedy}")
    return content


def _sum_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

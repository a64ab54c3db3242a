"""Checksums of files, so that a damaged or foreign file is never read.

Files of up to 256 MiB are hashed completely when they are opened. Of larger ones 256 blocks of 1 MiB are hashed, evenly
spaced from the first to the last. This takes a fraction of a second for any size. It finds files that were truncated,
overwritten or copied badly, but not every flipped bit. `beamtree check` hashes everything.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beamtree.files.atomic import as_json, read_json, write_json

BLOCK, SAMPLED = 1 << 20, 256  # bytes per block, and blocks hashed of a large file
CHECKSUM = "seal"  # the key under which a JSON file holds its own checksum


def is_read_fully(size: int) -> bool:
    """Whether a file of this size is hashed completely when it is opened."""
    return size <= BLOCK * SAMPLED


def file_checksum(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file; for a large one also the hash of its sampled blocks."""
    size = path.stat().st_size
    checksum = {"bytes": size, "sha256": _sha256(path, size, full=True)}
    return checksum if is_read_fully(size) else {**checksum, "sample": _sha256(path, size, full=False)}


def check_file(folder: Path, name: object, checksum: object, remedy: str, *, full: bool = False) -> Path:
    """The path of a file of a folder; a ValueError where it does not match its checksum.

    With `full` even a large file is hashed completely. Older versions stored only the size.
    """
    path = regular_file(folder, name, remedy)
    checksum = {"bytes": checksum} if isinstance(checksum, int) else checksum
    if not isinstance(checksum, dict) or not isinstance(checksum.get("bytes"), int):
        raise ValueError(f"{folder} does not record the size of {name}: {remedy}")
    size = path.stat().st_size
    if size != checksum["bytes"]:
        raise ValueError(f"{path} is damaged, {size:,} of {checksum['bytes']:,} bytes: {remedy}")
    kind = "sha256" if full or is_read_fully(size) else "sample"
    if kind in checksum and checksum[kind] != _sha256(path, size, full=kind == "sha256"):
        raise ValueError(f"{path} is damaged: its checksum does not match; {remedy}")
    return path


def regular_file(folder: Path, name: object, remedy: str) -> Path:
    """A regular file of a folder; a ValueError for a path, a link out of the folder, a pipe or a device."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise ValueError(f"{folder} refers to {str(name)[:80]!r}, which is not one of its files: {remedy}")
    path = folder / name
    if not os.path.lexists(path):
        raise ValueError(f"{path} is missing: {remedy}")
    if path.is_symlink():
        try:
            inside = path.resolve().is_relative_to(folder.resolve())
        except (OSError, RuntimeError):  # a link to itself
            inside = False
        if not inside:
            raise ValueError(f"{path} is a link out of its folder: {remedy}")
    if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file: {remedy}")
    return path


def _sha256(path: Path, size: int, *, full: bool) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if full:
            buffer = bytearray(4 * BLOCK)
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
            return digest.hexdigest()
        for index in range(SAMPLED):
            file.seek((size - BLOCK) * index // (SAMPLED - 1))
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with a checksum of itself."""
    return {**content, CHECKSUM: _json_sha256(content)}


def write_checked_json(path: Path, content: Mapping[str, Any], format: int) -> None:
    """Write JSON atomically, with its format and a checksum of itself."""
    stored = json.loads(as_json(path, {**content, "format": format}))  # with keys of text and lists, as it is read
    write_json(path, with_checksum(stored))


def read_checked_json(path: Path, formats: tuple[int | None, ...], remedy: str) -> dict[str, Any]:
    """The content of a JSON file with a known format and a matching checksum.

    The first of the formats has a checksum, older ones do not; None: a file without a format is read too.
    """
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: {remedy}")
    if content.get("format") not in formats:
        known = " or ".join(str(format) for format in formats if format is not None)
        raise ValueError(f"{path} does not have format {known}, which this version of beamtree reads: {remedy}")
    checksum = content.pop(CHECKSUM, None)
    if content.get("format") != formats[0] and checksum is None:
        return content
    if checksum != _json_sha256(content):
        raise ValueError(f"{path} is damaged: it was changed after it was written; {remedy}")
    return content


def _json_sha256(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

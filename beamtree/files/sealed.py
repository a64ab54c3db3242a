"""Sealed folders: one JSON file has the checksums of the other files and of itself, and is written last.

Prepared logs and classifiers are written whole beside the old folder, and replace it at once. A model lies among other
files, so its files are moved one by one, the JSON file last.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from beamtree.errors import explain_full_disk
from beamtree.files.atomic import fsync
from beamtree.files.checksums import check_file, file_checksum, with_checksum
from beamtree.files.staging import move_into_place, staging_folder

Content = dict[str, Any]


def write_sealed_folder(
    out: Path, name: str, fill: Callable[[Path], Content], check: Callable[[Path], object], indent: int | None = 1
) -> Content:
    """Write a folder and move it into place; returns the content of its JSON file.

    Args:
        out: the folder; a link stays a link.
        name: of the JSON file.
        fill: writes all other files into a new folder, and returns the content of the JSON file.
        check: raises a ValueError where `out` must not be replaced; called twice, since `fill` may take hours.
        indent: of the JSON file.
    """
    check(out)
    out = out.resolve()
    with explain_full_disk(out.parent), staging_folder(out) as draft:
        folder = draft / out.name
        folder.mkdir()
        content = fill(folder)
        seal(folder, name, content, indent=indent)
        check(out)
        move_into_place(folder, out)
    return content


def seal(folder: Path, name: str, content: Mapping[str, Any], *, indent: int | None = 1) -> None:
    """Write the JSON file of a folder that has all other files, and flush them all to disk."""
    text = json.dumps(with_checksum(content), indent=indent, ensure_ascii=indent is not None)
    (folder / name).write_text(f"{text}\n", encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        fsync(path)


def file_checksums(folder: Path) -> Content:
    """The checksums of all files of a folder, by name."""
    return {path.name: file_checksum(path) for path in sorted(folder.iterdir())}


def check_files(folder: Path, checksums: Mapping[str, object], remedy: str, *, full: bool = False) -> dict[str, Path]:
    """The paths of files by name; a ValueError where one is not as it was written. With `full`, all is read."""
    return {name: check_file(folder, name, checksum, remedy, full=full) for name, checksum in checksums.items()}

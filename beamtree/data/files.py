"""Small files that are whole or not there, and errors in one line."""

import json
import os
from pathlib import Path
from typing import Any


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds; a ValueError that says what to do where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {remedy}") from error


def write_json(path: Path, content: object) -> None:
    """Write JSON in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def check_writable(path: Path) -> None:
    """Find out that a file cannot be written before an hour of work, not after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written")


def flush(path: Path) -> None:
    """Have the disk hold what was written before anything points to it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Change files of a folder and update its checksums."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beamtree.files.checksums import CHECKSUM, file_checksum, with_checksum


def update_checksums(
    folder: Path, change: Callable[[dict[str, Any]], object] = lambda content: None, name: str = "settings.json"
) -> None:
    """Change the content of a JSON file and update its checksum and those of the files it names."""
    content = json.loads((folder / name).read_text())
    content.pop(CHECKSUM, None)
    change(content)
    files = content.get("files", {})
    for part, entry in files.items() if isinstance(files, dict) else ():
        file = entry.get("file", part) if isinstance(entry, dict) else None
        if isinstance(file, str) and "\0" not in file and (folder / file).is_file():
            entry |= file_checksum(folder / file)
    (folder / name).write_text(json.dumps(with_checksum(content)))

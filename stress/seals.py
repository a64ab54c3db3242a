"""Change what a sealed folder says, and seal it again: what somebody would do who knows how."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beamtree.files.sealed import SEAL, seal, with_seal


def reseal(
    folder: Path, change: Callable[[dict[str, Any]], object] = lambda content: None, name: str = "settings.json"
) -> None:
    """Change the content of a sealed JSON file; checksums of the files it names are made anew."""
    content = json.loads((folder / name).read_text())
    content.pop(SEAL, None)
    change(content)
    files = content.get("files", {})
    for part, known in files.items() if isinstance(files, dict) else ():
        file = known.get("file", part) if isinstance(known, dict) else None
        if isinstance(file, str) and "\0" not in file and (folder / file).is_file():
            known |= seal(folder / file)
    (folder / name).write_text(json.dumps(with_seal(content)))

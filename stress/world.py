"""What the trials start from: a small log, prepared, trained on, asked; and what is right."""

import hashlib
import json
import random
import shutil
from pathlib import Path

from beamtree.files.staging import NEW, OLD
from stress.child import LONG, import_as, run

PREPARE = ("prepare", "log.csv", "--out", "p", "--val-users", "8", "--test-users", "8", "--min-events", "4")
TRAIN = ("train", "p", "--out", "run", "--recipe", "deep", "--steps", "6", "--batch-size", "20", "--beam-size", "10")
RETRIEVE = ("retrieve", "run", "--input", "asked.csv", "--output", "found.csv", "--m", "5", "--beam-size", "20")
COMPARE = ("compare", "p", "--out", "table", "--rows", "popularity,tdm", "--steps", "4", "--beam-size", "10",
           "--batch-size", "20", "--m", "5,10", "--test-beam", "20")  # fmt: skip
EVALUATE = ("evaluate", "run", "--json", "scores.json", "--m", "5,10", "--beam-size", "20")
SIMULATE = ("simulate", "--out", "made.parquet", "--users", "60", "--items", "40", "--events", "900")
OURS = (NEW, OLD, ".tmp")


class World:
    """A folder in which every command has run once, and copies of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copies = folder, 0
        self.whole = folder / "whole"
        self.whole.mkdir(parents=True)
        self._write_logs()
        for words in (PREPARE, TRAIN, RETRIEVE, COMPARE, EVALUATE, SIMULATE):
            ended = run(words, self.whole, folder / "notes", limit=10 * LONG)
            if ended.code != 0:
                raise RuntimeError(f"{' '.join(words)} fails without any damage: {ended.said}")
            import_as(folder / "notes")

    def _write_logs(self) -> None:
        draw = random.Random(0)
        rows = [f"u{user},i{draw.randrange(30):02},{time}" for user in range(60) for time in range(12)]
        (self.whole / "log.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
        (self.whole / "asked.csv").write_text("\n".join(["user,item,time", *rows[:120]]) + "\n")

    def copy(self) -> Path:
        """Another copy of the whole."""
        self._copies += 1
        place = self.folder / f"copy-{self._copies}"
        shutil.copytree(self.whole, place, symlinks=True)
        return place

    def close(self, place: Path) -> list[str]:
        """Remove a copy; what is wrong with what was left there."""
        left = left_behind(place)
        shutil.rmtree(place, ignore_errors=True)
        return [f"left behind: {left[0]}"] if left else []


def digest(path: Path) -> str:
    """What an output says, whatever its files are called: of models and prepared data what their checksums say."""
    if not path.exists():
        return "nothing"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    for name in ("settings.json", "description.json"):
        if (path / name).exists():
            files = json.loads((path / name).read_text())["files"]
            return str(sorted((part, known["sha256"]) for part, known in files.items() if part != "summary.png"))
    return "no model"


def left_behind(folder: Path) -> list[str]:
    """Drafts anywhere below a folder."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if any(word in path.name for word in OURS)
    )

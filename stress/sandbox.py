"""A folder with the outputs of all commands, and copies of it for trials."""

import hashlib
import json
import random
import shutil
from pathlib import Path

from beamtree.files.staging import NEW, OLD
from stress.forked_command import MAX_SECONDS, import_modules, run

PREPARE = ("prepare", "log.csv", "--out", "p", "--val-users", "8", "--test-users", "8", "--min-events", "4")
TRAIN = ("train", "p", "--out", "run", "--recipe", "deep", "--steps", "6", "--batch-size", "20", "--beam-size", "10")
RETRIEVE = ("retrieve", "run", "--input", "histories.csv", "--output", "results.csv", "--m", "5", "--beam-size", "20")
COMPARE = ("compare", "p", "--out", "table", "--rows", "popularity,tdm", "--steps", "4", "--beam-size", "10",
           "--batch-size", "20", "--m", "5,10", "--test-beam", "20")  # fmt: skip
EVALUATE = ("evaluate", "run", "--json", "scores.json", "--m", "5,10", "--beam-size", "20")
SIMULATE = ("simulate", "--out", "market.parquet", "--users", "60", "--items", "40", "--events", "900")
TRAIN_CLOSED = ("train", "p", "--out", "closed", "--steps", "0")  # a run that can be renewed
RENEW_FIRST = ("renew", "closed", "monday.csv", "--force")  # so that it has a previous run
RENEW = ("renew", "closed", "tuesday.csv", "--force")
ROLL_BACK = ("renew", "closed", "--roll-back")
TEMPORARY = (NEW, OLD, ".tmp", ".kept")


class Sandbox:
    """A reference folder in which every command has run once, and copies of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copies = folder, 0
        self.reference = folder / "reference"
        self.reference.mkdir(parents=True)
        self._write_logs()
        for words in (PREPARE, TRAIN, RETRIEVE, COMPARE, EVALUATE, SIMULATE, TRAIN_CLOSED, RENEW_FIRST):
            outcome = run(words, self.reference, folder / "logs", limit=10 * MAX_SECONDS)
            if outcome.code != 0:
                raise RuntimeError(f"{' '.join(words)} fails without any damage: {outcome.stderr}")
            import_modules(folder / "logs")

    def _write_logs(self) -> None:
        rng = random.Random(0)
        rows = [f"u{user},i{rng.randrange(30):02},{time}" for user in range(60) for time in range(12)]
        (self.reference / "log.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
        (self.reference / "histories.csv").write_text("\n".join(["user,item,time", *rows[:120]]) + "\n")
        for day, first in (("monday", 60), ("tuesday", 80)):
            rows = [f"u{user},i{rng.randrange(30):02},{time}" for user in range(first, first + 20) for time in range(8)]
            (self.reference / f"{day}.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")

    def copy(self) -> Path:
        """A new copy of the reference folder."""
        self._copies += 1
        folder = self.folder / f"copy-{self._copies}"
        shutil.copytree(self.reference, folder, symlinks=True)
        return folder

    def close(self, folder: Path) -> list[str]:
        """Remove a copy; faults where a command left temporary files."""
        left = temporary_files(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return [f"left behind: {left[0]}"] if left else []


def digest(path: Path) -> str:
    """The content of an output: of models and prepared data, the checksums of their files."""
    if not path.exists():
        return "nothing"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    for name in ("settings.json", "description.json"):
        if (path / name).exists():
            files = json.loads((path / name).read_text())["files"]
            return str(sorted((part, entry["sha256"]) for part, entry in files.items() if part != "summary.png"))
    return "no model"


def run_digest(path: Path) -> str:
    """The content of a run: of its model and of its data."""
    return digest(path) + digest(path / "data")


def temporary_files(folder: Path) -> list[str]:
    """Temporary files anywhere below a folder."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if any(mark in path.name for mark in TEMPORARY)
    )

"""What a run reports along the way: JSON lines, and TensorBoard where it is installed."""

import json
from pathlib import Path
from typing import Any

from beamtree.files.atomic import write_atomically


class Journal:
    """Records with their step, appended to a file; TensorBoard's events go to a folder beside it.

    A run that is resumed at a step first drops what was written after it.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._cut(path, step)
        self._file = path.open("a", encoding="utf-8")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(path.with_name("tensorboard")), purge_step=step)

    def write(self, step: int, **values: float) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    @staticmethod
    def _cut(path: Path, step: int) -> None:
        """Keep what belongs to the steps before; a run that begins anew says all again."""
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                if step and json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):  # cut short when the run was killed
                continue
        write_atomically(path, lambda draft: draft.write_text("".join(kept), encoding="utf-8"))

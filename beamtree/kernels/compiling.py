"""Functions that Numba compiles: loaded when they are needed, compiled once in an installation, and that is said."""

import time
from functools import cache
from importlib import import_module
from typing import Any

from beamtree.errors import requires
from beamtree.progress import Reporter, set_aside


@cache
def load(module: str) -> Any:
    """A module of compiled functions; a ValueError without Numba, which takes a second to import."""
    with requires("", "computing on a CPU"):
        from numba.core import event

        _announce(event)
        return import_module(f"beamtree.kernels.{module}")


@cache
def _announce(event: Any) -> None:
    """Have Numba tell when it compiles a function of ours, which no file on disk holds yet.

    It does so one by one, and meanwhile those that a function calls.
    """

    class Announcement(event.Listener):  # type: ignore[misc]
        is_made, depth, began = False, 0, 0.0

        def on_start(self, event: Any) -> None:
            if self.depth == 0:
                self.began = time.monotonic()
            self.depth += 1
            if not self.is_made and event.data["dispatcher"].py_func.__module__.startswith("beamtree."):
                self.is_made = True
                Reporter().write("Compiling for this machine: half a minute in all, once.")

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                set_aside(time.monotonic() - self.began)

    event.register("numba:compile", Announcement())

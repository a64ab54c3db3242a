"""What all tables of the paper share: cells, the paper's numbers, and result files."""

import hashlib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from beamtree.diagnose.inspect import INTERVAL
from beamtree.files.atomic import write_json
from beamtree.storage.runs import commit

Key = dict[str, str | int | float]
# The 97.5 % quantile of Student's t, by degrees of freedom from 1 to 30; beyond, INTERVAL is close enough.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One number of a table: its key, our mean over some runs, and the paper's number if it prints one."""

    table: str
    key: Key
    value: float
    std: float
    runs: int
    paper: float | None
    tolerance: float | None  # how far from the paper counts as the same

    @property
    def half(self) -> float:
        """Half of the 95 % interval of the value; 0 for a single run without `std`."""
        return half_interval(self.std, self.runs)

    @property
    def within(self) -> bool | None:
        if self.paper is None or self.tolerance is None:
            return None
        return abs(self.value - self.paper) <= self.tolerance + 1e-12

    def record(self) -> dict[str, Any]:
        """The cell as flat JSON."""
        return {
            "table": self.table,
            **self.key,
            "value": self.value,
            "std": self.std,
            "runs": self.runs,
            "paper": self.paper,
            "within": self.within,
        }


def half_interval(std: float, runs: int) -> float:
    """Half of the 95 % interval of a mean over runs; for one run, `std` is the standard error over its users."""
    quantile = STUDENT[runs - 2] if 2 <= runs <= len(STUDENT) + 1 else INTERVAL
    return quantile * std / math.sqrt(runs)


def cell(table: str, key: Key, values: Sequence[float], paper: float | None, tolerance: float | None) -> Cell:
    """A cell from one value per run."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    std = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return Cell(table, key, mean, std, len(values), paper, tolerance)


@cache
def expected() -> dict[str, Any]:
    """The paper's numbers."""
    return tomllib.loads(files("beamtree.research.paper").joinpath("expected.toml").read_text("utf-8"))


def results_name(table: str, changed: dict[str, object]) -> str:
    """A file name with the settings that differ from the table's own, so that runs do not overwrite each other."""
    parts = [f"{name}={value}" for name, value in changed.items()]
    name = ".".join([table, *parts]).replace(",", "+").replace("/", "-")
    if len(name) > 150:  # file systems take 255
        name = f"{name[:130]}.{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return name


def save_results(path: Path, cells: Sequence[Cell], settings: dict[str, object]) -> None:
    """Write cells, settings and commit to one file, atomically."""
    content = {
        "settings": settings,
        "commit": commit(),
        "torch": torch.__version__,
        "cells": [each.record() for each in cells],
    }
    write_json(path, content)

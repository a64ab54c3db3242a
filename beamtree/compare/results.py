"""What became of a row, on disk and in the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.compare.plan import METRICS, check_same
from beamtree.data.files import read_json, write_json
from beamtree.evaluate import Evaluation, summarise
from beamtree.metrics import paired_p

REFERENCE = "otm"  # the row that others are tested against


@dataclass(frozen=True)
class Result:
    """What one row reached, user by user, and what it cost."""

    row: str
    values: Tensor  # [U, cuts, metrics]
    m: tuple[int, ...]
    training_seconds: float
    ms_per_query: float
    num_bytes: int
    notes: tuple[str, ...]  # what was said on the way
    device: str

    @cached_property
    def evaluation(self) -> Evaluation:
        return summarise(self.values, self.m, METRICS)


class Entry(NamedTuple):
    """One number of the table."""

    row: str
    metric: str
    m: int
    value: float
    low: float  # the 95 % interval over users
    high: float
    p: float | None  # of the difference from the reference row, users in pairs; None for that row itself
    best: bool  # of all rows


def table(results: Sequence[Result]) -> list[Entry]:
    """Every number of a comparison, row by row."""
    found = {result.row: result.evaluation for result in results}
    reference = next((result for result in results if result.row == REFERENCE), None)
    tops = {key: max(evaluation[key] for evaluation in found.values()) for key in next(iter(found.values()))}
    entries = []
    for result in results:
        p: Mapping[tuple[str, int], float] = {}
        if reference is not None and reference is not result:
            chances = paired_p(result.values.flatten(1), reference.values.flatten(1)).view(len(result.m), -1)
            p = {(metric, m): float(chances[i, j]) for i, m in enumerate(result.m) for j, metric in enumerate(METRICS)}
        for score in found[result.row].scores:
            key = score.metric, score.m
            best = score.value == tops[key]
            entries.append(Entry(result.row, *key, score.value, score.low, score.high, p.get(key), best))
    return entries


def records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The table as flat records, with what each row cost."""
    found: list[dict[str, Any]] = [entry._asdict() for entry in table(results)]
    costs = ("training_seconds", "ms_per_query", "num_bytes")
    return found + [
        {"row": each.row, "metric": cost, "value": getattr(each, cost)} for each in results for cost in costs
    ]


def markdown(results: Sequence[Result]) -> str:
    """The paper's layout: a line for each row, P, R and F at every m in percent, best in bold, and the costs.

    ± is half of the 95 % interval; * and ** say that a row differs from OTM with p < 0.05 and p < 0.01.
    """
    cuts = results[0].m
    shorts = {"precision": "P", "recall": "R", "f1": "F"}
    heads = ["row", *(f"{shorts[metric]}@{m}" for metric in METRICS for m in cuts), "training", "ms/query", "size"]
    entries = {(entry.row, entry.metric, entry.m): entry for entry in table(results)}
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for result in results:
        cells = [shown(entries[result.row, metric, m]) for metric in METRICS for m in cuts]
        costs = [seconds(result.training_seconds), f"{result.ms_per_query:.2f}", f"{result.num_bytes / 1e6:,.1f} MB"]
        lines.append([result.row, *cells, *costs])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def shown(entry: Entry, bold: str = "**") -> str:
    """One number as people read it, in percent."""
    value = f"{entry.value * 100:.2f}"
    value = f"{bold}{value}{bold}" if entry.best and bold else value
    star = "" if entry.p is None else "\\*\\*" if entry.p < 0.01 else "\\*" if entry.p < 0.05 else ""
    return f"{value} ± {(entry.high - entry.low) * 50:.2f}{star if bold else star.replace(chr(92), '')}"


def seconds(value: float) -> str:
    """A time as people read it."""
    if value < 60:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min"


def save_result(folder: Path, result: Result, training: dict[str, Any], measuring: dict[str, Any]) -> None:
    """Write a row's result, whole or not at all."""
    values = result.values.flatten(1).tolist()
    content = {
        "training": training,
        "measuring": measuring,
        **{each.name: getattr(result, each.name) for each in fields(result)},
        "values": values,
        "m": list(result.m),
        "notes": list(result.notes),
    }
    write_json(_path(folder, result.row), content)


def load_result(folder: Path, row: str, training: dict[str, Any], measuring: dict[str, Any]) -> Result | None:
    """A row's result, if it is there and was measured the same way; a ValueError if it was trained in another."""
    path = _path(folder, row)
    if not path.exists():
        return None
    content = read_json(path, "remove it and compare again")
    check_same(path, content.pop("training", {}), training)
    if content.pop("measuring", {}) != measuring:
        return None
    values = torch.tensor(content.pop("values")).unflatten(1, (len(content["m"]), len(METRICS)))
    content["m"], content["notes"] = tuple(content["m"]), tuple(content["notes"])
    return Result(values=values, **content)


def is_finished(folder: Path, row: str) -> bool:
    """Whether a row's result is there."""
    return _path(folder, row).exists()


def _path(folder: Path, row: str) -> Path:
    return folder / f"{row}.json"

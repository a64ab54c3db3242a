"""What became of a row, on disk and in the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.evaluate import Evaluation, summarise
from beamtree.files.atomic import read_json, write_json
from beamtree.metrics import paired_p
from beamtree.research.compare.plan import check_same

REFERENCE = "otm"  # the row that others are tested against
COSTS = ("training_seconds", "ms_per_query", "num_bytes")


@dataclass(frozen=True)
class Result:
    """What one row reached, user by user, and what it cost."""

    row: str
    values: Tensor  # [U, cuts, metrics]
    m: tuple[int, ...]
    metrics: tuple[str, ...]
    training_seconds: float
    ms_per_query: float
    num_bytes: int
    notes: tuple[str, ...]  # what was said on the way
    device: str
    kept_the_start: bool = False  # whether training found nothing better than what it began with
    users_asked: int | None = None  # of whom U were measured; None: all of them were
    exclude_seen: bool = False  # whether what a user has seen was neither retrieved nor expected

    @cached_property
    def evaluation(self) -> Evaluation:
        return summarise(self.values, self.m, self.metrics, self.users_asked, self.exclude_seen)


def shown_metric(metrics: Sequence[str]) -> str:
    """The metric that stands for a row where there is room for one: recall, if it was measured."""
    return "recall" if "recall" in metrics else metrics[0]


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
            p = {
                (metric, m): float(chances[i, j])
                for i, m in enumerate(result.m)
                for j, metric in enumerate(result.metrics)
            }
        for score in found[result.row].scores:
            key = score.metric, score.m
            best = score.value == tops[key]
            entries.append(Entry(result.row, *key, score.value, score.low, score.high, p.get(key), best))
    return entries


def records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The table as flat records, with what each row cost, and last who was measured, which holds for all rows."""
    found: list[dict[str, Any]] = [entry._asdict() for entry in table(results)]
    found += [{"row": each.row, "metric": cost, "value": getattr(each, cost)} for each in results for cost in COSTS]
    kept = [each.row for each in results if each.kept_the_start]
    found += [{"row": row, "metric": "kept_the_start", "value": 1} for row in kept]
    one = results[0].evaluation
    users = {"metric": "users", "value": one.users, "asked": one.users_asked, "exclude_seen": one.exclude_seen}
    return [*found, users]


def measured_users(found: Sequence[Mapping[str, Any]]) -> str:
    """Who was measured, and whether seen items counted, from `records`; nothing where they do not say."""
    for cell in found:
        if cell["metric"] == "users" and "asked" in cell:
            some = "" if cell["value"] == cell["asked"] else f"{cell['value']:,} of "
            return f"{some}{cell['asked']:,} users, seen items left {'out' if cell['exclude_seen'] else 'in'}"
    return ""


class Grid(NamedTuple):
    """A table as text: what every way of showing it has in common."""

    heads: list[str]
    lines: list[list[str]]

    def markdown(self, names: int = 1) -> str:
        """The same as Markdown; `names` columns come before the numbers."""
        rule = ["---"] * names + ["---:"] * (len(self.heads) - names)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.heads, rule, *self.lines))


class Marks(NamedTuple):
    """How bold text and stars are written."""

    bold: str
    close: str
    star: str


MARKDOWN = Marks("**", "**", "\\*")


def score_grid(found: Sequence[Mapping[str, Any]], marks: Marks = MARKDOWN) -> Grid:
    """The scores of `records`: a line for each metric and row, in percent, the best of a column in bold."""
    scores = [cell for cell in found if "m" in cell]
    cuts = list(dict.fromkeys(cell["m"] for cell in scores))
    rows = list(dict.fromkeys(cell["row"] for cell in scores))
    cells = {(cell["row"], cell["metric"], cell["m"]): cell for cell in scores}
    names = {cell["row"]: f"{cell['row']} †" for cell in found if cell["metric"] == "kept_the_start"}
    lines = []
    for metric in dict.fromkeys(cell["metric"] for cell in scores):
        for place, row in enumerate(rows):
            shown = [_shown(cells[row, metric, m], marks) for m in cuts]
            lines.append([metric if place == 0 else "", names.get(row, row), *shown])
    return Grid(["metric, %", "row", *(f"@{m}" for m in cuts)], lines)


def _shown(cell: Mapping[str, Any], marks: Marks) -> str:
    value = f"{cell['value'] * 100:.2f}"
    value = f"{marks.bold}{value}{marks.close}" if cell["best"] else value
    stars = 0 if cell["p"] is None else (cell["p"] < 0.05) + (cell["p"] < 0.01)
    return f"{value} ± {(cell['high'] - cell['low']) * 50:.2f}{stars * marks.star}"


def legend(found: Sequence[Mapping[str, Any]]) -> str:
    """What the marks of a table mean."""
    text = "± half of the 95 % interval of the mean over users"
    if any(cell.get("p") is not None for cell in found):
        text += "; * p < 0.05, ** p < 0.01 against otm, users in pairs"
    if any(cell["metric"] == "kept_the_start" for cell in found):
        text += "; † training found nothing better than the start"
    return text


def cost_grid(found: Sequence[Mapping[str, Any]]) -> Grid:
    """What each row took, from `records`."""
    cells = {(cell["row"], cell["metric"]): cell["value"] for cell in found if cell["metric"] in COSTS}
    lines = []
    for row in dict.fromkeys(row for row, _ in cells):
        took, ms, size = (cells[row, cost] for cost in COSTS)
        lines.append([row, seconds(took), f"{ms:.2f}", f"{size / 1e6:,.1f} MB"])
    return Grid(["row", "training", "ms per query", "size"], lines)


def markdown(results: Sequence[Result]) -> str:
    """Who was measured, the scores, what the marks mean, and the costs."""
    found = records(results)
    notes = legend(found).replace("*", MARKDOWN.star)
    parts = [f"{measured_users(found)}.", score_grid(found).markdown(2), notes, cost_grid(found).markdown()]
    return "\n\n".join(parts) + "\n"


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
        "metrics": list(result.metrics),
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
    values = torch.tensor(content.pop("values")).unflatten(1, (len(content["m"]), len(content["metrics"])))
    content |= {name: tuple(content[name]) for name in ("m", "metrics", "notes")}
    return Result(values=values, **content)


def is_finished(folder: Path, row: str) -> bool:
    """Whether a row's result is there."""
    return _path(folder, row).exists()


def _path(folder: Path, row: str) -> Path:
    return folder / f"{row}.json"

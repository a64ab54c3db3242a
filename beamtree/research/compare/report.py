"""The results of a comparison: stored in files, and shown as tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.evaluate import Evaluation, summarise
from beamtree.evaluate.metrics import few_users, paired_p
from beamtree.files.atomic import read_json, write_json
from beamtree.research.compare.experiment import check_same

REFERENCE = "otm"  # the row that others are tested against
COSTS = ("training_seconds", "ms_per_query", "num_bytes")

Record = Mapping[str, Any]  # one of `records`


@dataclass(frozen=True)
class Result:
    """The scores of one row, user by user, and its costs; `unseen` is the same with seen items left out."""

    row: str
    values: Tensor  # [U, cuts, metrics]
    m: tuple[int, ...]
    metrics: tuple[str, ...]
    training_seconds: float
    ms_per_query: float
    num_bytes: int
    notes: tuple[str, ...]
    device: str
    kept_the_start: bool = False  # whether training did not improve on the start
    users_asked: int | None = None  # U and the users without anything to measure; None: there are none
    exclude_seen: bool = False  # whether seen items were left out of the results and of the expected items
    has_tree: bool = False
    label: str = ""  # the row's name in tables; empty: `row`
    unseen: "Result | None" = None  # None where no user chose anything new

    @cached_property
    def evaluation(self) -> Evaluation:
        return summarise(self.values, self.m, self.metrics, self.users_asked, self.exclude_seen)


def is_finished(folder: Path, row: str) -> bool:
    """Whether the result of a row is stored."""
    return _path(folder, row).exists()


def save_result(folder: Path, result: Result, training: dict[str, Any], measuring: dict[str, Any]) -> None:
    """Write the result of a row, atomically."""
    write_json(_path(folder, result.row), {"training": training, "measuring": measuring, **_content(result)})


def _content(result: Result) -> dict[str, Any]:
    content = {each.name: getattr(result, each.name) for each in fields(result)}
    unseen = None if result.unseen is None else _content(result.unseen)
    return {**content, "values": result.values.flatten(1).tolist(), "unseen": unseen}


def load_result(folder: Path, row: str, training: dict[str, Any], measuring: dict[str, Any]) -> Result | None:
    """The stored result of a row; None if it must be measured again, a ValueError if it was trained otherwise."""
    path = _path(folder, row)
    if not path.exists():
        return None
    content = read_json(path, "remove it and compare again")
    check_same(path, content.pop("training", {}), training)
    if content.pop("measuring", {}) != measuring:
        return None
    return _result(content)


def _result(content: dict[str, Any]) -> Result:
    values = torch.tensor(content["values"]).unflatten(1, (len(content["m"]), len(content["metrics"])))
    unseen = None if content["unseen"] is None else _result(content["unseen"])
    names = {name: tuple(content[name]) for name in ("m", "metrics", "notes")}
    return Result(**{**content, **names, "values": values, "unseen": unseen})


def _path(folder: Path, row: str) -> Path:
    return folder / f"{row}.json"


def main_metric(metrics: Sequence[str]) -> str:
    """The metric to show where there is room for only one: recall, if it was measured."""
    return "recall" if "recall" in metrics else metrics[0]


def strength(evaluations: Iterable[Evaluation]) -> float:
    """The highest `main_metric` at the largest m of some evaluations: how much the best of them finds."""
    return max(
        each[main_metric([s.metric for s in each.scores]), max(s.m for s in each.scores)] for each in evaluations
    )


def by_setting(results: Sequence[Result]) -> list[Sequence[Result]]:
    """The results with seen items left in and with seen items left out.

    First comes the setting that is better for the others: in which the best row without a tree finds more, by
    `strength`. If all rows have trees, the best of them counts. On a tie seen items are left in first.
    """
    unseen = [result.unseen for result in results if result.unseen is not None]
    settings = [results, unseen] if unseen else [results]
    others = {result.row for result in results if not result.has_tree} or {result.row for result in results}
    return sorted(
        settings, key=lambda rows: strength(each.evaluation for each in rows if each.row in others), reverse=True
    )


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
    """Every number of a comparison in one setting, row by row."""
    reference = next((result for result in results if result.row == REFERENCE), None)
    highest = {key: max(result.evaluation[key] for result in results) for key in results[0].evaluation}
    entries = []
    for result in results:
        p: dict[tuple[str, int], float] = {}
        if reference is not None and reference is not result:
            keys = [(metric, m) for m in result.m for metric in result.metrics]
            p_values = paired_p(result.values.flatten(1), reference.values.flatten(1))
            p = dict(zip(keys, p_values.tolist(), strict=True))
        for score in result.evaluation.scores:
            key = score.metric, score.m
            best = score.value == highest[key]
            entries.append(Entry(result.row, *key, score.value, score.low, score.high, p.get(key), best))
    return entries


def records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The tables of both settings as flat records, then the costs of each row, and last the users of each setting.

    `exclude_seen` names the setting. The users are the same for all rows; `warning` says if they are few.
    """
    settings = by_setting(results)
    cells: list[dict[str, Any]] = [
        {**entry._asdict(), "exclude_seen": rows[0].exclude_seen} for rows in settings for entry in table(rows)
    ]
    cells += [{"row": each.row, "metric": cost, "value": getattr(each, cost)} for each in results for cost in COSTS]
    cells += [{"row": each.row, "metric": "kept_the_start", "value": 1} for each in results if each.kept_the_start]
    cells += [{"row": each.row, "metric": "label", "value": each.label} for each in results if each.label]
    for first in (rows[0].evaluation for rows in settings):
        users = {"value": first.users, "asked": first.users_asked, "exclude_seen": first.exclude_seen}
        few = few_users(first.users)
        cells.append({"metric": "users", **users, **({} if few is None else {"warning": few})})
    return cells


def split_settings(cells: Sequence[Record]) -> list[list[Record]]:
    """The `records` of each setting, in order, each with the costs."""
    settings = dict.fromkeys(cell["exclude_seen"] for cell in cells if "exclude_seen" in cell)
    return [[cell for cell in cells if cell.get("exclude_seen", each) == each] for each in settings] or [list(cells)]


def measured_users(cells: Sequence[Record]) -> str:
    """The number of users of one setting, and whether seen items counted; empty where the records do not have it."""
    for cell in cells:
        if cell["metric"] == "users" and "asked" in cell:
            measured = "" if cell["value"] == cell["asked"] else f"{cell['value']:,} of "
            return f"{measured}{cell['asked']:,} users, seen items left {'out' if cell['exclude_seen'] else 'in'}"
    return ""


class Grid(NamedTuple):
    """A table as text, for Markdown and for the terminal."""

    headers: list[str]
    lines: list[list[str]]

    def markdown(self, names: int = 1) -> str:
        """The same as Markdown; the first columns are names, the others numbers."""
        rule = ["---"] * names + ["---:"] * (len(self.headers) - names)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.headers, rule, *self.lines))


class Marks(NamedTuple):
    """How bold text and stars are written."""

    bold: str
    close: str
    star: str


MARKDOWN = Marks("**", "**", "\\*")


def score_grid(cells: Sequence[Record], marks: Marks = MARKDOWN) -> Grid:
    """The scores of one setting: a line for each metric and row, in percent, the best of a column in bold."""
    scores = {(cell["row"], cell["metric"], cell["m"]): cell for cell in cells if "m" in cell}
    rows, metrics, cuts = (list(dict.fromkeys(values)) for values in zip(*scores, strict=True))
    names = {cell["row"]: cell["value"] for cell in cells if cell["metric"] == "label"}
    names |= {cell["row"]: f"{cell['row']} †" for cell in cells if cell["metric"] == "kept_the_start"}
    lines = []
    for metric in metrics:
        for index, row in enumerate(rows):
            texts = [_score_text(scores[row, metric, m], marks) for m in cuts]
            lines.append([metric if index == 0 else "", names.get(row, row), *texts])
    return Grid(["metric, %", "row", *(f"@{m}" for m in cuts)], lines)


def _score_text(cell: Record, marks: Marks) -> str:
    value = f"{cell['value'] * 100:.2f}"
    value = f"{marks.bold}{value}{marks.close}" if cell["best"] else value
    stars = 0 if cell["p"] is None else (cell["p"] < 0.05) + (cell["p"] < 0.01)
    return f"{value} ± {(cell['high'] - cell['low']) * 50:.2f}{stars * marks.star}"


def legend(cells: Sequence[Record]) -> str:
    """What the marks of a table mean."""
    text = "± half of the 95 % interval of the mean over users"
    if any(cell.get("p") is not None for cell in cells):
        text += "; * p < 0.05, ** p < 0.01 against otm, users in pairs"
    if any(cell["metric"] == "kept_the_start" for cell in cells):
        text += "; † training found nothing better than the start"
    return text


def cost_grid(cells: Sequence[Record]) -> Grid:
    """The costs of each row of `records`."""
    costs = {(cell["row"], cell["metric"]): cell["value"] for cell in cells if cell["metric"] in COSTS}
    lines = []
    for row in dict.fromkeys(row for row, _ in costs):
        seconds, ms, size = (costs[row, cost] for cost in COSTS)
        training = f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
        lines.append([row, training, f"{ms:.2f}", f"{size / 1e6:,.1f} MB"])
    return Grid(["row", "training", "ms per query", "size"], lines)


def markdown(results: Sequence[Result]) -> str:
    """The users and scores of both settings, the meaning of the marks, and the costs, as Markdown."""
    cells = records(results)
    notes = legend(cells).replace("*", MARKDOWN.star)
    scores = [[f"{measured_users(each)}.", score_grid(each).markdown(2)] for each in split_settings(cells)]
    return "\n\n".join([*(text for pair in scores for text in pair), notes, cost_grid(cells).markdown()]) + "\n"

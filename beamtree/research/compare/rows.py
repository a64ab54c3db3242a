"""The rows of a comparison, and how they are measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from beamtree.evaluate import Evaluation, measure
from beamtree.methods import describe_call
from beamtree.research.compare.flat import dnn_row, plain_row, sasrec_row
from beamtree.research.compare.plan import OtherSettingsError, Plan, ReadyRow, Row
from beamtree.research.compare.results import Result, is_finished, load_result, save_result, shown_metric
from beamtree.research.compare.trees import all_leaves_row, num_steps, tree_row
from beamtree.storage.models import load_model
from beamtree.tree import PAD

ROWS: dict[str, Row] = {
    "popularity": Row(plain_row),
    "item-cf": Row(plain_row),
    "item-cf-nearest": Row(plain_row),
    "als": Row(plain_row),
    "ease": Row(plain_row),
    "ials": Row(plain_row),
    "user-knn": Row(plain_row),
    "rules": Row(plain_row),
    "sasrec": Row(sasrec_row, "dnn"),
    "youtube-dnn": Row(dnn_row, "dnn"),
    "youtube-dnn-hnsw": Row(dnn_row, "dnn"),
    "hsm": Row(tree_row, "tree", "hsm"),
    "plt": Row(tree_row, "tree", "plt"),
    "tdm": Row(tree_row, "tree", "tdm", lifted=False),  # the history at its leaves, as in 2018
    "jtm": Row(tree_row, "tree", "tdm", joint=True),
    "otm": Row(tree_row, "tree", "otm"),
    "otm-no-beam": Row(tree_row, "tree", "otm-no-beam"),
    "otm-no-optest": Row(tree_row, "tree", "otm-no-optest"),
    "otm-mixed": Row(tree_row, "tree", "otm-mixed"),
    "otm-joint": Row(tree_row, "tree", "otm", joint=True),
    "otm-brute-force": Row(all_leaves_row, "tree", "otm"),
    "beamtree-start": Row(tree_row, "tree", "otm-mixed", recipe="beamtree", trained=False),
    "beamtree": Row(tree_row, "tree", "otm-mixed", recipe="beamtree"),
}
# What is known to be strong, and what it is measured against.
STRONG = (
    "popularity",
    "item-cf-nearest",
    "als",
    "ease",
    "ials",
    "user-knn",
    "rules",
    "sasrec",
    "youtube-dnn",
    "otm",
    "beamtree",
)


def check_rows(rows: Sequence[str], own: Mapping[str, Row] | None = None) -> None:
    """Raise a ValueError where there is no such row, or none at all."""
    known = {**ROWS, **(own or {})}
    unknown = [row for row in rows if row not in known]
    if unknown or not rows:
        what = f"row {unknown[0]!r} is unknown" if unknown else "no row to compare"
        raise ValueError(f"{what}: choose from {', '.join(known)}")


def compare(plan: Plan, rows: Sequence[str], own: Mapping[str, Row] | None = None) -> list[Result]:
    """Train and measure rows, or read what an earlier comparison in the same folder found, in the order given.

    Rows share one tree: the one that `jtm` learns, if it is among them and they are not to keep to the first. `own` are
    rows of yours by name, such as `Row(tree_row, "tree", my_method)`; name them among `rows` as well. A row that ends
    in a ValueError is left out, and `plan.say` hears why; where no row is left, or one was made with other settings,
    the error is raised.
    """
    check_rows(rows, own)
    table = {**ROWS, **(own or {})}
    _check_plan(plan, [row for row in rows if table[row].joint])
    plan.folder.mkdir(parents=True, exist_ok=True)
    share = not plan.own_trees and ("jtm" in rows or is_finished(plan.folder, "jtm"))

    @cache
    def shared() -> Plan:
        """The plan with the tree that jtm learned."""
        if not is_finished(plan.folder, "jtm"):
            raise ValueError("it shares the tree of jtm, which was skipped")
        model = load_model(plan.folder / "jtm", scorers=table["jtm"].scorers)
        return replace(plan, tree=model.tree, tree_name="jtm")

    found: dict[str, Result] = {}
    errors: list[ValueError] = []
    for name in sorted(dict.fromkeys(rows), key=lambda name: name != "jtm"):  # jtm first, for its tree
        row = table[name]
        on_shared = share and name != "jtm" and row.kind == "tree" and row.tree is None
        try:
            found[name] = _result(shared() if on_shared else plan.for_row(row), name, row)
        except OtherSettingsError:
            raise
        except ValueError as error:
            errors.append(error)
            plan.say(f"{name}: skipped: {error}")
    if not found:
        raise errors[0]
    return [found[name] for name in rows if name in found]


def _check_plan(plan: Plan, learned: Sequence[str]) -> None:
    """Raise a ValueError where no row could be measured, or those that learn their tree could not judge it."""
    if plan.m and max(plan.m) > plan.test_beam:
        raise ValueError(f"m={max(plan.m)} with a beam of {plan.test_beam}: at most as many items can be retrieved")
    if not len(plan.users):
        raise ValueError(f"{plan.data.folder} has no test users: prepare with `test_users`")
    if learned and not len(plan.data.val):
        raise ValueError(
            f"{learned[0]} judges new trees by validation users, and there are none: prepare with `val_users`"
        )

    def nothing(x: Tensor, exclude: Tensor) -> Tensor:
        return torch.full((len(x), max(plan.m)), PAD)

    # Metrics that fail, or nobody to measure, would fail in every row, each after hours of training.
    measure(nothing, plan.users, m=plan.m, metrics=plan.metrics, exclude_seen=plan.exclude_seen)


def _result(plan: Plan, name: str, row: Row) -> Result:
    """What a row reached: read, or found out and written."""
    training, measuring = {**plan.training(row), "make": describe_call(row.make)}, plan.measuring()
    before = load_result(plan.folder, name, training, measuring)
    if before is not None:
        return before
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        plan.say(f"{name}: {line}")

    plan.say(f"{name}: begun")
    began = time.monotonic()
    ready = row.make(name, row, plan, note)
    took = ready.seconds or time.monotonic() - began
    measured, ms = _measured(plan, ready)
    if ready.kept_the_start:
        note("training did not improve on the start; kept the start")
    result = Result(
        name,
        measured.per_user,
        plan.m,
        plan.metric_names,
        took,
        ms,
        ready.num_bytes,
        tuple(notes),
        plan.device,
        ready.kept_the_start,
        measured.users_asked,
        plan.exclude_seen,
    )
    save_result(plan.folder, result, training, measuring)
    metric, most = shown_metric(result.metrics), max(plan.m)
    plan.say(f"{name}: {metric}@{most} {measured[metric, most]:.2%}, {took:.0f} s of training, {ms:.2f} ms per query")
    return result


def _measured(plan: Plan, ready: ReadyRow) -> tuple[Evaluation, float]:
    """What a row finds for the users of the plan, and the milliseconds that one of them takes."""
    x, _ = plan.users.batch(torch.arange(min(64, len(plan.users))))
    ready.find(x, torch.empty(len(x), 0, dtype=torch.int64))  # the first is slow, and does not count
    spent = 0.0

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        nonlocal spent
        start = time.monotonic()
        items = ready.find(x, exclude).cpu()
        spent += time.monotonic() - start
        return items

    measured = measure(find, plan.users, m=plan.m, metrics=plan.metrics, exclude_seen=plan.exclude_seen)
    return measured, spent / measured.users * 1e3


def steps_of(plan: Plan, rows: Sequence[str], own: Mapping[str, Row] | None = None) -> int:
    """About how many steps of training the rows take together that are not finished."""
    table = {**ROWS, **(own or {})}
    left = {row for row in rows if not is_finished(plan.folder, row)}
    if "otm-brute-force" in left:
        left.discard("otm-brute-force")
        left |= set() if is_finished(plan.folder, "otm") else {"otm"}
    trees = sum(num_steps(table[row], plan) for row in left if table[row].kind == "tree")
    return trees + plan.steps * len({table[row].make for row in left if table[row].kind == "dnn"})

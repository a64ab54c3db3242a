"""The rows of a comparison, and how they are measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from beamtree.compare.flat import dnn_row, plain_row
from beamtree.compare.plan import Plan, Row
from beamtree.compare.results import Result, is_finished, load_result, save_result, shown_metric
from beamtree.compare.trees import all_leaves_row, num_steps, tree_row
from beamtree.evaluate import measure
from beamtree.storage import load_model
from beamtree.train.recipes import RECIPES, unlifted

ROWS: dict[str, Row] = {
    "popularity": Row(plain_row),
    "item-cf": Row(plain_row),
    "item-cf-nearest": Row(plain_row),
    "als": Row(plain_row),
    "youtube-dnn": Row(dnn_row, "dnn"),
    "youtube-dnn-hnsw": Row(dnn_row, "dnn"),
    "hsm": Row(tree_row, "tree", "hsm"),
    "plt": Row(tree_row, "tree", "plt"),
    "tdm": Row(tree_row, "tree", "tdm"),
    "jtm": Row(tree_row, "tree", "tdm", joint=True),
    "otm": Row(tree_row, "tree", "otm"),
    "otm-no-beam": Row(tree_row, "tree", "otm-no-beam"),
    "otm-no-optest": Row(tree_row, "tree", "otm-no-optest"),
    "otm-mixed": Row(tree_row, "tree", "otm-mixed"),
    "otm-joint": Row(tree_row, "tree", "otm", joint=True),
    "otm-brute-force": Row(all_leaves_row, "tree", "otm"),
}


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
    rows of yours by name, such as `Row(tree_row, "tree", my_method)`; name them among `rows` as well.
    """
    check_rows(rows, own)
    table = {**ROWS, **(own or {})}
    if max(plan.m) > plan.test_beam:
        raise ValueError(f"m={max(plan.m)} with a beam of {plan.test_beam}: at most as many items can be retrieved")
    if not len(plan.users):
        raise ValueError(f"{plan.data.folder} has no test users: prepare with `test_users`")
    learned = [row for row in rows if table[row].joint]
    if learned and not len(plan.data.val):
        raise ValueError(
            f"{learned[0]} judges new trees by validation users, and there are none: prepare with `val_users`"
        )
    plan.folder.mkdir(parents=True, exist_ok=True)
    share = not plan.own_trees and ("jtm" in rows or is_finished(plan.folder, "jtm"))
    found: dict[str, Result] = {}
    if "jtm" in rows:
        found["jtm"] = _result(plan, "jtm", table["jtm"])
    on_tree = plan
    if share and any(table[row].kind == "tree" and row != "jtm" for row in rows):
        on_tree = replace(plan, tree=load_model(plan.folder / "jtm").tree, tree_name="jtm")
    for row in rows:
        if row not in found:
            found[row] = _result(on_tree if table[row].kind == "tree" else plan, row, table[row])
    return [found[row] for row in rows]


def _result(plan: Plan, name: str, row: Row) -> Result:
    training, measuring = plan.training(row.kind), plan.measuring()
    before = load_result(plan.folder, name, training, measuring)
    if before is not None:
        return before
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        plan.say(f"{name}: {line}")

    plan.say(f"{name}: begun")
    began = time.monotonic()
    if name == "tdm" and row.scorer is None:  # the history at its leaves, as in 2018; the lifted one is JTM's
        row = replace(row, scorer=unlifted(RECIPES[plan.recipe].scorer))
    ready = row.make(name, row, plan, note)
    took = ready.seconds or time.monotonic() - began
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
    ms = spent / measured.users * 1e3
    if ready.kept_the_start:
        note("training found nothing better than the start, which was kept")
    result = Result(
        name,
        measured.per_user,
        plan.m,
        plan.metrics,
        took,
        ms,
        ready.num_bytes,
        tuple(notes),
        plan.device,
        ready.kept_the_start,
    )
    save_result(plan.folder, result, training, measuring)
    metric, most = shown_metric(plan.metrics), max(plan.m)
    plan.say(f"{name}: {metric}@{most} {measured[metric, most]:.2%}, {took:.0f} s of training, {ms:.2f} ms per query")
    return result


def steps_of(plan: Plan, rows: Sequence[str]) -> int:
    """About how many steps of training the rows take together that are not finished."""
    left = {row for row in rows if not is_finished(plan.folder, row)}
    if "otm-brute-force" in left:
        left.discard("otm-brute-force")
        left |= set() if is_finished(plan.folder, "otm") else {"otm"}
    trees = sum(num_steps(ROWS[row], plan) for row in left if ROWS[row].kind == "tree")
    return trees + plan.steps * any(ROWS[row].kind == "dnn" for row in left)

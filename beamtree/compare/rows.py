"""The rows of a comparison, and how they are measured."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from beamtree.compare.flat import dnn, plain_row
from beamtree.compare.plan import METRICS, Make, Plan
from beamtree.compare.results import Result, is_finished, load_result, save_result
from beamtree.compare.trees import TREE_ROWS, all_leaves, tree_row
from beamtree.evaluate import measure
from beamtree.train import load_model

ROWS: dict[str, Make] = {
    **{row: partial(plain_row, row) for row in ("popularity", "item-cf", "item-cf-nearest", "als")},
    "youtube-dnn": partial(dnn, "exact"),
    "youtube-dnn-hnsw": partial(dnn, "hnsw"),
    **{row: partial(tree_row, row) for row in TREE_ROWS},
    "otm-brute-force": all_leaves,
}


def check_rows(rows: Sequence[str]) -> None:
    """Raise a ValueError where there is no such row, or none at all."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown or not rows:
        what = f"row {unknown[0]!r} is unknown" if unknown else "no row to compare"
        raise ValueError(f"{what}: choose from {', '.join(ROWS)}")


def compare(plan: Plan, rows: Sequence[str]) -> list[Result]:
    """Train and measure rows, or read what an earlier comparison in the same folder found, in the order given.

    Rows share one tree: the one that `jtm` learns, if it is among them and they are not to keep to the first.
    """
    check_rows(rows)
    if max(plan.m) > plan.test_beam:
        raise ValueError(f"m={max(plan.m)} with a beam of {plan.test_beam}: at most as many items can be retrieved")
    if not len(plan.users):
        raise ValueError(f"{plan.data.folder} has no test users: prepare with --test-users")
    learned = [row for row in rows if row in TREE_ROWS and TREE_ROWS[row].joint]
    if learned and not len(plan.data.val):
        raise ValueError(
            f"{learned[0]} judges new trees by validation users, and there are none: prepare with --val-users"
        )
    plan.folder.mkdir(parents=True, exist_ok=True)
    share = not plan.own_trees and ("jtm" in rows or is_finished(plan.folder, "jtm"))
    found: dict[str, Result] = {}
    if "jtm" in rows:
        found["jtm"] = _result(plan, "jtm")
    on_tree = plan
    if share and any(kind_of(row) == "tree" and row != "jtm" for row in rows):
        on_tree = replace(plan, tree=load_model(plan.folder / "jtm").tree)
    for row in rows:
        if row not in found:
            found[row] = _result(on_tree if kind_of(row) == "tree" else plan, row)
    return [found[row] for row in rows]


def _result(plan: Plan, row: str) -> Result:
    training, measuring = plan.training(kind_of(row)), plan.measuring()
    before = load_result(plan.folder, row, training, measuring)
    if before is not None:
        return before
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        plan.say(f"{row}: {line}")

    plan.say(f"{row}: begun")
    began = time.monotonic()
    made = ROWS[row](plan, note)
    took = made.seconds or time.monotonic() - began
    made.find(plan.users.batch(torch.arange(min(64, len(plan.users))))[0])  # the first is slow, and does not count
    spent = 0.0

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        nonlocal spent
        start = time.monotonic()
        items = made.find(x).cpu()
        spent += time.monotonic() - start
        return items

    measured = measure(find, plan.users, m=plan.m, metrics=METRICS)
    ms = spent / measured.users * 1e3
    result = Result(row, measured.per_user, plan.m, took, ms, made.num_bytes, tuple(notes), plan.device)
    save_result(plan.folder, result, training, measuring)
    recall = measured["recall", max(plan.m)]
    plan.say(f"{row}: recall@{max(plan.m)} {recall:.2%}, {took:.0f} s of training, {ms:.2f} ms per query")
    return result


def kind_of(row: str) -> str:
    """What the row is made of: see `Plan.training`."""
    if row in TREE_ROWS or row == "otm-brute-force":
        return "tree"
    return "dnn" if row.startswith("youtube") else "flat"


def steps_of(plan: Plan, rows: Sequence[str]) -> int:
    """About how many steps of training the rows take together that are not finished."""
    left = {row for row in rows if not is_finished(plan.folder, row)}
    if "otm-brute-force" in left and not is_finished(plan.folder, "otm"):
        left.add("otm")
    trees = sum(TREE_ROWS[row].steps(plan) for row in left if row in TREE_ROWS)
    return trees + plan.steps * any(kind_of(row) == "dnn" for row in left)

"""Train and measure the rows of a comparison on the same users."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from beamtree.evaluate import NoNewItemsError, measure
from beamtree.methods import describe_call
from beamtree.research.compare.experiment import Experiment, OtherSettingsError, Row
from beamtree.research.compare.report import Result, is_finished, load_result, main_metric, save_result
from beamtree.research.compare.rows import ROWS, num_steps
from beamtree.storage.models import load_model
from beamtree.tree import PAD


def check_rows(rows: Sequence[str], extra_rows: Mapping[str, Row] | None = None) -> dict[str, Row]:
    """All rows by name; a ValueError where one of `rows` is unknown, or there is none."""
    table = {**ROWS, **(extra_rows or {})}
    unknown = [row for row in rows if row not in table]
    if unknown or not rows:
        problem = f"row {unknown[0]!r} is unknown" if unknown else "no row to compare"
        raise ValueError(f"{problem}: choose from {', '.join(table)}")
    return table


def compare(experiment: Experiment, rows: Sequence[str], extra_rows: Mapping[str, Row] | None = None) -> list[Result]:
    """Train and measure rows, or read the results of an earlier comparison in the same folder, in the order given.

    Rows share the tree that `jtm` learns if it is among them, unless `experiment.own_trees` is set. `extra_rows` are
    your own rows by name, such as `Row(tree_row, "tree", my_method)`; name them in `rows` as well. A row that raises a
    ValueError is skipped with a message to `experiment.on_message`. The error is raised if no row is left, or if a
    stored row has other settings.

    Every row is measured with seen items left in and, as its `unseen`, with seen items left out of what is retrieved
    and of what is expected. `report.by_setting` has both in order.
    """
    table, folder = check_rows(rows, extra_rows), experiment.folder
    has_unseen = _check_experiment(experiment, [row for row in rows if table[row].joint])
    folder.mkdir(parents=True, exist_ok=True)
    share = not experiment.own_trees and ("jtm" in rows or is_finished(folder, "jtm"))

    @cache
    def on_jtm_tree() -> Experiment:
        """The experiment with the tree that jtm learned."""
        if not is_finished(folder, "jtm"):
            raise ValueError("it shares the tree of jtm, which was skipped")
        model = load_model(folder / "jtm", scorers=table["jtm"].scorers)
        return replace(experiment, tree=model.tree, tree_name="jtm")

    results: dict[str, Result] = {}
    errors: list[ValueError] = []
    for name in sorted(dict.fromkeys(rows), key=lambda name: name != "jtm"):  # jtm first, for its tree
        row = table[name]
        try:
            if row.tree is not None:
                on_tree = replace(experiment, tree=row.tree(experiment.data), tree_name=describe_call(row.tree))
            elif share and name != "jtm" and row.kind == "tree":
                on_tree = on_jtm_tree()
            else:
                on_tree = experiment
            results[name] = _load_or_measure(on_tree, name, row, has_unseen)
        except OtherSettingsError:
            raise
        except ValueError as error:
            errors.append(error)
            experiment.on_message(f"{name}: skipped: {error}")
    if not results:
        raise errors[0]
    return [results[name] for name in rows if name in results]


def _check_experiment(experiment: Experiment, joint_rows: Sequence[str]) -> bool:
    """Whether a user chose anything new; a ValueError if no row can be measured, or no user can judge new trees."""
    data, most = experiment.data, max(experiment.m, default=0)
    if most > experiment.test_beam:
        raise ValueError(f"m={most} with a beam of {experiment.test_beam}: at most as many items can be retrieved")
    if not len(data.test):
        raise ValueError(f"{data.folder} has no test users: prepare with `test_users`")
    if joint_rows and not len(data.val):
        raise ValueError(
            f"{joint_rows[0]} judges new trees by validation users, and there are none: prepare with `val_users`"
        )

    # A metric that fails, or no user to measure, would otherwise show only after hours of training.
    def find_nothing(x: Tensor, exclude: Tensor) -> Tensor:
        return torch.full((len(x), most), PAD)

    measure(find_nothing, data.test, m=experiment.m, metrics=experiment.metrics)
    try:
        measure(find_nothing, data.test, m=experiment.m, metrics=experiment.metrics, exclude_seen=True)
    except NoNewItemsError:
        return False
    return True


def _load_or_measure(experiment: Experiment, name: str, row: Row, has_unseen: bool) -> Result:
    """The stored result of a row, or a new one, which is stored."""
    training, measuring = {**experiment.training(row), "make": describe_call(row.make)}, experiment.measuring()
    stored = load_result(experiment.folder, name, training, measuring)
    if stored is not None:
        return stored
    notes: list[str] = []

    def on_message(line: str) -> None:
        notes.append(line)
        experiment.on_message(f"{name}: {line}")

    experiment.on_message(f"{name}: begun")
    start = time.monotonic()
    retriever = row.make(name, row, experiment, on_message)
    training_seconds = retriever.training_seconds or time.monotonic() - start

    users = experiment.data.test if retriever.users is None else retriever.users
    x, _ = users.batch(torch.arange(min(64, len(users))))
    retriever.retrieve(x, torch.empty(len(x), 0, dtype=torch.int64))  # the first search is slow and not counted
    if retriever.kept_the_start:
        on_message("training did not improve on the start; kept the start")

    def measured(exclude_seen: bool) -> Result:
        search_seconds = 0.0

        def timed_retrieve(x: Tensor, exclude: Tensor) -> Tensor:
            nonlocal search_seconds
            start = time.monotonic()
            items = retriever.retrieve(x, exclude).cpu()
            search_seconds += time.monotonic() - start
            return items

        evaluation = measure(
            timed_retrieve, users, m=experiment.m, metrics=experiment.metrics, exclude_seen=exclude_seen
        )
        return Result(
            row=name,
            values=evaluation.per_user,
            m=experiment.m,
            metrics=experiment.metric_names,
            training_seconds=training_seconds,
            ms_per_query=search_seconds / evaluation.users * 1e3,
            num_bytes=retriever.num_bytes,
            notes=tuple(notes),
            device=experiment.device,
            kept_the_start=retriever.kept_the_start,
            users_asked=evaluation.users_asked,
            exclude_seen=exclude_seen,
            has_tree=row.kind == "tree",
            label=retriever.label,
        )

    result = replace(measured(False), unseen=measured(True) if has_unseen else None)
    save_result(experiment.folder, result, training, measuring)
    metric, most = main_metric(result.metrics), max(experiment.m)
    scores = f"{result.evaluation[metric, most]:.2%}"
    if result.unseen is not None:
        scores += f" with seen items, {result.unseen.evaluation[metric, most]:.2%} without"
    experiment.on_message(
        f"{name}: {metric}@{most} {scores}; {training_seconds:.0f} s of training, "
        f"{result.ms_per_query:.2f} ms per query"
    )
    return result


def total_steps(experiment: Experiment, rows: Sequence[str], extra_rows: Mapping[str, Row] | None = None) -> int:
    """About how many training steps the unfinished rows take together."""
    table = check_rows(rows, extra_rows)
    unfinished = {row for row in rows if not is_finished(experiment.folder, row)}
    if "otm-brute-force" in unfinished:  # it uses the model of otm
        unfinished.discard("otm-brute-force")
        unfinished |= set() if is_finished(experiment.folder, "otm") else {"otm"}
    tree_steps = sum(num_steps(table[row], experiment) for row in unfinished if table[row].kind == "tree")
    networks = {table[row].make for row in unfinished if table[row].kind == "dnn"}
    return tree_steps + experiment.steps * len(networks)

"""Fitting the closed-form parts again, with what was chosen before: penalties, powers, scales, weights, calibration.

A model that serves is fitted to all users, those that validated and tested too. Its numbers are measured before that,
or later on the same model fitted again to the training users alone.

Where a split by time keeps all events, everything is fitted again: the tree is built from them, and the sequence part
is trained for as many steps. A network that was trained on the nodes of a tree keeps it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from beamtree.beam import default_beam_size
from beamtree.data import BeforeAfter, Data, Events, Prepared
from beamtree.evaluate import FittedUsers
from beamtree.ingest.inputs import tree_builder
from beamtree.ingest.report import describe_choice
from beamtree.live.edits import ADDED, added_edges, memory_of, with_hidden, without_items
from beamtree.live.events import Event
from beamtree.model import TreeModel
from beamtree.parts import PARTS, Part
from beamtree.parts.sequence import SEQUENCE
from beamtree.progress import OnProgress, log, no_progress
from beamtree.scorers import Scorer, as_sum
from beamtree.storage.runs import table_file
from beamtree.train.backend import current_backend
from beamtree.tree import PAD, Tree

Build = Callable[[Prepared], Tree]

CUTS = (10, 50, 100, 200)  # measured before a refit
BEFORE = "before the refit, fitted to the training users alone"
SERVED = "as it is served, fitted to all users"


def refit_parts(
    model: TreeModel,
    data: Prepared,
    events: Events,
    seed: int,
    on_progress: OnProgress = no_progress,
    *,
    start: Scorer | None = None,
    parts: Sequence[Part] = (),
    again: bool = False,
    goes_on: bool = False,
) -> TreeModel:
    """The model with its closed-form parts fitted again, to these events, with the penalties and weights that it has.

    Trained parts stay as they are; with `again` they are trained again where they can be, and with `goes_on` training
    may go on from where it ended, since these are the events of the earlier fit and more. Partners of items that were
    added later stay where the events do not contain the item. On the same events the parts are what they were. With
    `start`, ALS goes on from its factors. `parts` are those from outside the package; one that is not given stays as
    it is.
    """
    scorer, backend = as_sum(model.scorer), current_backend()
    count, device = model.tree.num_items, str(model.tree.device)
    if scorer is None or not has_closed_form(model):
        raise ValueError("only a model with closed-form parts can be refitted: train with the recipe beamtree")
    data = replace(data, description={**data.description, "num_items": count})
    form = backend.closed_form(
        model.tree, data, seed, device, model.first_level, on_progress,
        events=events, hyperparameters=dict(scorer.hyperparameters), start=start, parts=(*PARTS, *parts),
        again=again, goes_on=goes_on, processes=backend,
    )  # fmt: skip
    fitted = form.fit()
    closed = {name: fitted.part(name).to(device) for name in fitted.names}
    changed: dict[str, Scorer] = {}
    for part in form.parts:
        changed |= part.refit(scorer, closed, form)
    popularity = events.popularity(count)
    if ADDED in scorer.names:
        edges = added_edges(scorer)
        unseen = popularity.cpu() == 0  # the refitted parts know nothing about these items
        changed[ADDED] = memory_of(edges.select(unseen[edges.source] | unseen[edges.target]), count).to(device)
    result = model.with_scorer(scorer.with_parts(changed))
    result.popularity = popularity
    return backend.place(result, device).eval()


def has_closed_form(model: TreeModel) -> bool:
    """Whether a model has parts that can be fitted again."""
    return bool(model.scorer.hyperparameters)


def refit_to_all(
    model: TreeModel,
    data: Prepared,
    seed: int,
    on_progress: OnProgress = no_progress,
    parts: Sequence[Part] = (),
    build: Build | None = None,
) -> tuple[TreeModel, dict[str, Any]]:
    """The model that serves, fitted to all users; and its scores on the test users before, as run.json records them.

    `build` builds its tree again, where the split keeps all events.
    """
    backend = current_backend()
    measured: dict[str, Any] = {"test_users": len(data.test), "scores": []}
    if len(data.test):
        result = backend.evaluate(model, data.test, beam_size=default_beam_size(max(CUTS)), m=CUTS)
        measured["scores"] = result.records()
    if data.all is not None:
        return _fit_again(model, data, data.of_all_events(), seed, on_progress, parts, build), measured
    events, start = data.joined(data.whole), model.scorer
    return refit_parts(model, data, events, seed, on_progress, start=start, parts=parts), measured


def _fit_again(
    model: TreeModel,
    data: Prepared,
    fitted: Prepared,
    seed: int,
    on_progress: OnProgress,
    parts: Sequence[Part],
    build: Build | None,
) -> TreeModel:
    """The model on a new tree, with all of its parts fitted and trained again to the training events of `fitted`."""
    if build is not None and _can_change_tree(model, data, parts):
        model = on_new_tree(model, build(fitted))
    goes_on = fitted is not data
    return refit_parts(model, data, fitted.train.events, seed, on_progress, parts=parts, again=True, goes_on=goes_on)


def _can_change_tree(model: TreeModel, data: Prepared, parts: Sequence[Part]) -> bool:
    """Whether every part can be fitted to another tree: not where a network was trained, or items were added."""
    scorer = as_sum(model.scorer)
    if scorer is None or not current_backend().is_single or model.tree.num_items != data.num_items:
        return False
    trained = scorer.learned is not None and bool(scorer.weights[:, scorer.names.index(scorer.learned)].any())
    return not trained and {*scorer.names} <= {part.name for part in (*PARTS, *parts)}


def on_new_tree(model: TreeModel, tree: Tree) -> TreeModel:
    """The model on another tree over the same items; removed and hidden items stay so."""
    return _with_edits(model.on_tree(tree), model)


def _with_edits(model: TreeModel, other: TreeModel) -> TreeModel:
    """The model without the items that another does not have, and with those hidden that are hidden there."""
    count, tree = model.tree.num_items, other.tree
    forgotten = (tree.leaf_of_item(torch.arange(count, device=tree.device)) == PAD).nonzero().squeeze(1).tolist()
    return with_hidden(without_items(model, forgotten), [item for item in tree.hidden().tolist() if item < count])


def keeps_first(model: TreeModel, data: Prepared) -> bool:
    """Whether the model before the refit is kept with a run: where a part of it was trained and is trained again."""
    return data.all is not None and SEQUENCE in model.scorer.names


def builder_of_run(folder: Path, run: Mapping[str, Any]) -> Build | None:
    """What builds the tree of a run from its log; None where that is not known."""
    tables = {name: table_file(folder, name, run) for name in run.get("tree_tables", ())}
    try:
        build = tree_builder(str(run["tree"]), **tables)
    except (KeyError, ValueError):  # a tree or a function that was passed in Python
        return None
    return lambda data: build(data, int(run["arity"]), seed_of(run))


def refit_report(model: TreeModel, measured: Mapping[str, Any], data: Prepared) -> list[str]:
    """What was measured before a refit, and what was fitted again, as lines."""
    recalls = [
        f"recall@{each['m']} {each['value'] * 100:.1f} %"
        for each in measured["scores"]
        if each["metric"] == "recall" and each["m"] < data.num_items
    ]
    before = [f"Before the refit, on {measured['test_users']:,} test users: {', '.join(recalls)}."] if recalls else []
    assert model.popularity is not None
    stored = int(model.popularity.sum())
    num_users, num_events = (data.description[name] for name in ("num_users", "num_events"))
    if data.all is not None:
        chosen = describe_choice(data.description)
        return [*([chosen] if chosen else []), *before, f"Fitted it again, to all events of all {num_users:,} users."]
    line = f"Fitted the closed form again, to all events of all {num_users:,} users."
    if stored < num_events:  # splits by time and with fewer test users do not store the last events of others
        line = (
            f"Fitted the closed form again, to {stored:,} of {num_events:,} events; the split does not keep the rest."
        )
    return [*before, line]


def before_refit(
    model: TreeModel,
    data: Prepared,
    seed: int,
    on_progress: OnProgress = no_progress,
    parts: Sequence[Part] = (),
    build: Build | None = None,
    first: TreeModel | None = None,
) -> TreeModel:
    """The model as it was before it was fitted to all users; items that were added later are hidden.

    It is `first` where that was kept and nothing else was chosen since, with the same items removed and hidden.
    """
    if first is not None and first.scorer.hyperparameters == model.scorer.hyperparameters:
        return _with_edits(first, model)
    if keeps_first(model, data):
        log.warning("The model before the refit was not kept: its sequence part is trained again, which takes a while.")
    if data.all is not None:
        result = _fit_again(model, data, data, seed, on_progress, parts, build)
    else:
        result = refit_parts(model, data, data.train.events, seed, on_progress, parts=parts)
    added = range(data.num_items, model.tree.num_items)
    return with_hidden(result, [*model.tree.hidden().tolist(), *added]) if added else result


def seed_of(run: Mapping[str, Any]) -> int:
    """The seed that the model of a run was fitted with."""
    return int(run.get("seed") or 0)


def fitted_sections(data: Prepared, run: Mapping[str, Any], updated: object) -> Sequence[BeforeAfter]:
    """The users of a log that the model of a run was fitted to; an update adds the validation users."""
    return data.whole if run.get("refit") else data.sections[: 2 if updated else 1]


def fitted_users(
    model: TreeModel, data: Prepared, run: Mapping[str, Any], events: Mapping[str, Sequence[Event]] | None
) -> FittedUsers:
    """The users that the model of a run was fitted to: in training, and by updates.

    Args:
        model: the model.
        data: the training log.
        run: the content of run.json.
        events: those of updates since, by user; None for none.
    """
    updated = events if events and has_closed_form(model) else {}
    times = (event.time for recorded in updated.values() for event in recorded)
    until = max((math.inf if time is None else time for time in times), default=-math.inf)
    return FittedUsers(data, fitted_sections(data, run, updated), frozenset(updated), until)


def model_to_measure(
    model: TreeModel,
    users: Data,
    data: Prepared | None,
    run: Mapping[str, Any],
    events: Mapping[str, Sequence[Event]] | None,
    before: Callable[[], TreeModel],
) -> tuple[TreeModel, str, FittedUsers | None]:
    """The model to measure on some users, which one it is if a run was fitted to all, and whom it was fitted to.

    Users that the split of the log held out are measured on the model before the refit, others on that which serves.

    Args:
        model: that which serves.
        users: on whom it is measured.
        data: the training log, if available.
        run: the content of run.json.
        events: those of updates since, by user; None for none.
        before: gives the model before the refit.
    """
    refitted = bool(run.get("refit"))
    if refitted and data is not None and data.holds_out(users):
        return before(), BEFORE, FittedUsers(data, data.sections[:1])
    fitted = None if data is None else fitted_users(model, data, run, events)
    return model, SERVED if refitted else "", fitted

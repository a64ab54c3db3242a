"""Nightly renewal of a run: new events and items in, closed-form parts fitted again with yesterday's choices.

Penalties, weights, the tree and the weights of networks stay. New items are placed in the tree beside the items that
their users chose; only if the catalogue has grown much is the tree built again. The newest events of some users are
held out until the next renewal, and both models are compared on them. If the renewed one is worse, nothing is saved. A
new run takes the place of the old one in one step, and the old one is kept beside it.
"""

import copy
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from beamtree.beam import default_beam_size
from beamtree.data import BeforeAfter, Events, Prepared, load_data
from beamtree.data.csr import entries_of_rows, offsets_of, strongest, sum_duplicates
from beamtree.data.views import OtherUsers
from beamtree.errors import explain_full_disk, requires, short_message
from beamtree.evaluate import evaluate, search_function
from beamtree.evaluate.metrics import bootstrap, default_m, hits
from beamtree.files.atomic import check_replaceable, edit_folder
from beamtree.files.staging import (
    copy_linked,
    exchange,
    folder_lock,
    move_into_place,
    remove_leftovers,
    staging_folder,
    swap,
)
from beamtree.ingest.columns import LogColumns
from beamtree.ingest.inputs import tree_builder
from beamtree.live.edits import with_items
from beamtree.live.events import Event, TrainingLog
from beamtree.live.live_model import LiveModel, SavedChanges
from beamtree.live.placement import NEAREST, Placement
from beamtree.live.refit import fitted_sections, has_closed_form, on_new_tree, refit_parts, seed_of
from beamtree.live.saved import load_changes, save_changes
from beamtree.model import TreeModel
from beamtree.parts import Part
from beamtree.parts.deep import DEEP
from beamtree.progress import Reporter, clock
from beamtree.scorers import Scorer, as_sum, with_inputs
from beamtree.storage.models import save_model
from beamtree.storage.runs import (
    DATA,
    LOG,
    RUN,
    TABLES,
    check_run,
    open_data,
    open_model,
    read_run,
    save_table,
    table_file,
    write_run,
)
from beamtree.storage.settings import SETTINGS
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import resolve_settings, train_model
from beamtree.tree import PAD

PREVIOUS = ".previous"  # the run before the last renewal is RUN.previous
KEPT = ".kept"  # RUN.kept becomes RUN.previous once another run has taken the place of RUN
MAX_GROWTH = 0.3  # of the catalogue since the tree was built, beyond which it is built again
EVALUATED = 2000  # users whose newest events are held out, at most
SAMPLE = 1000  # users whose answers are compared
SHOWN = 10  # items of an answer
LEVEL = 0.99  # of the interval by which a model is worse


@dataclass(frozen=True)
class RecallChange:
    """Recall of yesterday's and of the renewed model for the same users, and the 95 % interval of the difference."""

    m: int
    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """What a renewal did; it prints as a report."""

    saved: bool
    events: int = 0  # new ones
    users: int = 0  # new ones
    items: int = 0  # new ones
    repeated: int  # rows that the log of the run had already
    dropped: int  # rows that could not be used
    recall: Sequence[RecallChange] = ()  # on the newest events, which neither model was fitted to
    evaluated: int = 0  # users behind these numbers
    unchanged: float = 1.0  # share of the first 10 answers that stay, for users of yesterday's log
    shown: int = 0  # new items among these answers
    growth: float = 0.0  # of the catalogue since the tree was built
    rebuilt: str | None = None  # whether the tree was built again, or why not; None if it was not due
    steps: int = 0  # training steps
    seconds: float

    @property
    def result(self) -> str:
        """Whether the renewed model was saved, or why not: saved, worse, or unchanged where nothing in a log is new."""
        if self.saved:
            return "saved"
        return "worse" if self.recall else "unchanged"

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {"result": self.result, **asdict(self)}

    def __str__(self) -> str:
        if self.result == "unchanged":
            return f"Unchanged: the log has {self.repeated + self.dropped:,} rows, and nothing in them is new."
        lines = [f"Added {self.events:,} events, {self.users:,} users and {self.items:,} items."]
        if self.repeated or self.dropped:
            lines.append(f"Left out {self.repeated:,} rows that were added before and {self.dropped:,} unusable ones.")
        if self.rebuilt is not None:
            lines.append(
                f"The catalogue has grown by {100 * self.growth:.0f} % since the tree was built: {self.rebuilt}."
            )
        for change in self.recall:
            values = f"{100 * change.before:.2f} % yesterday, {100 * change.after:.2f} % renewed"
            interval = f"{100 * change.low:+.2f} to {100 * change.high:+.2f}"
            lines.append(f"Recall@{change.m} of {self.evaluated:,} users' newest events: {values} ({interval}).")
        lines.append(
            f"{100 * self.unchanged:.1f} % of the first {SHOWN} answers stay; {self.shown:,} new items are among them."
        )
        verdict = "Saved" if self.saved else "Not saved, because the renewed model is worse"
        return "\n".join([*lines, f"{verdict}; it took {clock(self.seconds)}."])


def renew(
    run: str | Path,
    log: Any,
    *,
    force: bool = False,
    steps: int = 0,
    names: Sequence[str] | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    device: str = "cpu",
    scorers: Sequence[type[Scorer]] = (),
    parts: Sequence[Part] = (),
    verbose: bool = True,
) -> Renewal:
    """Add new events to a run's log and renew its model, unless recall of the newest events is lower than before.

    It is lower if the 99 % interval of the mean relative change of recall at 10 and at 200 items lies below 0. A log in
    which nothing is new leaves the run as it is.

    Args:
        run: the folder; it needs the prepared data of the run, and a model with closed-form parts.
        log: new events only, in any form that `fit` takes. Events with times count once, however often they are given.
        force: save a worse model too.
        steps: training steps of the network after that, from yesterday's weights; kept if validation users find more.
        names: the columns of text files without a header.
        user: the column of users. Default: as in the first log.
        item: the column of items. Default: as in the first log.
        time: the column of times. Default: as in the first log.
        time_format: the format of dates as in strptime, such as "%d/%m/%Y %H:%M". Default: detected.
        device: cpu or cuda.
        scorers: scorer classes from outside the package.
        parts: parts from outside the package; one that is not given stays as it was.
        verbose: print progress on standard error.
    """
    with requires("", "reading a log"):
        from beamtree.ingest.append import NothingNewError, append_log

    folder, began = Path(run).resolve(), monotonic()
    columns = LogColumns(user=user, item=item, time=time, time_format=time_format)
    _recover(folder)
    check_run(folder)
    check_replaceable(folder)
    settings = read_run(folder)
    seed = seed_of(settings)
    if steps < 0:
        raise ValueError(f"steps={steps}: must be 0 or more")
    with (
        explain_full_disk(folder),
        folder_lock(folder),
        staging_folder(folder) as draft,
        Reporter(verbose) as report,
    ):
        old = open_model(folder, device, scorers)
        if not has_closed_form(old):
            raise ValueError(f"{folder} has no closed-form parts to renew: train it with the recipe beamtree")
        assert old.ids is not None
        data, new_run = open_data(folder, old), draft / folder.name
        new_run.mkdir()
        report.stage("Adding the log")
        try:
            added = append_log(data, old.ids, log, new_run / DATA, columns, names=names)
        except NothingNewError as nothing:
            dropped = nothing.rows - nothing.repeated
            return Renewal(saved=False, repeated=nothing.repeated, dropped=dropped, seconds=monotonic() - began)
        joined = load_data(new_run / DATA)
        sections = fitted_sections(joined, settings, ())
        events = joined.joined(sections)
        tree_items = int(settings.get("tree_items") or data.num_items)
        growth = joined.num_items / tree_items - 1
        report.stage("Placing new items")
        grown = with_items(old, _placements(old, events, joined), partners=False) if added.items else old
        rebuilt = None
        if growth > MAX_GROWTH:
            try:
                grown = _on_new_tree(grown, joined, folder, settings)
                tree_items, rebuilt = joined.num_items, "built again"
            except ValueError as error:
                rebuilt = f"it stays, because {short_message(error)}"
        is_new = _is_new(joined, sections, torch.from_numpy(added.is_new), load_changes(folder))
        held_out = _hold_out(events, is_new, seed)
        if held_out is None and not force:
            raise ValueError("too few users of the log can be evaluated on: `force` saves without a comparison")
        rest, users = held_out or (events, None)
        if steps:  # beside parts that do not know the validation users
            report.stage("Training")
            training = _of_training_users(rest, joined, sections)
            grown = refit_parts(grown, joined, training, seed, parts=parts)
            grown = _trained(grown, replace(joined, train=BeforeAfter(training)), settings, steps)
        report.stage("Fitting the closed form")
        model = refit_parts(grown, joined, rest, seed, parts=parts)
        report.stage("Comparing with yesterday's model")
        changes, is_worse = ([], False) if users is None else _compare(old, model, users)
        unchanged, shown = compare_answers(old, model, data)
        result = Renewal(
            saved=force or not is_worse,
            events=added.events,
            users=added.users,
            items=added.items,
            repeated=added.repeated,
            dropped=added.dropped,
            recall=changes,
            evaluated=0 if users is None else len(users),
            unchanged=unchanged,
            shown=shown,
            growth=growth,
            rebuilt=rebuilt,
            steps=steps,
            seconds=monotonic() - began,
        )
        if result.saved:
            renewal = {"data": None, "tree_items": tree_items, "renewals": settings.get("renewals", 0) + 1}
            write_run(new_run, {**settings, **renewal, "renewal": result.as_dict()})
            save_model(model, new_run)
            _save_rest(folder, new_run, model, joined)
            _keep(folder)
            try:
                swap(folder, new_run)
            finally:
                _complete(folder)
    return result


def roll_back(run: str | Path) -> None:
    """Let a run and the one before its last renewal change places; a second time, they change back."""
    folder = Path(run).resolve()
    previous, kept = _beside(folder)
    _recover(folder)
    if not previous.is_dir():
        raise ValueError(f"{folder} was not renewed: there is no {previous.name} to go back to")
    check_run(previous)
    check_replaceable(folder)
    with folder_lock(folder), staging_folder(folder):
        if exchange(folder, previous):
            return
        try:  # in three renames, where the system cannot swap two folders: `_complete` can go on after each
            os.rename(folder, kept)
            os.rename(previous, folder)
        finally:
            _complete(folder)


# New items


def _placements(model: TreeModel, events: Events, data: Prepared) -> dict[str, Placement]:
    """For each new item, the items that its users chose most typically.

    An item that n of these users chose has the strength n²/(events + n), as in `placement.like_histories`.
    """
    known, count = model.tree.num_items, data.num_items
    owner, item = torch.repeat_interleave(events.counts()), events.item_numbers().long()
    is_new = item >= known
    pair = torch.unique(owner[is_new] * count + item[is_new])  # of a user and a new item
    index, entry = entries_of_rows(events.offsets - events.offsets[0], pair // count)
    other = item[entry]
    has_leaf = model.tree.leaf_of_item(torch.arange(known, device=model.tree.device)).cpu() != PAD
    near = (other < known) & has_leaf[other.clamp(max=known - 1)]
    chosen = torch.unique(index[near] * count + other[near])  # each once for each user
    edge, n = sum_duplicates((pair[chosen // count] % count) * count + chosen % count, torch.ones(len(chosen)))
    source, target = edge // count, edge % count
    strength = n.square() / (events.popularity(count)[target] + n)
    rows = strongest(source - known, target, strength, count - known, NEAREST)
    assert rows.values is not None
    items, shares = (part.split(rows.counts().tolist()) for part in (rows.columns.long(), rows.values))
    names = data.items.names[known:]
    return {
        name: Placement(near_items, values / values.sum().clamp(min=1e-9))
        for name, near_items, values in zip(names, items, shares, strict=True)
    }


def _on_new_tree(model: TreeModel, data: Prepared, folder: Path, run: dict[str, Any]) -> TreeModel:
    """The model on a tree of the same kind, built from the new data; removed items stay so."""
    tables = {name: table_file(folder, name, run) for name in TABLES}
    return on_new_tree(model, tree_builder(run["tree"], **tables)(data, run["arity"], run["seed"]))


def _trained(model: TreeModel, data: Prepared, run: dict[str, Any], steps: int) -> TreeModel:
    """A copy whose network is trained for some steps; as it was, if validation users do not find more."""
    names = ("method", "recipe", "beam_size", "batch_size", "lr", "optimizer", "seed")
    options = TrainingOptions(**{name: run[name] for name in names}, steps=steps, sequence=False)
    settings = resolve_settings(data, replace(options, device=str(model.tree.device)))
    model = copy.deepcopy(model)
    scorer = as_sum(model.scorer)
    if scorer is not None and scorer.learned is None:  # its weight was 0
        network = settings.recipe.scorer(model.tree, data, settings.seed).to(model.tree.device)
        model = model.with_scorer(scorer.with_part(DEEP, network, 0.0, learned=True))
    train_model(settings, data, model)
    return model.eval()


# The comparison


def _is_new(data: Prepared, sections: Sequence[BeforeAfter], marks: Tensor, changes: SavedChanges | None) -> Tensor:
    """Which of the events that a model is fitted to are new to both models, from marks of all events of the data.

    Those of validation users do not count, since they decide about further training; neither do those of users of an
    update, to which yesterday's model may be fitted already.
    """
    views = [replace(view, events=replace(view.events, weights=marks & (view is not data.val))) for view in sections]
    is_new = data.joined(views).own_weights()
    assert is_new is not None
    if changes is not None and changes.events:
        users = torch.tensor([name in changes.events for name in data.joined_users(sections)])
        is_new &= ~users.repeat_interleave(data.joined(sections).counts())
    return is_new


def _of_training_users(events: Events, data: Prepared, sections: Sequence[BeforeAfter]) -> Events:
    """Of the events of some sections, those of training users that are in their section."""
    rows = {name: row for row, name in enumerate(data.joined_users(sections))}
    users = torch.tensor([rows[name] for name in data.train.user_names() or ()])
    own = events.of(users, f"{events.name}, training users")
    owner = torch.repeat_interleave(own.counts())
    position = torch.arange(len(owner)) - own.offsets[:-1][owner]
    return _some(own, position < data.train.events.counts()[owner], own.name)


def _some(events: Events, kept: Tensor, name: str) -> Events:
    """Some of the events of each user."""
    weights = events.own_weights()
    weights = None if weights is None else weights[kept]
    contexts = None if events.contexts is None else events.contexts.of(events.span()).of(kept)
    lengths = torch.bincount(torch.repeat_interleave(events.counts())[kept], minlength=len(events))
    offsets = offsets_of(lengths)
    times = None if events.times is None else events.times[events.span()][kept]
    return Events(offsets, events.item_numbers()[kept], name, events.ids, weights, times, contexts, events.clock)


def _hold_out(events: Events, is_new: Tensor, seed: int) -> tuple[Events, BeforeAfter] | None:
    """Events without the newest of some users, and these users with the rest as history; None if there are too few.

    Of the new events at a user's end the second half is held out, of at most a quarter of the users who have any.
    """
    counts, offsets = events.counts(), events.offsets - events.offsets[0]
    owner, position = torch.repeat_interleave(counts), torch.arange(len(is_new))
    last_old = (offsets[:-1] - 1).scatter_reduce(0, owner, torch.where(is_new, -1, position), "amax")
    newest = offsets[1:] - 1 - last_old
    held = newest - newest // 2
    is_held = position >= (offsets[1:] - held)[owner]
    targets = torch.bincount(owner[is_held & events.is_target(position + events.offsets[0])], minlength=len(counts))
    users = ((targets > 0) & (held < counts)).nonzero().squeeze(1)
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(seed))
    users = users[order[: min(EVALUATED, len(users) // 4)]].sort().values
    if not len(users):
        return None
    chosen = torch.zeros(len(counts), dtype=torch.bool)
    chosen[users] = True
    rest = _some(events, ~(is_held & chosen[owner]), f"{events.name}, without the newest of {len(users)}")
    return rest, BeforeAfter(events.of(users, f"{events.name}, newest"), (counts - held)[users])


def _compare(old: TreeModel, new: TreeModel, users: BeforeAfter) -> tuple[list[RecallChange], bool]:
    """Recall of both models for the same users, and whether the new one is worse: one test of all cuts together."""
    cuts = sorted({SHOWN, default_m(old.tree.num_items)})
    beam = default_beam_size(max(cuts))
    before, after = (
        evaluate(model, known_to(model, users), beam_size=beam, m=cuts, metrics="recall") for model in (old, new)
    )
    difference = (after.per_user - before.per_user)[:, :, 0]  # [U, cuts]
    low, high = bootstrap(difference)
    bounds = zip(cuts, low.tolist(), high.tolist(), strict=True)
    changes = [RecallChange(m, before["recall", m], after["recall", m], *interval) for m, *interval in bounds]
    relative = difference / before.per_user[:, :, 0].mean(0).clamp(min=1e-9)
    return changes, bool(bootstrap(relative.mean(1, keepdim=True), level=LEVEL)[1] < 0)


def known_to(model: TreeModel, users: BeforeAfter) -> BeforeAfter:
    """The same users for a model of fewer items: others are left out of histories, and never found as targets."""
    events, count = users.events, model.tree.num_items
    assert users.cuts is not None
    owner, item = torch.repeat_interleave(events.counts()), events.item_numbers()
    position = torch.arange(len(owner)) - (events.offsets - events.offsets[0])[owner]
    is_history = position < users.cuts[owner]
    kept = ~is_history | (item < count)
    cuts = torch.bincount(owner[is_history & kept], minlength=len(events))
    known = replace(_some(events, kept, events.name), ids=model.ids)
    return OtherUsers(known, cuts, num_items=count)


def compare_answers(old: TreeModel, new: TreeModel, data: Prepared) -> tuple[float, int]:
    """The share of the first answers that stay, for histories of a log; and how many new items are among them."""
    users = data.train.sample(SAMPLE)
    users = BeforeAfter(users.events, users.events.counts())
    same, shown = [], []
    for rows in torch.arange(len(users)).split(64):
        before, after = (
            search_function(model, default_beam_size(SHOWN), SHOWN)(x, x[:, :0]).cpu()
            for model in (old, new)
            for x in (with_inputs(model.scorer, users).batch(rows)[0],)
        )
        same.append(hits(after, before)[after != PAD])
        shown.append(after[after >= old.tree.num_items])
    return float(torch.cat(same).float().mean()), len(torch.unique(torch.cat(shown)))


# Files


def edit_run(run: str | Path, change: Callable[[Path], bool]) -> None:
    """Let a function change a copy of a run, which takes the place of the run in one step if it returns true.

    Nobody else can write to the run meanwhile, and after an error it is as it was.
    """
    folder = Path(run).resolve()
    _recover(folder)
    check_run(folder)
    edit_folder(folder, change)


def _save_rest(folder: Path, new_run: Path, model: TreeModel, data: Prepared) -> None:
    """Copy tables and the training log, and write live changes, without those that the log now has."""
    if (folder / LOG).is_file():
        shutil.copyfile(folder / LOG, new_run / LOG)
    for name in TABLES:
        table = table_file(folder, name)
        if table is not None and table.parent == folder:
            save_table(new_run, name, partial(shutil.copyfile, table))
    saved = load_changes(folder)
    if saved is None:
        return
    log, events = TrainingLog(data), dict[str, list[Event]]()
    for user, row in saved.events.items():
        left = [event for event, is_logged in zip(row, log.contains(user, row), strict=True) if not is_logged]
        events |= {user: left} if left else {}
    assert model.ids is not None
    assert model.popularity is not None
    numbers = model.ids.find_known(saved.added)
    unseen = [name for name, number in zip(saved.added, numbers, strict=True) if not int(model.popularity[number])]
    saved = saved._replace(added=unseen, events=events)
    save_changes(new_run, LiveModel(model, data=data, saved=saved))


def _beside(folder: Path) -> tuple[Path, Path]:
    """RUN.previous and RUN.kept."""
    return folder.with_name(folder.name + PREVIOUS), folder.with_name(folder.name + KEPT)


def _keep(folder: Path) -> None:
    """Copy a run to RUN.kept, by links where the system has them: no file of a run is changed in place."""
    _, kept = _beside(folder)
    with staging_folder(kept) as draft:
        copy_linked(folder, draft / kept.name)
        move_into_place(draft / kept.name, kept)


def _complete(folder: Path) -> None:
    """Make RUN.kept the previous run where another one has taken the place of RUN; otherwise RUN is as it was.

    A process that is killed leaves RUN.kept, and what it was doing is completed by the next renewal or roll-back.
    """
    previous, kept = _beside(folder)
    if not kept.is_dir():
        return
    if not folder.is_dir():
        os.rename(kept, folder)
        return
    with staging_folder(kept) as draft:  # what is not needed is moved there first, so that no half of it is ever found
        if all(_content(folder / name) == _content(kept / name) for name in (RUN, SETTINGS)):
            os.rename(kept, draft / kept.name)
            return
        if previous.is_dir():
            os.rename(previous, draft / previous.name)
        os.rename(kept, previous)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _recover(folder: Path) -> None:
    """Complete what a killed renewal or roll-back began, and remove what it left."""
    _, kept = _beside(folder)
    remove_leftovers(folder)
    remove_leftovers(kept)
    if kept.is_dir():
        with staging_folder(folder):
            _complete(folder)

"""Recommender: one object that learns from a log and recommends, ids in and ids out."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic as time_now
from typing import Any

from torch import Tensor

from beamtree.answers import Answer, History, answer, as_columns, history_of_user, item_filter, listed, read_histories
from beamtree.beam import BeamSize
from beamtree.data import Ids, Prepared
from beamtree.data.ids import as_id
from beamtree.data.report import log_in_words
from beamtree.distributed import join, ranks
from beamtree.evaluate import Evaluation, evaluate
from beamtree.frames import frame
from beamtree.ingest.logs import open_log
from beamtree.ingest.trees import any_builder
from beamtree.live.changing import Changing
from beamtree.methods import Method
from beamtree.metrics import Metric
from beamtree.model import TreeModel, check_device
from beamtree.scorers import Scorer
from beamtree.storage.models import load_model, save_model
from beamtree.storage.settings import holds_model
from beamtree.train.alike import check_alike
from beamtree.train.loop import OnStep
from beamtree.train.recipes import MakeScorer, Recipe, settle, start_model, train_model
from beamtree.train.reporting import Reporter, clock
from beamtree.train.runs import (
    DATA,
    RUN,
    data_folder,
    describe_run,
    holding,
    ids_of,
    open_data,
    open_model,
    progress_of,
    read_run,
    replace_data,
    write_run,
)
from beamtree.train.validation import OnCheck, Progress
from beamtree.tree import Tree

BATCH = 256  # users that go down the tree together


class Recommender(Changing):
    """Learns what users will want next from a log of users, items and times, and recommends it.

    Args:
        method: a name of `beamtree.methods.METHODS`, or a `Method` of your own.
        tree: cluster, category, random, a file that `beamtree tree` wrote, a `Tree`, or a function (data) -> Tree.
        items: a table of item and category: category trees need it, cluster trees can use it.
        vectors: vectors of the items to cluster, in a file.
        arity: children per node.
        scorer: a class, or a function (tree, data, seed) -> Scorer; the recipe's unless given.
        recipe: beamtree, good on ordinary data, or paper, as published; or a `Recipe` of your own.
        beam_size: k in training; 400 on a GPU and 100 on a CPU unless given.
        nodes: uniform nodes per level, for methods that draw them; 2k unless given.
        epochs: how long to train; as many as make 10,000 steps on a GPU, and 300 steps on a CPU, unless given.
        steps: the same in steps.
        batch_size: users per step; 200 on a GPU and 50 on a CPU unless given.
        lr: Adam's learning rate; the recipe's unless given.
        optimizer: adam, or lazy for millions of items.
        patience: training stops after this many checks without a rise in recall on validation users.
        device: cpu or cuda.
        seed: same seed, same model.
        refit: whether the parts in closed form are made again at the end, from validation users' events as well.
    """

    def __init__(
        self,
        *,
        method: str | Method = "otm-mixed",
        tree: str | Path | Tree | Any = "cluster",
        items: str | Path | None = None,
        vectors: str | Path | None = None,
        arity: int = 2,
        scorer: MakeScorer | type[Scorer] | None = None,
        recipe: str | Recipe = "beamtree",
        beam_size: int | None = None,
        nodes: int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        optimizer: str = "adam",
        patience: int = 8,
        device: str = "cpu",
        seed: int = 0,
        refit: bool = False,
    ) -> None:
        check_device(device)
        self._how: dict[str, Any] = {
            "method": method, "scorer": scorer, "recipe": recipe, "beam_size": beam_size, "nodes": nodes,
            "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr, "optimizer": optimizer,
            "patience": patience, "device": device, "seed": seed, "refit": refit,
        }  # fmt: skip
        self._built: dict[str, Any] = {"arity": arity, "items": items, "vectors": vectors}
        self._tree_name, self._build = any_builder(tree, items, vectors)
        self._model: TreeModel | None = None
        self._data: Prepared | None = None
        self._run: dict[str, Any] = {}
        self._where: tuple[Path, Path] | None = None  # the run that was loaded, and its data, which are opened late
        self._owns_data = False  # whether the prepared log was made for this object and goes with it
        self.progress: Progress | None = None  # where training ended

    def __repr__(self) -> str:
        if self._model is None:
            method = self._how["method"]
            name = method if isinstance(method, str) else method.name
            return f"Recommender({name} on a {self._tree_name} tree, not fitted: call fit(log))"
        brought = "" if self.progress is None else self.progress.in_words(self._model.tree.num_items)
        name = self._run.get("method", "a model")
        return f"Recommender({self.model.tree.num_visible:,} items, {name}{brought and ', ' + brought})"

    @property
    def model(self) -> TreeModel:
        """The tree and the scorer."""
        if self._live is not None:
            return self._live.model
        if self._model is None:
            raise ValueError("this recommender has learned nothing yet: call fit(log), or Recommender.load(folder)")
        return self._model

    @property
    def data(self) -> Prepared:
        """The prepared log."""
        model = self.model
        if self._data is None and self._where is not None:
            run, folder = self._where
            self._data = open_data(run, model, folder)
        if self._data is None:
            raise ValueError("the log of this recommender is not here: load it with data=FOLDER")
        return self._data

    @property
    def ids(self) -> Ids:
        """The ids of the items."""
        if self.model.ids is None:
            raise ValueError("the items of this model have numbers and no ids")
        return self.model.ids

    def fit(
        self,
        log: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        min_events: int | None = None,
        val_users: int | None = None,
        test_users: int | None = None,
        on_step: OnStep | None = None,
        on_check: OnCheck | None = None,
        verbose: bool = True,
    ) -> "Recommender":
        """Learn from a log, as `beamtree prepare` and `beamtree train` do, together with all ranks under torchrun.

        Args:
            log: a Polars or pandas frame, an Arrow table, a file or several, or a folder that `prepare` wrote.
            user: the column of users, where it has an unusual name.
            item: the column of items, likewise.
            time: the column of times, likewise.
            min_events: users with fewer are left out; nobody unless given.
            val_users: how many are kept apart for validation; 5 %, at most 1,000, unless given.
            test_users: and for testing.
            on_step: hears the steps done, those in all, and the loss.
            on_check: hears the steps done and the recall on validation users.
            verbose: whether a report and progress are shown on standard error. They go to the logger "beamtree"
                instead where that shows INFO.
        """
        given = {"user": user, "item": item, "time": time, "min_events": min_events, "val_users": val_users}
        options = {name: value for name, value in {**given, "test_users": test_users}.items() if value is not None}
        began, together = time_now(), join(self._how["device"])
        with Reporter(verbose and together.is_first) as report:
            with together.agreed():
                data, own = open_log(log, self._how["seed"], options, report.stage)
                settings = settle(data, **self._how)
            for line in log_in_words(data.description):
                report.line(line)
            run = describe_run(settings, data.folder, self._tree_name, self._how["recipe"], **self._built)
            check_alike(together, **{**run, "data": data.train.fingerprint()})
            report.stage(f"Building a {self._tree_name} tree over {data.num_items:,} items")
            tree = self._build(data, self._built["arity"], settings.seed)
            model = start_model(settings, data, tree, report.progress)

            def count(done: int, total: int, loss: Tensor) -> None:
                report.progress("Training", done, total)
                if on_step is not None:
                    on_step(done, total, loss)

            progress = train_model(settings, data, model, on_step=count, on_check=on_check)
            closed_form = settings.recipe.start is not None
            report.line(progress.as_report(data.num_items, len(data.val), closed_form))
            report.line(f"Fitted in {clock(time_now() - began)}.")
        self._data, self._model, self._run, self.progress = data, model, run, progress
        self._where, self._owns_data, self._live = None, own, None
        return self

    def recommend(
        self,
        histories: Any = None,
        *,
        users: Any = None,
        m: int = 10,
        beam_size: BeamSize | None = None,
        exclude_seen: bool = False,
        allowed: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
    ) -> Any:
        """The m best items as a frame: rank, item, score, best first.

        Args:
            histories: ids of items, oldest first: one history, a list of several, or a dict from user to history.
            users: instead, ids of users of the log, whose events are known.
            m: how many items for each.
            beam_size: k, or one width per searched level; 400 or m unless given: wider finds more and takes longer.
            exclude_seen: whether items of the history are left out.
            allowed: ids that may be recommended, all unless given.
            exclude: ids that may not.

        Where there are several, a column before these says which: `history` (0, 1, 2, …) or `user`. The score is the
        probability by which items were ranked. Who is unknown gets what is popular. All get m items, if m may be found.
        """
        if (histories is None) == (users is None):
            raise ValueError("give histories or users: one of the two")
        key, found = read_histories(self.ids, histories) if users is None else ("user", self._of_users(users))
        mask = item_filter(self.model, self.ids, allowed, exclude)
        beam = max(400, m) if beam_size is None else beam_size
        names, rows = [name for name, _ in found], [history for _, history in found]
        answers: list[Answer] = []
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            answers += answer(self.model, self.ids, some, beam_size=beam, m=m, exclude_seen=exclude_seen, allowed=mask)
        types = {"user": str, "history": int, "rank": int, "item": str, "score": float}
        return frame(as_columns(key, names, answers), types)

    def _of_users(self, users: Any) -> list[tuple[str, History]]:
        since = {} if self._live is None else {user: self._live.history(user) for user in map(as_id, listed(users))}
        return [(as_id(user), since.get(as_id(user)) or history_of_user(self.data, user)) for user in listed(users)]

    def _learned_from(self) -> Prepared | None:
        return self.data if self._data is not None or self._where is not None else None

    def evaluate(
        self,
        m: Sequence[int] | int = (10, 50, 100, 200),
        *,
        beam_size: BeamSize | None = None,
        metrics: str | Metric | Sequence[str | Metric] = ("precision", "recall", "f1"),
        exclude_seen: bool = False,
        data: Any = None,
    ) -> Evaluation:
        """How well the test users' next items are found, with intervals; `.to_frame()` gives a frame.

        Args:
            m: how many items are retrieved.
            beam_size: k, 400 or the largest m unless given.
            metrics: names such as recall, ndcg, mrr, or functions of your own.
            exclude_seen: whether what a user has seen is neither recommended nor expected.
            data: other users than the test users of the log, such as `shop.data.val`.
        """
        cuts = (m,) if isinstance(m, int) else tuple(m)
        users = self.data.test if data is None else data
        if not len(users):
            raise ValueError("there are no test users: fit with more users, or with test_users=…")
        beam = max((400, *cuts)) if beam_size is None else beam_size
        return evaluate(self.model, users, beam_size=beam, m=cuts, metrics=metrics, exclude_seen=exclude_seen)

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which `Recommender.load` and the commands read; a log from memory goes with it."""
        folder, model, run = Path(folder), self.model, {**self._run}
        source = self._data.folder if self._data is not None else self._where and self._where[1]
        if source is not None:
            run["data"] = None if self._owns_data else str(source.resolve())
        with holding(folder):
            with ranks().agreed() as first:
                if first and source is not None:
                    replace_data(folder, source if self._owns_data else None)
                if first:
                    write_run(folder, run, self.progress)
                    self._save_events(folder)
            save_model(model, folder)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "cpu",
        data: str | Path | None = None,
        scorers: Sequence[type[Scorer]] = (),
    ) -> "Recommender":
        """Read a run folder that `save`, `beamtree train` or `beamtree compare` wrote.

        Args:
            folder: the run.
            device: where it recommends.
            data: the prepared log, where it is no longer where it was.
            scorers: classes of scorers from outside the package.
        """
        folder = Path(folder)
        is_run = (folder / RUN).exists() or not holds_model(folder)  # else a model that `save_model` wrote
        check_device(device)
        model = open_model(folder, device, scorers) if is_run else load_model(folder, device, scorers=scorers)
        ids_of(folder, model)
        found = cls(device=device)
        found._model, found._run = model, read_run(folder) if is_run else {}
        where = data_folder(folder) if is_run else None
        if data is not None:
            found._data = open_data(folder, model, Path(data))
        elif where is not None and where.exists():
            found._where, found._owns_data = (folder, where), where == folder / DATA
        found.progress = progress_of(found._run)
        found._load_events(folder)
        return found

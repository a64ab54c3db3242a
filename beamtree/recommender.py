"""Recommender: one object that learns from a log and recommends, ids in and ids out."""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from beamtree.answers import Answer, History, answer, history_of_user, item_filter, read_histories
from beamtree.data import Ids, Prepared, load_data
from beamtree.data.ids import as_id
from beamtree.evaluate import Evaluation, evaluate
from beamtree.frames import frame
from beamtree.ingest.trees import any_builder
from beamtree.methods import Method
from beamtree.metrics import Metric
from beamtree.model import TreeModel, check_device
from beamtree.scorers import Scorer
from beamtree.storage import save_model
from beamtree.train.loop import OnStep
from beamtree.train.recipes import MakeScorer, Recipe, settle, start_model, train_model
from beamtree.train.runs import (
    DATA,
    data_folder,
    describe_run,
    finish_run,
    ids_of,
    open_data,
    open_model,
    progress_of,
    read_run,
    write_run,
)
from beamtree.train.validation import OnCheck, Progress
from beamtree.tree import Tree

BATCH = 256  # users that go down the tree together


class Recommender:
    """Learns what users will want next from a log of users, items and times, and recommends it.

    Args:
        method: a name of `beamtree.methods.METHODS`, or a `Method` of your own.
        tree: cluster, category, random, a file that `beamtree tree` wrote, a `Tree`, or a function (data) -> Tree.
        items: a table of item and category: category trees need it, cluster trees can use it.
        vectors: vectors of the items to cluster, in a file.
        arity: children per node.
        scorer: a function (tree, data, seed) -> Scorer; the recipe's unless given.
        recipe: beamtree, good on ordinary data, or paper, as published; or a `Recipe` of your own.
        beam_size: k in training; 400 on a GPU and 100 on a CPU unless given.
        nodes: uniform nodes per level, for methods that draw them; 2k unless given.
        epochs: how long to train; as many as make 10,000 steps on a GPU and 3,000 on a CPU unless given.
        steps: the same in steps.
        batch_size: users per step; 200 on a GPU and 50 on a CPU unless given.
        lr: Adam's learning rate; the recipe's unless given.
        optimizer: adam, or lazy for millions of items.
        patience: training stops when recall on validation users has not risen so many checks.
        device: cpu or cuda.
        seed: same seed, same model.
    """

    def __init__(
        self,
        *,
        method: str | Method = "otm-mixed",
        tree: str | Path | Tree | Any = "cluster",
        items: str | Path | None = None,
        vectors: str | Path | None = None,
        arity: int = 2,
        scorer: MakeScorer | None = None,
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
    ) -> None:
        check_device(device)
        self._how: dict[str, Any] = {
            "method": method, "scorer": scorer, "recipe": recipe, "beam_size": beam_size, "nodes": nodes,
            "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr, "optimizer": optimizer,
            "patience": patience, "device": device, "seed": seed,
        }  # fmt: skip
        self._arity = arity
        self._tree_name, self._build = any_builder(tree, items, vectors)
        self._model: TreeModel | None = None
        self._data: Prepared | None = None
        self._run: dict[str, Any] = {}
        self._is_temporary = False  # whether the prepared data go with this object
        self.progress: Progress | None = None  # where training ended

    def __repr__(self) -> str:
        if self._model is None:
            method = self._how["method"]
            name = method if isinstance(method, str) else method.name
            return f"Recommender({name} on a {self._tree_name} tree, not fitted: call fit(log))"
        recall = ""
        if self.progress is not None and self.progress.best_step >= 0:
            recall = f", recall on validation users {self.progress.best:.1%}"
        return f"Recommender({self._model.tree.num_items:,} items, {self._run.get('method')}{recall})"

    @property
    def model(self) -> TreeModel:
        """The tree and the scorer."""
        if self._model is None:
            raise ValueError("this recommender has learned nothing yet: call fit(log), or Recommender.load(folder)")
        return self._model

    @property
    def data(self) -> Prepared:
        """The prepared log."""
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
        min_events: int = 10,
        val_users: int | None = None,
        test_users: int | None = None,
        on_step: OnStep | None = None,
        on_check: OnCheck | None = None,
    ) -> "Recommender":
        """Learn from a log, as `beamtree prepare` and `beamtree train` do.

        Args:
            log: a Polars or pandas frame, an Arrow table, a file or several, or a folder that `prepare` wrote.
            user: the column of users, where it has an unusual name.
            item: the column of items, likewise.
            time: the column of times, likewise.
            min_events: users with fewer are left out.
            val_users: how many are kept apart for validation; 5 %, at most 1,000, unless given.
            test_users: and for testing.
            on_step: hears the steps done, those in all, and the loss.
            on_check: hears the steps done and the recall on validation users.
        """
        self._data = self._prepared(
            log,
            user=user,
            item=item,
            time=time,
            min_events=min_events,
            val_users=val_users,
            test_users=test_users,
        )
        settings = settle(self._data, **self._how)
        tree = self._build(self._data, self._arity, settings.seed)
        self._model = start_model(settings, self._data, tree)
        recipe = self._how["recipe"]
        name = recipe if isinstance(recipe, str) else "own"
        self._run = describe_run(settings, self._data.folder, self._tree_name, name)
        self.progress = train_model(settings, self._data, self._model, on_step=on_step, on_check=on_check)
        return self

    def _prepared(self, log: Any, **options: Any) -> Prepared:
        """The log as prepared data: where that is no folder of such yet, in a folder that goes with this object."""
        if isinstance(log, Prepared):
            return log
        if isinstance(log, str | Path) and (Path(log) / "description.json").exists():
            return load_data(log)
        from beamtree.ingest.prepare import prepare

        place = tempfile.mkdtemp(prefix="beamtree-")
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        self._is_temporary, folder = True, Path(place) / DATA
        prepare(log, folder, seed=self._how["seed"], **options)
        return load_data(folder)

    def recommend(
        self,
        histories: Any = None,
        *,
        users: Any = None,
        m: int = 10,
        beam_size: int | None = None,
        exclude_seen: bool = False,
        allowed: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
    ) -> Any:
        """The m best items as a frame: rank, item, score, best first.

        Args:
            histories: ids of items, oldest first: one history, a list of several, or a dict from user to history.
            users: instead, ids of users of the log, whose events are known.
            m: how many items for each.
            beam_size: k, 400 or m unless given: wider finds more and takes longer.
            exclude_seen: whether items of the history are left out.
            allowed: ids that may be recommended, all unless given.
            exclude: ids that may not.

        For one history the columns are rank, item and score; for several a column before them says which, `history`
        (0, 1, 2, …) or `user`. The score is the probability by which items were ranked. A user of whom nothing is known
        gets what is popular. Everybody gets m items, unless fewer may be found.
        """
        if (histories is None) == (users is None):
            raise ValueError("give histories or users: one of the two")
        key, found = read_histories(self.ids, histories) if users is None else self._of_users(users)
        mask = item_filter(self.model, self.ids, allowed, exclude)
        beam, rows = beam_size or max(400, m), list(found.values())
        answers: list[Answer] = []
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            answers += answer(self.model, self.ids, some, beam_size=beam, m=m, exclude_seen=exclude_seen, allowed=mask)
        columns: dict[str, list[Any]] = {}
        if key:
            columns[key] = [name for name, each in zip(found, answers, strict=True) for _ in each.items]
        columns["rank"] = [rank for each in answers for rank in range(1, len(each.items) + 1)]
        columns["item"] = [item for each in answers for item in each.items]
        columns["score"] = [score for each in answers for score in each.scores]
        return frame(columns)

    def _of_users(self, users: Any) -> tuple[str, dict[str, History]]:
        names = [users] if isinstance(users, str) else list(users)
        return "user", {as_id(user): history_of_user(self.data, user) for user in names}

    def evaluate(
        self,
        m: Sequence[int] | int = (10, 50, 100, 200),
        *,
        beam_size: int | None = None,
        metrics: Sequence[str | Metric] = ("precision", "recall", "f1"),
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
        beam = beam_size or max(400, *cuts)
        return evaluate(self.model, users, beam_size=beam, m=cuts, metrics=metrics, exclude_seen=exclude_seen)

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which `Recommender.load` and the commands read; a log from memory goes with it."""
        folder = Path(folder)
        run = {**self._run}
        if self._data is not None and (self._is_temporary or run.get("data") is None):
            if self._data.folder.resolve() != (folder / DATA).resolve():
                shutil.copytree(self._data.folder, folder / DATA, dirs_exist_ok=True)
            run["data"] = None
        write_run(folder, run)
        if self.progress is not None:
            finish_run(folder, self.progress)
        save_model(self.model, folder)

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
        model = open_model(folder, device, scorers)
        ids_of(folder, model)
        found = cls(device=device)
        found._model = model
        found._run = read_run(folder)
        theirs = data_folder(folder)
        if data is not None or (theirs is not None and theirs.exists()):
            found._data = open_data(folder, model, None if data is None else Path(data))
        found.progress = progress_of(found._run)
        return found

"""Recommender: one object that learns from a log and recommends, ids in and ids out."""

import shutil
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic as time_now
from typing import Any

from torch import Tensor

from beamtree.beam import BeamSize, whole_number
from beamtree.data import Ids, Prepared
from beamtree.data.frames import check_kind, is_pandas, kind_of
from beamtree.data.frames import frame as make_frame
from beamtree.data.ids import as_id
from beamtree.data.prepared import DESCRIPTION
from beamtree.data.report import log_in_words
from beamtree.distributed.consistency import check_alike
from beamtree.distributed.group import join, ranks
from beamtree.errors import requires
from beamtree.evaluate import Evaluation, all_cuts, evaluate
from beamtree.files.atomic import write_atomically
from beamtree.files.staging import remove
from beamtree.ingest.inputs import any_builder, open_log, pack_data, table_argument, unpack_data
from beamtree.live.catalogue_updates import CatalogueUpdates
from beamtree.methods import Method
from beamtree.metrics import Metric
from beamtree.model import TreeModel, check_device
from beamtree.progress import Reporter, clock
from beamtree.query import (
    History,
    Recommendation,
    RecommendRequest,
    Searcher,
    history_of_user,
    id_list,
    make_filter,
    parse_histories,
)
from beamtree.scorers import Scorer
from beamtree.storage.models import load_model, save_model
from beamtree.storage.settings import holds_model
from beamtree.storage.tuned import TUNE, tuned_beam
from beamtree.train.loop import OnStep
from beamtree.train.recipes import MakeScorer, Recipe, settle, start_model, train_model
from beamtree.train.runs import (
    DATA,
    RUN,
    TABLES,
    check_free,
    data_folder,
    describe_run,
    holding,
    ids_of,
    open_data,
    open_model,
    progress_of,
    read_run,
    remove_training,
    replace_data,
    table_file,
    write_run,
)
from beamtree.train.validation import OnCheck, Progress
from beamtree.tree import Tree

BATCH = 256  # users that go down the tree together


class Recommender(CatalogueUpdates):
    """Learns what users will want next from a log of users, items and times, and recommends it.

    Args:
        method: a name of `beamtree.methods.METHODS`, or a `Method` of your own.
        tree: cluster, category, random, a file that `beamtree tree` wrote, a `Tree`, or a function (data) -> Tree.
        items: a table of item and category, a file or a frame: category trees need it, cluster trees can use it.
        vectors: vectors of the items to cluster: a file, a frame with an item and a vector, or a dict of vectors.
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
        frame: what answers are, polars or pandas; unless given, as the log was, and Polars where that was a file.
    """

    def __init__(
        self,
        *,
        method: str | Method = "otm-mixed",
        tree: str | Path | Tree | Any = "cluster",
        items: Any = None,
        vectors: Any = None,
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
        frame: str | None = None,
    ) -> None:
        check_device(device)
        check_kind(frame)
        self._how: dict[str, Any] = {
            "method": method, "scorer": scorer, "recipe": recipe, "beam_size": beam_size, "nodes": nodes,
            "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr, "optimizer": optimizer,
            "patience": patience, "device": device, "seed": seed, "refit": refit,
        }  # fmt: skip
        known = {"items": table_argument("items", items), "vectors": table_argument("vectors", vectors)}
        self._built: dict[str, Any] = {"arity": arity, **known}
        self._tree_name, self._build = any_builder(tree, **known)
        self._frame = frame
        self._tables: dict[str, Any] = {}  # those of TABLES that belong into the run: frames, or files of the run
        self._model: TreeModel | None = None
        self._data: Prepared | None = None
        self._run: dict[str, Any] = {}
        self._loaded: Path | None = None  # the run that was loaded
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
        time_format: str | None = None,
        min_events: int | None = None,
        min_item_events: int | None = None,
        split: str | None = None,
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
            time_format: how dates are written, as in strptime, such as "%d/%m/%Y %H:%M"; found out unless given.
            min_events: users with fewer are left out; nobody unless given.
            min_item_events: items with fewer are left out; 1 unless given.
            split: halves, leave-one-out or time:DATE, as in `prepare`; halves unless given.
            val_users: how many are kept apart for validation; 5 %, at most 1,000, unless given.
            test_users: and for testing.
            on_step: hears the steps done, those in all, and the loss.
            on_check: hears the steps done and the recall on validation users.
            verbose: whether a report and progress are shown on standard error. They go to the logger "beamtree"
                instead where that shows INFO.
        """
        given = {"user": user, "item": item, "time": time, "min_events": min_events, "val_users": val_users}
        given |= {"test_users": test_users, "time_format": time_format, "min_item_events": min_item_events}
        options = {name: value for name, value in {**given, "split": split}.items() if value is not None}
        tables = {name: table for name in TABLES if (table := self._built[name]) is not None}
        began, together = time_now(), join(self._how["device"])
        with Reporter(verbose and together.is_first) as report:
            with together.agreed():
                data, own = open_log(log, self._how["seed"], options, report.stage)
                settings = settle(data, **self._how)
            for line in log_in_words(data.description):
                report.line(line)
            named = {name: each.resolve() if isinstance(each, Path) else _file(name) for name, each in tables.items()}
            built = {"arity": self._built["arity"], **named}
            run = describe_run(settings, data.folder, self._tree_name, self._how["recipe"], **built)
            check_alike(together, **{**run, "data": data.train.fingerprint()})
            report.line(f"Building a {self._tree_name} tree over {data.num_items:,} items.")
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
        self._run["frame"] = kind_of(log)
        self._tables = {name: table for name, table in tables.items() if not isinstance(table, Path)}
        self._where, self._owns_data, self._live, self._loaded = None, own, None, None
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
            histories: ids of items, oldest first: one history, a list of several, a dict from user to history, or a
                frame of events with the columns user, item and time.
            users: instead, ids of users of the log, whose events are known.
            m: how many items for each.
            beam_size: k, or one width per searched level; 400 or m unless given: wider finds more and takes longer.
            exclude_seen: whether items of the history are left out.
            allowed: ids that may be recommended, all unless given.
            exclude: ids that may not.

        Where there are several, a column before these says which: `history` (0, 1, 2, …) or `user`. The score is the
        probability by which items were ranked. All get m items, if m may be found. A history of which no item is known
        gets what is popular, with a warning unless it is empty.
        """
        if (histories is None) == (users is None):
            raise ValueError("give histories or users: one of the two")
        request = RecommendRequest(m=whole_number("m", m), beam_size=beam_size, exclude_seen=exclude_seen)
        request = request._replace(filter=make_filter(allowed, exclude))
        if users is None:
            key, names, rows = parse_histories(histories)
        else:
            key, names, rows = "user", [as_id(user) for user in id_list(users)], []
        searcher = Searcher(self.model, self.ids, user_history=self._history_of)
        results: list[Recommendation] = []
        for start in range(0, len(names), BATCH):
            stop = start + BATCH
            batch = {"histories": rows[start:stop]} if users is None else {"users": names[start:stop]}
            results += searcher.recommend(request._replace(**batch)).results
        unknown = [result.unknown[0] for result in results if result.unknown and not result.num_known]
        if unknown and users is None:
            counts = f"{len(unknown):,} of {len(results):,} histories"
            message = f"{counts} have no known item, such as {unknown[0]!r}: popular items are recommended for them"
            warnings.warn(message, UserWarning, stacklevel=2)
        columns: dict[str, list[Any]] = {}
        if key:
            columns[key] = [name for name, result in zip(names, results, strict=True) for _ in result.items]
        columns["rank"] = [rank for result in results for rank in range(1, len(result.items) + 1)]
        columns["item"] = [item for result in results for item in result.items]
        columns["score"] = [score for result in results for score in result.scores]
        types = {"user": str, "history": int, "rank": int, "item": str, "score": float}
        given = "pandas" if is_pandas(histories) or is_pandas(users) else None
        return make_frame(columns, types, self._frame or given or self._run.get("frame"))

    def _history_of(self, user: str) -> History:
        """The history of a user of the log and of later events; a ValueError for an unknown user."""
        return (self._live and self._live.history(user)) or history_of_user(self.data, user)

    def _training_data(self) -> Prepared | None:
        return self.data if self._data is not None or self._where is not None else None

    def evaluate(
        self,
        m: Sequence[int] | int = (10, 50, 100, 200),
        *,
        beam_size: BeamSize | None = None,
        metrics: str | Metric | Sequence[str | Metric] = ("precision", "recall", "f1"),
        exclude_seen: bool = False,
        data: Any = None,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
    ) -> Evaluation:
        """How well the test users' next items are found, with intervals; `.to_frame()` gives a frame.

        Args:
            m: how many items are retrieved.
            beam_size: k, 400 or the largest m unless given.
            metrics: names such as recall, ndcg, mrr, or functions of your own.
            exclude_seen: whether what a user has seen is neither recommended nor expected.
            data: other users than the test users of the log: `shop.data.val`, a prepared folder with the same items, or
                a log in any shape that `fit` takes, with users of its own.
            user: of such a log the column of users, where it has an unusual name.
            item: the column of items, likewise.
            time: the column of times, likewise.
            time_format: how its dates are written, as in strptime.

        Of a log the first half of each user's events is history and the second half is to be found. Items that the
        model does not know are left out of the histories, and count as never found among those to be found.
        """
        cuts = all_cuts(m)
        columns = {"user": user, "item": item, "time": time, "time_format": time_format}
        users = self._users_to_measure(data, columns, exclude_seen)
        if not len(users):
            raise ValueError("there are no test users: fit with more users, or with test_users=…")
        beam = max((400, *cuts)) if beam_size is None else beam_size
        found = evaluate(self.model, users, beam_size=beam, m=cuts, metrics=metrics, exclude_seen=exclude_seen)
        found.frame_kind = self._frame or self._run.get("frame")
        return found

    def _users_to_measure(self, data: Any, columns: dict[str, str | None], exclude_seen: bool) -> Any:
        """The test users, other users of prepared data, or the users of a log."""
        folder = data.folder if isinstance(data, Prepared) else data
        is_folder = isinstance(folder, str | Path) and (Path(folder) / DESCRIPTION).exists()
        if data is None or is_folder or hasattr(data, "batch"):
            unused = next((name for name, value in columns.items() if value is not None), None)
            if unused is not None:
                raise ValueError(f"{unused} says how a log is read, and these users are prepared already")
            if data is None:
                return self.data.test
            return open_data(Path("this recommender"), self.model, Path(folder)).test if is_folder else data
        with requires("", "reading a log"):
            from beamtree.ingest.user_events import read_users

        return read_users(data, self.ids, **columns, exclude_seen=exclude_seen)

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which `Recommender.load` and the commands read; a log from memory goes with it.

        A run or a model that was there is replaced. A folder that holds something else is refused.
        """
        folder, model, run = Path(folder), self.model, {**self._run}
        source = self._data.folder if self._data is not None else self._where and self._where[1]
        if source is not None:
            run["data"] = None if self._owns_data else str(source.resolve())
        with holding(folder):
            with ranks().agreed() as first:
                if first:
                    check_free(folder)
                    write_run(folder, run, self.progress)  # first: a folder with it is a run
                    if self._loaded is None or self._loaded.resolve() != folder.resolve():
                        remove_training(folder)
                    replace_data(folder, source if source is not None and self._owns_data else None)
                    self._save_tables(folder)
                    self._save_changes(folder)
            save_model(model, folder)
            with ranks().agreed() as first:
                if first and (folder / TUNE).exists() and not _is_tuned(folder):
                    remove(folder / TUNE)

    def _save_tables(self, folder: Path) -> None:
        """Write tables from memory into a run's folder, and copy those of the run that was loaded."""
        for name in TABLES:
            table, place = self._tables.get(name), folder / _file(name)
            if table is None:
                remove(place)
            elif not isinstance(table, Path):
                write_atomically(place, table.write_parquet)
            elif table.resolve() != place.resolve():
                shutil.copyfile(table, place)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the log goes with it if it is this object's own, else its place does."""
        state = {**self.__dict__, "_live": None, "_saved": None}
        if self._live is not None:
            state |= {"_model": self._live.model, "_saved": self._live.saved_changes()}
        if self._data is not None and self._where is None:
            place = self._data.folder
            state |= {"_files": pack_data(self._data)} if self._owns_data else {"_where": (place, place)}
        return state | {"_data": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files, saved = state.pop("_files", None), state.pop("_saved")
        self.__dict__.update(state)
        if files is not None:
            self._data = unpack_data(files)
        self._live = None if saved is None else self._open_live(saved)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "cpu",
        data: str | Path | None = None,
        scorers: Sequence[type[Scorer]] = (),
        frame: str | None = None,
    ) -> "Recommender":
        """Read a run folder that `save`, `beamtree train` or `beamtree compare` wrote.

        Args:
            folder: the run.
            device: where it recommends.
            data: the prepared log, where it is no longer where it was.
            scorers: classes of scorers from outside the package.
            frame: what answers are, polars or pandas; as before unless given.
        """
        folder = Path(folder)
        is_run = (folder / RUN).exists() or not holds_model(folder)  # else a model that `save_model` wrote
        check_device(device)
        model = open_model(folder, device, scorers) if is_run else load_model(folder, device, scorers=scorers)
        ids_of(folder, model)
        found = cls(device=device, frame=frame)
        found._model, found._run = model, read_run(folder) if is_run else {}
        where = data_folder(folder) if is_run else None
        if data is not None:
            found._data = open_data(folder, model, Path(data))
        elif where is not None and where.exists():
            found._where, found._owns_data = (folder, where), where == folder / DATA
        own = {name: table_file(folder, name, found._run) for name in TABLES if found._run.get(name) == _file(name)}
        found._tables = {name: file for name, file in own.items() if file is not None}
        found._loaded = folder
        found.progress = progress_of(found._run)
        found._load_changes(folder)
        return found


def _file(name: str) -> str:
    """The file of a table inside a run's folder."""
    return f"{name}.parquet"


def _is_tuned(folder: Path) -> bool:
    """Whether the beam that is kept in a folder was tuned for the model in it."""
    try:
        return bool(tuned_beam(folder))
    except ValueError:
        return False

"""Recommender: one object that fits a log and recommends, ids in and ids out."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic as time_now
from typing import Any

import torch
from torch import Tensor

from beamtree.beam import BeamSize
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.data.contexts import Context
from beamtree.data.frames import check_frame_kind, frame_kind, is_pandas, make_frame
from beamtree.data.ids import as_given, as_id
from beamtree.data.inputs import NO_TIME
from beamtree.data.prepared import DESCRIPTION
from beamtree.errors import check_device, positive_int, requires
from beamtree.evaluate import Evaluation, all_cuts, evaluate, warnings_about
from beamtree.evaluate.metrics import Metric
from beamtree.files.atomic import edit_folder, is_replaceable
from beamtree.files.staging import remove
from beamtree.ingest.columns import Kinds, LogColumns, Target
from beamtree.ingest.inputs import any_builder, open_log, pack_data, table_argument, unpack_data
from beamtree.ingest.report import describe_log
from beamtree.kernels.threads import ChangeLock
from beamtree.live import LiveModel, NewItem
from beamtree.live.content import added_report
from beamtree.live.live_model import ItemCounts, SavedChanges
from beamtree.live.refit import (
    before_refit,
    builder_of_run,
    keeps_first,
    model_to_measure,
    refit_report,
    refit_to_all,
    seed_of,
)
from beamtree.live.saved import load_changes, read_items, read_vectors, save_changes
from beamtree.live.update import update_model
from beamtree.live.users import Users
from beamtree.methods import Method
from beamtree.model import TreeModel
from beamtree.parts import Part
from beamtree.parts.content import ContentPart, features_weight, with_content
from beamtree.progress import Reporter, clock, log
from beamtree.query import (
    ERROR,
    POPULAR,
    History,
    MaskCache,
    RecommendRequest,
    RecommendResponse,
    Rules,
    Searcher,
    check_unknown,
    history_of_user,
    id_list,
    make_filter,
    parse_rules,
    read_request,
    similar_request,
)
from beamtree.query.reasons import explain_columns, explained_items
from beamtree.query.request import Names
from beamtree.query.response import column_types
from beamtree.query.scores import item_vectors, score_columns, user_vectors
from beamtree.scorers import Scorer
from beamtree.search.choice import AUTO
from beamtree.storage.models import load_model
from beamtree.storage.runs import (
    DATA,
    FIRST,
    RUN,
    TABLES,
    check_free,
    data_folder,
    ids_of,
    open_data,
    open_first,
    open_model,
    own_tables,
    read_run,
    remove_training,
    replace_data,
    save_tables,
    table_name,
    write_run,
)
from beamtree.storage.settings import fingerprint, holds_model
from beamtree.storage.tuned import remove_stale_beam
from beamtree.train.backend import current_backend
from beamtree.train.loop import OnStep
from beamtree.train.options import MakeScorer, Recipe, TrainingOptions
from beamtree.train.recipes import build_model, check_options, parts_report, resolve_settings, start_parts, train_model
from beamtree.train.validation import OnCheck, Progress
from beamtree.tree import Tree

PROGRESS_SECONDS = 3.0  # after which a terminal shows how many histories are searched


class Recommender:
    """Learns from a log of users, items and times which items a user will want next, and recommends them.

    Several threads may use one recommender: changes are made one after another, and every other call sees one state,
    before a change or after it. Only `fit` is for a recommender that no other thread uses.

    Args:
        device: the device: cpu or cuda.
        seed: the same seed gives the same model, on the same kind of machine with the same number of threads.
        sequence: train a transformer over the order of events too, and add it where validation users find more with it.
            Default: on a GPU, and on a CPU for logs of at least 50,000 events, except with `steps=0`.
        minutes: how long it is trained, at most; the model then depends on the speed of the machine. A split by time
            or of pairs leaves a quarter to the refit. Default: 5 on a CPU; on a GPU as long as validation users find
            more.
        refit: fit the closed-form parts again at the end, to all users, those that validate and test too; what is
            measured is the model before. Default: wherever there are closed-form parts.
        tree: the kind of tree: cluster, category, random, or a file written by `beamtree tree`. In Python also a
            `Tree`, or a function (data) -> Tree.
        items: a table with the category of each item; category trees need it, cluster trees can use it. In Python
            also a frame.
        vectors: item vectors to cluster: a .npy file in the order of the items, or a table. In Python also a frame
            with an item and a vector, or a dict of vectors.
        frame: the kind of frame to return, polars or pandas. Default: the kind of the log, and Polars for a file.
        parts: In Python, parts of the score from outside the package, each used where validation users find more with
            it: see docs/extend.md.
        steps: training steps of the network, instead of epochs; with 0 the model is the closed form.
        epochs: passes over the training users. Default: none beside closed-form parts; for the network alone enough for
            10,000 steps on a GPU and 3,000 on a CPU; 10 epochs in the recipe paper.
        training: In Python, training options as one object, `TrainingOptions(method="plt", lr=0.001)`, such as those of
            an experiment. An option that is given here and as an argument is an error.
        arity: children per node.
        method: the training method: plt, hsm, tdm, tdm-positives, otm, otm-no-beam, otm-no-optest, otm-mixed,
            otm-mixed-all, otm-stochastic, otm-margin, otm-level-weights or dtr. In Python also a `Method`.
        recipe: what is trained and how: beamtree (closed-form parts, the sequence part, and with steps the network),
            deep (the network alone), or paper (as published). In Python also a `Recipe`.
        scorer: a `Scorer` class, or a function (tree, data, seed) -> Scorer. Default: that of the recipe.
        beam_size: the beam size k in training. Default: 400 on a GPU, 100 on a CPU.
        nodes: nodes sampled per level, for methods that sample. Default: 2k.
        batch_size: users per step. Default: 200 on a GPU, 50 on a CPU.
        lr: the learning rate of Adam. Default: that of the recipe.
        optimizer: the optimizer: adam, or lazy (Adam on only the rows a step touched) for millions of items.
        patience: stop after this many validation checks without a rise in recall.
    """

    def __init__(
        self,
        *,
        device: str = "cpu",
        seed: int = 0,
        sequence: bool | None = None,
        minutes: float | None = None,
        refit: bool | None = None,
        tree: str | Path | Tree | Callable[[Prepared], Tree] = "cluster",
        items: Any = None,
        vectors: Any = None,
        frame: str | None = None,
        parts: tuple[Part, ...] = (),
        steps: int | None = None,
        epochs: int | None = None,
        training: TrainingOptions | None = None,
        arity: int = 2,
        method: str | Method = "otm-mixed",
        recipe: str | Recipe = "beamtree",
        scorer: MakeScorer | type[Scorer] | None = None,
        beam_size: int | None = None,
        nodes: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        optimizer: str = "adam",
        patience: int = 8,
    ) -> None:
        options = TrainingOptions(
            device=device, seed=seed, sequence=sequence, minutes=minutes, refit=refit, tree=tree, items=items,
            vectors=vectors, parts=parts, steps=steps, epochs=epochs, arity=arity, method=method, recipe=recipe,
            scorer=scorer, beam_size=beam_size, nodes=nodes, batch_size=batch_size, lr=lr, optimizer=optimizer,
            patience=patience,
        )  # fmt: skip
        if training is not None:
            options = options.joined(training)
        check_device(options.device)
        check_frame_kind(frame)
        items, vectors = table_argument("items", options.items), table_argument("vectors", options.vectors)
        self._tree_name, self._build = any_builder(options.tree, items, vectors)
        self._options = replace(options, items=items, vectors=vectors)
        check_options(self._options)
        self._frame = frame
        self._tables: dict[str, Any] = {}  # those of TABLES that are saved with the run: frames, or files of the run
        self._model: TreeModel | None = None
        self._live: LiveModel | None = None  # the model with changes made without training
        self._read_catalogue: Catalogue | None = None  # without changes since; read when needed
        self._masks = MaskCache()
        self._changes = ChangeLock()  # held during every change
        self._data: Prepared | None = None
        self._run: dict[str, Any] = {}  # the content of run.json
        self._loaded: Path | None = None  # the run folder this object was loaded from
        self._fingerprint = ""  # of the model in it
        self._data_source: tuple[Path, Path] | None = None  # run folder and data folder, opened when needed
        self._owns_data = False  # whether the prepared log was made for this object and is saved with it
        self._measured: tuple[TreeModel, TreeModel] | None = None  # a model, and what it was before its refit
        self._first: TreeModel | None = None  # the latter as it was fitted, where it is kept
        self._scorers: Sequence[type[Scorer]] = ()  # classes from outside the package
        self.progress: Progress | None = None  # the result of training

    def __repr__(self) -> str:
        if self._model is None:
            return f"Recommender({self._options.method_name} on a {self._tree_name} tree, not fitted: call fit(log))"
        recall = "" if self.progress is None else self.progress.summary(self._model.tree.num_items)
        name = self._run.get("method", "a model")
        return f"Recommender({self.model.tree.num_visible:,} items, {name}{recall and ', ' + recall})"

    @property
    def model(self) -> TreeModel:
        """The tree and the scorer."""
        live = self._live
        return self._trained_model() if live is None else live.model

    def _trained_model(self) -> TreeModel:
        """The model without changes of its items."""
        if self._model is None:
            raise ValueError("this recommender is not fitted: call fit(log), or Recommender.load(folder)")
        return self._model

    @property
    def before_refit(self) -> TreeModel:
        """The model before it was fitted to all users: for numbers on test and validation users, as `evaluate` has.

        It is fitted to the training users alone, with the same choices, when it is first asked for. One with a trained
        part, or on a tree or with parts that only this program has, is kept after a split by time, and saved.
        """
        model = self.model
        if not self._run.get("refit"):
            return model
        if self._measured is None or self._measured[0] is not model:
            log.info("Fitting the closed form to the training users alone, as it was before the refit.")
            build = self._build_tree if self._loaded is None else builder_of_run(self._loaded, self._run)
            seed, parts, first = seed_of(self._run), self._options.parts, self._first_model()
            self._measured = model, before_refit(model, self.data, seed, parts=parts, build=build, first=first)
        return self._measured[1]

    def _first_model(self) -> TreeModel | None:
        """The model that was fitted before the refit, where it was kept."""
        if self._first is None and self._loaded is not None:
            self._first = open_first(self._loaded, self._options.device, self._scorers)
        return self._first

    def _build_tree(self, data: Prepared) -> Tree:
        """The tree of a log, as `fit` builds it."""
        return self._build(data, self._options.arity, self._options.seed)

    @property
    def data(self) -> Prepared:
        """The prepared log."""
        model = self.model
        if self._data is None and self._data_source is not None:
            run, folder = self._data_source
            self._data = open_data(run, model, folder)
        if self._data is None:
            raise ValueError("the log of this recommender is missing: load it with data=FOLDER")
        return self._data

    @property
    def ids(self) -> Ids:
        """The ids of the items, in the type that they had in the log."""
        return _ids(self.model)

    @property
    def users(self) -> Ids:
        """The ids of all users, sorted: those of the log, and those of events that `update` brought since."""
        return replace(self._known_users(), data=self.data).ids()

    def fit(
        self,
        log: Any,
        *,
        items: Any = None,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
        weight: str | None = None,
        kinds: Kinds | None = None,
        target: Target | None = None,
        dislike: float | None = None,
        context: str | Iterable[str] | None = None,
        min_events: int | None = None,
        min_item_events: int | None = None,
        split: str | None = None,
        val_users: int | None = None,
        test_users: int | None = None,
        on_step: OnStep | None = None,
        on_check: OnCheck | None = None,
        verbose: bool = True,
    ) -> "Recommender":
        """Prepare a log, build a tree and train a model, as `beamtree prepare` and `beamtree train` do.

        Under torchrun all ranks train one model together.

        Args:
            log: a Polars or pandas frame, an Arrow table, one or several files, or a folder written by `prepare`.
            items: a table about the items, a frame or a file: categories, numbers, texts, vectors, any mix, with
                missing values. Items that have no events in training are recommended by what their columns say, all can
                be filtered with `where`, and items added later are placed by their title and category.
            user: the column of users. Default: found by its name.
            item: the column of items. Default: found by its name.
            time: the column of times. Default: found by its name.
            time_format: the format of dates as in strptime, such as "%d/%m/%Y %H:%M". Default: detected.
            weight: the column of what events are worth, such as ratings; of kinds, if `kinds` are given. Default: all
                events count the same.
            kinds: the weight of each kind of event: {"view": 1, "cart": 3, "buy": 10}. Other kinds are dropped.
            target: what is to be predicted: kinds such as "buy", or the lowest weight, such as 4. Default: all events.
            dislike: events of at most this weight are dislikes: they are not part of histories, never predicted, and
                their items are never recommended to their users. Default: 0.
            context: columns of what was known when an event happened, such as ["country", "device", "hour"]; `hour` and
                `day` (1 to 7, from Monday) are taken from the times, in UTC, if no column has that name. Requests can
                give theirs. Default: none.
            min_events: drop users with fewer events. Default: keep all.
            min_item_events: drop items with fewer events. What users did with them stays known, for `exclude_seen`.
                Default: 1.
            split: halves, leave-one-out, time, time:30d, time:DATE or pairs:0.1, as in `prepare`. Default: time, which
                holds out the newest tenth of the events, where times are dates or Unix times and at least 200 users
                have events before and after that; pairs:0.1 where there are no times and the rows are in no order;
                halves elsewhere. After a split by time or of pairs all is fitted again, to all events.
            val_users: number of validation users. Default: 5 %, at most 1,000; at most 6,000 if the split is by time or
                of pairs.
            test_users: number of test users. Default: 5 %, at most 1,000; a quarter of them if the split is by time or
                of pairs.
            on_step: called with the steps done, the total and the loss.
            on_check: called with the steps done and the recall on validation users.
            verbose: print a report and progress on standard error; if the logger "beamtree" shows INFO, they go there.
        """
        columns = LogColumns(
            user=user, item=item, time=time, time_format=time_format,
            weight=weight, kinds=kinds, target=target, dislike=dislike, context=context,
        )  # fmt: skip
        others = {"min_events": min_events, "min_item_events": min_item_events, "split": split}
        others |= {"val_users": val_users, "test_users": test_users}
        reading = columns.given() | {name: value for name, value in others.items() if value is not None}
        options = self._options
        about_items = table_argument("items", items)
        if about_items is not None and options.items is not None:
            raise ValueError("there are two tables of items: give `items` to fit, or to Recommender for its tree")
        tables = {name: table for name in TABLES if (table := getattr(options, name)) is not None}
        began, backend = time_now(), current_backend()
        if about_items is not None and not backend.is_single:
            raise ValueError(
                "`items` of fit needs a single process: fit without it, save, and call `update_items` later"
            )
        with Reporter(verbose and backend.is_first) as report:
            with backend.guard():
                fits_again = bool(check_options(options).parts)  # otherwise nothing would see the newest events
                data, own = open_log(log, options.seed, reading, report.stage, None if fits_again else "halves")
                settings = resolve_settings(data, options)
            report.write(*describe_log(data.description))
            files: dict[str, Any] = {
                name: table.resolve() if isinstance(table, Path) else table_name(name) for name, table in tables.items()
            }
            run = settings.describe(data.folder, replace(options, tree=self._tree_name, **files))
            backend.check_equal(**{**run, "data": data.train.fingerprint()})
            report.write(f"Building a {self._tree_name} tree over {data.num_items:,} items.")
            tree = self._build_tree(data)
            catalogue = None if about_items is None else read_items(about_items, {}, None, data.items)
            model = build_model(settings, data, tree, report.progress, catalogue)

            def count(done: int, total: int, loss: Tensor) -> None:
                report.progress("Training", done, total)
                if on_step is not None:
                    on_step(done, total, loss)

            progress = train_model(settings, data, model, on_step=count, on_check=on_check)
            result = progress.as_report(data.num_items, len(data.val), start_parts(model))
            report.write(*parts_report(model.scorer, settings.parts), result)
            if settings.refit:
                report.stage("Fitting to all users")
                before = model
                model, measured = refit_to_all(
                    model, data, settings.seed, report.progress, settings.parts_from_outside, self._build_tree
                )
                run["training"] = {"before_refit": measured}
                report.write(*refit_report(model, measured, data))
            self._data, self._model, self._run, self.progress = data, model, run, progress
            self._run["frame"] = frame_kind(log)
            self._tables = {name: table for name, table in tables.items() if not isinstance(table, Path)}
            self._data_source, self._owns_data, self._live, self._loaded = None, own, None, None
            self._read_catalogue, self._masks, self._measured, self._first = None, MaskCache(), None, None
            if settings.refit and data.all is not None:
                self._measured = model, before.eval()
                from_python = not isinstance(options.tree, str | Path) or bool(settings.parts_from_outside)
                self._first = before if from_python or keeps_first(before, data) else None
            if about_items is not None:
                report.write(*added_report(self._update_items(about_items, similar=False).new))
            report.write(f"Fitted in {clock(time_now() - began)}.")
        return self

    def recommend(
        self,
        histories: Any = None,
        *,
        users: Any = None,
        m: int = 10,
        beam_size: BeamSize | None = None,
        search: str = AUTO,
        exclude_seen: bool = False,
        allowed: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
        where: str | None = None,
        rules: Rules | Mapping[str, Any] | None = None,
        context: Context | Sequence[Context] | None = None,
        time: Any = None,
        unknown: str = POPULAR,
    ) -> Any:
        """The m best items as a frame with the columns rank, item and score, best first.

        Args:
            histories: ids of items, oldest first: one history, a list of several, a dict from user to history, or a
                frame of events with the columns user, item and time. Instead of an id there may be a tuple of the id
                and the time of the event, a date or a Unix time: such histories are sorted by time.
            users: instead of histories, ids of users: of the log, or of events that `update` brought. All of them
                are in `users` of this object.
            m: number of items per history.
            beam_size: k, or one width per searched level. Default: 400 or m. A wider beam finds more and is slower.
            search: beam; scan, which scores every allowed item and loses none; or auto: a beam where a `beam_size` is
                given, else the faster one, which is measured once.
            exclude_seen: leave out the items of the history; of users also those that were dropped from training.
            allowed: ids that may be recommended. Default: all.
            exclude: ids that may not be recommended.
            where: which items may be recommended, as an expression over the columns of the table `items`, such as
                "category == 'lamps' and price < 50", and over their age: "age_days < 30". Items without a value do not
                pass.
            rules: boosts, pins, at most n items of one kind, diversity, places for new items: `Rules`, or a dict of the
                same arguments.
            context: what is known of the request, in the columns of `context` of fit: {"country": "DE", "hour": 20} for
                all histories, or a list with one for each. Values that are missing or unknown change nothing.
            time: of the request, for parts that know the time: a date or a Unix time, for all histories, or a list with
                one for each. Default: for users the time of the newest event of the log and of updates; for histories
                with times that too, or the time of their newest event if it is later; else it is not known.
            unknown: what users get of whom nothing is known: popular (popular items, with a warning), or error.

        For several histories a first column `history` (0, 1, 2, …) or `user` tells them apart. The score is the
        probability by which items are ranked, times the boosts of `rules`, with which a column names the rules
        that decided each item's place. Every history gets m items if that many are allowed. A history without a
        known item gets popular items, with a warning unless it is empty; for `users` a last column `popular` says so.
        Items have the type that they had in the log, integers or text, and users the type in which they are given.
        """
        key, names, request = self._read_request(histories, users, context, time)
        request = request._replace(m=positive_int("m", m), beam_size=beam_size, search=search)
        request = request._replace(exclude_seen=exclude_seen)
        request = request._replace(filter=make_filter(allowed, exclude, where=where), rules=parse_rules(rules))
        response = _search(self._searcher(request.needs_attributes, unknown), request)
        _warn_of_histories([] if users is not None else response.without_known, len(names))
        _warn_of_unknown(response.unknown_users, len(names), "popular items are recommended for them")
        return self._frame_of(response.columns(key, names, popular=users is not None), histories, users)

    def similar(
        self,
        items: Any,
        m: int = 10,
        *,
        beam_size: BeamSize | None = None,
        search: str = AUTO,
        allowed: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
        where: str | None = None,
    ) -> Any:
        """Items similar to an item, as a frame with the columns rank, item and score, best first.

        Args:
            items: the id of an item, or a list of several. For a list, a first column `similar_to` tells them apart.
                Unknown items of a list are left out, with a warning.
            m: number of items for each.
            beam_size: k, or one width per searched level. Default: 400 or m.
            search: auto, beam or scan, as in `recommend`.
            allowed: ids that may be returned. Default: all.
            exclude: ids that may not be returned.
            where: an expression over the columns of the table `items`, as in `recommend`.

        Similar items are those recommended after a single event of the item, without the item itself.
        """
        names, searcher = id_list(items), self._searcher(where is not None)
        is_one = len(names) == 1 and names[0] is items
        request, unknown = similar_request(searcher.ids, names, positive_int("m", m))
        if unknown:
            counts = f"{len(unknown):,} of {len(names):,} items are unknown, such as {unknown[0][:80]!r}"
            warnings.warn(f"{counts}: they are left out", UserWarning, stacklevel=2)
        request = request._replace(beam_size=beam_size, search=search)
        request = request._replace(filter=make_filter(allowed, exclude, where=where))
        given = as_given([item for (item,) in request.histories], integer=searcher.ids.integer)
        response = _search(searcher, request)
        return self._frame_of(response.columns("" if is_one else "similar_to", given), items)

    def score(
        self,
        histories: Any = None,
        items: Any = (),
        *,
        users: Any = None,
        context: Context | Sequence[Context] | None = None,
        time: Any = None,
        unknown: str = POPULAR,
    ) -> Any:
        """The scores of given items, as a frame with the columns item and score, in the order given.

        Args:
            histories: as in `recommend`.
            items: ids of the items: one list for all histories, or a list of lists with one for each.
            users: instead of histories, ids of users of the log.
            context: as in `recommend`.
            time: as in `recommend`.
            unknown: as in `recommend`: unknown users get the scores of popular items, with a warning, or are an error.

        Scores are those of `recommend`, for any item, also for one that the beam would not find. An item that the
        model does not know, or that was removed, has none. For several histories a first column `history` or `user`
        tells them apart, and for `users` a last column `popular` says whose scores are those of popular items. Items
        and users have the type in which they are given.
        """
        key, names, request = self._read_request(histories, users, context, time)
        searcher, unknown_users = self._searcher(unknown=unknown), list[str]()
        batches = searcher.histories_of(request, unknown_users)
        columns = score_columns(searcher, key, names, batches, items, of_users=users is not None)
        _warn_of_unknown(unknown_users, len(names), "their scores are those of popular items")
        return self._frame_of(columns, histories, users, items)

    def explain(
        self,
        histories: Any = None,
        items: Any = (),
        *,
        users: Any = None,
        context: Context | Sequence[Context] | None = None,
        time: Any = None,
        unknown: str = POPULAR,
    ) -> Any:
        """Why items have their scores: what each event of a history gives, as a frame; the first row says why most.

        Args:
            histories: as in `recommend`.
            items: the id of an item, or a list of several, for all histories.
            users: instead of histories, ids of users of the log.
            context: as in `recommend`.
            time: as in `recommend`.
            unknown: as in `recommend`.

        Each row is an event of the history (`event`, `event_title`, and its `place`: 1 for the newest) and a part of
        the score, and `contribution` is what the event gives by this part, times the weight of the part. `total` is
        what it gives by all parts. Rows without an event are what no event gives, such as popularity and the context;
        of a model that was fitted with `context`, `column` names the column. Contributions add up to the score of the
        item before it becomes a probability.

        For each item, events that raise its score come first, that which gives most before all others; then what no
        event gives; then events that lower it. Without a known item in the history, popular items are recommended, and
        contributions are shares of all events. Hidden items are explained too, with a warning.
        """
        key, names, request = self._read_request(histories, users, context, time)
        searcher = self._searcher(find_spec("polars") is not None, unknown)  # titles come from a table
        given, unknown_users = id_list(items), list[str]()
        numbers, batches = explained_items(searcher, given), searcher.histories_of(request, unknown_users)
        columns, no_known = explain_columns(searcher, key, names, batches, numbers)
        tree = searcher.model.tree
        shown = tree.mask.allows(tree.leaf_of_item(torch.tensor(numbers, dtype=torch.int64, device=tree.device)))
        hidden = [as_id(item) for item, is_shown in zip(given, shown.tolist(), strict=True) if not is_shown]
        if hidden:
            counts = f"{len(hidden):,} of {len(given):,} items are hidden, such as {hidden[0]!r}"
            warnings.warn(f"{counts}: these reasons are for the score they would have", UserWarning, stacklevel=2)
        _warn_of_histories([] if users is not None else no_known, len(names))
        _warn_of_unknown(unknown_users, len(names), "popular items are recommended for them")
        return self._frame_of(columns, histories, users, items)

    def item_vectors(self) -> Any:
        """A vector for each item, as a frame with the columns item and vector.

        They are the item factors of the closed form (implicit ALS). The inner product with a vector of `user_vectors`
        is the score of this part alone, before its weight; `recommend` adds other parts. In a model without factors
        they are the rows of the leaves. Removed items are left out.
        """
        return self._frame_of(item_vectors(self._searcher()))

    def user_vectors(self, histories: Any = None, *, users: Any = None, unknown: str = POPULAR) -> Any:
        """A vector for each history, as a frame with the column vector, in the space of `item_vectors`.

        Args:
            histories: as in `recommend`.
            users: instead of histories, ids of users of the log.
            unknown: as in `recommend`: unknown users get the vector of an empty history, with a warning, or are an
                error.

        It is the fold-in of the history into the item factors; of an empty history it is 0. For several histories a
        first column `history` or `user` tells them apart.
        """
        key, names, request = self._read_request(histories, users)
        searcher, unknown_users = self._searcher(unknown=unknown), list[str]()
        vectors = user_vectors(searcher.model, searcher.histories_of(request, unknown_users)).numpy()
        _warn_of_unknown(unknown_users, len(names), "they get the vector of an empty history")
        return self._frame_of({**({key: names} if key else {}), "vector": vectors}, histories, users)

    def _read_request(
        self, histories: Any, users: Any, context: Context | Sequence[Context] | None = None, time: Any = None
    ) -> tuple[str, Names, RecommendRequest]:
        data = None if users is None else self._training_data()
        integer = data is not None and data.users.integer
        ids = _ids(self.model)
        return read_request(histories, users, context, ids=ids, time=time, integer_users=integer)

    def _searcher(self, with_attributes: bool = False, unknown: str = POPULAR) -> Searcher:
        """A searcher of the current state, with the attributes of the items if a filter or rules read them."""
        check_unknown(unknown)
        snapshot, catalogue = None if self._live is None else self._live.snapshot, None
        model = self._trained_model() if snapshot is None else snapshot.model
        if with_attributes:
            catalogue = self._catalogue_with_ages(model) if snapshot is None else snapshot.catalogue
        ids = _ids(model)

        def user_histories(users: Names) -> list[History]:
            found = self._known_users().histories(users, ids)
            nobody = next((user for user, history in zip(users, found, strict=True) if not history.is_known), None)
            if nobody is not None:
                data = self.data  # an error without the log: nobody would be known
                if unknown == ERROR:
                    history_of_user(data, nobody)  # raises an error that says why
            return found

        return Searcher(
            model, ids, catalogue=catalogue, user_histories=user_histories, end=self._end, masks=self._masks
        )

    def _end(self) -> int:
        """The time of the newest event that is known, in seconds since 1970."""
        return NO_TIME if self._training_data() is None and self._live is None else self._known_users().end

    def _frame_of(self, columns: dict[str, Any], *given: Any) -> Any:
        """A frame of columns, of the kind that the user chose, gave, or fitted."""
        kind = self._frame or ("pandas" if any(map(is_pandas, given)) else self._run.get("frame"))
        return make_frame(columns, column_types(columns), kind)

    def _known_users(self) -> Users:
        return Users(self.data, {}, {}) if self._live is None else self._live.users

    def _catalogue(self) -> Catalogue | None:
        """What is known about the items now; None without a table of them."""
        return self._catalogue_of_table(self._trained_model()) if self._live is None else self._live.catalogue

    def _catalogue_of_table(self, model: TreeModel) -> Catalogue | None:
        """What the table of the items says, without changes since."""
        catalogue = self._read_catalogue
        if catalogue is None:
            table = self._tables.get("items", self._options.items)
            catalogue = self._read_catalogue = read_items(table, self._run, self._loaded, _ids(model))
        return catalogue

    def _catalogue_with_ages(self, model: TreeModel) -> Catalogue | None:
        """The same, and when the items began."""
        catalogue, data = self._catalogue_of_table(model), self._training_data()
        if data is None or data.starts is None:
            return catalogue
        return (catalogue or Catalogue.of_ids(_ids(model))).with_starts(data.starts)

    def _starts(self, model: TreeModel) -> Callable[[], Tensor] | None:
        """When the items began, in seconds; None where the log has no clock."""
        catalogue, data = None if self._live is None else self._live.catalogue, self._training_data()
        starts = catalogue.starts if catalogue is not None else None if data is None else data.starts
        return None if starts is None else lambda: torch.from_numpy(starts.seconds(model.tree.num_items))

    def _training_data(self) -> Prepared | None:
        return self.data if self._data is not None or self._data_source is not None else None

    def evaluate(
        self,
        m: Sequence[int] | int = (10, 50, 100, 200),
        *,
        beam_size: BeamSize | None = None,
        search: str = AUTO,
        metrics: str | Metric | Sequence[str | Metric] = ("precision", "recall", "f1"),
        exclude_seen: bool = False,
        by: str | None = None,
        data: Any = None,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
    ) -> Evaluation:
        """How well the next items of the test users are found, with intervals; `.to_frame()` gives a frame.

        Args:
            m: numbers of items retrieved.
            beam_size: k, or one width per searched level. Default: 400 or the largest m.
            search: auto, beam or scan, as in `recommend`.
            metrics: names such as recall, ndcg, weighted_recall, coverage, novelty, or functions of your own.
            exclude_seen: leave items a user has seen out of the recommendations and of the expected items.
            by: also for parts of what is to be predicted: by time, history (of the user) or popularity (of the item).
            data: users other than the test users: `data.val`, a prepared folder with the same items, or a log of
                other users in any form that `fit` takes; the next four describe its columns.
            user: the column of users. Default: found by its name.
            item: the column of items. Default: found by its name.
            time: the column of times. Default: found by its name.
            time_format: the format of dates as in strptime, such as "%d/%m/%Y %H:%M". Default: detected.

        In a log, the first half of each user's events is the history and the second half is to be found. Unknown items
        are dropped from the histories, and count as not found in the second half. In a file with one user a line, the
        items of users whom the model knows are to be found from all that it knows of them.

        A model that was fitted to all users is measured as it was before that: on test and validation users of its own
        log, `before_refit`. Other users are measured on the model as it is. `.model` says which it was.

        A warning, which is also in `.warnings`, says how many of the users the model was fitted to, and whether they
        are too few.
        """
        cuts = all_cuts(m)
        columns = LogColumns(user=user, item=item, time=time, time_format=time_format)
        model = self.model
        users = self._users_to_evaluate(model, data, columns, exclude_seen)
        if not len(users):
            raise ValueError("there are no test users: fit with more users, or with test_users=…")
        events = None if self._live is None else self._live.events
        model, which, fitted = model_to_measure(
            model, users, self._training_data(), self._run, events, lambda: self.before_refit
        )
        how: dict[str, Any] = {"m": cuts, "metrics": metrics, "exclude_seen": exclude_seen, "by": by}
        result = evaluate(model, users, beam_size=beam_size, search=search, starts=self._starts(model), **how)
        result.frame_kind, result.model = self._frame or self._run.get("frame"), which
        result.warnings = warnings_about(result, users, fitted)
        for warning in result.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return result

    def _users_to_evaluate(self, model: TreeModel, data: Any, columns: LogColumns, exclude_seen: bool) -> Any:
        """The test users, other users of prepared data, or the users of a log."""
        folder = data.folder if isinstance(data, Prepared) else data
        is_folder = isinstance(folder, str | Path) and (Path(folder) / DESCRIPTION).exists()
        if data is None or is_folder or hasattr(data, "batch"):
            unused = next(iter(columns.given()), None)
            if unused is not None:
                raise ValueError(f"`{unused}` is for reading a log, and these users are already prepared")
            if data is None:
                return self.data.test
            return open_data(Path("this recommender"), model, Path(folder)).test if is_folder else data
        with requires("", "reading a log"):
            from beamtree.ingest.user_events import read_users

        context, ids = list(model.scorer.context_values), _ids(model)
        items_of = None if self._training_data() is None else partial(self._known_users().items, ids=ids)
        return read_users(data, ids, columns, exclude_seen=exclude_seen, context=context, items_of=items_of)

    def update_items(self, items: Any, *, similar: bool = True) -> int:
        """Add items and change those that there are, all or none of them; returns how many were new or changed.

        Args:
            items: what is to be known about items. A table, as a frame, an Arrow table or a file: a column of ids and
                any other columns, such as price and stock. Or a dict by id, `{"B9": {"price": 9.5, "like": ["B1"]}}`,
                of the columns of the table of the items, `title` and `category` and, for new items, of `like`, similar
                items, `histories` of users who chose it next, and `vector`, in the space of those the tree was built
                from. Or ids alone: such items are added, and hidden ones are shown as before.
            similar: whether new columns of a table may make items with similar features partners of each other, if
                validation users find more with that.

        Of known items, what is given changes, and hidden ones stay hidden. What a dict leaves out stays as it is, and
        None clears it; so do empty cells of a table, which may also bring new columns. Items that the model does not
        have are recommended at once, placed by what is given or, where there is a table, by all of their columns. The
        next `where`, rule or limit reads the new values, and `save` keeps them.
        """
        with self._changes:
            return self._update_items(items, similar=similar).total

    def _update_items(self, items: Any, *, similar: bool = True) -> ItemCounts:
        """How many were added and changed."""
        live, data, model = self._live_model(), self._training_data(), None
        update = live.parse_update(items)
        if similar and update.new is not None and data is not None and not features_weight(live.model.scorer):
            model = with_content(live.model, live.preview(update), data.val, self.before_refit)
        return live.update_items(update, model=model)

    def add_items(self, items: Mapping[str, NewItem | Mapping[str, Any]] | Iterable[object]) -> int:
        """Deprecated: `update_items`, which leaves hidden items hidden where they come with changes."""
        _deprecated("add_items", "update_items(items)")
        with self._changes:
            live = self._live_model()
            return live.update_items(items, show=True).total

    def use_features(self, table: Any) -> list[str]:
        """Deprecated: `update_items(table)`, which also changes items that are in an earlier table."""
        _deprecated("use_features", "update_items(table)")
        with self._changes:
            weight, counts = features_weight(self.model.scorer), self._update_items(self._unlisted(table))
            scorer = self.model.scorer
            lines = ContentPart().report(scorer) if features_weight(scorer) != weight else []
            return [*lines, *added_report(counts.new)]

    def add_listed_items(self, table: Any) -> int:
        """Deprecated: `update_items(table)`, which also changes items that are in an earlier table."""
        _deprecated("add_listed_items", "update_items(table)")
        with self._changes:
            return self._update_items(self._unlisted(table)).new

    def _unlisted(self, table: Any) -> Any:
        """The rows of a table of items that an earlier one does not have."""
        with requires("", "reading a table of items"):
            from beamtree.ingest.item_tables import read_listed
        listed, live = read_listed(table_argument("items", table)), self._live_model()
        if live.catalogue.table is None:
            return listed.columns
        return listed.columns.filter([not is_known for is_known in live.has_items(listed.ids.to_list())])

    def remove_items(self, items: Iterable[object]) -> int:
        """Hide items: they are not recommended until they are added again. Returns how many were visible."""
        with self._changes:
            return self._live_model().remove_items(map(str, id_list(items)))

    def forget_items(self, items: Iterable[object]) -> int:
        """Forget items: they are not recommended, and added again they are new. Returns how many there were."""
        with self._changes:
            return self._live_model().forget_items(map(str, id_list(items)))

    def update(
        self,
        log: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
    ) -> "Recommender":
        """Learn from new events in closed form, without gradients and with the same hyperparameters.

        Args:
            log: of new events only, in any form that `fit` takes.
            user: the column of users. Default: found by its name.
            item: the column of items. Default: found by its name.
            time: the column of times. Default: found by its name.
            time_format: the format of dates as in strptime, such as "%d/%m/%Y %H:%M". Default: detected.

        New items are placed by the histories of the users who chose them. Recommendations for users follow their new
        events at once. Co-occurrence, transitions and factors are refitted on all events. Events with times count once,
        however often they are given. Where the first log has weights, and this one has their column, its dislikes are
        recorded as such.
        """
        with requires("", "reading a log"):
            from beamtree.ingest.user_events import read_events

        data = self._training_data()
        settings = None if data is None else data.description.get("settings")
        columns = LogColumns(user=user, item=item, time=time, time_format=time_format)
        new = read_events(log, columns, settings)
        with self._changes:
            update_model(self._live_model(), new.events, new.dislikes, data, self._run, self._options.parts)
        return self

    def _live_model(self) -> LiveModel:
        if self._live is None:
            self._live = self._open_live()
        return self._live

    def _open_live(self, saved: SavedChanges | None = None) -> LiveModel:
        data, catalogue = self._training_data(), self._catalogue()
        ids = self.ids if data is None else data.items
        vectors = read_vectors(self._options.vectors, self._run, self._loaded, ids)
        return LiveModel(self.model, catalogue=catalogue, data=data, vectors=vectors, saved=saved)

    def save(self, folder: str | Path) -> None:
        """Write a run folder for `Recommender.load` and the commands; a log from memory is saved with it.

        An existing run or model is replaced. A folder with other files is refused. Changes wait until it is written.
        """
        folder = Path(folder)
        with self._changes:
            if current_backend().is_single and holds_model(folder) and is_replaceable(folder):
                edit_folder(folder, partial(self._save, of=folder))
            else:
                self._save(folder, folder)

    def _save(self, folder: Path, of: Path) -> bool:
        """Write a run into a folder, or into a copy of the folder `of`."""
        tables, run = self._with_changed_items()
        model = self.model
        source = self._data.folder if self._data is not None else self._data_source and self._data_source[1]
        if source is not None:
            run["data"] = None if self._owns_data else str(source.resolve())
        backend, trained = current_backend(), None if self.progress is None else self.progress.as_dict()
        with backend.lock(folder):
            with backend.guard() as first:
                if first:
                    check_free(folder, or_model=True)
                    write_run(folder, run, trained)  # first: a folder with run.json is a run
                    if self._loaded is None or self._loaded.resolve() != of.resolve():
                        remove_training(folder)
                    if not self._owns_data or source is None or source.resolve() != (of / DATA).resolve():
                        replace_data(folder, source if self._owns_data else None)
                    save_tables(folder, tables)
                    save_changes(folder, self._live)
            if self._loaded is None or self._loaded.resolve() != of.resolve():
                first_model = self._first_model()
                if first_model is not None:
                    backend.save_model(first_model, folder / FIRST)
                elif backend.is_first:
                    remove(folder / FIRST)
            if not self._is_saved(model, of):
                backend.save_model(model, folder)
            with backend.guard() as first:
                if first:
                    remove_stale_beam(folder)
        return True

    def _is_saved(self, model: TreeModel, folder: Path) -> bool:
        """Whether a folder has the model that was loaded from it: with other attributes of items it stays the same."""
        if self._loaded is None or model is not self._model or self._loaded.resolve() != folder.resolve():
            return False
        return holds_model(folder) and fingerprint(folder) == self._fingerprint

    def _with_changed_items(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tables to save with a run, and the content of its run.json: with the table of the items as it is now."""
        tables, run, live = dict(self._tables), dict(self._run), self._live
        if live is not None and live.catalogue.table is not None and live.has_changed_table:
            tables["items"], run["items"] = live.catalogue.table_to_save(), table_name("items")
        return tables, run

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: a log owned by this object is included, otherwise only its path."""
        with self._changes:
            state = {**self.__dict__, "_live": None, "_saved": None, "_read_catalogue": None, "_masks": MaskCache()}
            state["_measured"] = None
            if self._live is not None:
                tables, run = self._with_changed_items()
                state |= {"_model": self._live.model, "_saved": self._live.saved_changes()}
                state |= {"_tables": tables, "_run": run}
        state["_changes"] = ChangeLock()
        if self._data is not None and self._data_source is None:
            folder = self._data.folder
            state |= {"_files": pack_data(self._data)} if self._owns_data else {"_data_source": (folder, folder)}
        return state | {"_data": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files, saved = state.pop("_files", None), state.pop("_saved")
        self.__dict__.update({"_changes": ChangeLock(), **state})
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
        parts: tuple[Part, ...] = (),
        frame: str | None = None,
    ) -> "Recommender":
        """Read a run folder written by `save`, `beamtree train` or `beamtree compare`.

        Args:
            folder: the run.
            device: cpu or cuda.
            data: the prepared log, if it was moved.
            scorers: scorer classes from outside the package.
            parts: those from outside the package that `fit` had: they are then fitted again by `update`, too.
            frame: the kind of frame to return, polars or pandas. Default: as before.
        """
        folder = Path(folder)
        is_run = (folder / RUN).exists() or not holds_model(folder)  # otherwise written by `save_model`
        check_device(device)
        model = open_model(folder, device, scorers) if is_run else load_model(folder, device, scorers=scorers)
        ids_of(folder, model)
        run = read_run(folder) if is_run else {}
        recommender = cls(device=device, parts=parts, frame=frame)
        recommender._model, recommender._run, recommender._scorers = model, run, scorers
        source = data_folder(folder) if is_run else None
        if data is not None:
            recommender._data = open_data(folder, model, Path(data))
        elif source is not None and source.exists():
            recommender._data_source, recommender._owns_data = (folder, source), source == folder / DATA
        recommender._tables = dict(own_tables(folder, run))
        recommender._loaded, recommender._fingerprint = folder, fingerprint(folder)
        recommender.progress = Progress.of_run(run)
        saved = load_changes(folder)
        recommender._live = None if saved is None else recommender._open_live(saved)
        return recommender


def _ids(model: TreeModel) -> Ids:
    if model.ids is None:
        raise ValueError("this model has no item ids")
    return model.ids


def _search(searcher: Searcher, request: RecommendRequest) -> RecommendResponse:
    """The response to a request; a terminal shows progress if it takes long."""
    with Reporter(sys.stderr.isatty(), PROGRESS_SECONDS) as report:
        return searcher.recommend(request, report.progress)


def _warn_of_histories(no_known: list[str], count: int) -> None:
    """Warn the caller's caller that some histories have no known item; one unknown id of each is given."""
    if no_known:
        message = f"{len(no_known):,} of {count:,} histories have no known item, such as {no_known[0]!r}"
        warnings.warn(f"{message}: popular items are recommended for them", UserWarning, stacklevel=3)


def _warn_of_unknown(users: Sequence[str], count: int, what: str) -> None:
    """Warn the caller's caller that some of the users are unknown."""
    if users:
        message = f"{len(users):,} of {count:,} users are unknown, such as {users[0][:80]!r}: {what}"
        warnings.warn(f'{message}; unknown="error" refuses them', UserWarning, stacklevel=3)


def _deprecated(name: str, new: str) -> None:
    """Warn that a method is gone in the next version."""
    warnings.warn(f"{name} is deprecated and will be removed: use {new}", DeprecationWarning, stacklevel=3)

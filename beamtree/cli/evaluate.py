"""`beamtree evaluate`: how well a run finds what users chose next."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from beamtree.cli import options
from beamtree.cli.console import note, percent, print_table, progress, write
from beamtree.data import BeforeAfter, Prepared
from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.errors import lookup
from beamtree.evaluate import (
    ALL_METRICS,
    WEIGHTED_RECALL,
    Evaluation,
    FittedUsers,
    NoNewItemsError,
    evaluate,
    item_facts,
    leaving_out,
    measure,
    named_metrics,
    warnings_about,
)
from beamtree.evaluate.beyond_accuracy import LIST_METRICS
from beamtree.evaluate.slices import SEGMENTS
from beamtree.files.atomic import write_json
from beamtree.ingest.columns import LogColumns
from beamtree.kernels.threads import use_threads
from beamtree.live.refit import before_refit, builder_of_run, model_to_measure, seed_of
from beamtree.live.saved import load_changes
from beamtree.live.users import Users
from beamtree.model import TreeModel
from beamtree.research.baselines import BASELINES, build
from beamtree.research.compare.report import strength
from beamtree.search.choice import AUTO
from beamtree.storage.runs import data_folder, ids_of, open_data, open_first, open_model, read_run
from beamtree.storage.settings import fingerprint

_BEFORE: dict[str, Any] = {}  # the run that was measured last in this process, and its model before the refit


def evaluate_run(
    run: options.RunFolder,
    data: options.DataFolder = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="A log of other users: the second half of each user's events is to be found. In a file with one user "
            "a line, all items of users whom the model knows, from what it knows of them."
        ),
    ] = None,
    user: options.UserColumn = None,
    item: options.ItemColumn = None,
    time: options.TimeColumn = None,
    time_format: options.TimeFormat = None,
    split: options.Split = "test",
    beam_size: options.OptionalBeam = None,
    search: options.SearchName = AUTO,
    m: options.Cuts = "10,50,100,200",
    metrics: options.EvaluateMetrics = "precision,recall,f1",
    weighted: Annotated[
        bool, typer.Option("--weighted", help="Also recall with each expected item counted by the weight of its event.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="Also for parts of what is expected: by time (of the event), history (of the user) or popularity "
            "(of the item)."
        ),
    ] = None,
    exclude_seen: options.ExcludeSeen = False,
    against: Annotated[
        str,
        typer.Option(
            help=f"Baselines to compare with, separated by commas: {', '.join(BASELINES)}. All rows are shown with and "
            "without the items that a user has seen."
        ),
    ] = "",
    device: options.Device = "cpu",
    threads: options.Threads = None,
    json: options.Json = None,
) -> None:
    """Precision, recall and F1 at m over the test users, with 95 % intervals (bootstrap over users).

    With --against there are two tables, with and without the items that a user has seen. First comes the one in which
    the best of the baselines has the higher recall at the largest m (the first metric, where recall is not measured).

    --user, --item, --time and --time-format describe the columns of --log.
    """
    use_threads(threads)
    (search, beam), names = options.parse_search(search, beam_size, run), options.parse_list(metrics)
    cuts = options.parse_cuts(m, beam)
    names += (WEIGHTED_RECALL,) if weighted and WEIGHTED_RECALL not in names else ()
    if not named_metrics(names, ALL_METRICS):
        raise ValueError(f"nothing to measure: give an m and a metric of {', '.join(ALL_METRICS)}")
    if by is not None:
        lookup(SEGMENTS, "--by", by)
    rows = options.parse_list(against)
    for row in rows:
        lookup(BASELINES, "row", row)
    columns = LogColumns(user=user, item=item, time=time, time_format=time_format)
    if log is None and columns.given():
        raise ValueError("--user, --item, --time and --time-format describe the columns of --log FILE")
    options.check_outputs(json)
    served = open_model(run, device)
    prepared = open_data(run, served, data)
    changes = None if log is None else load_changes(run)

    def users_of(exclude_seen: bool) -> BeforeAfter:
        if log is None:
            return options.users_of(prepared, split)
        from beamtree.ingest.user_events import read_users  # polars takes a moment to import

        context, ids = list(served.scorer.context_values), ids_of(run, served)
        known = Users(prepared, {} if changes is None else changes.events, {})
        items_of = partial(known.items, ids=ids)
        return read_users(log, ids, columns, exclude_seen=exclude_seen, context=context, items_of=items_of)

    settings = (False, True) if rows else (exclude_seen,)
    users = {setting: users_of(setting) for setting in settings}
    model, which, fitted = honest_model(run, served, users[settings[0]], prepared)
    name, facts = run.resolve().name, item_facts(model, prepared.test)
    results: dict[bool, dict[str, Evaluation]] = {}  # by setting: whether seen items are left out
    with progress(sum(map(len, users.values())) * (1 + len(rows)), "users") as (advance, print_line):
        how: dict[str, Any] = {"m": cuts, "metrics": names, "by": by, "on_users": advance}
        searched: dict[str, Any] = {"beam_size": beam, "search": search}
        ours = f"{name} (run)" if name in rows else name
        for setting in settings:
            try:
                result = evaluate(model, users[setting], exclude_seen=setting, starts=facts.starts, **searched, **how)
            except NoNewItemsError as error:
                if not results:
                    raise
                print_line(f"Not measured without seen items: {error}")
            else:
                result.model = which
                results[setting] = {ours: result}
        for row in rows:
            print_line(f"{row}: fitting, and choosing its settings on the validation users")
            baseline = build(row, prepared.train.events, prepared.num_items, prepared.val)
            find = leaving_out(baseline.retrieve, max(cuts))
            for setting, measured in results.items():
                read = replace(users[setting], history=WHOLE_HISTORY)
                measured[row] = measure(find, read, exclude_seen=setting, facts=facts, batch_size=1000, **how)
    shown = strongest_first(results, rows)
    cautions = dict.fromkeys(
        caution for each in shown for caution in warnings_about(results[each][ours], users[each], fitted)
    )
    if json is not None:
        write_json(
            json,
            [
                {
                    "row": row,
                    "exclude_seen": setting,
                    **record,
                    **({"model": result.model} if result.model else {}),
                    **({"warning": "; ".join(cautions)} if cautions else {}),
                }
                for setting in shown
                for row, result in results[setting].items()
                for record in result.records()
            ],
        )
    for setting in shown:
        show(results[setting], cuts, names, setting)
    if which:
        write(f"The numbers of {ours} are of the model {which}.")
    note(*(f"note: {caution}" for caution in cautions))


def honest_model(
    run: Path, served: TreeModel, users: BeforeAfter, prepared: Prepared
) -> tuple[TreeModel, str, FittedUsers | None]:
    """The model of a run to measure on some users, which one it is, and whom it was fitted to: see `model_to_measure`.

    Args:
        run: the folder.
        served: its model.
        users: on whom it is measured.
        prepared: the training log, where that of the run is not available.
    """
    source, saved, settings = data_folder(run), load_changes(run), read_run(run)
    training = open_data(run, served) if source is not None and source.exists() else prepared

    def before() -> TreeModel:
        state = run.resolve(), fingerprint(run), saved
        if _BEFORE.get("run") != state:
            with percent("the model before the refit") as on_progress:
                _BEFORE.update(
                    run=state,
                    model=before_refit(
                        served,
                        training,
                        seed_of(settings),
                        on_progress,
                        build=builder_of_run(run, settings),
                        first=open_first(run, str(served.tree.device)),
                    ),
                )
        model: TreeModel = _BEFORE["model"]
        return model

    return model_to_measure(served, users, training, settings, None if saved is None else saved.events, before)


def strongest_first(results: Mapping[bool, Mapping[str, Evaluation]], others: Sequence[str]) -> list[bool]:
    """The settings, first the one in which the best of the other rows finds more, by `strength`."""
    if not others:
        return list(results)
    return sorted(results, key=lambda setting: strength(results[setting][row] for row in others), reverse=True)


def show(results: Mapping[str, Evaluation], cuts: Sequence[int], metrics: Sequence[str], exclude_seen: bool) -> None:
    """A table, in percent where that is usual; the best row of each column in bold."""
    first = next(iter(results.values()))
    users = f"{first.users:,}" if first.users == first.users_asked else f"{first.users:,} of {first.users_asked:,}"
    seen = "seen items left out" if exclude_seen else "seen items left in"
    table = Table(title=f"{users} users, %, {seen}", caption="below: the 95 % interval of the mean over users")
    table.add_column("metric", no_wrap=True)
    if first.segments:
        table.add_column("segment")
    table.add_column("row", no_wrap=True)
    for cut in cuts:
        table.add_column(f"@{cut}", justify="right", no_wrap=True)
    for metric in metrics:
        name = metric if metric not in LIST_METRICS or LIST_METRICS[metric].in_percent else f"{metric} (not in %)"
        for segment in ("", *first.segments):
            parts = {row: result.segments[segment] if segment else result for row, result in results.items()}
            if any((metric, cuts[0]) not in part for part in parts.values()):
                continue
            best = {cut: max(part[metric, cut] for part in parts.values()) for cut in cuts}
            for index, (row, part) in enumerate(parts.items()):
                cells = []
                for score in (score for score in part.scores if score.metric == metric):
                    value, low, high = score.as_text()
                    if len(results) > 1 and score.value == best[score.m] and metric not in LIST_METRICS:
                        value = f"[bold]{value}[/bold]"
                    cells.append(f"{value}\n[dim]{low} – {high}[/dim]")
                of_part = (
                    [f"{segment}\n[dim]{part.users:,} users[/dim]" if segment else "all"] if first.segments else []
                )
                names = [name if index == 0 and not segment else "", *(of_part if index == 0 else [""] * len(of_part))]
                table.add_row(*names, row, *cells)
    print_table(table)

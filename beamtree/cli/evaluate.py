"""`beamtree evaluate`: how well a run finds what users chose next."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from beamtree.cli import options
from beamtree.cli.console import print_table, progress
from beamtree.errors import lookup
from beamtree.evaluate import (
    ALL_METRICS,
    WEIGHTED_RECALL,
    Evaluation,
    evaluate,
    item_facts,
    leaving_out,
    measure,
    named_metrics,
)
from beamtree.files.atomic import write_json
from beamtree.list_metrics import LIST_METRICS
from beamtree.research.baselines import BASELINES, build
from beamtree.scorers import context_names
from beamtree.segments import SEGMENTS
from beamtree.threads import use_threads
from beamtree.train.runs import ids_of, open_data, open_model


def evaluate_run(
    run: options.RunFolder,
    data: options.DataFolder = None,
    log: Annotated[
        str | None,
        typer.Option(help="A log of other users: the second half of each user's events is to be found."),
    ] = None,
    user: options.UserColumn = None,
    item: options.ItemColumn = None,
    time: options.TimeColumn = None,
    time_format: options.TimeFormat = None,
    split: options.Split = "test",
    beam_size: options.BeamText = options.DEFAULT_BEAM,
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
        str, typer.Option(help=f"Baselines to compare with, separated by commas: {', '.join(BASELINES)}.")
    ] = "",
    device: options.Device = "cpu",
    threads: options.Threads = None,
    json: options.Json = None,
) -> None:
    """Precision, recall and F1 at m over the test users, with 95 % intervals (bootstrap over users).

    --user, --item, --time and --time-format describe the columns of --log.
    """
    use_threads(threads)
    beam, names = options.parse_beam(beam_size, run), options.parse_list(metrics)
    cuts = options.parse_cuts(m, beam)
    names += (WEIGHTED_RECALL,) if weighted and WEIGHTED_RECALL not in names else ()
    named_metrics(names, ALL_METRICS)
    if by is not None:
        lookup(SEGMENTS, "--by", by)
    rows = options.parse_list(against)
    for row in rows:
        lookup(BASELINES, "row", row)
    columns = {"user": user, "item": item, "time": time, "time_format": time_format}
    if log is None and any(columns.values()):
        raise ValueError("--user, --item, --time and --time-format describe the columns of --log FILE")
    options.check_outputs(json)
    model = open_model(run, device)
    prepared = open_data(run, model, data)
    if log is None:
        users = options.users_of(prepared, split)
    else:
        from beamtree.ingest.user_events import read_users  # polars takes a moment to import

        context = context_names(model.scorer)
        users = read_users(log, ids_of(run, model), **columns, exclude_seen=exclude_seen, context=context)
    name, facts = run.resolve().name, item_facts(model)
    results: dict[str, Evaluation] = {}
    with progress(len(users) * (1 + len(rows)), "users") as (advance, print_line):
        results[f"{name} (run)" if name in rows else name] = evaluate(
            model, users, beam_size=beam, m=cuts, metrics=names, exclude_seen=exclude_seen, by=by, on_users=advance
        )
        for row in rows:
            print_line(f"{row}: fitting, and choosing its settings on the validation users")
            baseline = build(row, prepared.train.events, prepared.num_items, prepared.val)
            find = leaving_out(baseline.retrieve, max(cuts))
            results[row] = measure(
                find,
                users,
                m=cuts,
                metrics=names,
                exclude_seen=exclude_seen,
                by=by,
                facts=facts,
                batch_size=1000,
                on_users=advance,
            )
    if json is not None:
        write_json(json, [{"row": row, **record} for row, result in results.items() for record in result.records()])
    show(results, cuts, names, exclude_seen)


def show(results: dict[str, Evaluation], cuts: Sequence[int], metrics: Sequence[str], exclude_seen: bool) -> None:
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

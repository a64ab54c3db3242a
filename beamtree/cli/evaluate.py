"""`beamtree evaluate`: how well a run finds what users chose next."""

from collections.abc import Callable
from typing import Annotated

import torch
import typer
from rich.table import Table

from beamtree.baselines import BASELINES
from beamtree.cli.options import (
    BeamSize,
    Cuts,
    DataFolder,
    Device,
    Json,
    RunFolder,
    Split,
    choose,
    cuts,
    split_of,
    words,
)
from beamtree.cli.screen import print_table, progress
from beamtree.data.files import check_writable, write_json
from beamtree.evaluate import Evaluation, Find, evaluate, measure
from beamtree.metrics import hits
from beamtree.train.runs import open_data, open_model
from beamtree.tree import PAD

Retrieve = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def evaluate_run(
    run: RunFolder,
    data: DataFolder = None,
    split: Split = "test",
    beam_size: BeamSize = 400,
    m: Cuts = "10,50,100,200",
    metrics: Annotated[str, typer.Option(help="Of precision, recall, f1, ndcg, hit_rate.")] = "precision,recall,f1",
    exclude_seen: Annotated[bool, typer.Option("--exclude-seen", help="Leave out what a user has seen.")] = False,
    against: Annotated[str, typer.Option(help=f"Plain rows to compare with: {', '.join(BASELINES)}.")] = "",
    device: Device = "cpu",
    json: Json = None,
) -> None:
    """Precision, recall and F at m over the test users, with 95 % intervals (bootstrap over users)."""
    sizes, names = cuts(m, beam_size), words(metrics)
    rows = {row: choose(BASELINES, "row", row) for row in words(against)}
    if json is not None:
        check_writable(json)
    model = open_model(run, device)
    prepared = open_data(run, data)
    users = split_of(prepared, split)
    name = run.resolve().name
    with progress(len(users) * (1 + len(rows)), "users") as (advance, _):
        found = {
            f"{name} (run)" if name in rows else name: evaluate(
                model,
                users,
                beam_size=beam_size,
                m=sizes,
                metrics=names,
                exclude_seen=exclude_seen,
                on_users=advance,
            )
        }
        for row, build in rows.items():
            baseline = build(prepared.train, prepared.num_items)
            find = baseline_find(baseline.retrieve, max(sizes))
            found[row] = measure(
                find, users, m=sizes, metrics=names, exclude_seen=exclude_seen, batch_size=1000, on_users=advance
            )
    if json is not None:
        records = [{"row": row, **score.record()} for row, result in found.items() for score in result.scores]
        write_json(json, records)
    show(found, sizes, names)


def baseline_find(retrieve: Retrieve, m: int) -> Find:
    """A plain row that leaves out what it is told to: it is asked for as many more."""

    def find(x: torch.Tensor, exclude: torch.Tensor) -> torch.Tensor:
        items, scores = retrieve(x, m + exclude.shape[1])
        if not exclude.shape[1]:
            return items
        scores = scores.masked_fill(hits(items, exclude), -torch.inf)
        best = scores.topk(m)
        return items.gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)

    return find


def show(found: dict[str, Evaluation], sizes: tuple[int, ...], metrics: tuple[str, ...]) -> None:
    """A table for people, in percent; the best row of each column in bold."""
    users = next(iter(found.values())).users
    table = Table(title=f"{users:,} users, %", caption="below: the 95 % interval over users")
    table.add_column("metric", no_wrap=True)
    table.add_column("row", no_wrap=True)
    for cut in sizes:
        table.add_column(f"@{cut}", justify="right", no_wrap=True)
    for metric in metrics:
        best = {cut: max(result[metric, cut] for result in found.values()) for cut in sizes}
        for index, (row, result) in enumerate(found.items()):
            cells = []
            for score in (score for score in result.scores if score.metric == metric):
                value = f"{score.value * 100:.2f}"
                if len(found) > 1 and score.value == best[score.m]:
                    value = f"[bold]{value}[/bold]"
                cells.append(f"{value}\n[dim]{score.low * 100:.2f} – {score.high * 100:.2f}[/dim]")
            table.add_row(metric if index == 0 else "", row, *cells)
    print_table(table)

"""`beamtree bench-serve`: what a service does under load."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from beamtree.answers import split_ids
from beamtree.cli.options import beam_words
from beamtree.cli.screen import draw, out, print_table, progress
from beamtree.files.atomic import check_writable, write_json
from beamtree.loadtest import Report, arrivals, load


def bench_serve(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of a service, such as http://localhost:8000.")],
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 100,
    seconds: Annotated[float, typer.Option(help="For how long.")] = 10,
    m: Annotated[int, typer.Option(min=1, help="How many items each request asks for.")] = 10,
    beam_size: Annotated[
        str | None, typer.Option(help="k, or one width per level between commas; the service's own unless given.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="A file with a history per line, ids as in retrieve; made up unless given.")
    ] = None,
    constant: Annotated[bool, typer.Option("--constant", help="Requests come evenly, and not by chance.")] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals, and of histories that are made up.")] = 0,
    token: Annotated[
        str | None, typer.Option(envvar="BEAMTREE_READ_TOKEN", help="The bearer token, where one is needed.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw latency over time and its distribution.")] = None,
) -> None:
    """Put load on a service and show how fast it answers: p50, p95, p99, errors by code, what was degraded.

    Requests come at times that are fixed before, whatever the answers do (an open loop). Latency counts from when a
    request was due, so a service that stalls pays for all who would have asked meanwhile.

    Run it on another machine than the service where you can: here the two share the cores.
    """
    asked: dict[str, Any] = {"m": m} | ({} if beam_size is None else {"beam_size": beam_words(beam_size)})
    for path in filter(None, (json, plot)):
        check_writable(path)
    histories = None if history is None else _histories(history)
    expected = len(arrivals(rate, seconds, seed=seed, constant=constant))
    with progress(expected, "requests") as (advance, _):
        found = load(
            url, rate=rate, seconds=seconds, asked=asked, histories=histories, constant=constant, seed=seed,
            token=token, on_reply=advance,
        )  # fmt: skip
    if json is not None:
        write_json(json, {"url": url, **asked, **found.as_dict()})
    show(found)
    if plot is not None:
        for path in draw(lambda plots: plots.plot_load(found, plot), plot):
            out.print(f"Saved {path}", highlight=False, soft_wrap=True, markup=False)


def _histories(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise ValueError(f"{path} is no file of histories")
    found = [split_ids(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not (found := [each for each in found if each]):
        raise ValueError(f"{path} holds no history: write one per line")
    return found


def show(found: Report) -> None:
    """One row of numbers, and one line for each kind of error."""
    numbers = found.as_dict()
    table = Table(title=f"{found.rate:g} requests per second for {found.seconds:g} seconds")
    shown = {
        "sent": f"{numbers['sent']:,}",
        "answered": f"{numbers['answered']:,}",
        "per second": f"{numbers['answered_per_second']:,.1f}",
        **{name: _ms(numbers[f"{name}_ms"]) for name in ("p50", "p95", "p99", "max")},
        "degraded": f"{numbers['degraded']:.1%}",
        "client late, p99": _ms(numbers["client_late_p99_ms"]),
    }
    for name in shown:
        table.add_column(name, justify="right")
    table.add_row(*shown.values())
    print_table(table)
    for outcome, count in found.errors.items():
        out.print(f"{count:,} requests ended with {outcome}", highlight=False)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"

"""`beamtree serve`: a run over HTTP."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from beamtree.cli.console import err
from beamtree.distributed.command import OpenModel, over_ranks
from beamtree.distributed.group import LostError, join, tells
from beamtree.errors import requires


def option(name: str, help: str, variable: str = "", **more: Any) -> Any:
    """An option that an environment variable sets as well: --max-m and BEAMTREE_MAX_M."""
    known = variable or name.upper().replace("-", "_")
    return typer.Option(f"--{name}", envvar=f"BEAMTREE_{known}", help=help, **more)


Run = Annotated[Path, typer.Argument(metavar="RUN", envvar="BEAMTREE_RUN", help="A folder that `train` wrote.")]
Host = Annotated[str, option("host", "The address to listen at; 0.0.0.0 for all.")]
# Kubernetes sets BEAMTREE_PORT to something else wherever a service is called beamtree.
Port = Annotated[int, option("port", "The port to listen at; 0 for any.", "HTTP_PORT", min=0, max=65535)]
Name = Annotated[str | None, option("name", "What the model is called; as its folder unless given.")]
Items = Annotated[Path | None, option("items", "A table of item and title, category or both.")]
Data = Annotated[Path | None, option("data", "Prepared data; those it was trained on unless given.")]
KEPT = "A folder for changes of items and events, which outlive restarts; without it nothing can change."
Changes = Annotated[Path | None, option("changes", KEPT)]
Device = Annotated[str, option("device", "cpu or cuda.")]
Threads = Annotated[int | None, option("threads", "CPU threads of a search; torch's own unless given.", min=1)]
BeamSize = Annotated[int, option("beam-size", "k where a request does not say.", min=1)]
Window = Annotated[float, option("window", "Milliseconds in which requests are gathered.", min=0)]
Batch = Annotated[int, option("batch", "Histories that are searched together.", min=1)]
Queue = Annotated[int, option("queue", "Histories that may wait; more are answered 429.", min=1)]
Slow = Annotated[float, option("slow", "Milliseconds of waiting after which the beam is narrowed.", min=1)]
Timeout = Annotated[
    float, option("timeout", "Milliseconds that 10 histories may take, more as much longer; 504 then.", min=1)
]
MaxM = Annotated[int, option("max-m", "Items that one may ask for.", min=1)]
MaxBeam = Annotated[int, option("max-beam", "k that one may ask for.", min=1)]
MaxHistory = Annotated[int, option("max-history", "Ids of a history.", min=1)]
MaxHistories = Annotated[int, option("max-histories", "Histories of a request.", min=1)]
MaxList = Annotated[int, option("max-list", "Ids of allowed and of exclude.", min=1)]
MaxBody = Annotated[int, option("max-body", "Bytes of a request.", min=1)]
EVERY = "Look every so many seconds whether another run lies in RUN's place, and serve it then."
MaxChanges = Annotated[int, option("max-changes", "Items or events that change in a request.", min=1)]
Watch = Annotated[float | None, option("watch", EVERY, min=0.1)]
Drain = Annotated[float, option("drain", "Seconds for which it goes on when told to stop.", min=0)]


def serve_run(
    run: Run,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    name: Name = None,
    items: Items = None,
    data: Data = None,
    changes: Changes = None,
    device: Device = "cpu",
    threads: Threads = None,
    beam_size: BeamSize = 400,
    window: Window = 2.0,
    batch: Batch = 64,
    queue: Queue = 512,
    slow: Slow = 40.0,
    timeout: Timeout = 1000.0,
    max_m: MaxM = 1000,
    max_beam: MaxBeam = 4000,
    max_history: MaxHistory = 1000,
    max_histories: MaxHistories = 256,
    max_list: MaxList = 100_000,
    max_body: MaxBody = 4 << 20,
    max_changes: MaxChanges = 1000,
    watch: Watch = None,
    drain: Drain = 1.0,
) -> None:
    """Serve a run over HTTP: recommendations, explanations and the page, for ids as you know them.

    POST /v1/recommend {"history": ["B00A", "B00B"], "m": 10} answers with items and scores.

    GET /openapi.json says what else there is.

    Under load the beam gets narrower, and answers say so. Then requests are answered 429 with Retry-After.

    Every option can be an environment variable. Two are variables alone, so that no list of processes shows them:
    BEAMTREE_READ_TOKEN, which everybody must send who asks, and BEAMTREE_CHANGE_TOKEN, for those who change things.
    Without the second, only this machine may change things.

    SIGTERM stops it: what is in flight is finished, and the exit code is 0.

    A model that is too large for one device: `torchrun --nproc-per-node 4 -m beamtree serve RUN`, see docs/scale.md.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    most = (max_m, max_beam, max_history, max_histories, max_list, max_body, max_changes)
    times = {"window": window / 1000, "slow": slow / 1000, "timeout": timeout / 1000, "watch": watch}
    sizes = {"beam_size": beam_size, "max_batch": batch, "max_queue": queue}
    opened = {"name": name or run.absolute().name, "device": device, "items": items, "data": data}
    how = run, host, port, opened, changes, {**times, **sizes}, most, drain
    _wherever(run, device, lambda open_run: start(*how, open_run))


def _wherever(run: Path, device: str, serve: Callable[[OpenModel | None], None]) -> None:
    """Serve alone, or as the first of the ranks that torchrun started."""
    now = join(device)
    if now.size == 1:
        serve(None)
        return
    if not now.is_first:  # the first one lets the others go when all requests are answered
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
    over_ranks(now, "serve", run, device, serve, _end)


def _end(error: LostError) -> None:
    """Without one rank nothing can be answered: whoever started this one starts all of them again."""
    if tells():
        print(f"beamtree: {error}", file=sys.stderr, flush=True)
    os._exit(2)


def start(
    run: Path,
    host: str,
    port: int,
    opened: dict[str, Any],
    changes: Path | None,
    how: dict[str, Any],
    most: tuple[int, ...],
    drain: float,
    open_model: OpenModel | None = None,
) -> None:
    """Listen, load, say where, and serve; `open_model` is given where other ranks have parts of the model."""
    if changes is not None and open_model is not None:
        raise ValueError("items cannot change while a model is searched over ranks: leave out `changes`")
    with requires("serve", "`beamtree serve`"):
        from beamtree.serve.engine.served_run import last_served_run, live_opener, open_journal, static_opener
        from beamtree.serve.http.access import Access, Limits, is_local
        from beamtree.serve.http.server import listen, make_server
        from beamtree.serve.http.service import Service

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    read, change = (os.environ.get(f"BEAMTREE_{which}_TOKEN") or None for which in ("READ", "CHANGE"))
    access = Access(read, change, is_local(host))
    listening = listen(host, port)
    with open_journal(changes) as journal:
        open_run = (
            live_opener(journal=journal, **opened)
            if journal is not None
            else static_opener(**opened, load_model=open_model)
        )
        first = run if journal is None else last_served_run(run, journal)
        service = Service(run, open_run, first=first, limits=Limits(*most), access=access, **how)
        if first.absolute() != run.absolute():
            told = f"{first.name} was posted to /v1/model and is served instead of {run}: post {run.name} to go back"
            err.print(told, highlight=False, soft_wrap=True, markup=False)
        address = f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
        err.print(f"{service.loaded.name} is served at {address}", highlight=False, soft_wrap=True, markup=False)
        make_server(service, drain).run(sockets=[listening])

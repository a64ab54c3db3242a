"""`beamtree serve`: serve a run over HTTP."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from beamtree.cli.console import note
from beamtree.distributed.command import OpenModel, run_on_first
from beamtree.distributed.group import PeerLostError, connect, should_report
from beamtree.errors import requires


def option(name: str, help: str, variable: str = "", **more: Any) -> Any:
    """An option that can also be set by an environment variable: --max-m and BEAMTREE_MAX_M."""
    known = variable or name.upper().replace("-", "_")
    return typer.Option(f"--{name}", envvar=f"BEAMTREE_{known}", help=help, **more)


Run = Annotated[
    Path, typer.Argument(metavar="RUN", envvar="BEAMTREE_RUN", help="A folder written by `beamtree train`.")
]
Host = Annotated[str, option("host", "The address to listen at; 0.0.0.0 for all.")]
# Kubernetes sets BEAMTREE_PORT to something else wherever a service is called beamtree.
Port = Annotated[int, option("port", "The port to listen at; 0 for any.", "HTTP_PORT", min=0, max=65535)]
Name = Annotated[str | None, option("name", "The name of the model. Default: the name of its folder.")]
Items = Annotated[Path | None, option("items", "A table of items with titles, categories or both.")]
Data = Annotated[Path | None, option("data", "Prepared data. Default: the training data of the run.")]
KEPT = "A folder that stores changes of items and events across restarts; without it nothing can be changed."
Changes = Annotated[Path | None, option("changes", KEPT)]
Device = Annotated[str, option("device", "cpu or cuda.")]
Threads = Annotated[int | None, option("threads", "CPU threads of a search. Default: those of torch.", min=1)]
BeamSize = Annotated[int, option("beam-size", "The beam size k of requests that do not give one.", min=1)]
Window = Annotated[float, option("window", "Milliseconds for which requests are collected into a batch.", min=0)]
Batch = Annotated[int, option("batch", "Most histories in a batch.", min=1)]
Queue = Annotated[int, option("queue", "Most histories in the queue; further requests get 429.", min=1)]
Slow = Annotated[float, option("slow", "Milliseconds in the queue after which the beam is narrowed.", min=1)]
Timeout = Annotated[
    float, option("timeout", "Milliseconds for up to 10 histories, proportionally more for more; then 504.", min=1)
]
MaxM = Annotated[int, option("max-m", "Largest m of a request.", min=1)]
MaxBeam = Annotated[int, option("max-beam", "Largest beam size of a request.", min=1)]
MaxHistory = Annotated[int, option("max-history", "Most ids of a history.", min=1)]
MaxHistories = Annotated[int, option("max-histories", "Most histories of a request.", min=1)]
MaxList = Annotated[int, option("max-list", "Most ids of allowed and of exclude.", min=1)]
MaxBody = Annotated[int, option("max-body", "Most bytes of a request.", min=1)]
EVERY = "Seconds between checks whether RUN was replaced; a new run is then served."
MaxChanges = Annotated[int, option("max-changes", "Most items or events changed by a request.", min=1)]
Watch = Annotated[float | None, option("watch", EVERY, min=0.1)]
Drain = Annotated[float, option("drain", "Seconds to keep serving after a signal to stop.", min=0)]


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
    """Serve a run over HTTP: recommendations, explanations, and a page to explore them.

    POST /v1/recommend {"history": ["B00A", "B00B"], "m": 10} returns items and scores. GET /openapi.json describes all
    routes.

    Under load the beam gets narrower, and responses say so. Beyond that, requests get 429 with Retry-After.

    Every option can be an environment variable. Two settings are only variables, so that no list of processes shows
    them: BEAMTREE_READ_TOKEN, needed for every request, and BEAMTREE_CHANGE_TOKEN, needed for changes. Without the
    second, only this machine may make changes.

    SIGTERM stops the server: requests in flight are finished, and the exit code is 0.

    For a model too large for one device use `torchrun --nproc-per-node 4 -m beamtree serve RUN`, see docs/scale.md.
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
    now = connect(device)
    if now.size == 1:
        serve(None)
        return
    if not now.is_first:  # the first one lets the others go when all requests are answered
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
    run_on_first(now, "serve", run, device, serve, _end)


def _end(error: PeerLostError) -> None:
    """Without one rank nothing can be answered: whoever started this one starts all of them again."""
    if should_report():
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
            note(f"{first.name} was posted to /v1/model and is served instead of {run}: post {run.name} to go back")
        address = f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
        note(f"{service.loaded.name} is served at {address}")
        make_server(service, drain).run(sockets=[listening])

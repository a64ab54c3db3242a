"""`beamtree serve`: serve a run over HTTP."""

import logging
import os
import sys
import threading
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from beamtree.cli.console import note
from beamtree.distributed.group import check_single
from beamtree.errors import requires
from beamtree.files.staging import InUseError
from beamtree.search.choice import AUTO
from beamtree.storage.settings import refuse_classifier


def option(name: str, help: str, *variables: str, **limits: Any) -> Any:
    """An option that can also be set by an environment variable: --max-m and BEAMTREE_MAX_M, or others."""
    suffixes = variables or (name.upper().replace("-", "_"),)
    return typer.Option(f"--{name}", envvar=[f"BEAMTREE_{each}" for each in suffixes], help=help, **limits)


def serve_run(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", envvar="BEAMTREE_RUN", help="A folder written by `beamtree train`.")
    ],
    host: Annotated[str, option("host", "The address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    # Kubernetes sets BEAMTREE_PORT to something else wherever a service is called beamtree.
    port: Annotated[int, option("port", "The port to listen at; 0 for any.", "HTTP_PORT", min=0, max=65535)] = 8000,
    name: Annotated[str | None, option("name", "The name of the model. Default: the name of its folder.")] = None,
    items: Annotated[
        Path | None, option("items", "A table of items with titles, categories or other attributes.")
    ] = None,
    data: Annotated[Path | None, option("data", "Prepared data. Default: the training data of the run.")] = None,
    changes: Annotated[
        Path | None,
        option(
            "changes",
            "A folder that stores changes of items and events across restarts; without it nothing can be changed.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        option(
            "follow",
            "The changes of another service to apply: its folder of changes, or its address, http://HOST:PORT.",
        ),
    ] = None,
    device: Annotated[str, option("device", "cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None, option("threads", "CPU threads of a search. Default: those of torch.", min=1)
    ] = None,
    beam_size: Annotated[
        int | None, option("beam-size", "The beam size k of requests that do not give one. Default: 400.", min=1)
    ] = None,
    search: Annotated[
        str,
        option(
            "search",
            "How requests without a beam size are answered: beam; scan, which scores every item; or auto: a beam with "
            "--beam-size, else the faster one, which is measured once.",
        ),
    ] = AUTO,
    batch_window_ms: Annotated[
        float,
        option(
            "batch-window-ms",
            "Milliseconds for which requests are collected into a batch.",
            "BATCH_WINDOW_MS",
            "WINDOW",
            min=0,
        ),
    ] = 2.0,
    batch: Annotated[int, option("batch", "Most histories in a batch.", min=1)] = 64,
    queue: Annotated[int, option("queue", "Most histories in the queue; further requests get 429.", min=1)] = 512,
    degrade_after_ms: Annotated[
        float,
        option(
            "degrade-after-ms",
            "Milliseconds in the queue after which the beam is narrowed.",
            "DEGRADE_AFTER_MS",
            "SLOW",
            min=1,
        ),
    ] = 40.0,
    timeout: Annotated[
        float, option("timeout", "Milliseconds for up to 10 histories, proportionally more for more; then 504.", min=1)
    ] = 1000.0,
    max_m: Annotated[int, option("max-m", "Largest m of a request.", min=1)] = 1000,
    max_beam: Annotated[int, option("max-beam", "Largest beam size of a request.", min=1)] = 4000,
    max_history: Annotated[int, option("max-history", "Most ids of a history.", min=1)] = 1000,
    max_histories: Annotated[int, option("max-histories", "Most histories of a request.", min=1)] = 256,
    max_list: Annotated[int, option("max-list", "Most ids of allowed and of exclude.", min=1)] = 100_000,
    max_body: Annotated[int, option("max-body", "Most bytes of a request.", min=1)] = 4 << 20,
    max_changes: Annotated[int, option("max-changes", "Most items or events changed by a request.", min=1)] = 1000,
    watch: Annotated[
        float | None,
        option("watch", "Seconds between checks whether RUN was replaced; a new run is then served.", min=0.1),
    ] = None,
    drain: Annotated[float, option("drain", "Seconds to keep serving after a signal to stop.", min=0)] = 1.0,
) -> None:
    """Serve a run over HTTP: recommendations, explanations, and a page to explore them.

    POST /v1/recommend {"history": ["B00A", "B00B"], "m": 10} returns items and scores. GET /openapi.json describes all
    routes.

    Under load the beam gets narrower, and responses say so. Beyond that, requests get 429 with Retry-After.

    Changes are made through one service, with --changes FOLDER. Any number of others apply them with --follow FOLDER,
    or --follow http://HOST:PORT.

    Every option can be an environment variable. Two settings are only variables, so that no list of processes shows
    them: BEAMTREE_READ_TOKEN, needed for every request, and BEAMTREE_CHANGE_TOKEN, needed for changes and to follow
    them by an address. Without the second, only this machine may do so.

    SIGTERM stops the server: requests in flight are finished, and the exit code is 0.
    """
    check_single("serve")
    refuse_classifier(run)
    if threads is not None:
        torch.set_num_threads(threads)

    if changes is not None and follow is not None:
        raise ValueError("`changes` and `follow`: a service makes changes, or follows those of another")
    with requires("serve", "`beamtree serve`"):
        from beamtree.live import Journal
        from beamtree.live.following import Heartbeat, open_changes
        from beamtree.serve.engine.engine import EngineOptions
        from beamtree.serve.engine.follower import Follower
        from beamtree.serve.engine.served_run import last_served_run, open_run
        from beamtree.serve.http.access import Limits, access_from_environment
        from beamtree.serve.http.app import make_app
        from beamtree.serve.http.server import listen, make_server, url_of
        from beamtree.serve.http.service import Service

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with ExitStack() as stack:
        listening = stack.enter_context(closing(listen(host, port)))
        try:
            journal = None if changes is None else stack.enter_context(closing(Journal(changes)))
        except InUseError as error:
            raise ValueError(f"{changes} has the changes of another service: `follow` them instead") from error
        open_it = partial(
            open_run,
            name=name or run.absolute().name,
            device=device,
            items=items,
            data=data,
            journal=journal,
            follows=follow is not None,
        )
        follower = None
        if follow is not None:
            token = os.environ.get("BEAMTREE_CHANGE_TOKEN") or None
            follower = Follower(run, open_it, partial(open_changes, follow, token))
        first = run if journal is None else last_served_run(run, journal)
        service = Service(
            run,
            open_it,
            first=first,
            options=EngineOptions(
                beam_size=beam_size,
                search=search,
                batch_window=batch_window_ms / 1000,
                max_batch=batch,
                max_queue=queue,
                degrade_after=degrade_after_ms / 1000,
            ),
            timeout=timeout / 1000,
            limits=Limits(
                m=max_m,
                beam_size=max_beam,
                history=max_history,
                histories=max_histories,
                listed=max_list,
                body=max_body,
                changes=max_changes,
            ),
            access=access_from_environment(host, follows=follow is not None),
            watch=watch,
            journal=journal,
            follower=follower,
        )
        if changes is not None:
            stack.enter_context(closing(Heartbeat(changes, url_of(listening, for_others=True))))
        if first.absolute() != run.absolute():
            note(f"{first.name} was posted to /v1/model and is served instead of {run}: post {run.name} to go back")
        if follower is not None:
            note(f"the changes of {follower.writer} are followed")
        note(f"{service.loaded.name} is served at {url_of(listening)}")
        make_server(make_app(service), service, drain).run(sockets=[listening])
    if any(thread.daemon and thread.name.startswith("beamtree-") for thread in threading.enumerate()):
        _exit_without_threads()


def _exit_without_threads() -> None:
    """Exit although threads still prepare what nobody will need: they could go on for half a minute."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

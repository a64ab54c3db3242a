"""The service over HTTP: every route, its examples, and errors in one shape."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response

from beamtree import __version__
from beamtree.diagnose.explore import catalogue_map, describe_model, inspect_for_page, losses_as_dict, page
from beamtree.model import TreeModel
from beamtree.serve.engine.metrics import KIND
from beamtree.serve.engine.service import Service
from beamtree.serve.http import inference
from beamtree.serve.http import item_routes as things
from beamtree.serve.http import recommend_routes as asking
from beamtree.serve.http.errors import RefusedError, add_handlers, as_json
from beamtree.serve.http.examples import with_examples
from beamtree.serve.http.middleware import Guard
from beamtree.serve.http.schemas import Losses, Map, Model, Problem, Swap

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "No JSON.",
        401: "A token is needed.",
        403: "Changes are not allowed.",
        404: "There is no such thing.",
        405: "Not this way.",
        408: "The body took too long.",
        409: "This service cannot change.",
        413: "Too much.",
        415: "A change that is no JSON.",
        422: "Not as it should be.",
        429: "Too many wait; come back after Retry-After seconds.",
        503: "Not now; come back after Retry-After seconds.",
        504: "Not in time.",
    }.items()
}

LEAVES = 20_000_000  # that are scored to see what the beam loses, over as many users as that allows
FEWEST_USERS, MOST_USERS = 20, 200


def make_app(service: Service) -> FastAPI:
    """The application of a service, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="beamtree",
        version=__version__,
        description="Recommendations from a learned tree.",
        lifespan=lifespan,
        docs_url=None,  # that page would load its parts from elsewhere
        redoc_url=None,
        responses=PROBLEMS,
    )
    add_handlers(app)
    app.add_middleware(Guard, service=service)
    for room in (asking, things, inference):
        app.include_router(room.routes(service))
    app.include_router(things.changes(service))
    app.include_router(health(service))
    app.include_router(model_routes(service))
    with_examples(app, service)
    return app


def health(service: Service) -> APIRouter:
    """Whether it lives and answers, how loaded it is, and the page."""
    router = APIRouter()

    async def live() -> Response:
        """It lives."""
        return as_json({"live": True})

    async def ready() -> Response:
        """It answers; not while it stops."""
        return as_json({"ready": not service.stopping}, 503 if service.stopping else 200)

    for path in ("/healthz", "/livez", "/v2/health/live"):
        router.add_api_route(path, live, name=path)
    for path in ("/readyz", "/v2/health/ready"):
        router.add_api_route(path, ready, name=path)

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Numbers for Prometheus."""
        return Response(service.metrics.text(service.engine), media_type=KIND)

    @router.get("/load")
    async def load() -> Response:
        """How loaded it is, for whoever shares out requests."""
        engine = service.engine
        beam = list(engine.beam_now) if isinstance(engine.beam_now, tuple) else engine.beam_now
        queue = {"waiting": engine.waiting, "queue": engine.queue}
        return as_json({**queue, "beam_size": beam, "steps_narrowed": engine.step, "stopping": service.stopping})

    document = page(live=True)

    @router.get("/", response_class=HTMLResponse)
    async def show_page() -> Response:
        """The page."""
        return HTMLResponse(document)

    return router


def model_routes(service: Service) -> APIRouter:
    """What is served, and how to serve another run."""
    router = APIRouter()

    @router.get("/v1/model", responses={200: {"model": Model}})
    async def show_model() -> Response:
        """What is served, and what came of the last run that was to be loaded."""
        return as_json(about(service))

    @router.post("/v1/model", responses={200: {"model": Model}})
    async def load_model(asked: Swap) -> Response:
        """Serve another run, once it has loaded and answered; until then, and if it fails, the old one answers."""
        await service.load(beside(service.run, asked.run))
        return as_json(about(service))

    drawn: list[tuple[TreeModel, bytes]] = []  # the map of the model that was asked for last

    @router.get("/v1/map", responses={200: {"model": Map}})
    def show_map() -> Response:
        """The map of the catalogue by subtree, for the page."""
        source = service.loaded.source
        if not drawn or drawn[-1][0] is not source.model:
            drawn[:] = [(source.model, bytes(as_json(catalogue_map(source.model, source.catalogue)).body))]
        return Response(drawn[-1][1], media_type="application/json")

    counted: list[tuple[str, bytes]] = []  # the losses of the model that was asked for last
    counting = Lock()

    @router.get("/v1/losses", responses={200: {"model": Losses}})
    def show_losses() -> Response:
        """Where relevant items of the log's test users are lost, as `beamtree inspect` counts; once for each run."""
        loaded = service.loaded
        people = (
            None
            if loaded.data is None
            else next((each for each in (loaded.data.test, loaded.data.val) if len(each)), None)
        )
        if people is None:
            raise RefusedError(404, "the log of this run is not here", "say where it is with --data")
        with counting:
            if not counted or counted[-1][0] != loaded.digest:
                model = loaded.source.model
                users = min(MOST_USERS, max(FEWEST_USERS, LEAVES // model.tree.num_items))
                counted[:] = [
                    (loaded.digest, bytes(as_json(losses_as_dict(inspect_for_page(model, people, users))).body))
                ]
            return Response(counted[-1][1], media_type="application/json")

    return router


def beside(run: Path, name: str) -> Path:
    """A folder beside the one that is served, by its name."""
    asked = PurePosixPath(name)
    if asked.is_absolute() or not asked.parts or ".." in asked.parts or "\0" in name or "\\" in name:
        raise RefusedError(422, "run: this is no folder beside the one that is served", "give the name of a folder")
    return Path(run.absolute().parent, *asked.parts)


def about(service: Service) -> dict[str, Any]:
    """What is served, in words."""
    loaded = service.loaded
    last = service.keeper.last
    return {
        **describe_model(loaded.name, loaded.source.model),
        "version": loaded.version,
        "run": None if loaded.run is None else loaded.run.name,
        "start_run": service.run.name,
        "posted": loaded.run is not None and loaded.run.absolute() != service.run.absolute(),
        "method": loaded.about.get("method"),
        "beam_size": service.engine.beam_size,
        "tuned": list(loaded.tuned) if isinstance(loaded.tuned, tuple) else loaded.tuned,
        "changes": loaded.source.version,
        "since": loaded.since,
        "titles": loaded.source.catalogue.has_titles,
        "users": 0 if loaded.data is None else len(loaded.data.users),
        "limits": service.limits._asdict(),
        "last_reload": None if last is None else last._asdict(),
    }

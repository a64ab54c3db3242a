"""The FastAPI application: all routes of a service, among them health, metrics and the model in use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from beamtree import __version__
from beamtree.diagnose.explore import catalogue_map, describe_model, inspect_for_page, losses_as_dict, page
from beamtree.model import TreeModel
from beamtree.serve.http.docs_page import add_docs_page
from beamtree.serve.http.errors import ERRORS, ApiError, add_error_handlers, json_response
from beamtree.serve.http.follow_routes import follow_routes
from beamtree.serve.http.inference import inference_routes
from beamtree.serve.http.item_routes import item_routes
from beamtree.serve.http.metrics import CONTENT_TYPE
from beamtree.serve.http.middleware import RequestGuard
from beamtree.serve.http.openapi import add_examples
from beamtree.serve.http.recommend_routes import RecommendShortcut, recommend_routes
from beamtree.serve.http.schemas import LoadRun, Losses, Map, Model
from beamtree.serve.http.service import Service

KNOWN_USERS = "The model was fitted to these users too: it finds more for them than for others."
MAX_SCORED_LEAVES = 20_000_000  # by /v1/losses, which inspects as many users as that allows
MIN_USERS, MAX_USERS = 20, 200


def make_app(service: Service) -> ASGIApp:
    """The application of a service, which is closed with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="beamtree",
        version=__version__,
        description="Recommendations from a learned tree.",
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from other sites: see `add_docs_page`
        redoc_url=None,
        responses=ERRORS,
    )
    add_error_handlers(app)
    for routes in (recommend_routes, item_routes, inference_routes, health_routes, model_routes, follow_routes):
        app.include_router(routes(service))
    add_docs_page(app)
    add_examples(app, service)
    return RequestGuard(RecommendShortcut(app, service), service)  # around all layers of FastAPI, which take their time


def health_routes(service: Service) -> APIRouter:
    """Probes, metrics, load, and the page."""
    router = APIRouter()

    async def live() -> Response:
        """Liveness probe."""
        return json_response({"live": True})

    async def ready() -> Response:
        """Readiness probe; 503 while the service stops. One that follows another says how well."""
        content: dict[str, Any] = {"ready": not service.stopping}
        if service.follower is not None:
            state = service.follower.state  # without addresses, since the probe needs no token
            content["follows"] = {
                name: getattr(state, name) for name in ("connected", "seconds", "away_since", "behind")
            }
        return json_response(content, 503 if service.stopping else 200)

    for path in ("/healthz", "/livez", "/v2/health/live"):
        router.add_api_route(path, live, name=path)
    for path in ("/readyz", "/v2/health/ready"):
        router.add_api_route(path, ready, name=path)

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Prometheus metrics."""
        service.metrics.read_engine(service.engine)
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @router.get("/load")
    async def load() -> Response:
        """The current load, for a load balancer."""
        engine = service.engine
        return json_response(
            {
                "waiting": engine.waiting,
                "queue": engine.max_queue,
                "beam_size": engine.current_beam,
                "steps_narrowed": engine.steps_narrowed,
                "stopping": service.stopping,
            }
        )

    document = page(live=True)

    @router.get("/", response_class=HTMLResponse)
    async def show_page() -> Response:
        """The page."""
        return HTMLResponse(document)

    return router


def model_routes(service: Service) -> APIRouter:
    """The model in use, and how to replace it."""
    router = APIRouter()

    @router.get("/v1/model", responses={200: {"model": Model}})
    async def get_model() -> Response:
        """The model in use, and the outcome of the last reload."""
        return json_response(model_json(service))

    @router.post("/v1/model", responses={200: {"model": Model}})
    async def load_model(body: LoadRun) -> Response:
        """Serve another run once it has loaded and passed a smoke test; until then, and on failure, the old one."""
        await service.load(sibling_folder(service.run, body.run))
        return json_response(model_json(service))

    last_map: list[tuple[TreeModel, bytes]] = []

    @router.get("/v1/map", responses={200: {"model": Map}})
    def get_map() -> Response:
        """The map of the catalogue by subtree, for the page."""
        _, model, catalogue = service.loaded.live.snapshot
        if not last_map or last_map[-1][0] is not model:
            last_map[:] = [(model, bytes(json_response(catalogue_map(model, catalogue)).body))]
        return Response(last_map[-1][1], media_type="application/json")

    last_losses: list[tuple[str, bytes]] = []
    lock = Lock()

    @router.get("/v1/losses", responses={200: {"model": Losses}})
    def get_losses() -> Response:
        """Where the beam loses relevant items of the test users, as in `beamtree inspect`; computed once per run."""
        loaded = service.loaded
        parts = () if loaded.data is None else (loaded.data.test, loaded.data.val)
        users = next((part for part in parts if len(part)), None)
        if users is None:
            raise ApiError(404, "the log of this run is not available", "pass its folder with --data")
        with lock:
            if not last_losses or last_losses[-1][0] != loaded.digest:
                model = loaded.live.model
                count = min(MAX_USERS, max(MIN_USERS, MAX_SCORED_LEAVES // model.tree.num_items))
                note = KNOWN_USERS if loaded.settings.get("refit") else ""
                content = losses_as_dict(inspect_for_page(model, users, count), note)
                last_losses[:] = [(loaded.digest, bytes(json_response(content).body))]
            return Response(last_losses[-1][1], media_type="application/json")

    return router


def sibling_folder(run: Path, name: str) -> Path:
    """A folder beside the one that is served, by its name."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name or "\\" in name:
        raise ApiError(422, "run: not a folder beside the one that is served", "give the name of a folder")
    return Path(run.absolute().parent, *path.parts)


def model_json(service: Service) -> dict[str, Any]:
    """The model in use as JSON."""
    loaded, last_reload = service.loaded, service.slot.last_reload
    return {
        **describe_model(loaded.name, loaded.live.model),
        "version": loaded.version,
        "run": None if loaded.run is None else loaded.run.name,
        "start_run": service.run.name,
        "posted": loaded.run is not None and loaded.run.absolute() != service.run.absolute(),
        "method": loaded.settings.get("method"),
        "beam_size": service.engine.beam_size,
        "tuned": loaded.tuned_beam,
        "changes": loaded.live.version,
        "since": loaded.since,
        "titles": loaded.live.catalogue.has_titles,
        "columns": loaded.live.catalogue.kinds,
        "vectors": loaded.live.has_vectors,
        "users": len(loaded.live.users),
        "limits": service.limits._asdict(),
        "last_reload": None if last_reload is None else last_reload._asdict(),
        "follows": None if service.follower is None else service.follower.state._asdict(),
    }

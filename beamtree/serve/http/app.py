"""The application of a recommender: all routes of a service, among them its load and its model."""

from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import ASGIApp

from beamtree.diagnose.explore import catalogue_map, inspect_for_page, losses_as_dict, page
from beamtree.model import TreeModel
from beamtree.serve.http.common import make_application
from beamtree.serve.http.errors import ApiError, json_response
from beamtree.serve.http.follow_routes import follow_routes
from beamtree.serve.http.inference import inference_routes
from beamtree.serve.http.item_routes import item_routes
from beamtree.serve.http.openapi import add_examples
from beamtree.serve.http.recommend_routes import recommend_route, recommend_routes
from beamtree.serve.http.schemas import LoadRun, Losses, Map, Model
from beamtree.serve.http.service import Service

KNOWN_USERS = "The model was fitted to these users too: it finds more for them than for others."
MAX_SCORED_LEAVES = 20_000_000  # by /v1/losses, which inspects as many users as that allows
MIN_USERS, MAX_USERS = 20, 200


def make_app(service: Service) -> ASGIApp:
    """The application of a service, which is closed with it."""
    routers = (recommend_routes, item_routes, inference_routes, load_routes, model_routes, follow_routes)
    return make_application(
        service,
        [routes(service) for routes in routers],
        description="Recommendations from a learned tree.",
        page=page(live=True),
        complete=partial(add_examples, service=service),
        plain={"/v1/recommend": recommend_route(service)},
    )


def load_routes(service: Service) -> APIRouter:
    """The load."""
    router = APIRouter()

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

    return router


def model_routes(service: Service) -> APIRouter:
    """How to replace the model in use, and what it is like."""
    router = APIRouter()

    @router.post("/v1/model", responses={200: {"model": Model}})
    async def load_model(body: LoadRun) -> Response:
        """Serve another run once it has loaded and passed a smoke test; until then, and on failure, the old one."""
        await service.load(sibling_folder(service.run, body.run))
        return json_response(service.model_json())

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

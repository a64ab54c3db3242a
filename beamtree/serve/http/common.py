"""What the services of recommenders and classifiers have in common: probes, metrics, the page, the model, the docs."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from beamtree import __version__
from beamtree.serve.http.docs_page import add_docs_page
from beamtree.serve.http.errors import ERRORS, add_error_handlers, json_response
from beamtree.serve.http.metrics import CONTENT_TYPE
from beamtree.serve.http.middleware import GuardedService, RequestGuard
from beamtree.serve.http.openapi import complete_openapi
from beamtree.serve.http.plain_route import PlainRoute, add_plain_routes
from beamtree.serve.http.schemas import Model


class Served(GuardedService, Protocol):
    """What these routes need to know of a service."""

    def ready_json(self) -> dict[str, Any]:
        """Whether it takes requests."""

    def model_json(self) -> dict[str, Any]:
        """The model in use."""

    def update_metrics(self) -> None:
        """Set the metrics that are read when they are asked for."""

    def close(self) -> None:
        """Finish requests in flight, and release everything."""


def make_application(
    service: Served,
    routers: Iterable[APIRouter],
    *,
    description: str,
    page: str,
    complete: Callable[[dict[str, Any]], None],
    plain: Mapping[str, PlainRoute] | None = None,
) -> ASGIApp:
    """The application of a service, which is closed with it.

    Args:
        service: what is served.
        routers: its routes, besides those that every service has.
        description: for the OpenAPI document.
        page: the HTML at /.
        complete: adds limits and examples to the OpenAPI document.
        plain: POST routes by path that must be fast; see `plain_route`.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="beamtree",
        version=__version__,
        description=description,
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from other sites: see `add_docs_page`
        redoc_url=None,
        responses=ERRORS,
    )
    add_error_handlers(app)
    dispatch = add_plain_routes(app, plain or {})
    for router in (common_routes(service, page), *routers):
        app.include_router(router)
    add_docs_page(app)
    complete_openapi(app, complete)
    return RequestGuard(dispatch, service)  # around all layers of FastAPI, which take their time


def common_routes(service: Served, page: str) -> APIRouter:
    """Probes, metrics, the page, and the model in use."""
    router = APIRouter()

    async def live() -> Response:
        """Liveness probe."""
        return json_response({"live": True})

    async def ready() -> Response:
        """Readiness probe; 503 while the service stops. One that follows another says how well."""
        return json_response(service.ready_json(), 503 if service.stopping else 200)

    for path in ("/healthz", "/livez", "/v2/health/live"):
        router.add_api_route(path, live, name=path)
    for path in ("/readyz", "/v2/health/ready"):
        router.add_api_route(path, ready, name=path)

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Prometheus metrics."""
        service.update_metrics()
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @router.get("/", response_class=HTMLResponse)
    async def show_page() -> Response:
        """The page."""
        return HTMLResponse(page)

    @router.get("/v1/model", responses={200: {"model": Model}})
    async def get_model() -> Response:
        """The model in use."""
        return json_response(service.model_json())

    return router

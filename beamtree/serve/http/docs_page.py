"""The page at /docs: Swagger UI over /openapi.json, from files of packages that are installed here."""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

from beamtree.serve.http.errors import HINTS, ApiError

OWN, SWAGGER = Path(__file__).parent / "docs", files("fastapi_swagger.resources")
TYPES = {"docs.js": "text/javascript", "swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files; they hold nothing of a model, and need no token."""

    @app.get("/docs", include_in_schema=False)
    def show_docs() -> Response:
        """The page."""
        return Response((OWN / "docs.html").read_bytes(), media_type="text/html")

    @app.get("/docs/{name}", include_in_schema=False)
    def get_file(name: str) -> Response:
        """A file of the page."""
        if name not in TYPES:
            raise ApiError(404, "not found", HINTS[404])
        folder = OWN if name.startswith("docs") else SWAGGER
        return Response(folder.joinpath(name).read_bytes(), media_type=TYPES[name])

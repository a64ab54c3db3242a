"""Additions to /openapi.json: the limits of this service, and examples with ids that it knows."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from beamtree.data.catalogue import Catalogue
from beamtree.serve.http.access import Limits
from beamtree.serve.http.service import Service

Example = tuple[str, str, dict[str, Any]]  # a path, a method, and valid bodies by name


def complete_openapi(app: FastAPI, complete: Callable[[dict[str, Any]], None]) -> None:
    """Let /openapi.json have the token, and what `complete` adds to it when it is asked for first."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{}, {"token": []}]  # where the service has one
            complete(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def add_examples(schema: dict[str, Any], service: Service) -> None:
    """Add the limits and the ids of a service to the OpenAPI schema of its application."""
    _add_limits(schema["components"]["schemas"], service.limits)
    _add_columns(schema["components"]["schemas"], service.loaded.live.catalogue)
    data = service.loaded.data
    parameter_examples = {
        "item": service.loaded.ids.name(0),
        "name": service.loaded.name,
        "version": service.loaded.version,
        "user": "someone" if data is None or not len(data.users) else data.users.name(0),
        "before": "1990-01-01",
    }
    put_examples(schema, body_examples(service), parameter_examples)


def put_examples(schema: dict[str, Any], bodies: list[Example], parameters: Mapping[str, str]) -> None:
    """Put examples of bodies, and of parameters by name, into a schema."""
    for path, method, examples in bodies:
        content = schema["paths"][path][method]["requestBody"]["content"]["application/json"]
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    for methods in schema["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" or parameter.get("required"):
                    parameter["example"] = parameters[parameter["name"]]


def _add_limits(schemas: dict[str, Any], limits: Limits) -> None:
    for name in ("RecommendBody", "ExplainBody"):
        fields = schemas[name]["properties"]
        fields["m"]["maximum"] = limits.m
        for field, limit in (("allowed", limits.listed), ("exclude", limits.listed), ("history", limits.history)):
            for kind in fields[field].get("anyOf", [fields[field]]):
                if kind.get("type") == "array":
                    kind["maxItems"] = limit
    for field in ("histories", "users"):
        schemas["RecommendBody"]["properties"][field]["anyOf"][0]["maxItems"] = limits.histories
    schemas["ItemsRequest"]["properties"]["items"]["maxItems"] = limits.changes
    schemas["EventsRequest"]["properties"]["events"]["anyOf"][0]["maxItems"] = limits.changes


def _add_columns(schemas: dict[str, Any], catalogue: Catalogue) -> None:
    """The columns of the table of items as fields of an item."""
    types = {"numbers": "number", "text": "string", "true or false": "boolean"}
    for name in ("Item", "NamedItem"):
        schemas[name]["additionalProperties"] = False
        for field, kind in catalogue.kinds.items():
            is_list, kind = kind.startswith("lists of "), kind.removeprefix("lists of ")
            one = {"type": types.get(kind, "string")}
            value = {"type": "array", "items": {"anyOf": [one, {"type": "null"}]}} if is_list else one
            description = f"A column of the table of items: {catalogue.kinds[field]}."
            schemas[name]["properties"].setdefault(
                field, {"anyOf": [value, {"type": "null"}], "description": description}
            )


def body_examples(service: Service) -> list[Example]:
    """Valid bodies for every path and method that takes one."""
    names, catalogue = service.loaded.ids.names[:3], service.loaded.live.catalogue
    tensor = {"name": "history", "datatype": "BYTES", "shape": [1, len(names)], "data": names}
    numbers = {"name": "history", "datatype": "INT64", "shape": [2, 1], "data": [[0], [-1]]}
    infer = {
        "ids": {"inputs": [tensor], "parameters": {"m": 5}},
        "numbers": {"id": "7", "inputs": [numbers], "outputs": [{"name": "item"}]},
    }
    recommend = {
        "a history": {"history": names, "m": 5},
        "several histories": {"histories": [names[:1], names[1:]], "m": 3, "exclude_seen": True},
        "allowed items only": {"history": names[:1], "m": 2, "allowed": names, "beam_size": 100},
        "unknown items": {"history": ["an unknown id"], "exclude": names[:1]},
    }
    described = {} if catalogue.table is None else catalogue.table.described(0)
    attributes = {name: described[name] for name in catalogue.kinds if name in described} or {"title": "A title"}
    items = [{"item": "a new item", "like": names[:2]}, {"item": names[0]}, {"item": names[1], **attributes}]
    events = [
        {"user": "someone", "items": names[:1], "time": "2025-12-31T23:59:59Z"},
        {"user": 17, "items": names[1:]},
    ]
    post_events = {
        "a click": {"user": "someone", "items": names[:1]},
        "several users": {"events": events, "id": "a request"},
    }
    explain = {"why an item, and where it was lost": {"history": names[:1], "items": names[-1:], "m": 5}}
    return [
        ("/v1/recommend", "post", recommend),
        ("/v1/explain", "post", explain),
        ("/v2/models/{name}/infer", "post", infer),
        ("/v2/models/{name}/versions/{version}/infer", "post", infer),
        ("/v1/items/{item}", "put", {"like others": {"title": "A new item", "like": names[:2]}}),
        ("/v1/items/{item}", "patch", {"some columns": attributes}),
        ("/v1/items", "post", {"three items": {"items": items}}),
        ("/v1/events", "post", post_events),
        ("/v1/model", "post", {"the same run": {"run": service.run.name}}),
    ]

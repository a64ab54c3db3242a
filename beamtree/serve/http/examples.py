"""What /openapi.json says besides the schemas: the limits of this service, and examples with ids that it knows."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from beamtree.serve.engine.service import Service


def with_examples(app: FastAPI, service: Service) -> None:
    """Have the description of an application filled in with the limits and the ids of its service."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            words = app.description
            found = get_openapi(title=app.title, version=app.version, description=words, routes=app.routes)
            _limit(found["components"]["schemas"], service)
            for path, method, examples in bodies(service):
                content = found["paths"][path][method]["requestBody"]["content"]["application/json"]
                content["examples"] = {name: {"value": value} for name, value in examples.items()}
            data = service.loaded.data
            known = {
                "item": service.loaded.ids[0],
                "name": service.loaded.name,
                "version": service.loaded.version,
                "user": "someone" if data is None or not len(data.users) else data.users[0],
                "before": "1990-01-01",
            }
            for methods in found["paths"].values():
                for operation in methods.values():
                    _name_parameters(operation, known)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _limit(schemas: dict[str, Any], service: Service) -> None:
    limits = service.limits
    for name in ("Recommend", "Explain"):
        fields = schemas[name]["properties"]
        fields["m"]["maximum"] = limits.m
        for field, most in (("allowed", limits.listed), ("exclude", limits.listed), ("history", limits.history)):
            for kind in fields[field].get("anyOf", [fields[field]]):
                if kind.get("type") == "array":
                    kind["maxItems"] = most
    for field in ("histories", "users"):
        schemas["Recommend"]["properties"][field]["anyOf"][0]["maxItems"] = limits.histories
    schemas["ItemsRequest"]["properties"]["items"]["maxItems"] = limits.changes
    schemas["EventsRequest"]["properties"]["events"]["anyOf"][0]["maxItems"] = limits.changes


def _name_parameters(operation: dict[str, Any], known: dict[str, str]) -> None:
    """Examples of what stands in a path, and of what a query needs."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path" or parameter.get("required"):
            parameter["example"] = known[parameter["name"]]


def bodies(service: Service) -> list[tuple[str, str, dict[str, Any]]]:
    """Examples of what may be sent, each of which is answered."""
    names = service.loaded.ids.names[:3]
    tensor = {"name": "history", "datatype": "BYTES", "shape": [1, len(names)], "data": names}
    numbers = {"name": "history", "datatype": "INT64", "shape": [2, 1], "data": [[0], [-1]]}
    infer = {
        "ids": {"inputs": [tensor], "parameters": {"m": 5}},
        "numbers": {"id": "7", "inputs": [numbers], "outputs": [{"name": "item"}]},
    }
    recommend = {
        "a history": {"history": names, "m": 5},
        "several histories": {"histories": [names[:1], names[1:]], "m": 3, "exclude_seen": True},
        "some items alone": {"history": names[:1], "m": 2, "allowed": names, "beam_size": 100},
        "nothing known": {"history": ["an id that nobody knows"], "exclude": names[:1]},
    }
    items = [{"item": "a new item", "like": names[:2]}, {"item": names[0]}]
    chosen = [{"user": "someone", "items": names[:1], "time": "2026-12-31T23:59:59Z"}, {"user": 17, "items": names[1:]}]
    events = {"events": chosen, "id": "a request"}
    explain = {"where an item was lost": {"history": names[:1], "items": names[-1:], "m": 5}}
    return [
        ("/v1/recommend", "post", recommend),
        ("/v1/explain", "post", explain),
        ("/v2/models/{name}/infer", "post", infer),
        ("/v2/models/{name}/versions/{version}/infer", "post", infer),
        ("/v1/items/{item}", "put", {"like others": {"title": "A new item", "like": names[:2]}}),
        ("/v1/items", "post", {"two items": {"items": items}}),
        ("/v1/events", "post", {"a click": {"user": "someone", "items": names[:1]}, "several users": {**events}}),
        ("/v1/model", "post", {"the same run": {"run": service.run.name}}),
    ]

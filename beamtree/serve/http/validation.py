"""What is wrong with a request, and what to send instead, in words made from the OpenAPI schema of its route."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fastapi.routing import APIRoute

from beamtree.serve.http.schemas import MAX_INT

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]  # of a value in the body: keys and indices

KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "array": "a list",
    "object": "an object",
}
GIVEN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a decimal point",
    str: "text",
    list: "a list",
    dict: "an object",
}
FAULTS = {  # by the type of an error of pydantic
    "greater_than_equal": "this number is too small",
    "less_than_equal": "this number is too large",
    "literal_error": "this is none of the choices",
    "string_too_long": "this text is too long",
    "string_unicode": "this text has half of a character",
    "too_short": "this list is too short",
    "too_long": "this list is too long",
}


def describe(errors: Sequence[Mapping[str, Any]], body: object, route: APIRoute, api: Schema) -> tuple[str, str]:
    """What is wrong, with the name of the field, and what to do; what was sent is not repeated.

    Args:
        errors: of pydantic, at least one; its own words are not used.
        body: as it was parsed.
        route: of the request.
        api: the OpenAPI document.
    """
    (method,), first = route.methods or {""}, errors[0]
    operation = api["paths"][route.path_format][method.lower()]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: see character {first['loc'][-1]}", "put names and texts into double quotes"
    if first["loc"][0] == "query":
        name = first["loc"][1]
        schema = _branches(next(each["schema"] for each in operation["parameters"] if each["name"] == name), api)
        if first["type"] == "missing":
            return f"{name}: this parameter is missing", f"add it to the address: {_expected(schema)}"
        return f"{name}: {FAULTS.get(first['type'], f'this is not {_kinds(schema)}')}", f"give {_expected(schema)}"
    schema = _branches(operation["requestBody"]["content"]["application/json"]["schema"], api)
    if body is None:
        return "the body is missing", f"send JSON: {_expected(schema)}"
    paths = [_path(error["loc"][1:], body) for error in errors]
    of_field = [path for path in paths if path[: len(paths[0])] == paths[0]]
    path = max(of_field, key=len)  # in the branch of a union that fits best
    here = [error for error, other in zip(errors, paths, strict=True) if other == path]
    others = len({other for other in paths if other not in of_field})
    more = f" (and {others} more)" if others else ""
    if here[0]["type"] == "missing":
        name = str(here[0]["loc"][-1])
        expected = _branches(_fields(_at(schema, path, api))[name], api)
        return f"{_name((*path, name))}: this field is missing{more}", f"add {name}: {_expected(expected)}"
    if here[0]["type"] == "extra_forbidden":
        fields = _fields(_at(schema, path[:-1], api))
        close = get_close_matches(str(path[-1]), fields, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        return f"{_name(path)}: there is no such field{more}", f"{meant}the fields are {', '.join(fields)}"
    expected, value = _at(schema, path, api), body
    for key in path:
        value = value[key]  # type: ignore[index]
    kind = "null" if value is None else GIVEN[type(value)]
    fault = next((FAULTS[error["type"]] for error in here if error["type"] in FAULTS), None)
    return f"{_name(path)}: {fault or f'this is {kind}, not {_kinds(expected)}'}{more}", f"give {_expected(expected)}"


def _path(loc: Sequence[str | int], body: Any) -> Path:
    """The part of the place of an error that is in the body: without the names of branches of unions."""
    path: list[str | int] = []
    for key in loc:
        is_index = isinstance(key, int) and isinstance(body, list) and key < len(body)
        if is_index or (isinstance(body, dict) and key in body):
            path.append(key)
            body = body[key]
    return tuple(path)


def _name(path: Path) -> str:
    """A path as people write it: rules.boosts[0].factor."""
    shown = [f"[{key}]" if isinstance(key, int) else f".{key[:80]}" for key in path[:6]]
    return "".join(shown).removeprefix(".") or "the body"


def _branches(schema: Schema, api: Schema) -> list[Schema]:
    """The schemas that a schema allows, without references and unions, and without null."""
    if "$ref" in schema:
        return _branches(api["components"]["schemas"][schema["$ref"].rpartition("/")[2]], api)
    if "anyOf" in schema:
        return [branch for each in schema["anyOf"] for branch in _branches(each, api)]
    return [] if schema.get("type") == "null" else [schema]


def _fields(schemas: Iterable[Schema]) -> dict[str, Schema]:
    """The fields of objects."""
    return {name: field for schema in schemas for name, field in schema.get("properties", {}).items()}


def _at(schemas: list[Schema], path: Path, api: Schema) -> list[Schema]:
    """The schemas of what is at a path."""
    for key in path:
        below: list[Schema] = []
        for schema in schemas:
            part = schema.get("items") if isinstance(key, int) else schema.get("additionalProperties")
            part = schema.get("properties", {}).get(key, part)
            below += _branches(part, api) if isinstance(part, dict) else []
        schemas = below
    return schemas


def _kinds(schemas: list[Schema]) -> str:
    """What kinds of values schemas allow, in words: text or a whole number."""
    kinds = dict.fromkeys(KINDS[schema["type"]] for schema in schemas if "type" in schema)
    if KINDS["number"] in kinds:
        kinds.pop(KINDS["integer"], None)
    return " or ".join(kinds) or "a value"


def _expected(schemas: list[Schema]) -> str:
    """What schemas allow, in words: text of at most 500 characters, or a whole number of 64 bits."""
    kinds = [schema.get("type") for schema in schemas]
    shown = [schema for schema in schemas if schema.get("type") != "integer" or "number" not in kinds]
    return ", or ".join(dict.fromkeys(_one(schema) for schema in shown)) or "a value"


def _one(schema: Schema) -> str:
    if "enum" in schema:
        *others, last = schema["enum"]
        return f"{', '.join(others)} or {last}"
    words, lowest, highest = KINDS.get(schema.get("type", ""), "a value"), schema.get("minimum"), schema.get("maximum")
    if schema.get("properties"):
        return f"{words} with the fields {', '.join(schema['properties'])}"
    if lowest is not None and highest is not None and highest < MAX_INT:
        return f"{words} from {lowest:.0f} to {highest:.0f}"
    if lowest is not None:
        return f"{words} of 64 bits" if lowest <= -MAX_INT else f"{words} from {lowest:.0f}"
    at_least, at_most = schema.get("minItems"), schema.get("maxItems", schema.get("maxLength"))
    unit = "characters" if "maxLength" in schema else "entries"
    limits = [f"at least {at_least} entry"] * bool(at_least) + [f"at most {at_most} {unit}"] * bool(at_most)
    return f"{words} of {' and '.join(limits)}" if limits else words

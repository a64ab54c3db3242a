"""Routes of the Open Inference Protocol, version 2: histories and items as tensors."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from beamtree import __version__
from beamtree.data import Ids
from beamtree.data.ids import as_id
from beamtree.query import RecommendRequest, RecommendResponse
from beamtree.serve.http.errors import ApiError, json_response
from beamtree.serve.http.schemas import MAX_INT, InferBody
from beamtree.serve.http.service import Service
from beamtree.tree import PAD

BYTES, INT64 = "BYTES", "INT64"
INPUTS = [{"name": "history", "datatype": BYTES, "shape": [-1, -1]}]
OUTPUTS: list[dict[str, Any]] = [
    {"name": "item", "datatype": BYTES, "shape": [-1, -1]},
    {"name": "score", "datatype": "FP32", "shape": [-1, -1]},
]
PARAMETERS = ("m", "beam_size", "exclude_seen", "timeout_ms")
MODEL_PATHS = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")


def inference_routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    def check_model(name: str, version: str) -> None:
        loaded = service.loaded
        if name != loaded.name or version not in ("", loaded.digest, loaded.version):
            hint = f"the model is {loaded.name}, version {loaded.version}"
            raise ApiError(404, "there is no such model or version", hint)

    async def metadata(name: str, version: str = "") -> Response:
        """The inputs and outputs of the model."""
        check_model(name, version)
        return json_response(
            {
                "name": name,
                "versions": [service.loaded.version],
                "platform": "beamtree",
                "inputs": INPUTS,
                "outputs": OUTPUTS,
            }
        )

    async def ready(name: str, version: str = "") -> Response:
        """Whether the model is ready."""
        check_model(name, version)
        return json_response({"name": name, "ready": not service.stopping}, 503 if service.stopping else 200)

    async def infer(body: InferBody, name: str, version: str = "") -> Response:
        """The m best items for each history: ids, oldest first, padded with `""`; or item numbers, padded with -1."""
        check_model(name, version)
        request = parse_inference(body, service.loaded.ids)
        response = await service.recommend(request, body.parameters.get("timeout_ms"))
        return json_response(
            {
                "model_name": name,
                "model_version": response.version,
                **({"id": body.id} if body.id else {}),
                "parameters": {"degraded": response.narrowed_from is not None, "beam_size": response.beam_size},
                "outputs": output_tensors(body, response, request.m),
            }
        )

    @router.get("/v2")
    async def server() -> Response:
        """The name and version of the server."""
        return json_response({"name": "beamtree", "version": __version__, "extensions": []})

    for path in MODEL_PATHS:
        suffix = "_version" if "version" in path else ""
        router.add_api_route(path, metadata, name=f"metadata{suffix}")
        router.add_api_route(f"{path}/ready", ready, name=f"ready{suffix}")
        router.add_api_route(f"{path}/infer", infer, methods=["POST"], name=f"infer{suffix}")
    return router


def parse_inference(body: InferBody, ids: Ids) -> RecommendRequest:
    """The tensor `history` and the parameters of a body as a request."""
    for name, value in body.parameters.items():
        if name not in PARAMETERS:
            raise ApiError(422, f"parameters: {name[:80]!r} is unknown", f"the parameters are {', '.join(PARAMETERS)}")
        expected = "true or false" if name == "exclude_seen" else "a whole number from 1"
        is_valid = type(value) is bool if name == "exclude_seen" else type(value) is int and 1 <= value <= MAX_INT
        if value is not None and not is_valid:
            raise ApiError(422, f"parameters.{name}: this is not {expected}", f"give {expected}")
    if [tensor.name for tensor in body.inputs] != ["history"]:
        raise ApiError(422, "inputs: the only input is history", "send one tensor of this name")
    (tensor,) = body.inputs
    if len(tensor.shape) != 2 or tensor.datatype not in (BYTES, INT64):
        error = "inputs[0]: shape and datatype are not those of a history"
        raise ApiError(422, error, "send BYTES or INT64 of shape [B, T], as /v2/models/{name} says")
    # The values may be nested by rows, or flat.
    values = [value for entry in tensor.data for value in (entry if isinstance(entry, list) else [entry])]
    rows, width = tensor.shape
    if rows * width != len(values):
        error = f"inputs[0]: shape {tensor.shape} does not match the {len(values)} values of data"
        raise ApiError(422, error, "send B times T values")
    names = [_item_id(value, tensor.datatype, ids) for value in values]
    histories = [[name for name in names[row * width : (row + 1) * width] if name] for row in range(rows)]
    options = {name: value for name, value in body.parameters.items() if value is not None and name != "timeout_ms"}
    return RecommendRequest(histories, **options)


def _item_id(value: Any, datatype: str, ids: Ids) -> str:
    """The id of a value, empty for padding."""
    if datatype == BYTES and isinstance(value, str):
        return as_id(value)
    if datatype == INT64 and type(value) is int:
        return "" if value == PAD else ids.name(value) if 0 <= value < len(ids) else f"number {value % MAX_INT}"
    raise ApiError(422, f"inputs[0].data: a value is not {datatype}", "send ids as BYTES, or item numbers as INT64")


def output_tensors(body: InferBody, response: RecommendResponse, m: int) -> list[dict[str, Any]]:
    """The results as tensors; rows with fewer than m items are padded with "" and 0."""
    shape = [len(response.results), m]
    items = [name for result in response.results for name in (*result.items, *[""] * (m - len(result.items)))]
    scores = [score for result in response.results for score in (*result.scores, *[0.0] * (m - len(result.scores)))]
    data = {"item": items, "score": scores}
    names = data if body.outputs is None else [str(output.get("name")) for output in body.outputs]
    return [{**output, "shape": shape, "data": data[output["name"]]} for output in OUTPUTS if output["name"] in names]

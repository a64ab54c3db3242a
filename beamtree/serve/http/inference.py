"""Routes of the Open Inference Protocol, version 2: histories and items as tensors."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.responses import Response

from beamtree import __version__
from beamtree.data import Ids
from beamtree.data.ids import as_id
from beamtree.serve.engine.search import Reply
from beamtree.serve.engine.service import Service
from beamtree.serve.http.answers import check_size
from beamtree.serve.http.errors import RefusedError, as_json
from beamtree.serve.http.schemas import LARGEST, Infer, Tensor
from beamtree.tree import PAD

BYTES, INT64 = "BYTES", "INT64"
INPUTS = [{"name": "history", "datatype": BYTES, "shape": [-1, -1]}]
OUTPUTS = [
    {"name": "item", "datatype": BYTES, "shape": [-1, -1]},
    {"name": "score", "datatype": "FP32", "shape": [-1, -1]},
]
OF_MODEL = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")


class Parameters(NamedTuple):
    """What a request may set besides its tensors."""

    m: int = 10
    beam_size: int | None = None
    exclude_seen: bool = False
    timeout_ms: int | None = None


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    def check(name: str, version: str) -> None:
        loaded = service.loaded
        if name != loaded.name or version not in ("", loaded.digest, loaded.version):
            there = f"there is {loaded.name}, version {loaded.version}"
            raise RefusedError(404, "there is no such model or version", there)

    async def metadata(name: str, version: str = "") -> Response:
        """What the model takes and gives."""
        check(name, version)
        about = {"name": name, "versions": [service.loaded.version], "platform": "beamtree"}
        return as_json({**about, "inputs": INPUTS, "outputs": OUTPUTS})

    async def ready(name: str, version: str = "") -> Response:
        """Whether the model answers."""
        check(name, version)
        return as_json({"name": name, "ready": not service.stopping}, 503 if service.stopping else 200)

    async def infer(asked: Infer, name: str, version: str = "") -> Response:
        """The m best items of each history: ids, oldest first, `""` where a row is shorter; or numbers, and -1."""
        check(name, version)
        histories, found = histories_of(asked, service.loaded.ids), parameters_of(asked)
        check_size("history", len(histories), service.limits.histories, "rows")
        check_size("history", max(map(len, histories), default=0), service.limits.history, "ids in a row")
        reply = await service.recommend(
            histories, m=found.m, beam=found.beam_size, exclude_seen=found.exclude_seen, timeout_ms=found.timeout_ms
        )
        about = {"model_name": name, "model_version": reply.version, **({"id": asked.id} if asked.id else {})}
        notes = {"degraded": reply.narrowed_from is not None, "beam_size": reply.beam}
        return as_json({**about, "parameters": notes, "outputs": outputs_of(asked, reply, found.m)})

    @router.get("/v2")
    async def server() -> Response:
        """What this server is."""
        return as_json({"name": "beamtree", "version": __version__, "extensions": []})

    for path in OF_MODEL:
        suffix = "_version" if "version" in path else ""
        router.add_api_route(path, metadata, name=f"metadata{suffix}")
        router.add_api_route(f"{path}/ready", ready, name=f"ready{suffix}")
        router.add_api_route(f"{path}/infer", infer, methods=["POST"], name=f"infer{suffix}")
    return router


def parameters_of(asked: Infer) -> Parameters:
    """The parameters of a request, checked."""
    unknown = set(asked.parameters) - set(Parameters._fields)
    if unknown:
        listed = ", ".join(Parameters._fields)
        raise RefusedError(422, f"parameters: {min(unknown)[:80]!r} is not known", f"there are {listed}")
    found = Parameters(**asked.parameters)
    for name, value in found._asdict().items():
        if value is None or (name == "exclude_seen" and isinstance(value, bool)):
            continue
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise RefusedError(422, f"parameters.{name} is not valid", "give a whole number from 1, or true or false")
    return found


def histories_of(asked: Infer, ids: Ids) -> list[list[str]]:
    """The rows of the tensor `history` as ids."""
    tensors = [each for each in asked.inputs if each.name == "history"]
    if len(tensors) != 1 or len(asked.inputs) != 1:
        raise RefusedError(422, "inputs: there is one input, history", "send one tensor of this name")
    (tensor,) = tensors
    if len(tensor.shape) != 2 or tensor.datatype not in (BYTES, INT64):
        raise RefusedError(422, "history: send BYTES or INT64 of shape [B, T]", "see /v2/models/{name}")
    values = list(flat(tensor))
    rows, width = tensor.shape
    if rows * width != len(values):
        error = f"history: shape {tensor.shape} and {len(values)} values do not fit"
        raise RefusedError(422, error, "send B times T values")
    names = [_name(value, tensor.datatype, ids) for value in values]
    return [[name for name in names[row * width : (row + 1) * width] if name] for row in range(rows)]


def flat(tensor: Tensor) -> Iterator[Any]:
    """The values of a tensor that is nested by rows, or not at all."""
    for value in tensor.data:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _name(value: Any, datatype: str, ids: Ids) -> str:
    """An id; of a number that of the item; nothing where it fills up a row."""
    if datatype == BYTES and isinstance(value, str):
        return as_id(value)
    if datatype == INT64 and type(value) is int:
        return "" if value == PAD else ids[value] if 0 <= value < len(ids) else f"number {value % LARGEST}"
    raise RefusedError(422, f"history: a value is no {datatype}", "send ids as BYTES, or numbers of items as INT64")


def outputs_of(asked: Infer, reply: Reply, m: int) -> list[dict[str, Any]]:
    """The answers as tensors; rows with fewer than m items are filled up with "" and 0."""
    shape = [len(reply.answers), m]
    items = [name for each in reply.answers for name in (*each.items, *[""] * (m - len(each.items)))]
    scores = [score for each in reply.answers for score in (*each.scores, *[0.0] * (m - len(each.scores)))]
    data = {"item": items, "score": scores}
    wanted = data if asked.outputs is None else [str(each.get("name")) for each in asked.outputs]
    return [{**each, "shape": shape, "data": data[each["name"]]} for each in OUTPUTS if each["name"] in wanted]  # type: ignore[index]

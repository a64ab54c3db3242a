"""Files of tensors, as safetensors reads them; what several ranks have a part of is written a piece at a time."""

import errno
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.distributed.exchange import Pieces
from beamtree.files.staging import reset_permissions

Tensors = Mapping[str, Tensor | Pieces]
# How safetensors names what numbers are kept in.
KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def save_tensors(path: Path, tensors: Tensors) -> None:
    """Write a file of tensors."""
    from safetensors import SafetensorError  # here, so that training without a folder needs torch alone
    from safetensors.torch import save_file

    whole = {key: value.detach().cpu().contiguous() for key, value in tensors.items() if isinstance(value, Tensor)}
    if len(whole) < len(tensors):
        _write(path, tensors)
    else:
        try:
            save_file(whole, path)
        except SafetensorError as error:  # which is how a full disk is told
            kind = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
            raise OSError(kind, f"{path.name}: {error}") from error
    reset_permissions(path)


def in_order(tensors: Tensors) -> list[tuple[str, Tensor | Pieces]]:
    """Tensors as they lie in a file: the widest numbers first, so that all begin where such numbers may."""
    return sorted(tensors.items(), key=lambda each: (-each[1].dtype.itemsize, each[0]))


def pieces_of(parts: Mapping[str, Tensors]) -> list[Iterator[Tensor]]:
    """The pieces of all tensors of some files, in the order in which they are written."""
    return [each.parts for tensors in parts.values() for _, each in in_order(tensors) if isinstance(each, Pieces)]


def go_through(left: list[Iterator[Tensor]]) -> None:
    """Take part in what the first rank writes, or would have written, to the end."""
    for pieces in left:
        deque(pieces, maxlen=0)


def _write(path: Path, tensors: Tensors) -> None:
    """A file of tensors, written by hand: a length, a header in JSON, and all numbers."""
    header: dict[str, Any] = {}
    end = 0
    for name, each in in_order(tensors):
        if each.dtype not in KINDS:
            raise ValueError(f"{path.name}: {name} is {each.dtype}, which is not written; choose another dtype")
        begin, end = end, end + math.prod(each.shape) * each.dtype.itemsize
        header[name] = {"dtype": KINDS[each.dtype], "shape": list(each.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        first = file.tell()
        for name, each in in_order(tensors):
            for piece in each.parts if isinstance(each, Pieces) else (each.detach(),):
                if piece.dtype != each.dtype:
                    raise ValueError(f"{path.name}: {name} is {each.dtype}, and a piece of it {piece.dtype}")
                file.write(piece.cpu().contiguous().flatten().view(torch.uint8).numpy().data)  # numpy knows no bfloat16
            if file.tell() - first != header[name]["data_offsets"][1]:
                raise ValueError(f"{path.name}: the pieces of {name} are not as long as all of it")

"""Files of tensors in the format of safetensors, and the check that weights are finite."""

import errno
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from beamtree.files.staging import reset_permissions
from beamtree.model import TreeModel

FLOAT16_INFINITY = 0x7C00  # its bits; those of NaN are larger


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors."""
    from safetensors import SafetensorError  # here, so that training without a folder needs torch alone
    from safetensors.torch import save_file

    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # which is how it reports a full disk
        kind = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(kind, f"{path.name}: {error}") from error
    reset_permissions(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped to memory: what is written to them stays in memory."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


class NotFiniteError(ValueError):
    """A weight is NaN or infinite, so that the model's scores are meaningless."""


def check_finite(model: TreeModel) -> None:
    """Raise a NotFiniteError if a weight is NaN or infinite."""
    for name, value in model.scorer.state_dict().items():
        if not is_finite(value):
            raise NotFiniteError(f"the weights {name} hold NaN or infinity: train again")


def is_finite(value: Tensor) -> bool:
    """Whether all numbers of a tensor are finite, in one pass: by their sum, or in half precision by their bits."""
    if not value.is_floating_point() or not value.numel():
        return True
    if value.dtype == torch.float16:
        return int((value.contiguous().view(torch.int16) & 0x7FFF).max()) < FLOAT16_INFINITY
    return bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())

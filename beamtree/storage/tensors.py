"""Files of tensors."""

import errno
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from beamtree.files.staging import reset_permissions


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors in the format of safetensors."""
    from safetensors import SafetensorError  # here, so that training without a folder needs torch alone
    from safetensors.torch import save_file

    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # which is how it reports a full disk
        kind = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(kind, f"{path.name}: {error}") from error
    reset_permissions(path)

"""Splitting groups of items on a CPU: how the compiled functions are called."""

import numpy as np
import torch
from torch import Tensor

from beamtree.kernels import compiling
from beamtree.kernels.sparse import starts_of
from beamtree.kernels.threads import parallel_map, spans


def divide(size: Tensor, along: Tensor, arity: int) -> Tensor:
    """The part of each item [M], equally many for each of a group, in the order of `along` [M]; see `place_along`."""
    part, starts = np.empty(len(along), np.int64), starts_of(size.numpy())
    parallel_map(
        lambda span: compiling.load("compiled_tree_splits").divide(*span, starts, along.numpy(), arity, part),
        spans(len(size)),
    )
    return torch.from_numpy(part)


def place_along(size: Tensor, vectors: Tensor, directions: Tensor, arity: int, iterations: int, rounds: int) -> Tensor:
    """Where items are on the line that their group is split along [M]; items are group by group, `size` of each."""
    along, part, starts = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.int64), starts_of(size.numpy())
    arrays = vectors.float().contiguous().numpy(), directions.float().numpy()
    parallel_map(
        lambda span: compiling.load("compiled_tree_splits").place_along(
            *span, starts, *arrays, arity, iterations, rounds, along, part
        ),
        spans(len(size)),
    )
    return torch.from_numpy(along)

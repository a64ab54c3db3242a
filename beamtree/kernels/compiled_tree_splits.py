"""Splitting groups of items in equal parts on a CPU, compiled by Numba: see `builders.cluster`."""

import numpy as np

from beamtree.kernels.compiled_shared import FASTMATH, compiled


@compiled()
def divide(first, last, starts, along, arity, part):
    """The part of each item of the groups first … last: equally many for each, in the order of `along` [M]."""
    for group in range(first, last):
        start, size = starts[group], starts[group + 1] - starts[group]
        order = np.argsort(along[start : start + size], kind="mergesort")
        for rank in range(size):
            part[start + order[rank]] = rank * arity // size


@compiled(fastmath=FASTMATH)
def _project(vectors, line, middle, along):
    """⟨v, line⟩ - middle of each vector."""
    for row in range(len(vectors)):
        total = np.float32(0)
        for i in range(len(line)):
            total += vectors[row, i] * line[i]
        along[row] = total - middle


@compiled(fastmath=FASTMATH)
def _add(vector, weight, total):
    for i in range(len(vector)):
        total[i] += weight * vector[i]


@compiled()
def place_along(first, last, starts, vectors, directions, arity, iterations, rounds, along, part):
    """The place of each item of the groups first … last on the line that its group is split along [M].

    Args:
        first: group.
        last: one after the last.
        starts: where the items of each group start [groups + 1].
        vectors: of the items, group by group [M, dim].
        directions: where the power iteration of each group starts [groups, dim]; overwritten.
        arity: b.
        iterations: of the power iteration towards the first principal direction.
        rounds: of balanced k-means, along the line between the means of the first and the last part.
        along: the result.
        part: room for the part of each item [M].
    """
    dim = vectors.shape[1]
    mean, line, other = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
    for group in range(first, last):
        start, end = starts[group], starts[group + 1]
        rows, places = vectors[start:end], along[start:end]
        mean[:] = 0
        for row in range(len(rows)):
            _add(rows[row], np.float32(1 / len(rows)), mean)
        line[:] = directions[group]
        for iteration in range(iterations + 1):
            middle = np.float32(0)
            for i in range(dim):
                middle += mean[i] * line[i]
            _project(rows, line, middle, places)
            if iteration == iterations:
                break
            line[:] = 0
            total = np.float32(0)
            for row in range(len(rows)):
                _add(rows[row], places[row], line)
                total += places[row]
            _add(mean, -total, line)
            norm = max(np.sqrt(np.sum(line * line)), np.float32(1e-12))
            for i in range(dim):
                line[i] /= norm
        for _ in range(rounds):
            divide(group, group + 1, starts, along, arity, part)
            line[:], other[:] = 0, 0
            low, high = 0, 0
            for row in range(len(rows)):
                if part[start + row] == 0:
                    low += 1
                    _add(rows[row], np.float32(1), other)
                elif part[start + row] == arity - 1:
                    high += 1
                    _add(rows[row], np.float32(1), line)
            for i in range(dim):
                line[i] = line[i] / max(high, 1) - other[i] / max(low, 1)
            _project(rows, line, np.float32(0), places)

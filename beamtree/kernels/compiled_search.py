"""`retrieve` on a CPU, compiled by Numba: from histories to items in one call that holds no lock of the interpreter.

It covers sums of dot products, item memory, repeats and a deep part. What each of them is, is defined by their scorers.
"""

from typing import Any

import numpy as np

from beamtree.kernels.compiled_layers import ROWS, layer
from beamtree.kernels.compiled_shared import FASTMATH, compiled, half, prefetch, select, sort
from beamtree.mask import PAD

ZERO: Any = np.int64(0)  # functions that are given a literal 0 are compiled once more
PREFETCH_DISTANCE = 4  # nodes whose rows are read from memory before they are needed
BLOCK = 8 * ROWS  # nodes that go through the layers together, so that weights are read from the nearest cache


@compiled(fastmath=FASTMATH)
def _dot(row, vector):
    total = np.float32(0)
    for i in range(len(vector)):
        total += half(row[i]) * vector[i]
    return total


@compiled(fastmath=FASTMATH)
def solve_dual(count, vectors, shrunk, right, system, solution):
    """Solve (1 + Y A⁻¹ Yᵀ) s = right by Cholesky, for the first `count` rows of Y and of Y A⁻¹."""
    for s in range(count):
        own = shrunk[s]
        for t in range(0, s - 2, 4):  # four at once, so that `own` is read once for all
            first, second, third, fourth = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for i in range(vectors.shape[1]):
                first += own[i] * vectors[t, i]
                second += own[i] * vectors[t + 1, i]
                third += own[i] * vectors[t + 2, i]
                fourth += own[i] * vectors[t + 3, i]
            system[s, t], system[s, t + 1], system[s, t + 2], system[s, t + 3] = first, second, third, fourth
        for t in range((s + 1) // 4 * 4, s + 1):
            total = np.float32(0)
            for i in range(vectors.shape[1]):
                total += own[i] * vectors[t, i]
            system[s, t] = total
        system[s, s] += np.float32(1)
    for s in range(count):
        for t in range(s):
            total = system[s, t]
            for i in range(t):
                total -= system[s, i] * system[t, i]
            system[s, t] = total / system[t, t]
        total, value = system[s, s], right[s]
        for i in range(s):
            total -= system[s, i] * system[s, i]
            value -= system[s, i] * solution[i]
        system[s, s] = np.sqrt(total)
        solution[s] = value / system[s, s]
    for s in range(count - 1, -1, -1):
        total = solution[s]
        for t in range(s + 1, count):
            total -= system[t, s] * solution[t]
        solution[s] = total / system[s, s]


@compiled(fastmath=FASTMATH)
def fold_in(x, leaf_of_item, rows, recency, gram_diagonal, penalty, unobserved_weight, users):
    """u(x) of `scorers.factors.fold_in` for histories x [B, T], newest first, into users [B, dim]."""
    dim, longest = rows.shape[1], x.shape[1]
    smaller = min(longest, dim)
    vectors, shrunk = np.empty((longest, dim), np.float32), np.empty((longest, dim), np.float32)
    system, solution = np.empty((smaller, smaller), np.float32), np.empty(smaller, np.float32)
    root, diagonal, right = np.empty(longest, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
    for b in range(len(x)):
        count, total = ZERO, np.float32(0)
        for t in range(longest):
            item = x[b, t]
            if item == PAD or leaf_of_item[item] == PAD:
                continue
            newest = True
            for earlier in range(t):
                newest &= x[b, earlier] != item
            if newest:
                root[count] = np.sqrt(recency[t])
                total += recency[t]
                row = rows[leaf_of_item[item]]
                for i in range(dim):
                    vectors[count, i] = half(row[i]) * root[count]
                count += 1
        for i in range(dim):
            diagonal[i] = np.float32(1) / (gram_diagonal[i] + penalty * (total + unobserved_weight))
        if count > dim:  # the same system with a row for each number of a vector
            turned = np.empty((dim, count), np.float32)
            for i in range(dim):
                diagonal[i] = np.sqrt(diagonal[i])
                total = np.float32(0)
                for s in range(count):
                    turned[i, s] = vectors[s, i] * diagonal[i]
                    total += turned[i, s] * root[s]
                right[i] = total
            solve_dual(dim, turned, turned, right, system, solution)
            for i in range(dim):
                users[b, i] = diagonal[i] * solution[i]
            continue
        for s in range(count):
            for i in range(dim):
                shrunk[s, i] = vectors[s, i] * diagonal[i]
        solve_dual(count, vectors, shrunk, root, system, solution)
        for i in range(dim):
            users[b, i] = np.float32(0)
        for s in range(count):
            for i in range(dim):
                users[b, i] += shrunk[s, i] * solution[s]


@compiled(fastmath=FASTMATH)
def _read_history(x, leaf_of_item, arity, lift, windows, vectors, means):
    """Means of the windows of one history [levels, windows · dim], lifted to each of the last levels."""
    dim = vectors.shape[1]
    events = np.zeros(means.shape[1] // dim, np.int64)
    for t in range(len(x)):
        if leaf_of_item[x[t]] != PAD:
            events[windows[t]] += 1
    means[:] = 0
    for t in range(len(x)):
        node = leaf_of_item[x[t]]
        if node != PAD:
            first, share = windows[t] * dim, np.float32(1 / events[windows[t]])
            for level in range(len(means) - 1, -1, -1):
                for i in range(dim):
                    means[level, first + i] += share * vectors[node, i]
                if lift:
                    node = (node - 1) // arity


@compiled()
def _add_deep(nodes, count, vectors, user, layers, share, buffers, values):
    """Add the deep part of nodes to their values; `user` is the user half of the first layer on their level."""
    first, second = buffers[0], buffers[1]
    for start in range(0, count, BLOCK):
        block = min(BLOCK, count - start)
        for i in range(block):
            for d in range(vectors.shape[1]):
                first[i, d] = vectors[nodes[start + i], d]
        for i in range(1, len(layers)):
            weights, biases, slopes = layers[i]
            layer(first, weights, user if i == 1 else biases, slopes, second, block)
            first, second = second, first
        for i in range(block):
            values[start + i] += share * first[i, 0]


@compiled()
def remember(x, leaf_of_item, memory, items, item_scores, maxima, leaves, arity, height, first_level):
    """Add the scores of partners of one history, and of `items`, to `maxima` of leaves, and lift them.

    Returns the number of `leaves` that are written, some of them several times.
    """
    offsets, partners, weights, recency, repeats = memory
    count, num_items = ZERO, len(leaf_of_item) - 1
    weighed = min(len(x), recency.shape[1])
    for t in range(weighed):
        for part in range(len(recency)):
            if x[t] != PAD and recency[part, t] != 0:
                row = part * num_items + x[t]
                prefetch(partners, offsets[row], offsets[row + 1])
                prefetch(weights, offsets[row], offsets[row + 1])
    for t in range(len(x)):
        item = x[t]
        if item == PAD:
            continue
        for part in range(len(recency)):
            share = recency[part, t] if t < weighed else np.float32(0)
            if share == 0:
                continue
            row = part * num_items + item
            for entry in range(offsets[row], offsets[row + 1]):
                leaf = leaf_of_item[partners[entry]]
                if leaf != PAD:
                    before = maxima[leaf]
                    leaves[count] = leaf
                    count += before == 0  # no branch, which could not be foreseen
                    maxima[leaf] = before + share * half(weights[entry])
        leaf = leaf_of_item[item]
        if leaf != PAD and t < len(repeats) and repeats[t] != 0:
            leaves[count] = leaf
            count += maxima[leaf] == 0
            maxima[leaf] += repeats[t]
    for entry in range(len(items)):
        leaf = leaf_of_item[items[entry]]
        if leaf != PAD and item_scores[entry] != 0:
            leaves[count] = leaf
            count += maxima[leaf] == 0
            maxima[leaf] += item_scores[entry]
    for i in range(count):
        node, score = leaves[i], maxima[leaves[i]]
        for _ in range(height - first_level):
            node = (node - 1) >> 1 if arity == 2 else (node - 1) // arity
            if maxima[node] >= score:  # so are those above
                break
            maxima[node] = score
    return count


@compiled()
def forget(maxima, leaves, count, arity, height, first_level):
    """Make `maxima` zero again."""
    for i in range(count):
        node = leaves[i]
        maxima[node] = 0
        for _ in range(height - first_level):
            node = (node - 1) >> 1 if arity == 2 else (node - 1) // arity
            if maxima[node] == 0:  # so are those above
                break
            maxima[node] = 0


@compiled()
def calibrate(calibration, scores, beyond, largest, logits):
    """The logits of scores: see `scorers.sum.calibrated`."""
    points, values = calibration[0], calibration[1]
    last = len(points) - 1
    slope = (values[last] - values[0]) / (points[last] - points[0])
    for i in range(len(scores)):
        score = scores[i]
        if score == -np.inf:
            logits[i] = score
            continue
        inside = min(max(score, points[0]), points[last])
        right = min(max(_rank(points, inside), 1), last)
        step = points[right] - points[right - 1]
        share = (inside - points[right - 1]) / step if step > 0 else 1.0
        logit = values[right - 1] + share * (values[right] - values[right - 1])
        apart = np.log1p(slope * abs(score - inside))
        logit += beyond * (apart if score > inside else -apart)
        logits[i] = min(max(logit, -largest), largest)


@compiled()
def _rank(numbers, number):
    """How many of some sorted numbers are below a number."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def _add_products(rows, user, share, nodes, count, values):
    """Add the products of a user's vector and those of nodes to their values."""
    for i in range(count):
        if i + PREFETCH_DISTANCE < count:
            prefetch(rows, nodes[i + PREFETCH_DISTANCE], nodes[i + PREFETCH_DISTANCE] + 1)
        values[i] += share * _dot(rows[nodes[i]], user)


@compiled()
def score(b, level, nodes, count, named, node_scores, tables, values):
    """What nodes of a level score for user b but for a network: what is named for them, shared by all, and products."""
    for i in range(count):
        values[i] = named[nodes[i]]
    if len(node_scores):
        for i in range(count):
            values[i] += node_scores[nodes[i]]
    for rows, shares, users in tables:
        if shares[level] != 0:
            _add_products(rows, users[b], shares[level], nodes, count, values)


@compiled()
def most_named(first, last, x, num_items, memory):
    """How many items the history of one of some users names at most: partners, and its own."""
    offsets, _, _, recency, _ = memory
    most = ZERO
    for b in range(first, last):
        count = ZERO
        for t in range(min(x.shape[1], recency.shape[1])):
            for part in range(len(recency)):
                if x[b, t] != PAD and recency[part, t] != 0:
                    row = part * num_items + x[b, t]
                    count += offsets[row + 1] - offsets[row]
        most = max(most, count + x.shape[1])
    return most


@compiled()
def search(first, last, task, maxima):
    """Beam search for the users first … last of a task, whose fields `search_cpu.SearchInput` describes.

    `maxima` are zeros for all nodes, which are zero again at the end.
    """
    (
        x, leaf_of_item, item_of_slot, arity, height, first_level, widths, entered, allowed_before, excluded,
        parts, found, scores,
    ) = task  # fmt: skip
    memory, items, item_scores, node_scores, tables, (levels, vectors, windows, lift, layers) = parts
    start = np.empty(height + 2, np.int64)
    start[0], size = 0, 1
    for level in range(height + 1):
        start[level + 1] = start[level] + size
        size *= arity
    first_slot = start[height]
    above = start[first_level] - start[first_level - 1]
    room = max(above, np.max(widths)) * arity
    beam, values = np.empty(room, np.int64), np.empty(room, np.float32)
    candidates = np.empty(room, np.int64)
    most = most_named(first, last, x, len(leaf_of_item) - 1, memory) + items.shape[1]
    leaves = np.empty(max(most, 1), np.int64)
    searched, wide = height + 1 - first_level, max(vectors.shape[1], len(layers[0][1]))
    means = np.zeros((searched + ROWS, layers[0][0].shape[1]), np.float32)  # rows below complete the last tile
    user_half, buffers = np.empty((searched + ROWS, wide), np.float32), np.zeros((2, BLOCK, wide), np.float32)
    for b in range(first, last):
        if len(vectors):
            _read_history(x[b, : len(windows)], leaf_of_item, arity, lift, windows, vectors, means[:searched])
            layer(means, *layers[0], user_half, searched)
        own = b if len(items) > 1 else 0
        named = remember(
            x[b], leaf_of_item, memory, items[own], item_scores[own], maxima, leaves, arity, height, first_level
        )
        hidden = excluded[b] if len(excluded) else excluded[:0].ravel()
        kept = ZERO
        for node in range(start[first_level - 1], start[first_level]):
            if not len(entered) or entered[node] or node == 0:
                beam[kept] = node
                kept += 1
        for level in range(first_level, height + 1):
            width, count = widths[level - first_level], ZERO
            for i in range(kept):
                child = beam[i] * arity + 1
                for _ in range(arity):
                    if not len(entered) or entered[child]:
                        candidates[count] = child
                        count += 1
                    child += 1
            beam, candidates, kept = candidates, beam, count
            if kept <= width and level < height:
                continue
            if len(hidden):  # leave out nodes below which all allowed leaves are excluded
                below, count = arity ** (height - level), ZERO
                for i in range(kept):
                    place = (beam[i] - start[level]) * below
                    left = allowed_before[place + below] - allowed_before[place]
                    if _rank(hidden, place + below) - _rank(hidden, place) < left:
                        beam[count] = beam[i]
                        count += 1
                kept = count
            score(b, level, beam, kept, maxima, node_scores, tables, values)
            if len(vectors) and levels[level] != 0:
                user = user_half[level - first_level]
                _add_deep(beam, kept, vectors, user, layers, levels[level], buffers, values)
            if kept > width:
                select(beam, values, kept, width)
                kept = width
        best = min(kept, found.shape[1])
        if kept > best:
            select(beam, values, kept, best)
        sort(beam, values, best)
        for i in range(found.shape[1]):
            item = item_of_slot[beam[i] - first_slot] if i < best else PAD
            found[b, i] = item
            scores[b, i] = values[i] if item != PAD else -np.inf
        forget(maxima, leaves, named, arity, height, first_level)

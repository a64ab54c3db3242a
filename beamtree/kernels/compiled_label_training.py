"""Training of label classifiers on a CPU, compiled by Numba: features of text, label trees and linear parts.

What each function computes is defined in `beamtree.classify`; the tests hold them against the plain definitions there.
"""

import numpy as np

from beamtree.kernels.compiled_shared import FASTMATH, compiled

FULL_ROUNDS = 3  # rounds of the solver in which no document is set aside
LOW = np.uint64((1 << 32) - 1)  # bits


# Features of text


@compiled()
def weigh(first, last, starts, tokens, idf, ends, block_weights, counts, columns, values):
    """TF-IDF of documents first … last: (1 + log tf) · idf in blocks of unit length, times their weights, then as one.

    Args:
        first: document.
        last: one after the last.
        starts: where the tokens of each document start [n + 1].
        tokens: features, block by block in rising ranges; sorted here.
        idf: of each feature.
        ends: one after the last feature of each block.
        block_weights: of each block.
        counts: the number of features of each document.
        columns: features, rising, from the start of the tokens of each document.
        values: their weights.
    """
    for document in range(first, last):
        start, end = starts[document], starts[document + 1]
        tokens[start:end].sort()
        count, block, begin, squares, total = start, 0, start, 0.0, 0.0
        at = start
        while at <= end:
            if at == end or tokens[at] >= ends[block]:
                if squares > 0:
                    scale = block_weights[block] / np.sqrt(squares)
                    for entry in range(begin, count):
                        values[entry] *= scale
                    total += block_weights[block] ** 2
                begin, squares, block = count, 0.0, block + 1
                if block == len(ends):
                    break
                continue
            same = at
            while same < end and tokens[same] == tokens[at]:
                same += 1
            columns[count] = tokens[at]
            values[count] = (1 + np.log(same - at)) * idf[tokens[at]]
            squares += values[count] ** 2
            count, at = count + 1, same
        for entry in range(start, count):
            values[entry] /= np.sqrt(total)
        counts[document] = count - start


# Label trees


@compiled(fastmath=FASTMATH)
def nearest_means(first, last, offsets, columns, values, means, nearest):
    """The mean with the largest product for each of the rows first … last."""
    products = np.empty(means.shape[1], np.float32)
    for row in range(first, last):
        products[:] = 0
        for entry in range(offsets[row], offsets[row + 1]):
            value, of_feature = values[entry], means[columns[entry]]
            for mean in range(len(products)):
                products[mean] += value * of_feature[mean]
        nearest[row] = np.argmax(products)


# Linear parts


@compiled(fastmath=FASTMATH)
def _coordinate_descent(offsets, columns, values, squares, target, width, C, tolerance, rounds, seed):
    """The weights of an L2-regularized linear classifier with squared hinge loss, by dual coordinate descent.

    z = ⟨w, x⟩ - 1: the bias is drawn towards -1, not 0. Most documents are negative, and right before the first step.
    Those whose dual variable is 0 and would stay there, within the tolerance, are set aside until the others have
    converged; then all are looked at once more.

    Args:
        offsets: where the features of each document start [n + 1].
        columns: features, the bias among them.
        values: of the features.
        squares: ‖x‖² of each document.
        target: 1 or -1.
        width: number of features.
        C: of the loss.
        tolerance: of the projected gradients.
        rounds: passes over the documents, at most.
        seed: of their order.
    """
    weights, dual = np.zeros(width, np.float32), np.zeros(len(target), np.float32)
    order, active = np.arange(len(target)), len(target)
    diagonal, aside = np.float32(0.5 / C), -np.float32(tolerance / 2)
    state, whole = np.uint64(seed * 2654435761 + 88172645463325252), True
    for number in range(rounds):
        highest, lowest = np.float32(0), np.float32(0)
        for place in range(active):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            other = place + np.int64(((state & LOW) * np.uint64(active - place)) >> np.uint64(32))
            order[place], order[other] = order[other], order[place]
        place = 0
        while place < active:
            document = order[place]
            sign, before = np.float32(target[document]), dual[document]
            gradient = -np.float32(1)
            for entry in range(offsets[document], offsets[document + 1]):
                gradient += weights[columns[entry]] * values[entry]
            gradient = gradient * sign - np.float32(1) + before * diagonal
            if before == 0 and gradient > aside:
                if number < FULL_ROUNDS:
                    place += 1
                else:
                    active -= 1
                    order[place], order[active] = order[active], order[place]
                continue
            highest, lowest = max(highest, gradient), min(lowest, gradient)
            dual[document] = max(before - gradient / (squares[document] + diagonal), np.float32(0))
            step = (dual[document] - before) * sign
            for entry in range(offsets[document], offsets[document + 1]):
                weights[columns[entry]] += step * values[entry]
            place += 1
        if highest - lowest > tolerance:
            whole = False
        elif whole:
            break
        else:
            active, whole = len(target), True
    return weights


@compiled()
def _keep(found, names, child, min_weight, children, features, weights, kept):
    """List the weights of a child that are not small; returns how many are listed then."""
    for feature in range(1, len(found)):
        if abs(found[feature]) >= min_weight:
            children[kept], features[kept], weights[kept] = child, names[feature], found[feature]
            kept += 1
    return kept


@compiled()
def train_children(
    offsets, columns, values, width, rows, starts, positives, first, last, C, tolerance, rounds, min_weight
):
    """Linear classifiers of the children first … last of a node: the entries (child, feature, weight), and biases.

    Args:
        offsets: where the features of each document start.
        columns: features.
        values: their values.
        width: number of features.
        rows: documents below the node, rising.
        starts: where the positives of each child start.
        positives: of each child, as indices of `rows`.
        first: child.
        last: one after the last.
        C: of the loss.
        tolerance: of the solver.
        rounds: of the solver.
        min_weight: weights below are left out.
    """
    local, names = np.full(width, -1, np.int32), np.empty(width + 1, np.int32)
    size = 0
    for row in rows:
        size += offsets[row + 1] - offsets[row] + 1
    own_offsets, own_columns = np.zeros(len(rows) + 1, np.int64), np.empty(size, np.uint32)
    own_values, squares = np.empty(size, np.float32), np.ones(len(rows), np.float32)
    known, count = 1, 0  # the bias is feature 0
    for index in range(len(rows)):
        own_columns[count], own_values[count] = 0, 1
        count += 1
        for entry in range(offsets[rows[index]], offsets[rows[index] + 1]):
            feature = columns[entry]
            if local[feature] < 0:
                local[feature], names[known] = known, feature
                known += 1
            own_columns[count], own_values[count] = local[feature], values[entry]
            squares[index] += values[entry] ** 2
            count += 1
        own_offsets[index + 1] = count
    children, features = np.empty(1024, np.int32), np.empty(1024, np.int32)
    weights, biases = np.empty(1024, np.float32), np.empty(last - first, np.float32)
    target, kept = np.full(len(rows), -1, np.int8), 0
    for child in range(first, last):
        target[positives[starts[child] : starts[child + 1]]] = 1
        found = _coordinate_descent(
            own_offsets, own_columns, own_values, squares, target, known, C, tolerance, rounds, child + 1
        )
        target[positives[starts[child] : starts[child + 1]]] = -1
        biases[child - first] = found[0] - 1
        while len(children) < kept + known:
            children = np.append(children, np.empty_like(children))
            features = np.append(features, np.empty_like(features))
            weights = np.append(weights, np.empty_like(weights))
        kept = _keep(found, names, child, min_weight, children, features, weights, kept)
    return children[:kept], features[:kept], weights[:kept], biases

"""The transformer of the sequence part on a CPU, compiled by Numba: from one history to its user vector in one call.

`scorers.sequence` defines it. All products go through `layer`. The last block asks about the last position alone.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from beamtree.kernels.compiled_layers import LANES, ROWS, layer
from beamtree.kernels.compiled_shared import FASTMATH, compiled, half
from beamtree.mask import PAD

NO_TIME = PAD
ZERO: Any = np.int64(0)  # functions that are given a literal 0 are compiled once more
LEAST, MOST = np.float32(-87), np.float32(88)  # exponents of e in float32, nearly
LOG2_E, HALF, ONE = np.float32(1.44269504), np.float32(0.5), np.float32(1)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # the first has few digits: n times it is exact
EXP = tuple(map(np.float32, (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 5.0000001e-1)))
ERFC_AT = np.float32(0.3275911)  # Abramowitz and Stegun 7.1.26, as in PyTorch
ERFC = tuple(map(np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)))
ROOT_HALF = np.float32(0.5**0.5)
EPSILON = np.float32(1e-5)  # of a layer norm
LONGEST = np.float32(18.5)  # see `scorers.sequence`
NOWHERE = np.float32(99)  # so far from all Gaussians that they are 0


def _power_of_two(typing_context, exponent):
    """2^n as a float32 of a whole number n, from the bits of its exponent."""

    def generate(context, builder, signature, arguments):
        word, single = ir.IntType(32), ir.FloatType()
        whole = builder.fptosi(arguments[0], word)
        return builder.bitcast(builder.shl(builder.add(whole, word(127)), word(23)), single)

    return types.float32(types.float32), generate


power_of_two: Any = intrinsic(_power_of_two)


@compiled(fastmath={"contract"})
def exp(x):
    """e^x in float32, without a branch or a call, so that loops with it are vectorized."""
    x = min(max(x, LEAST), MOST)
    n = np.floor(x * LOG2_E + HALF)
    x = x - n * LN2_HIGH - n * LN2_LOW
    total = EXP[0]
    total = total * x + EXP[1]
    total = total * x + EXP[2]
    total = total * x + EXP[3]
    total = total * x + EXP[4]
    total = total * x + EXP[5]
    return (total * x * x + x + ONE) * power_of_two(n)


@compiled(fastmath=FASTMATH)
def gelu(x, count):
    """x Φ(x) of the first rows, in place."""
    for t in range(count):
        for i in range(x.shape[1]):
            value = x[t, i]
            z = abs(value) * ROOT_HALF
            at = ONE / (ONE + ERFC_AT * z)
            tail = ERFC[0]
            tail = tail * at + ERFC[1]
            tail = tail * at + ERFC[2]
            tail = tail * at + ERFC[3]
            tail = tail * at + ERFC[4]
            lost = value * HALF * tail * at * exp(-z * z)  # x (1 - Φ(|x|))
            x[t, i] = value - lost if value > 0 else lost


@compiled(fastmath=FASTMATH)
def norm(x, weights, out, count):
    """The layer norm of the first rows, with a scale and a shift [2, dim]."""
    scale, shift = weights[0], weights[1]
    dim = np.float32(x.shape[1])
    for t in range(count):
        mean, square = np.float32(0), np.float32(0)
        for i in range(x.shape[1]):
            mean += x[t, i]
        mean /= dim
        for i in range(x.shape[1]):
            square += (x[t, i] - mean) * (x[t, i] - mean)
        factor = ONE / np.sqrt(square / dim + EPSILON)
        for i in range(x.shape[1]):
            out[t, i] = (x[t, i] - mean) * factor * scale[i] + shift[i]


@compiled(fastmath=FASTMATH)
def softmax(logits, bias, first, count):
    """Of rows for the positions `first` and after it, in place: over those up to each, with their biases."""
    for t in range(count):
        before, most, total = first + t + 1, np.float32(-np.inf), np.float32(0)
        for s in range(before):
            logits[t, s] += bias[t, s]
            most = max(most, logits[t, s])
        for s in range(before):
            logits[t, s] = exp(logits[t, s] - most)
            total += logits[t, s]
        for s in range(before):
            logits[t, s] /= total
        logits[t, before:] = 0


@compiled(fastmath=FASTMATH)
def add(x, more, count):
    """Add to the first rows, which may be shorter."""
    for t in range(count):
        for i in range(x.shape[1]):
            x[t, i] += more[t, i]


@compiled()
def whole(count):
    """The next multiple of LANES."""
    return (count + LANES - 1) // LANES * LANES


@compiled(fastmath=FASTMATH)
def gaussian(z, k, number):
    """Number k of some Gaussians around 0 to 1 at z."""
    apart = z * np.float32(number - 1) - np.float32(k)
    return exp(-HALF * apart * apart)


@compiled(fastmath=FASTMATH)
def add_gaussians(weights, z, count, heads, bias, t):
    """Add sums of Gaussians at z to what the first heads add to the logits of a position: bias [heads, T, len(z)].

    The first `count` are needed, and those that complete LANES are computed with them: a loop over the last few would
    not be vectorized.
    """
    values, number = np.empty(len(z), np.float32), weights.shape[1]
    count = whole(count)
    for k in range(number):
        for s in range(count):
            values[s] = gaussian(z[s], k, number)
        for head in range(heads):
            weight = weights[head, k]
            for s in range(count):
                bias[head, t, s] += weight * values[s]


@compiled(fastmath=FASTMATH)
def read_gaps(moments, by_order, by_time, since_newest, before_last, bias, x):
    """Write the biases of all heads [heads, T, whole(T)], and add the time since the newest event to the input x.

    `moments` [T + 1] are the time of each event, after that of the start, and that of the request; NO_TIME where it is
    not known. A position is asked about at the moment of the next. The heads of the last block, which follow the first
    `before_last`, are asked about the last position alone.
    """
    length = bias.shape[1]
    z = np.zeros(bias.shape[2], np.float32)
    for t in range(length):
        heads = len(bias) if t == length - 1 else before_last
        for head in range(heads):
            for s in range(t + 1):
                bias[head, t, s] = by_order[head, 0, t - s]
        if moments[t + 1] == NO_TIME:
            continue
        for s in range(t + 1):
            seconds = max(moments[t + 1] - moments[s], 0)
            z[s] = NOWHERE if moments[s] == NO_TIME else min(np.log(np.float32(1 + seconds)) / LONGEST, ONE)
        add_gaussians(by_time, z, t + 1, heads, bias, t)
        for k in range(len(since_newest)):
            value = gaussian(z[t], k, len(since_newest))
            for i in range(x.shape[1]):
                x[t, i] += value * since_newest[k, i]


@compiled()
def attend(queries, keys_values, heads, bias, first, count, mixed):
    """What the heads of a block find for `count` positions from `first` on, of queries [count, heads · size].

    The keys [T, heads · size] are followed by the values. Those of a head are the weights of two layers.
    """
    length, width = bias.shape[1], queries.shape[1]
    size, columns = width // heads, bias.shape[2]
    query, result = np.zeros((count + ROWS, size), np.float32), np.empty((count + ROWS, size), np.float32)
    key = np.zeros((columns // LANES, size, LANES), np.float32)
    value = np.empty((size // LANES, length, LANES), np.float32)
    logits = np.zeros((count + ROWS, columns), np.float32)
    no_bias, linear = np.zeros(max(size, columns), np.float32), np.ones(max(size, columns), np.float32)
    for head in range(heads):
        start = head * size
        for t in range(count):
            for i in range(size):
                query[t, i] = queries[t, start + i]
        for s in range(length):
            for i in range(size):
                key[s // LANES, i, s % LANES] = keys_values[s, start + i]
                value[i // LANES, s, i % LANES] = keys_values[s, width + start + i]
        layer(query, key, no_bias, linear, logits, count)
        softmax(logits, bias[head, first:], first, count)
        layer(logits, value, no_bias, linear, result, count)
        for t in range(count):
            for i in range(size):
                mixed[t, start + i] = result[t, i]


@compiled()
def encode(begin, end, task):
    """u(x) of the users begin … end of a task, whose fields `sequence_cpu.EncoderInput` describes."""
    items, times, request, leaf_of_item, rows, arrays, users = task
    positions, since_newest, order_weights, by_time, norms, layers, heads = arrays
    (query, query_bias), (keys, keys_bias), (out, out_bias), (up, up_bias), (down, down_bias) = layers
    (most, dim), width, blocks = positions.shape, query_bias.shape[1], len(query)
    apart, by_order = np.zeros(whole(most), np.float32), np.zeros((len(by_time), 1, whole(most)), np.float32)
    for gap in range(most):
        apart[gap] = np.log(np.float32(1 + gap)) / np.log(np.float32(most))
    add_gaussians(order_weights, apart, most, len(by_time), by_order, ZERO)
    linear = np.ones(max(keys_bias.shape[1], up_bias.shape[1]), np.float32)
    leaves, moments = np.empty(most, np.int64), np.empty(most + 1, np.int64)
    for b in range(begin, end):
        knows = times.shape[1] > 0 and request[b, 0] != NO_TIME
        moments[0], length = NO_TIME, ZERO + 1  # the start comes before the first event
        for t in range(items.shape[1] - 1, -1, -1):
            leaf = leaf_of_item[items[b, t]]
            if leaf != PAD:
                leaves[length], moments[length] = leaf, times[b, t] if knows else NO_TIME
                length += 1
        moments[length] = request[b, 0] if knows else NO_TIME
        room = length + ROWS  # to complete the last tile
        x, states = np.zeros((room, dim), np.float32), np.zeros((room, dim), np.float32)
        for t in range(length):
            for i in range(dim):
                x[t, i] = positions[t, i] + (half(rows[leaves[t], i]) if t > 0 else np.float32(0))
        bias = np.zeros((blocks * heads, length, whole(length)), np.float32)
        read_gaps(moments[: length + 1], by_order, by_time, since_newest, (blocks - 1) * heads, bias, x)
        queries, mixed = np.zeros((room, width), np.float32), np.zeros((room, width), np.float32)
        keys_values, hidden = np.zeros((room, 2 * width), np.float32), np.zeros((room, up_bias.shape[1]), np.float32)
        more = np.zeros((room, out_bias.shape[1]), np.float32)
        for block in range(blocks):
            first = length - 1 if block == blocks - 1 else ZERO
            count = length - first
            norm(x, norms[2 * block], states, length)
            layer(states, keys[block], keys_bias[block], linear, keys_values, length)
            layer(states[first:], query[block], query_bias[block], linear, queries, count)
            attend(queries, keys_values, heads, bias[block * heads : (block + 1) * heads], first, count, mixed)
            layer(mixed, out[block], out_bias[block], linear, more, count)
            x = x[first:]
            add(x, more, count)
            norm(x, norms[2 * block + 1], states, count)
            layer(states, up[block], up_bias[block], linear, hidden, count)
            gelu(hidden, count)
            layer(hidden, down[block], down_bias[block], linear, more, count)
            add(x, more, count)
        norm(x, norms[2 * blocks], states, ZERO + 1)
        for i in range(dim):
            users[b, i] = states[0, i] if i < dim - 1 else ONE

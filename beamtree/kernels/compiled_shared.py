"""What compiled functions share: reading halves, prefetching rows, and choosing the best of a beam."""

from functools import partial
from platform import machine
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, codegen
from numba.extending import intrinsic

FASTMATH = {"reassoc", "contract", "nsz"}  # sums may be taken in another order, so that they are vectorized
CONVERTS_HALVES = "+f16c" in codegen.get_host_cpu_features() or machine() in ("aarch64", "arm64")
CACHE_LINE = 64  # bytes
SMALL_TOP_K = 32  # scores of which the best are kept in order while they are looked at


def _can_cache():
    """Whether compiled code can be written to disk: not where neither the package nor a home can be written to."""
    try:
        njit(cache=True)(lambda: None)
    except RuntimeError:
        return False
    return True


compiled: Any = partial(njit, nogil=True, cache=_can_cache(), error_model="numpy")


def _read_half(typing_context, bits):
    """The float32 of a finite half in its 16 bits, which Numba has no type for on CPUs.

    Where there is no instruction for that, its bits are moved to their places in a float32, and a product corrects the
    exponent, also of subnormals.
    """

    def generate(context, builder, signature, arguments):
        word, single = ir.IntType(32), ir.FloatType()
        if CONVERTS_HALVES:
            return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), single)
        wide = builder.zext(arguments[0], word)
        magnitude = builder.shl(builder.and_(wide, word(0x7FFF)), word(13))
        sign = builder.shl(builder.and_(wide, word(0x8000)), word(16))
        return builder.fmul(builder.bitcast(builder.or_(magnitude, sign), single), single(2.0**112))

    return types.float32(types.uint16), generate


def _prefetch_rows(typing_context, rows, start, stop):
    """Have some rows of a contiguous array read from memory, while something else is computed."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride, size = cgutils.unpack_tuple(builder, array.strides)[0], ir.IntType(64)
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        first = builder.gep(builder.bitcast(array.data, byte), [builder.mul(arguments[1], stride)])
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        length = builder.mul(builder.sub(arguments[2], arguments[1]), stride)
        lines = builder.udiv(builder.add(length, size(CACHE_LINE - 1)), size(CACHE_LINE))
        with cgutils.for_range(builder, lines) as loop:
            line = builder.gep(first, [builder.mul(loop.index, size(CACHE_LINE))])
            builder.call(function, [line, flag(0), flag(3), flag(1)])  # to read, and to keep in all caches
        return context.get_dummy_value()

    return types.none(rows, types.int64, types.int64), generate


half: Any = intrinsic(_read_half)
prefetch: Any = intrinsic(_prefetch_rows)


@compiled()
def select(nodes, scores, count, k):
    """Move the k highest scores, and their nodes, to the front (quickselect)."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        a, b, c = scores[low], scores[middle], scores[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while scores[i] > pivot:
                i += 1
            while scores[j] < pivot:
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                nodes[i], nodes[j] = nodes[j], nodes[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            return


@compiled()
def sort(nodes, scores, count):
    """Sort by falling score, nodes with equal ones by number (Shell sort)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap:
        for i in range(gap, count):
            node, score, j = nodes[i], scores[i], i
            while j >= gap and (scores[j - gap] < score or (scores[j - gap] == score and nodes[j - gap] > node)):
                nodes[j], scores[j] = nodes[j - gap], scores[j - gap]
                j -= gap
            nodes[j], scores[j] = node, score
        gap //= 3


@compiled()
def best(scores, count, most, indices, highest):
    """The `most` highest of scores[:count], best first, equal ones by index; returns how many there are.

    Their indices and scores go into `indices` and `highest`, which have room for `count`.
    """
    if most > SMALL_TOP_K:
        most = min(most, count)
        for index in range(count):
            indices[index], highest[index] = index, scores[index]
        select(indices, highest, count, most)
        lowest, number, equal = np.float32(np.inf), 0, 0
        for index in range(most):
            lowest = min(lowest, highest[index])
        for index in range(most):
            equal += highest[index] == lowest
        for index in range(count):
            above = scores[index] > lowest
            if above or (scores[index] == lowest and equal > 0):
                indices[number], highest[number] = index, scores[index]
                number, equal = number + 1, equal - (not above)
        sort(indices, highest, most)
        return most
    number = 0
    for index in range(count):
        score = scores[index]
        if number == most and score <= highest[most - 1]:
            continue
        place = min(number, most - 1)
        while place > 0 and highest[place - 1] < score:
            indices[place], highest[place] = indices[place - 1], highest[place - 1]
            place -= 1
        indices[place], highest[place] = index, score
        number += number < most
    return number

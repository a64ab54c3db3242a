"""Layers of networks on a CPU: products of a few rows at a time with weights in the order that they are read."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen
from numba.extending import intrinsic

from beamtree.kernels.compiled_shared import compiled

ROWS = 6  # of a tile of a layer: with LANES sums each they take 12 registers
LANES = 32 if "+avx512f" in codegen.get_host_cpu_features() else 16


def _multiply_tile(typing_context, inputs, weights, biases, slopes, outputs, row, group):
    """PReLU(inputs · weights + biases) for ROWS rows and one group of LANES outputs; see `layer`."""

    def generate(context, builder, signature, arguments):
        vector, index = ir.VectorType(ir.FloatType(), LANES), ir.IntType(32)
        first_lane = ir.Constant(ir.VectorType(index, LANES), [0] * LANES)
        row, group = arguments[5:]
        rows = [builder.add(row, row.type(i)) for i in range(ROWS)]
        column = builder.mul(group, group.type(LANES))
        inputs, weights, biases, slopes, outputs = (
            (kind, context.make_array(kind)(context, builder, value))
            for kind, value in zip(signature.args[:5], arguments[:5], strict=True)
        )

        def number_at(typed_array, *indices):
            kind, array = typed_array
            return cgutils.get_item_pointer(context, builder, kind, array, indices)

        def vector_at(array, *indices):
            return builder.bitcast(number_at(array, *indices), vector.as_pointer())

        bias, slope = (builder.load(vector_at(array, column), align=4) for array in (biases, slopes))
        totals = [cgutils.alloca_once_value(builder, bias) for _ in rows]
        with cgutils.for_range(builder, cgutils.unpack_tuple(builder, weights[1].shape)[1]) as loop:
            weight = builder.load(vector_at(weights, group, loop.index, row.type(0)), align=4)
            for i, total in zip(rows, totals, strict=True):
                number = builder.load(number_at(inputs, i, loop.index))
                number = builder.insert_element(vector(ir.Undefined), number, index(0))
                product = builder.fmul(builder.shuffle_vector(number, number, first_lane), weight, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        for i, total in zip(rows, totals, strict=True):
            value = builder.load(total)
            positive = builder.fcmp_ordered(">", value, vector([0.0] * LANES))
            value = builder.select(positive, value, builder.fmul(value, slope))
            builder.store(value, vector_at(outputs, i, column), align=4)
        return context.get_dummy_value()

    return types.void(inputs, weights, biases, slopes, outputs, types.intp, types.intp), generate


_tile: Any = intrinsic(_multiply_tile)


@compiled()
def layer(inputs, weights, biases, slopes, outputs, count):
    """PReLU(inputs · weights + biases) for the first `count` rows, and those that complete a tile.

    Weights are [groups of outputs, inputs, LANES]. A tile is written in LLVM's language, since the loops that Numba
    vectorizes keep their sums in memory.
    """
    for group in range(len(weights)):
        for row in range(0, count, ROWS):
            _tile(inputs, weights, biases, slopes, outputs, row, group)

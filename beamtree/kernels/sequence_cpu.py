"""The transformer of the sequence part on a CPU: its weights in the order that compiled code reads, and the call."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from beamtree.kernels import compiling, is_plain
from beamtree.kernels.threads import in_spans

# The compiled function is given tuples without names, whose types Numba finds in less time.


class EncoderArrays(NamedTuple):
    """The weights of an encoder."""

    positions: Any  # the start is added to the first [length + 1, dim]
    since_newest: Any  # [Gaussians, dim]; none without a clock
    by_order: Any  # weights of Gaussians of each head of all blocks [heads, Gaussians]
    by_time: Any  # likewise
    norms: Any  # two of each block, and the last [2 · blocks + 1, 2, dim]
    layers: tuple[Any, ...]  # queries, keys and values, output of attention, and two of the MLP: see `_layer`
    heads: int  # of a block


class EncoderInput(NamedTuple):
    """All that `compiled_sequence.encode` reads and writes."""

    items: Any  # histories [B, T], newest first, PAD for none
    times: Any  # of the events [B, T]; [B, 0] where they are not given
    request: Any  # its time [B, 1]; [B, 0] likewise
    leaf_of_item: Any  # [M + 1], PAD last
    rows: Any  # halves of all nodes, as 16 bits [num_nodes, dim]
    arrays: tuple[Any, ...]  # `EncoderArrays`
    users: Any  # the result [B, dim]


Weights = list[dict[str, Tensor | None]]  # of each module: those that replace them get the same names
_ARRAYS: WeakKeyDictionary[nn.Module, tuple[Weights, list[object], list[Tensor], tuple[Any, ...]]] = WeakKeyDictionary()


def fits(encoder: nn.Module, rows: Tensor) -> bool:
    """Whether an encoder and vectors of nodes are covered: on a CPU, in the types that finished models have."""
    covered = rows.device.type == "cpu" and rows.dtype == torch.float16 and rows.is_contiguous()
    return covered and encoder.start.dtype == torch.float32 and not (is_plain() or torch.is_grad_enabled())


def last_states(
    encoder: nn.Module, rows: Tensor, leaf_of_item: Tensor, items: Tensor, times: Tensor, request: Tensor
) -> Tensor:
    """u(x) [B, dim] of histories: the states of a `scorers.sequence.SequenceEncoder` after their newest event.

    Args:
        encoder: in float32.
        rows: vectors of all nodes, float16 [num_nodes, dim].
        leaf_of_item: of the tree; an item without a leaf is left out with its time.
        items: newest first, PAD for none [B, T].
        times: of the events [B, T]; [B, 0] where they are not given.
        request: its time [B, 1]; [B, 0] likewise.
    """
    users = np.empty((len(items), rows.shape[1]), np.float32)
    task = EncoderInput(
        items.contiguous().numpy(), times.contiguous().numpy(), request.contiguous().numpy(), leaf_of_item.numpy(),
        rows.detach().view(torch.int16).numpy().view(np.uint16), _arrays_of(encoder), users,
    )  # fmt: skip
    function, arrays = compiling.load("compiled_sequence").encode, tuple(task)
    in_spans(lambda span: function(*span, arrays), len(items))
    return torch.from_numpy(users)


def _arrays_of(encoder: nn.Module) -> tuple[Any, ...]:
    """The arrays of an encoder, made again where a weight was changed since."""
    cached = _ARRAYS.get(encoder)
    weights = [module._parameters for module in encoder.modules()] if cached is None else cached[0]
    tensors = [weight for each in weights for weight in each.values() if weight is not None]
    state: list[object] = [(weight.data_ptr(), weight._version) for weight in tensors]
    if cached is None or cached[1] != state:
        # The tensors are kept, so that no others can be allocated at their addresses.
        cached = _ARRAYS[encoder] = cast(Weights, weights), state, tensors, tuple(_arrays(encoder))
    return cached[3]


@torch.no_grad()
def _arrays(encoder: Any) -> EncoderArrays:
    blocks, dim = list(encoder.blocks), encoder.dim
    heads = blocks[0].heads
    lanes = compiling.load("compiled_layers").LANES
    size = dim // heads
    spare = -size % lanes  # numbers that fill up those of a head

    def by_head(weight: Tensor, dim: int) -> Tensor:
        """Fill up the numbers of each head, in one dimension."""
        weight = weight.unflatten(dim, (-1, size)).movedim(dim + 1, -1)
        return pad(weight, (0, spare)).movedim(-1, dim + 1).flatten(dim, dim + 1)

    attention = [(by_head(each.attention_in.weight, 0), by_head(each.attention_in.bias, 0)) for each in blocks]
    width = heads * (size + spare)
    queries = [(weight[:width] * size**-0.5, bias[:width] * size**-0.5) for weight, bias in attention]
    keys_values = [(weight[width:], bias[width:]) for weight, bias in attention]
    outs = [(by_head(each.attention_out.weight, 1), each.attention_out.bias) for each in blocks]
    ups, downs = ([(each.mlp[i].weight, each.mlp[i].bias) for each in blocks] for i in (0, 2))
    norms = [norm for each in blocks for norm in (each.before_attention, each.before_mlp)] + [encoder.norm]
    positions = encoder.positions.clone()
    positions[0] += encoder.start
    if encoder.clock:
        since, by_order, by_time = (
            encoder.since_newest,
            torch.cat([each.bias.order for each in blocks]),
            torch.cat([each.bias.time for each in blocks]),
        )
    else:
        since, by_order = positions.new_zeros(0, dim), positions.new_zeros(len(blocks) * heads, 1)
        by_time = by_order
    return EncoderArrays(
        positions.numpy(),
        since.numpy(),
        by_order.numpy(),
        by_time.numpy(),
        torch.stack([torch.stack([norm.weight, norm.bias]) for norm in norms]).numpy(),
        tuple(_layer(each, lanes) for each in (queries, keys_values, outs, ups, downs)),
        heads,
    )


def _layer(blocks: Sequence[tuple[Tensor, Tensor]], lanes: int) -> tuple[Any, Any]:
    """A layer of each block: weights [blocks, groups, in, LANES], the last group filled up, and biases."""
    weights, biases = (torch.stack(each) for each in zip(*blocks, strict=True))
    missing = -biases.shape[1] % lanes
    weights = pad(weights, (0, 0, 0, missing)).unflatten(1, (-1, lanes)).transpose(2, 3)
    return weights.contiguous().numpy(), pad(biases, (0, missing)).numpy()

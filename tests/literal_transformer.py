"""The transformer of the sequence part with loops over positions, heads and Gaussians."""

import math

import torch
from torch.nn.functional import gelu, layer_norm

from beamtree.data.inputs import NO_TIME


def gaussian_sum(weights, z):
    """Σ_k w_k φ_k(z): 16 Gaussians around 0, 1/15, …, 1."""
    return sum(weight * math.exp(-0.5 * (15 * z - k) ** 2) for k, weight in enumerate(weights))


def since(moment, time):
    """The logarithm of the seconds from a time to a moment, relative to the longest; None where one is not known."""
    if NO_TIME in (moment, time):
        return None
    return min(math.log(1 + max(0, moment - time)) / 18.5, 1.0)


def literal_state(encoder, vectors, times=None, asked=None):
    """u after all of the vectors [T, dim]; with a clock `times` [T] and `asked` [T + 1]."""
    dim = encoder.dim
    x = [row + encoder.positions[t] for t, row in enumerate([encoder.start, *vectors])]
    times = [NO_TIME, *([NO_TIME] * len(vectors) if times is None else times)]
    asked = [NO_TIME] * len(x) if asked is None else asked
    if encoder.clock:
        for t, (moment, time) in enumerate(zip(asked, times, strict=True)):
            if (z := since(moment, time)) is not None:
                x[t] = x[t] + gaussian_sum(encoder.since_newest, z)

    def bias(block, head, t, s):
        if block.bias is None:
            return 0.0
        total = gaussian_sum(block.bias.order[head], math.log(1 + t - s) / math.log(1 + encoder.length))
        z = since(asked[t], times[s])
        return total if z is None else total + gaussian_sum(block.bias.time[head], z)

    for block in encoder.blocks:
        norm = [layer_norm(row, (dim,), block.before_attention.weight, block.before_attention.bias) for row in x]
        query, key, value = zip(*((block.attention_in(row)).chunk(3) for row in norm), strict=True)
        size = dim // block.heads
        mixed = []
        for t in range(len(x)):
            heads = []
            for head in range(block.heads):
                part = slice(head * size, (head + 1) * size)
                logits = [
                    query[t][part] @ key[s][part] / math.sqrt(size) + bias(block, head, t, s) for s in range(t + 1)
                ]
                weights = torch.stack(logits).softmax(0)
                heads.append(sum(weight * value[s][part] for s, weight in enumerate(weights)))
            mixed.append(torch.cat(heads))
        x = [row + block.attention_out(each) for row, each in zip(x, mixed, strict=True)]
        first, _, second, _ = block.mlp
        norm = [layer_norm(row, (dim,), block.before_mlp.weight, block.before_mlp.bias) for row in x]
        x = [row + second(gelu(first(each))) for row, each in zip(x, norm, strict=True)]
    state = layer_norm(x[-1], (dim,), encoder.norm.weight, encoder.norm.bias)
    return torch.cat([state[:-1], torch.ones(1)])

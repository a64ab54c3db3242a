"""A causal transformer over the history: g(x, n) = ⟨u(x), v_n⟩ + b_n.

With a clock it knows when events were and what time it is. To the logit of attention, a head adds two sums of Gaussians
with learned weights: of the logarithm of the time from an event to the moment that a position is asked about, and of
the logarithm of the number of events between them. That moment is the time of the request, and in training that of the
next event. How long ago the newest event was is also added to the input of its position. Without times, the order
remains.
"""

from math import log1p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, pad, scaled_dot_product_attention

from beamtree import kernels
from beamtree.data.inputs import HISTORY, NO_TIME
from beamtree.data.seeds import mix
from beamtree.kernels import sequence_cpu
from beamtree.scorers.base import newest
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

HEAD = 32  # numbers of an attention head
BASES = 16  # Gaussians
LEAST = -50  # exponent of a Gaussian on a CPU, which is slow with numbers near 0
LONGEST = 18.5  # log(1 + seconds) of the last one: three years and a half
PAIRS = {"cpu": 1 << 20, "cuda": 1 << 24}  # of events and moments in histories that are encoded at once


def drop(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout; on a CPU with a byte of noise for each number, several times faster, and the rate rounded to 1/256."""
    if not training or not rate or x.device.type != "cpu" or kernels.is_plain():
        return dropout(x, rate, training)
    level = round(256 * rate)
    noise = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
    keep = noise[: x.numel()].view(x.shape) >= level
    return x * keep.to(x.dtype).mul_(256 / (256 - level))


class Dropout(nn.Module):
    """`drop` as a module."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.rate, self.training)


def gaussians(z: Tensor, dim: int) -> Tensor:
    """16 Gaussians around 0 to 1 at z, in a new dimension."""
    centers = torch.linspace(0, 1, BASES, device=z.device).view(-1, *[1] * (z.dim() - dim))
    exponents = z.unsqueeze(dim).sub(centers).mul_(BASES - 1).square_().mul_(-0.5)
    return (exponents if z.is_cuda else exponents.clamp_(min=LEAST)).exp_()


class Gaps(NamedTuple):
    """How far events (keys, K) are from the moments that positions are asked about (queries, Q)."""

    time: Tensor | None  # Gaussians of the time between them [B, BASES, Q, K], 0 where it is not known; None: nowhere
    order: Tensor  # and of the number of events between them [BASES, Q, K]
    later: Tensor  # whether an event comes after a position [Q, K]

    @classmethod
    def of(cls, length: int, most: int, times: Tensor | None, asked: Tensor | None, device: torch.device) -> "Gaps":
        """Those of sequences with so many positions, `most` is the greatest length; see `SequenceEncoder.forward`."""
        place = torch.arange(length, device=device)
        apart = place.unsqueeze(1) - place
        order = gaussians(apart.clamp(min=0).float().log1p() / log1p(most), 0)
        if times is None or asked is None:
            return cls(None, order, apart < 0)
        times = pad(times, (1, 0), value=NO_TIME)  # nothing happened at the start
        known = (asked != NO_TIME).unsqueeze(2) & (times != NO_TIME).unsqueeze(1)
        seconds = (asked.unsqueeze(2) - times.unsqueeze(1)).clamp(min=0)
        z = (seconds.float().log1p() / LONGEST).clamp(max=1)
        since = gaussians(z, 1) if z.is_cuda else gaussians(z, 0).transpose(0, 1)  # in memory as `_weigh` reads it
        since = since.masked_fill_(~known.unsqueeze(1), 0)
        if torch.is_autocast_enabled(device.type):
            since = since.to(torch.get_autocast_dtype(device.type))
        return cls(since, order, apart < 0)

    def newest(self) -> Tensor | None:
        """Gaussians of the time since the newest event of each position [B, Q, BASES]."""
        return None if self.time is None else self.time.diagonal(dim1=2, dim2=3).transpose(1, 2)


class GapBias(nn.Module):
    """What each head adds to its logits by how far events are: [B or 1, heads, Q, K]."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.time, self.order = (nn.Parameter(torch.zeros(heads, BASES)) for _ in range(2))

    def forward(self, gaps: Gaps) -> Tensor:
        bias = self._by_order(gaps).unsqueeze(0)
        return bias if gaps.time is None else bias + self._weigh(self.time, gaps.time)

    def at(self, gaps: Gaps, index: Tensor) -> Tensor:
        """The same of one position of each sequence alone, index [B]: [B, heads, 1, K]."""
        bias = self._by_order(gaps)[:, index].transpose(0, 1).unsqueeze(2)
        if gaps.time is None:
            return bias
        rows = index.view(-1, 1, 1, 1).expand(-1, BASES, 1, gaps.time.shape[3])
        return bias + self._weigh(self.time, gaps.time.gather(2, rows))

    def _by_order(self, gaps: Gaps) -> Tensor:
        return self._weigh(self.order, gaps.order).masked_fill(gaps.later, -torch.inf)

    def _weigh(self, weights: Tensor, bases: Tensor) -> Tensor:
        """Sums of Gaussians [..., BASES, Q, K] as a product: to look a weight up would be slow backwards."""
        total: Tensor
        if bases.dim() == 4 and not bases.is_cuda:  # one product for the batch
            bases = bases.transpose(0, 1)
            total = (weights @ bases.flatten(1)).unflatten(1, bases.shape[1:]).transpose(0, 1)
        else:
            total = torch.matmul(weights, bases.flatten(-2)).unflatten(-1, bases.shape[-2:])
        return total


class Block(nn.Module):
    """Causal attention, then an MLP, each after a layer norm and added to its input."""

    def __init__(self, dim: int, rate: float, clock: bool = False) -> None:
        super().__init__()
        self.rate, self.heads = rate, max(1, dim // HEAD)
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention_in, self.attention_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), Dropout(rate))
        self.bias = GapBias(self.heads) if clock else None

    def forward(self, x: Tensor, gaps: Gaps | None = None) -> Tensor:
        """[B, T, dim] to the same."""
        query, key, value = map(self._by_head, self.attention_in(self.before_attention(x)).chunk(3, dim=2))
        bias = None if self.bias is None else self.bias(gaps)
        if self.training and self.rate and x.device.type == "cpu":
            return self._add(x, self._attend(query, key, value, bias))
        rate = self.rate if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, bias, dropout_p=rate, is_causal=bias is None)
        return self._add(x, mixed)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """The same as the function of PyTorch, with the faster dropout."""
        logits = (query * query.shape[3] ** -0.5) @ key.transpose(2, 3)
        if bias is None:
            bias = logits.new_full(logits.shape[2:], -torch.inf).triu(1)
        mixed: Tensor = drop((logits + bias).softmax(3), self.rate, self.training) @ value
        return mixed

    def at(self, x: Tensor, index: Tensor, gaps: Gaps | None = None) -> Tensor:
        """The same at one position of each sequence alone, index [B, 1, dim] repeated over dim [B, 1, dim]."""
        states, dim = self.before_attention(x), x.shape[2]
        weight, bias = self.attention_in.weight, self.attention_in.bias
        query = self._by_head(linear(states.gather(1, index), weight[:dim], bias[:dim]))
        key, value = map(self._by_head, linear(states, weight[dim:], bias[dim:]).chunk(2, dim=2))
        if self.bias is not None and gaps is not None:
            mask = self.bias.at(gaps, index[:, 0, 0])
        else:
            before = torch.arange(x.shape[1], device=x.device) <= index[:, :, :1]  # [B, 1, T]
            mask = before.unsqueeze(1)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self._add(x.gather(1, index), mixed)

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, dim] to [B, heads, T, dim / heads]."""
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the block after attention [B, heads, T, head]."""
        x = x + drop(self.attention_out(mixed.transpose(1, 2).flatten(2)), self.rate, self.training)
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out


class SequenceEncoder(nn.Module):
    """A state after every event of a history, and one before the first, by a causal transformer.

    Args:
        dim: numbers of a vector; the number of heads must divide it.
        layers: blocks.
        rate: of dropout.
        length: events of a history, at most.
        clock: whether it reads times.
        seed: draws the weights.
    """

    def __init__(
        self, dim: int, layers: int, rate: float, length: int = HISTORY, clock: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        self.dim, self.rate, self.length, self.clock = dim, rate, length, clock
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed, 7))
            self.start = nn.Parameter(torch.randn(dim) * dim**-0.5)
            self.positions = nn.Parameter(torch.randn(length + 1, dim) * 0.02)
            self.blocks = nn.ModuleList(Block(dim, rate, clock) for _ in range(layers))
        self.since_newest = nn.Parameter(torch.zeros(BASES, dim)) if clock else None
        self.dropout, self.norm = Dropout(rate), nn.LayerNorm(dim)

    def forward(self, vectors: Tensor, times: Tensor | None = None, asked: Tensor | None = None) -> Tensor:
        """States [B, T + 1, dim] of the vectors of events [B, T, dim], oldest first: one before the first event too.

        A state does not depend on later events, so those that fill up short histories do no harm. The last number of
        a state is 1: it multiplies the bias. An encoder with a clock reads the times of the events [B, T] and the
        moment that each state is asked about [B, T + 1], in seconds, NO_TIME where they are not known.
        """
        x, gaps = self._inputs(vectors, times, asked)
        for block in self.blocks:
            x = block(x, gaps)
        return self._states(x)

    def last(self, vectors: Tensor, count: Tensor, times: Tensor | None = None, asked: Tensor | None = None) -> Tensor:
        """The states after the first `count` events of each history [B, dim], without those that it does not need."""
        index = count.view(-1, 1, 1).expand(-1, 1, self.dim)
        *blocks, last = self.blocks
        x, gaps = self._inputs(vectors, times, asked)
        for block in blocks:
            x = block(x, gaps)
        assert isinstance(last, Block)
        return self._states(last.at(x, index, gaps)).squeeze(1)

    def _inputs(self, vectors: Tensor, times: Tensor | None, asked: Tensor | None) -> tuple[Tensor, Gaps | None]:
        start = self.start.expand(vectors.shape[0], 1, -1)  # len() would be a constant in an exported program
        x = torch.cat([start, vectors], dim=1) + self.positions[: vectors.shape[1] + 1]
        gaps = None
        if self.since_newest is not None:
            gaps = Gaps.of(x.shape[1], self.length, times, asked, x.device)
            newest = gaps.newest()
            x = x if newest is None else x + newest @ self.since_newest
        return self.dropout(x), gaps

    def _states(self, x: Tensor) -> Tensor:
        states = self.norm(x)
        return torch.cat([states[..., :-1], torch.ones_like(states[..., :1])], dim=-1)


def oldest_first(x: Tensor) -> tuple[Tensor, Tensor]:
    """Histories [B, T], newest first with PAD anywhere, as sequences with PAD at the end; and their lengths [B]."""
    (sequence,), count = sequences(x)
    return sequence, count


def sequences(x: Tensor, *more: Tensor) -> tuple[list[Tensor], Tensor]:
    """The same of histories and of more that is known of each event [B, T]."""
    real = (x != PAD).flip(1)
    order = real.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return [each.flip(1).gather(1, order) for each in (x, *more)], real.sum(1)


class SequenceScorer(DotProductScorer):
    """⟨u(x), v_n⟩ + b_n: u is a causal transformer over the newest events, v of a leaf is the vector of its item.

    Input and output are tied: the vectors of the history are those of its leaves. Vectors of inner nodes are the means
    of the leaves below, unless they are trained. The last number of a row is the bias b_n.

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        layers: blocks of the transformer.
        dropout: its rate in training.
        length: events that are read.
        clock: whether it reads times.
        seed: draws the weights; None where they will be loaded.
    """

    frozen = False  # whether gradients stop at the user vector

    def __init__(
        self,
        num_nodes: int,
        dim: int = 64,
        layers: int = 2,
        dropout: float = 0.2,
        length: int = HISTORY,
        clock: bool = False,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.table = NodeTable(num_nodes, dim, dim**-0.5, seed)
        self.encoder = SequenceEncoder(dim, layers, dropout, length, clock, seed or 0).eval()

    @classmethod
    def from_items(cls, tree: Tree, encoder: SequenceEncoder, vectors: Tensor) -> "SequenceScorer":
        """The scorer of a tree, an encoder, and the vectors of the items [M, dim]."""
        table = NodeTable.from_rows(vectors.new_zeros(tree.num_nodes, encoder.dim, dtype=torch.float32))
        table.add_means(tree, vectors.detach().float(), share=False)
        return cls.from_table(table, encoder)

    @classmethod
    def from_table(cls, table: NodeTable, encoder: SequenceEncoder) -> "SequenceScorer":
        """The scorer of a table that already holds the vectors of all nodes."""
        scorer = cls(1, encoder.dim, len(encoder.blocks), encoder.rate, seed=None)
        scorer.table, scorer.encoder = table.half().requires_grad_(False), encoder  # three digits are enough
        encoder.eval()
        return scorer

    def train(self, mode: bool = True) -> "SequenceScorer":
        """Nothing changes: dropout is for the training of the encoder alone."""
        return self

    def on_tree(self, old: Tree, new: Tree) -> "SequenceScorer":
        return self.from_table(self.table.means_on(old, new), self.encoder)

    @property
    def history(self) -> int:  # type: ignore[override]
        """As many as there are positions, and at least as wide as x is."""
        return max(HISTORY, self.encoder.length)

    @property
    def reads_clock(self) -> bool:  # type: ignore[override]
        """Whether its encoder does."""
        return self.encoder.clock

    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        items, times, request, _ = self.columns.split(x)
        items, times = (newest(each, self.encoder.length) for each in (items, times))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            if type(self.table) is NodeTable and sequence_cpu.fits(self.encoder, vectors.values):
                return sequence_cpu.last_states(self.encoder, vectors.values, tree._leaf_of_item, items, times, request)
            leaves = tree.leaf_of_item(items)
            if not times.shape[1]:
                return self._encode(tree, vectors, leaves)
            times = times.masked_fill(request == NO_TIME, NO_TIME)
            if kernels.is_plain():
                return self._encode(tree, vectors, leaves, times, request)
            rows = max(1, PAIRS[x.device.type] // (leaves.shape[1] + 1) ** 2)
            parts = zip(leaves.split(rows), times.split(rows), request.split(rows), strict=True)
            return torch.cat([self._encode(tree, vectors, *part) for part in parts])

    def _encode(
        self,
        tree: Tree,
        vectors: Vectors,
        leaves: Tensor,
        times: Tensor | None = None,
        request: Tensor | None = None,
    ) -> Tensor:
        """u of histories, newest first, where the times of all events or of none are given."""
        given = [leaves] if times is None else [leaves, times]
        (leaves, *of_events), count = sequences(*given)  # items that are not on the tree are left out
        if not leaves.is_cuda and not kernels.is_plain():
            longest = int(count.max()) if len(count) else 0
            leaves, of_events = leaves[:, :longest], [each[:, :longest] for each in of_events]
        history = self.history_vectors(tree, vectors, leaves) * (leaves != PAD).unsqueeze(-1)
        if not of_events or request is None:
            return self.encoder.last(history, count)
        # The moment that a state is asked about is that of the next event, as in training, and at the end the request.
        asked = torch.cat([of_events[0], request], dim=1).scatter(1, count.unsqueeze(1), request)
        return self.encoder.last(history, count, of_events[0], asked)

    def settings(self) -> dict[str, Any]:
        encoder = self.encoder
        dim, layers = encoder.dim, len(encoder.blocks)
        sizes = {"num_nodes": self.table.num_nodes, "dim": dim, "layers": layers, "dropout": encoder.rate}
        if encoder.length != HISTORY:
            sizes["length"] = encoder.length
        return {**sizes, "clock": True} if encoder.clock else sizes

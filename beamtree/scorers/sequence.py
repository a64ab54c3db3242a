"""A causal transformer over the history: g(x, n) = ⟨u(x), v_n⟩ + b_n."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention

from beamtree import kernels
from beamtree.data.inputs import HISTORY
from beamtree.data.seeds import mix
from beamtree.scorers.base import check_histories, newest
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

HEAD = 32  # numbers of an attention head


class Block(nn.Module):
    """Causal attention, then an MLP, each after a layer norm and added to its input."""

    def __init__(self, dim: int, rate: float) -> None:
        super().__init__()
        self.rate, self.heads = rate, max(1, dim // HEAD)
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention_in, self.attention_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(rate))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] to the same."""
        query, key, value = map(self._by_head, self.attention_in(self.before_attention(x)).chunk(3, dim=2))
        rate = self.rate if self.training else 0.0
        return self._add(x, scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True))

    def at(self, x: Tensor, index: Tensor) -> Tensor:
        """The same at one position of each sequence alone, index [B, 1, dim] repeated over dim [B, 1, dim]."""
        states, dim = self.before_attention(x), x.shape[2]
        weight, bias = self.attention_in.weight, self.attention_in.bias
        query = self._by_head(linear(states.gather(1, index), weight[:dim], bias[:dim]))
        key, value = map(self._by_head, linear(states, weight[dim:], bias[dim:]).chunk(2, dim=2))
        before = torch.arange(x.shape[1], device=x.device) <= index[:, :, :1]  # [B, 1, T]
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=before.unsqueeze(1))
        return self._add(x.gather(1, index), mixed)

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, dim] to [B, heads, T, dim / heads]."""
        heads: Tensor = x.unflatten(2, (self.heads, -1))
        return heads.transpose(1, 2)

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the block after attention [B, heads, T, head]."""
        x = x + dropout(self.attention_out(mixed.transpose(1, 2).flatten(2)), self.rate, self.training)
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out


class SequenceEncoder(nn.Module):
    """A state after every event of a history, and one before the first, by a causal transformer.

    Args:
        dim: numbers of a vector; the number of heads must divide it.
        layers: blocks.
        rate: of dropout.
        length: events of a history, at most.
        seed: draws the weights.
    """

    def __init__(self, dim: int, layers: int, rate: float, length: int = HISTORY, seed: int = 0) -> None:
        super().__init__()
        self.dim, self.rate, self.length = dim, rate, length
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed, 7))
            self.start = nn.Parameter(torch.randn(dim) * dim**-0.5)
            self.positions = nn.Parameter(torch.randn(length + 1, dim) * 0.02)
            self.blocks = nn.Sequential(*(Block(dim, rate) for _ in range(layers)))
        self.dropout, self.norm = nn.Dropout(rate), nn.LayerNorm(dim)

    def forward(self, vectors: Tensor) -> Tensor:
        """States [B, T + 1, dim] of the vectors of events [B, T, dim], oldest first: one before the first event too.

        A state does not depend on later events, so those that fill up short histories do no harm. The last number of
        a state is 1: it multiplies the bias.
        """
        return self._states(self.blocks(self._inputs(vectors)))

    def last(self, vectors: Tensor, count: Tensor) -> Tensor:
        """The states after the first `count` events of each history [B, dim], without those that it does not need."""
        index = count.view(-1, 1, 1).expand(-1, 1, self.dim)
        *blocks, last = self.blocks
        x = self._inputs(vectors)
        for block in blocks:
            x = block(x)
        assert isinstance(last, Block)
        return self._states(last.at(x, index)).squeeze(1)

    def _inputs(self, vectors: Tensor) -> Tensor:
        start = self.start.expand(vectors.shape[0], 1, -1)  # len() would be a constant in an exported program
        x: Tensor = self.dropout(torch.cat([start, vectors], dim=1) + self.positions[: vectors.shape[1] + 1])
        return x

    def _states(self, x: Tensor) -> Tensor:
        states = self.norm(x)
        return torch.cat([states[..., :-1], torch.ones_like(states[..., :1])], dim=-1)


def oldest_first(x: Tensor) -> tuple[Tensor, Tensor]:
    """Histories [B, T], newest first with PAD anywhere, as sequences with PAD at the end; and their lengths [B]."""
    real = (x != PAD).flip(1)
    order = real.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return x.flip(1).gather(1, order), real.sum(1)


class SequenceScorer(DotProductScorer):
    """⟨u(x), v_n⟩ + b_n: u is a causal transformer over the newest events, v of a leaf is the vector of its item.

    Input and output are tied: the vectors of the history are those of its leaves. Vectors of inner nodes are the means
    of the leaves below, unless they are trained. The last number of a row is the bias b_n.

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        layers: blocks of the transformer.
        dropout: its rate in training.
        seed: draws the weights; None where they will be loaded.
    """

    frozen = False  # whether gradients stop at the user vector

    def __init__(
        self, num_nodes: int, dim: int = 64, layers: int = 2, dropout: float = 0.2, seed: int | None = 0
    ) -> None:
        super().__init__()
        self.table = NodeTable(num_nodes, dim, dim**-0.5, seed)
        self.encoder = SequenceEncoder(dim, layers, dropout, seed=seed or 0).eval()

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
        """As many as there are positions."""
        return self.encoder.length

    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        x = newest(x, self.encoder.length)
        leaves, count = oldest_first(tree.leaf_of_item(x))  # items that are not on the tree are left out
        if not leaves.is_cuda and not kernels.is_plain():
            leaves = leaves[:, : int(count.max()) if len(count) else 0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            history = self.history_vectors(tree, vectors, leaves) * (leaves != PAD).unsqueeze(-1)
            return self.encoder.last(history, count)

    def settings(self) -> dict[str, Any]:
        dim, layers = self.encoder.dim, len(self.encoder.blocks)
        return {"num_nodes": self.table.num_nodes, "dim": dim, "layers": layers, "dropout": self.encoder.rate}

    def check(self, x: Tensor) -> None:
        check_histories(x)

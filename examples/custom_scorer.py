"""A custom scorer: the product of a node's vector and the mean of the history at its level.

python examples/custom_scorer.py
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import beamtree as bt
from beamtree.data import Prepared
from beamtree.ingest.simulate import simulate


class MeanScorer(bt.Scorer):
    """g(x, n) = ⟨mean of x(n), v_n⟩ + b."""

    reads_items = True  # x are histories, so unknown item numbers are rejected before they get here

    def __init__(self, num_nodes: int, dim: int = 16, *, seed: int | None = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed or 0)
        self.vectors = nn.Parameter(torch.randn(num_nodes, dim, generator=generator) * 0.3)
        self.bias = nn.Parameter(torch.tensor(-2.0))

    def prepare(self, tree: bt.Tree, x: Tensor) -> Tensor:
        """The mean of the history on every level [H + 1, B, dim]."""
        lifted = tree.lift(tree.leaf_of_item(x), range(tree.height + 1))  # [H + 1, B, T]
        real = (x != bt.PAD).unsqueeze(-1)
        return (self.vectors[lifted.clamp(min=0)] * real).sum(2) / real.sum(1).clamp(min=1)

    def forward(self, prepared: Tensor, level: int, nodes: Tensor) -> Tensor:
        logits = (self.vectors[nodes.clamp(min=0)] * prepared[level].unsqueeze(1)).sum(-1) + self.bias
        return logits.masked_fill(nodes == bt.PAD, -torch.inf)

    def settings(self) -> dict[str, int | float]:
        return {"num_nodes": len(self.vectors), "dim": self.vectors.shape[1]}


def mean_scorer(tree: bt.Tree, data: Prepared, seed: int) -> MeanScorer:
    """Makes the scorer for `Recommender`."""
    return MeanScorer(tree.num_nodes, seed=seed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        simulate(Path(name) / "market.parquet", users=600, items=200, events=12_000)
        shop = bt.Recommender(scorer=mean_scorer, beam_size=20, steps=150, lr=0.02)
        shop.fit(Path(name) / "market.parquet")
        print(shop.evaluate(m=(10, 50), metrics=("recall",)))
        shop.save(Path(name) / "run")
        loaded = bt.Recommender.load(Path(name) / "run", scorers=[MeanScorer])
        print(loaded.recommend(users=loaded.users[:1], m=3))

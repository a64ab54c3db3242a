"""A custom tree builder, which is a function from data to a tree: items in the order of their ids.

python examples/custom_tree.py
"""

import tempfile
from pathlib import Path

import torch

import beamtree as bt
from beamtree.builders.category import in_order
from beamtree.data import Prepared
from beamtree.ingest.simulate import simulate


def tree_by_id(data: Prepared) -> bt.Tree:
    """Items with similar ids are under the same nodes."""
    order = sorted(range(data.num_items), key=lambda item: data.items[item])
    return in_order(torch.tensor(order))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        simulate(Path(name) / "market.parquet", users=600, items=200, events=12_000)
        for tree in (tree_by_id, "cluster"):
            shop = bt.Recommender(tree=tree, beam_size=20, steps=60)
            shop.fit(Path(name) / "market.parquet")
            evaluation = shop.evaluate(m=(50,), metrics=("recall",))
            print(f"{getattr(tree, '__name__', tree):<12} recall@50 {evaluation['recall', 50]:.1%}")

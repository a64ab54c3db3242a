"""A random tree, as in the synthetic experiments (Sec. 5.1)."""

import torch

from beamtree.tree import PAD, Tree, height_for


def random_tree(num_items: int, arity: int = 2, *, seed: int = 0, admit_empty: bool = False) -> Tree:
    """Items 0 … M-1 on slots drawn at random among all b^H."""
    if num_items < 1:
        raise ValueError(f"num_items={num_items}: a tree needs at least one item")
    slots = arity ** height_for(num_items, arity)
    generator = torch.Generator().manual_seed(seed)
    items = torch.full((slots,), PAD)
    items[torch.randperm(slots, generator=generator)[:num_items]] = torch.arange(num_items)
    return Tree(items, arity, admit_empty=admit_empty)

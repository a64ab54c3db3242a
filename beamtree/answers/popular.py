"""What is popular: the answer to a user of whom nothing is known."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.tree import PAD


def popular_items(model: TreeModel, m: int, allowed: NodeMask | None = None) -> tuple[Tensor, Tensor]:
    """The m items with the most events in training that may be found, and their shares of all events [m] each."""
    if model.popularity is None:
        raise ValueError("this model does not know what is popular: it was not trained on a log")
    counts = model.popularity.to(model.tree.device)
    items = torch.arange(len(counts), device=counts.device)
    mask = allowed or model.tree.mask
    order = counts * len(items) - items  # the lower number first where counts are equal
    order = order.masked_fill(~mask.allows(model.tree.leaf_of_item(items)), torch.iinfo(torch.int64).min)
    best = order.topk(min(m, len(items)))
    found = best.indices.where(best.values != torch.iinfo(torch.int64).min, PAD)
    shares = (counts[best.indices] / counts.sum().clamp(min=1)).masked_fill(found == PAD, -torch.inf)
    spare = (0, m - len(found))
    return pad(found, spare, value=PAD), pad(shares, spare, value=-torch.inf)

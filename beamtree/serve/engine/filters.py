"""Which items may be found: what a request says about it, and the masks made of it, which are kept for a while."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.data.catalogue import Catalogue
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.tree import PAD

KEPT = 32  # masks


class Filter(NamedTuple):
    """Allowed ids, all unless given, less the excluded ones, and of one category alone if that is given."""

    allowed: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    category: str | None = None


class Masks:
    """The masks of filters that were asked for lately, for one model at a time."""

    def __init__(self) -> None:
        self._model: TreeModel | None = None
        self._kept: OrderedDict[Filter, tuple[NodeMask, int]] = OrderedDict()

    def of(self, asked: Filter, model: TreeModel, catalogue: Catalogue) -> tuple[NodeMask, int]:
        """The mask of a filter, and how many items it allows."""
        if model is not self._model:
            self._model = model
            self._kept.clear()
        found = self._kept.get(asked)
        if found is None:
            mask = model.tree.allow(allowed_items(asked, catalogue))
            found = self._kept[asked] = mask, may_be_found(mask, model)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(asked)
        return found


def allowed_items(asked: Filter, catalogue: Catalogue) -> Tensor:
    """The numbers of the items that a filter leaves; unknown ids do not matter."""
    kept = torch.full((len(catalogue.ids),), asked.allowed is None)
    if asked.allowed is not None:
        kept[catalogue.ids.known(asked.allowed)] = True
    if asked.category is not None:
        inside = torch.zeros_like(kept)
        inside[catalogue.of_category(asked.category)] = True
        kept &= inside
    kept[catalogue.ids.known(asked.exclude)] = False
    return kept.nonzero().squeeze(1)


def may_be_found(mask: NodeMask, model: TreeModel, seen: Iterable[int] = ()) -> int:
    """How many items a mask leaves to a user who is not to be shown some."""
    left = mask.slots & (model.tree.items() != PAD)
    hidden = torch.tensor(sorted(set(seen)), dtype=torch.int64, device=left.device)
    leaves = model.tree.leaf_of_item(hidden)
    left[leaves[leaves != PAD] - model.tree.level(model.tree.height).start] = False  # one that was removed has no leaf
    return int(left.sum())

"""How much each part of a sum counts: found by trying, on validation users."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.data import Data
from beamtree.distributed.exchange import in_step, joined
from beamtree.distributed.group import ranks
from beamtree.metrics import hits, usual_m
from beamtree.model import TreeModel
from beamtree.scorers import Scorer, SumScorer
from beamtree.storage.settings import NotFiniteError
from beamtree.threads import in_threads
from beamtree.tree import PAD, Tree, distinct

T = TypeVar("T")
R = TypeVar("R")

WIDTH = 400  # items that each part puts up for a user
CUTS = (10, 50, 100, 200)
STEPS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 2.0, 3.0, 5.0)  # weights that are tried
AGAINST = {"repeats": (-100.0,)}  # and for these: where nobody comes back, what a user has is not what comes next
ROUNDS = 4  # over all parts
RISE = 2e-4  # of the mean recall that a change must bring
USERS = 2000  # that are asked, at most
BATCH = 64  # users that are searched for together
NEWTON = 12  # steps of a calibration


class Candidates:
    """What each part says of the items that any of them would recommend to validation users."""

    def __init__(self, tree: Tree, parts: Mapping[str, Scorer], users: Data, first_level: int, device: str) -> None:
        self.names = list(parts)
        models = [TreeModel(tree, part, first_level=first_level).to(device) for part in parts.values()]
        width = min(WIDTH, tree.num_items)
        self._cuts = [cut for cut in CUTS if cut < tree.num_items] or [usual_m(tree.num_items)]

        def ask(batch: tuple[Tensor, int]) -> tuple[Tensor, Tensor, Tensor]:
            rows, count = batch
            x, y = (part.to(device) for part in users.batch(rows))
            items = distinct(torch.cat([retrieve(model, x, beam_size=width, m=width)[0] for model in models], dim=1))
            items = items.sort(dim=1, descending=True).values  # PAD last
            scores = torch.stack([_at_leaves(model, x, items) for model in models], dim=-1)
            y = distinct(y)
            gain = hits(items, y) / (y != PAD).sum(1, keepdim=True).clamp(min=1)
            return scores[:count], gain[:count], (items != PAD)[:count]

        found = for_each_batch(ask, _own_batches(min(USERS, len(users))), device)
        # [U, C, parts], what each item adds to its user's recall [U, C], and which items there are [U, C]
        self._scores, self._gain, self._real = (joined(torch.cat(each)) for each in zip(*found, strict=True))
        if not bool(torch.isfinite(self._scores).all()):
            raise NotFiniteError("what a part says of items is not finite")
        self.units = self._units()

    def _units(self) -> Tensor:
        """What a weight of 1 means for each part: its best items differ by about 1 [parts]."""
        best = self._scores.topk(min(200, self._scores.shape[1]), dim=1).values
        return 1 / best.std(dim=1).mean(0).clamp(min=1e-9)

    def recalls(self, weights: Sequence[float]) -> Tensor:
        """Recall at each cut of the items in the order of the weighted sum."""
        by = torch.tensor(weights, device=self.units.device) * self.units

        def found(rows: slice) -> Tensor:
            total = (self._scores[rows] @ by).masked_fill(~self._real[rows], -torch.inf)
            order = total.topk(min(self._cuts[-1], total.shape[1]), dim=1).indices
            gain = self._gain[rows].gather(1, order).cumsum(1)
            return gain[:, [min(cut, gain.shape[1]) - 1 for cut in self._cuts]]

        users, step = len(self._gain), BATCH if self._gain.device.type == "cpu" else len(self._gain)
        rows = [slice(start, start + step) for start in range(0, users, step)]
        return torch.cat(for_each_batch(found, rows, self._gain.device)).mean(0).cpu()

    def calibration(self, weights: Mapping[str, float]) -> Tensor:
        """a and b: with σ(a g + b) for a sum g, the items put up first are as probable as they are often chosen [2]."""
        total = self._scores @ self.units.new_tensor([weights[name] for name in self.names])
        best = total.masked_fill(~self._real, -torch.inf).topk(min(CUTS[-1], total.shape[1]), dim=1)
        real = best.values > -torch.inf
        return calibration(best.values[real], self._gain.gather(1, best.indices)[real] > 0)


def for_each_batch(function: Callable[[T], R], batches: Iterable[T], device: str | torch.device) -> list[R]:
    """What a function gives for each batch of users: several at once on a CPU, one after the other where ranks search
    together.
    """
    if ranks().size == 1 and torch.device(device).type == "cpu":
        return in_threads(function, batches)
    return [function(batch) for batch in batches]


def _own_batches(users: int) -> Iterator[tuple[Tensor, int]]:
    """Users that this rank asks about, in batches, and how many of them count: all ranks ask as often."""
    share = ranks().share(users)
    batches = torch.arange(share.start, share.stop).split(BATCH) if not share.is_empty else ()
    for place in in_step(len(batches)):
        yield (batches[place], len(batches[place])) if place is not None else (torch.arange(1), 0)


def calibration(scores: Tensor, chosen: Tensor) -> Tensor:
    """a > 0 and b: the logistic regression of what was chosen on scores, by Newton's method [2]."""
    g, z = scores.double(), chosen.double()
    share = z.mean().clamp(1e-6, 1 - 1e-6)
    middle, unit = g.mean(), g.std(correction=0).clamp(min=1e-9)
    rows = torch.stack([(g - middle) / unit, torch.ones_like(g)], dim=1)
    found = torch.stack([torch.ones_like(share), share.logit()])
    keep = 1e-3 * torch.eye(2, dtype=g.dtype, device=g.device)  # an answer also where all or none are chosen
    for _ in range(NEWTON):
        p = torch.sigmoid(rows @ found)
        slope = rows.T @ (z - p) - keep @ found
        found = found + torch.linalg.solve((rows * (p * (1 - p)).unsqueeze(1)).T @ rows + keep, slope)
    if not bool(torch.isfinite(found).all()) or found[0] <= 0:  # scores that say nothing keep their order
        found = torch.stack([torch.full_like(share, 1e-3), share.logit()])
    scale = found[0] / unit
    return torch.stack([scale, found[1] - scale * middle]).float()


def _at_leaves(model: TreeModel, x: Tensor, items: Tensor) -> Tensor:
    with torch.no_grad():
        leaves = model.tree.leaf_of_item(items)
        scores = model.scorer.scores(model.scorer.context(model.tree, x), model.tree.height, leaves)
        return scores.masked_fill(leaves == PAD, 0.0)


def choose_weights(candidates: Candidates, begin: Mapping[str, float] | None = None) -> dict[str, float]:
    """Weights of the parts, one changed at a time while the mean of the relative recalls rises.

    It starts from the weights `begin`, or from the best part alone.
    """
    names, units = candidates.names, candidates.units.tolist()
    alone = [[float(one == other) for other in names] for one in names]
    base = torch.stack([candidates.recalls(each) for each in alone]).amax(0).clamp(min=1e-9)

    @cache
    def measured(weights: tuple[float, ...]) -> float:
        return float((candidates.recalls(weights) / base).mean())

    def quality(weights: Sequence[float]) -> float:
        return measured(tuple(weights))

    now = max(alone, key=quality)
    if begin is not None and any(begin.values()):
        given = [begin[name] / unit for name, unit in zip(names, units, strict=True)]
        now = [weight / max(given) for weight in given]
    best = quality(now)
    for _ in range(ROUNDS):
        before = best
        for part, name in enumerate(names):
            steps = (*STEPS, *AGAINST.get(name, ()))
            tried = [[*now[:part], step, *now[part + 1 :]] for step in steps]
            found = max((each for each in tried if any(each)), key=quality)
            if quality(found) > best * (1 + RISE):
                now, best = found, quality(found)
        if best == before:
            break
    return {name: weight * unit for name, weight, unit in zip(names, now, units, strict=True)}


def weigh_parts(model: TreeModel, users: Data) -> None:
    """Let the parts of a sum that is being trained count as much as helps the validation users most."""
    scorer = model.scorer
    if not isinstance(scorer, SumScorer) or scorer.learned is None or len(scorer.names) == 1:
        return
    now = {name: scorer.weight_of(name) for name in scorer.names}
    kept = {name: scorer.part(name) for name in scorer.names if now[name] or name == scorer.learned}
    candidates = Candidates(model.tree, kept, users, model.first_level, str(model.tree.device))
    weights = choose_weights(candidates, {name: now[name] for name in kept})
    scorer.weigh(**weights)
    scorer.calibration = candidates.calibration(weights)

"""The weights of the parts of a sum, chosen on validation users by coordinate search."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from beamtree.beam import retrieve, users_at_once
from beamtree.closed_form.calibration import calibrate
from beamtree.data import HISTORY, BeforeAfter, Data
from beamtree.data.inputs import WHOLE_HISTORY, InputColumns
from beamtree.evaluate.metrics import default_m, hits
from beamtree.kernels import sparse
from beamtree.kernels.threads import parallel_map
from beamtree.model import TreeModel
from beamtree.scorers import Scorer, SubtreeMaxScorer, as_sum, with_inputs
from beamtree.storage.tensors import NotFiniteError
from beamtree.tree import PAD, Tree, distinct

T = TypeVar("T")
R = TypeVar("R")

WIDTH = 400  # candidates of each part for a user
CUTS = (10, 50, 100, 200)
STEPS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 2.0, 3.0, 5.0)  # weights that are tried
MORE_STEPS = {"repeats": (-100.0,)}  # where nobody chooses an item twice, a history is excluded
ROUNDS = 4  # over all parts
RISE = 2e-4  # relative gain in mean recall that a change must bring
USERS = 2000  # validation users of a trial, at most
WEIGHT_USERS = (
    6000  # the same where the weights of the closed form are chosen, since a recall of few users is mostly chance
)
BATCH = 64  # users that are searched together
SMALL_CATALOGUE = 1 << 18  # items up to which the scores of all of them are in memory, for BATCH users
RANK_POWER = 1.25  # in a calibration, an item of rank r counts r^-1.25
SHORT, SHORT_USERS, SHORT_SHARE = 2, 500, 0.07  # newest events of such users, how many, and what they count there

Results = tuple[Tensor, Tensor, Tensor]


class Candidates:
    """The scores of each part for the items that any of them would recommend to validation users."""

    def __init__(self, tree: Tree, parts: Mapping[str, Scorer], users: Data, first_level: int, device: str) -> None:
        self.names, self._users = list(parts), users
        models = [TreeModel(tree, part, first_level=first_level).to(device) for part in parts.values()]
        columns = users.columns if isinstance(users, BeforeAfter) else InputColumns()
        width = min(WIDTH, tree.num_items)
        self.cuts = [cut for cut in CUTS if cut < tree.num_items] or [default_m(tree.num_items)]

        def search(rows: Tensor, newest: int = WHOLE_HISTORY) -> Results:
            x, y = (part.to(device) for part in users.batch(rows))
            if newest < HISTORY:
                x = x.clone()
                columns.items(x)[:, newest:] = PAD
            scorers = [model.scorer for model in models]
            inputs = [columns.narrowed(x, each.columns, each.history) if each.reads_items else x for each in scorers]
            found = [
                retrieve(each, of[:1] if each.scorer.same_for_all else of, beam_size=width, m=width)[0]
                for each, of in zip(models, inputs, strict=True)
            ]
            found = [each.expand(len(x), -1) for each in found]
            items = distinct(torch.cat(found, dim=1)).sort(dim=1, descending=True).values  # PAD last
            at_leaves = [scores_at_leaves(model, of, items) for model, of in zip(models, inputs, strict=True)]
            scores = torch.stack(at_leaves, dim=-1)
            y = distinct(y)
            gain = hits(items, y) / (y != PAD).sum(1, keepdim=True).clamp(min=1)
            return scores, gain, items != PAD

        # [U, C, parts], what each item adds to its user's recall [U, C], and which items there are [U, C]
        self._scores, self._gain, self._real = self.collect(search, min(WEIGHT_USERS, len(users)), device)
        # the same users as if they had just come, with their newest events alone: for the calibration of low scores
        self._short = self.collect(partial(search, newest=SHORT), min(SHORT_USERS, len(users)), device)
        if not bool(torch.isfinite(self._scores).all()):
            raise NotFiniteError("the scores of a part are not finite")
        # the unit of each part's weight: scaled by it, its best items differ by about 1 [parts]
        best = self._scores.topk(min(200, self._scores.shape[1]), dim=1).values
        self.units = 1 / best.std(dim=1).mean(0).clamp(min=1e-9)

    def collect(self, search: Callable[[Tensor], Results], users: int, device: str) -> Results:
        """The results of a search for all users, in batches."""
        rows = torch.arange(users)
        if isinstance(self._users, BeforeAfter):  # those with similar histories together, which are padded to the same
            rows = self._users.history_lengths(rows).cpu().argsort(stable=True)
        results = for_each_batch(search, rows.split(BATCH), device)
        scores, gain, real = (torch.cat(each) for each in zip(*results, strict=True))
        return scores, gain, real

    def recalls(self, trials: Sequence[Sequence[float]]) -> Tensor:
        """Recall at each cut of the items in the order of the sum, with the weights, in units, of each trial [T, cuts].

        On a CPU trials that differ in the weight of one part are made in little more time than one.
        """
        return self._recalls(torch.tensor(trials, device=self.units.device) * self.units).mean(1)

    def user_recalls(self, weights: Mapping[str, float]) -> Tensor:
        """Recall of each user at each cut, by the weights of the parts [U, cuts]."""
        return self._recalls(self.units.new_tensor([[weights[name] for name in self.names]]))[0]

    def _recalls(self, trials: Tensor) -> Tensor:
        if trials.device.type == "cpu":
            return sparse.recalls(self._scores, trials, self._gain, self._real, self.cuts)
        results = []
        for weights in trials:
            total = (self._scores @ weights).masked_fill(~self._real, -torch.inf)
            order = total.topk(min(self.cuts[-1], total.shape[1]), dim=1).indices
            gain = self._gain.gather(1, order).cumsum(1)
            results.append(gain[:, [min(cut, gain.shape[1]) - 1 for cut in self.cuts]].cpu())
        return torch.stack(results)

    def calibration(self, weights: Mapping[str, float]) -> Tensor:
        """The probability that an item with the sum g is chosen, for the best items [2, KNOTS]: see `calibrate`.

        The best items of a user count more, since they are shown more often.
        """
        by_name = self.units.new_tensor([weights[name] for name in self.names])
        parts = []
        for share, (scores, gain, are_items) in (
            (1.0, (self._scores, self._gain, self._real)),
            (SHORT_SHARE, self._short),
        ):
            total = (scores @ by_name).masked_fill(~are_items, -torch.inf)
            best = total.topk(min(CUTS[-1], total.shape[1]), dim=1)
            real = best.values > -torch.inf
            by_rank = share * torch.arange(1.0, real.shape[1] + 1, device=real.device).pow(-RANK_POWER).expand_as(real)
            parts.append((best.values[real], gain.gather(1, best.indices)[real] > 0, by_rank[real]))
        return calibrate(*(torch.cat(part) for part in zip(*parts, strict=True)))


def for_each_batch(function: Callable[[T], R], batches: Iterable[T], device: str | torch.device) -> list[R]:
    """The results of a function for batches of users: several at once on a CPU."""
    if torch.device(device).type == "cpu":
        return parallel_map(function, batches)
    return [function(batch) for batch in batches]


def scores_at_leaves(model: TreeModel, x: Tensor, items: Tensor) -> Tensor:
    """The scores of items [B, n], 0 for PAD and for items without a leaf."""
    if x.shape[0] > (few := users_at_once(model, x)):
        parts = zip(x.split(few), items.split(few), strict=True)
        return torch.cat([scores_at_leaves(model, *part) for part in parts])
    with torch.no_grad():
        scorer, leaves = model.scorer, model.tree.leaf_of_item(items)
        if isinstance(scorer, SubtreeMaxScorer) and not x.is_cuda and model.tree.num_items <= SMALL_CATALOGUE:
            scores = scorer.item_scores(x, model.tree.num_items).gather(1, items.clamp(min=0))
        else:
            scores = scorer.scores(scorer.prepare(model.tree, x), model.tree.height, leaves)
        return scores.masked_fill(leaves == PAD, 0.0)


def weigh_losses(change: Tensor, loss: float) -> Tensor:
    """Changes, the negative ones multiplied by `loss`."""
    return change.where(change > 0, change * loss)


def choose_weights(
    candidates: Candidates, begin: Mapping[str, float] | None = None, *, loss: float = 1.0
) -> dict[str, float]:
    """Weights of the parts, one changed at a time while the mean of the relative recalls rises.

    It starts from the weights `begin`, or from the best part alone. With `begin`, a cut that finds less than with these
    weights counts `loss` times.
    """
    names, units = candidates.names, candidates.units.tolist()
    alone = [[float(one == other) for other in names] for one in names]
    base = candidates.recalls(alone).amax(0).clamp(min=1e-9)
    scaled: list[float] = []
    if begin is not None and any(begin.values()):
        scaled = [begin[name] / unit for name, unit in zip(names, units, strict=True)]
        scaled = [weight / max(scaled) for weight in scaled]
    first = candidates.recalls([scaled])[0] / base if scaled else torch.zeros_like(base)

    def best_of(trials: list[list[float]]) -> tuple[list[float], float]:
        """The first of the best trials, and its quality."""
        quality = (first + weigh_losses(candidates.recalls(trials) / base - first, loss)).mean(1).tolist()
        at = quality.index(max(quality))
        return trials[at], quality[at]

    weights, best = best_of([scaled] if scaled else alone)
    for _ in range(ROUNDS):
        before = best
        for part, name in enumerate(names):
            steps = (*STEPS, *MORE_STEPS.get(name, ()))
            trials = [[*weights[:part], step, *weights[part + 1 :]] for step in steps]
            trial, quality = best_of([each for each in trials if any(each)])
            if quality > best * (1 + RISE):
                weights, best = trial, quality
        if best == before:
            break
    return {name: weight * unit for name, weight, unit in zip(names, weights, units, strict=True)}


def weigh_parts(model: TreeModel, users: Data, candidates: type[Candidates] = Candidates) -> None:
    """Choose the weights of the parts of a sum in training, on validation users."""
    scorer = as_sum(model.scorer)
    if scorer is None or scorer.learned is None or len(scorer.names) == 1:
        return
    before = {name: scorer.weight_of(name) for name in scorer.names}
    active = {name: scorer.part(name) for name in scorer.names if before[name] or name == scorer.learned}
    if isinstance(users, BeforeAfter):
        users = users.sample(USERS)
    users = with_inputs(scorer, users)
    items = candidates(model.tree, active, users, model.first_level, str(model.tree.device))
    weights = choose_weights(items, {name: before[name] for name in active})
    scorer.set_weights(**weights)
    scorer.calibration = items.calibration(weights).to(scorer.weights.device)

"""Where relevant items are lost: level by level in the beam, and in the beam against brute force."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, as_text, brute_force, retrieve, walk, widths
from beamtree.data import Data
from beamtree.evaluate.metrics import hits, precision_recall_f
from beamtree.model import TreeModel
from beamtree.scorers import TableScorer, with_inputs
from beamtree.tree import PAD, distinct

Record = dict[str, str | int | float]

USERS = 1000  # by default: brute force scores every leaf for each of them
SMALL_LOSS = 0.02  # a difference below this share of the recall is small
INTERVAL = 1.96  # standard errors to each side: the 95 % interval


class LevelLoss(NamedTuple):
    """What one searched level loses. Shares are of all relevant items, means over users."""

    level: int
    nodes: int  # of the level that can enter a beam
    candidates: float  # scored per user
    survival: float  # share with an ancestor in the beam; on the last level the recall of the whole beam
    lost: float  # share with an ancestor in the beam above and none in this one
    avoidable: float  # share lost here that brute force finds among its first m, for the largest m


class Quality(NamedTuple):
    """Metrics of the first m items of one search, means over users."""

    precision: float
    recall: float
    f1: float
    p: float  # mean p_g of the m items, 0 for missing ones


class CutLoss(NamedTuple):
    """The first m items of the beam against the first m of all leaves, both by p_g."""

    m: int
    beam: Quality
    brute_force: Quality
    overlap: float  # share of brute force's items that the beam returned too; ties may differ
    ranked_below: float  # share of relevant items in the last beam, but not among its first m
    error: float  # standard error of `difference`, over users

    @property
    def difference(self) -> float:
        """The recall of brute force minus that of the beam; negative if the beam finds more."""
        return self.brute_force.recall - self.beam.recall

    @property
    def regret(self) -> float:
        """Mean over users of (1/m) Σ_{j ≤ m} [p_g(b_j) - p_g(r_j)]: b by brute force, r by the beam, best first."""
        return self.brute_force.p - self.beam.p


@dataclass(frozen=True)
class Inspection:
    """Where a model loses relevant items; `print` shows tables, `advice` says what may help."""

    users: int
    beam_size: BeamSize
    levels: tuple[LevelLoss, ...]  # the searched ones, from the top
    cuts: tuple[CutLoss, ...]  # by m
    trained_on_beams: bool = False  # then the advice is not to do so
    shared_rows: bool = False  # likewise

    @property
    def verdict(self) -> int:
        """At the largest m: 1 if the beam loses much of brute force's recall, -1 if it gains much, else 0."""
        last = self.cuts[-1]
        significant = abs(last.difference) > INTERVAL * last.error
        return ((last.difference > 0) - (last.difference < 0)) * int(significant and self._is_large)

    @property
    def _is_large(self) -> bool:
        last = self.cuts[-1]
        return abs(last.difference) > SMALL_LOSS * max(last.beam.recall, last.brute_force.recall)

    @property
    def advice(self) -> str:
        """One sentence: what the numbers mean, and what to try next."""
        last = self.cuts[-1]
        beam, best = last.beam.recall, last.brute_force.recall
        both = f"at m = {last.m} the beam finds {beam:.1%} of the relevant items and brute force {best:.1%}, "
        both += f"{abs(last.difference) * 100:.2f} ± {INTERVAL * last.error * 100:.2f} points apart"
        if beam == best == 0:
            return f"Nothing relevant is found by either search ({both}): train longer, or check the data."
        if self.verdict > 0:
            worst = max(self.levels, key=lambda level: level.avoidable)
            where = f"most at level {worst.level} of {self.levels[-1].level}"
            remedy = "widen the beam" if self.trained_on_beams else "train with OTM, or widen the beam"
            return f"The beam loses items that the leaves rank well ({both}), {where}: {remedy}."
        if self.verdict < 0:
            remedy = "regularise" if self.shared_rows else "share rows with ancestors or regularise"
            return (
                f"The leaves rank worse than the levels above them ({both}), so their rows are noisy: "
                f"{remedy}, and do not widen the beam."
            )
        if self._is_large:
            return f"The difference is within chance for {self.users:,} users ({both}): inspect more users."
        remedy = "longer training or more data"
        remedy = remedy if self.shared_rows else f"sharing rows with ancestors, {remedy}"
        return (
            f"The beam loses little ({both}), so training on beams has little to win: improve the leaves by {remedy}."
        )

    def records(self) -> list[Record]:
        """One flat record per number."""
        records: list[Record] = []
        for level in self.levels:
            for metric in ("nodes", "candidates", "survival"):
                value = getattr(level, metric)
                records.append({"table": "levels", "level": level.level, "metric": metric, "value": value})
        for cut in self.cuts:
            differences = {
                "overlap": cut.overlap,
                "regret": cut.regret,
                "difference": cut.difference,
                "difference_error": cut.error,
            }
            searches = {"beam": cut.beam._asdict(), "brute_force": cut.brute_force._asdict()}
            for search, metrics in (*searches.items(), ("beam", differences)):
                for metric, value in metrics.items():
                    records.append({"table": "search", "search": search, "m": cut.m, "metric": metric, "value": value})
        for level in self.levels:
            for metric in ("lost", "avoidable"):
                value = getattr(level, metric)
                records.append({"table": "misses", "level": level.level, "metric": metric, "value": value})
        misses: list[Record] = [
            {"table": "misses", "m": cut.m, "metric": "ranked_below", "value": cut.ranked_below} for cut in self.cuts
        ]
        return records + misses

    def __str__(self) -> str:
        lines = [f"{self.users:,} users, beam_size={as_text(self.beam_size)}; shares in %"]
        lines.append("level       nodes  candidates  in the beam    lost  avoidable")
        for level in self.levels:
            shares = f"{level.survival * 100:>11.2f}  {level.lost * 100:>6.2f}  {level.avoidable * 100:>9.2f}"
            lines.append(f"{level.level:<5}  {level.nodes:>10,}  {level.candidates:>10,.1f}  {shares}")
        lines.append("m       recall: beam  brute force  overlap  ranked below    regret")
        for cut in self.cuts:
            recalls = f"{cut.beam.recall * 100:>12.2f}  {cut.brute_force.recall * 100:>11.2f}"
            others = f"{cut.overlap * 100:>7.2f}  {cut.ranked_below * 100:>12.2f}  {cut.regret:>8.2g}"
            lines.append(f"{cut.m:<6}  {recalls}  {others}")
        return "\n".join([*lines, self.advice])


def inspect(
    model: TreeModel,
    data: Data,
    *,
    beam_size: BeamSize = DEFAULT_BEAM_SIZE,
    m: tuple[int, ...] = (10, 50, 100, 200),
    batch_size: int = 32,
    users: int | None = None,
    trained_on_beams: bool | None = None,
    on_users: Callable[[int], None] | None = None,
) -> Inspection:
    """Count where relevant items are lost. Every user has the same weight, and repeats in y count once.

    Args:
        model: searched by beam and by brute force.
        data: users and what they chose, such as `data.test`.
        beam_size: k, or one width for each searched level, as `retrieve` takes it.
        m: how many items are retrieved.
        batch_size: users per batch.
        users: how many users to inspect, from the first; 1,000 unless given.
        trained_on_beams: whether the model was trained by OTM or a variant, so that the advice is not to do so; by
            default as stored in the model.
        on_users: called with the number of users done since the last call.
    """
    cuts = sorted(set(m))
    if not cuts:
        raise ValueError("m is empty: give at least one number of items")
    widths(model, beam_size, cuts[0])
    sizes = widths(model, beam_size, cuts[-1])
    count = num_users(data, users)
    model.tree.check_items(data.item_numbers())
    device, data = model.tree.device, with_inputs(model.scorer, data)
    sums: list[Tensor] = []
    for rows in torch.arange(count).split(batch_size):
        x, y = (part.to(device) for part in data.batch(rows))
        batch = _batch_sums(model, x, y, sizes, cuts)
        sums = [total + part for total, part in zip(sums, batch, strict=True)] if sums else batch
        if on_users is not None:
            on_users(len(rows))
    survival, searches, overlap, squares = (total / count for total in sums)
    levels = _level_losses(model, survival, reached=float(searches[1, -1, 1]))
    variance = squares - (searches[1] - searches[0])[:, 1].square()  # of the difference in recall
    errors = (variance.clamp(min=0) / max(1, count - 1)).sqrt()
    beam, brute = ([Quality(*values) for values in part.tolist()] for part in searches)
    losses = tuple(
        CutLoss(m, ours, best, shared, max(0.0, levels[-1].survival - ours.recall), error)
        for m, ours, best, shared, error in zip(cuts, beam, brute, overlap.tolist(), errors.tolist(), strict=True)
    )
    shared = isinstance(model.scorer, TableScorer) and model.scorer.share
    on_beams = model.trained_on_beams if trained_on_beams is None else trained_on_beams
    return Inspection(count, beam_size, levels, losses, on_beams, shared)


def num_users(data: Data, users: int | None = None) -> int:
    """The number of users that `inspect` counts."""
    if len(data) == 0:
        raise ValueError("there are no users to inspect: choose another split")
    if users is not None and users < 1:
        raise ValueError(f"users={users}: must be at least 1")
    return min(len(data), USERS if users is None else users)


@torch.no_grad()
def _batch_sums(model: TreeModel, x: Tensor, y: Tensor, beam_size: BeamSize, cuts: list[int]) -> list[Tensor]:
    """Sums over users: `_survival` [levels, 3]; `_qualities` of both searches [2, cuts, 4]; their overlap [cuts]; and
    the squared differences of their recall [cuts].
    """
    y = distinct(y)
    searches = [retrieve(model, x, beam_size=beam_size, m=cuts[-1]), brute_force(model, x, m=cuts[-1])]
    (beam, _), (best, _) = searches
    qualities = torch.stack([_qualities(items, log_p, y, cuts) for items, log_p in searches])  # [2, cuts, B, 4]
    squares = (qualities[1] - qualities[0])[..., 1].square().sum(1)
    overlap = torch.stack([_share(hits(best[:, :m], beam[:, :m]), best[:, :m]) for m in cuts])
    survival = _survival(model, x, y, hits(y, best), beam_size)
    return [part.cpu() for part in (survival, qualities.sum(2), overlap, squares)]


def _survival(model: TreeModel, x: Tensor, y: Tensor, reachable: Tensor, beam_size: BeamSize) -> Tensor:
    """For each level: candidates, the share of y with an ancestor in the beam, and the share that is also reachable."""
    leaves = model.tree.leaf_of_item(y)
    rows = []
    for step in walk(model.query(x), beam_size):
        alive = hits(model.tree.ancestor(leaves, step.level), step.beam.expand(len(x), -1))
        scored = (step.candidates != PAD).sum(1).expand(len(x)).double().sum()
        rows.append(torch.stack([scored, _share(alive, y), _share(alive & reachable, y)]))
    return torch.stack(rows)


def _qualities(items: Tensor, log_p: Tensor, y: Tensor, cuts: list[int]) -> Tensor:
    """P, R, F and mean p_g of ranked items [B, ≥ m] at each m, for each user [cuts, B, 4]."""
    p = log_p.double().exp()
    parts = [torch.cat([precision_recall_f(items, y, m), p[:, :m].mean(1, keepdim=True)], dim=1) for m in cuts]
    return torch.stack(parts)


def _share(true: Tensor, of: Tensor) -> Tensor:
    """The share of the entries of each row, PAD aside, where `true`; summed over rows."""
    return (true.sum(1) / (of != PAD).sum(1)).double().sum()


def _level_losses(model: TreeModel, survival: Tensor, reached: float) -> tuple[LevelLoss, ...]:
    """What each level lost, as differences of what was left; `reached` is brute force's recall, before any loss."""
    left = [(0.0, 1.0, reached), *survival.tolist()]
    losses = []
    for level, (above, here) in enumerate(pairwise(left), start=model.first_level):
        _, survival_above, reachable_above = above
        candidates, survived, reachable = here
        lost, avoidable = max(0.0, survival_above - survived), max(0.0, reachable_above - reachable)
        losses.append(LevelLoss(level, model.tree.mask.count(level), candidates, survived, lost, avoidable))
    return tuple(losses)

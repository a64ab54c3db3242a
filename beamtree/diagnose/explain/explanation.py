"""One search as it happened, and what became of single items in it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.diagnose.explain.parts import Part
from beamtree.diagnose.explain.subtrees import Subtrees
from beamtree.mask import PAD, level_span

BINS = 64  # equal stretches of a level, in which nodes are counted for a picture
Name = Callable[[int], Any]  # what is shown for an item's number


class Level(NamedTuple):
    """One step down: every candidate, the kept ones first, then by score."""

    level: int
    nodes: Tensor  # [n]
    scores: Tensor  # what they were compared by: logits, or log p_g down the path of a chained model [n]
    kept: int  # so many from the first are the beam
    passed: bool  # whether the search kept all of them without scoring one, because the beam was wide enough

    @property
    def kth(self) -> float:
        """The score of the last node that was kept."""
        return float(self.scores[self.kept - 1])

    def places(self) -> dict[int, int]:
        """How many candidates were before each."""
        return {node: place for place, node in enumerate(self.nodes.tolist())}


class Step(NamedTuple):
    """An item's ancestor on one level."""

    level: int
    node: int
    score: float
    kth: float  # the score of the last node that was kept there
    before: int | None  # candidates before it; None where it was none, because an ancestor had been lost
    kept: bool

    @property
    def margin(self) -> float:
        """How far it was above the last node that was kept, or, below 0, under it."""
        return self.score - self.kth


class Loss(NamedTuple):
    """Where an item was lost, and to whom."""

    step: Step
    to: int  # the last node that was kept there
    to_items: int  # how many items lie below it
    to_item: int  # and which of them scores best for this user
    parts: tuple[Part, ...]  # what each part of the score said of both nodes; together they are the scores
    together: Part | None  # of the parts that are lifted together, where they say less than each alone

    @property
    def decided(self) -> str | None:
        """The part that spoke most for the last node that was kept, and against the item's."""
        worst = min(self.parts, key=lambda part: part.difference, default=None)
        return None if worst is None or worst.difference >= 0 else worst.name


class ItemPath(NamedTuple):
    """What became of one item."""

    item: int
    may_be_found: bool  # allowed, and not excluded
    rank: int | None  # among the items of the last beam, from 1; None where it is not among them
    would_rank: int | None  # the same for one that was lost: by the score of its own leaf
    score: float | None  # p_g(z_n = 1 | x) of its own leaf
    steps: tuple[Step, ...]  # its ancestors on the levels that are searched, itself last
    loss: Loss | None


class Explanation(NamedTuple):
    """One search, as it happened."""

    beam_size: int | tuple[int, ...]
    m: int
    arity: int
    height: int
    levels: tuple[Level, ...]
    found: tuple[tuple[int, float], ...]  # the best m items and their p_g
    items: tuple[ItemPath, ...]
    below: Subtrees
    most: int

    @property
    def scored(self) -> int:
        """How many nodes the search scored."""
        return sum(len(each.nodes) for each in self.levels if not each.passed)

    def as_dict(self, name: Name) -> dict[str, Any]:
        """All of it for JSON; `name` says what is shown for an item's number."""
        beam_size = list(self.beam_size) if isinstance(self.beam_size, tuple) else self.beam_size
        return {
            "beam_size": beam_size,
            "m": self.m,
            "arity": self.arity,
            "height": self.height,
            "scored": self.scored,
            "found": [
                {"rank": rank, "item": name(item), "score": p} for rank, (item, p) in enumerate(self.found, start=1)
            ],
            "levels": [self._level(each, name) for each in self.levels],
            "items": [_path_as_dict(each, name) for each in self.items],
        }

    def _level(self, each: Level, name: Name) -> dict[str, Any]:
        listed = self._listed(each)
        rows = zip(
            listed,
            each.nodes[listed].tolist(),
            each.scores[listed].tolist(),
            self.below.items[each.nodes[listed]].tolist(),
            self.below.popular[each.nodes[listed]].tolist(),
            strict=True,
        )
        return {
            "level": each.level,
            "candidates": len(each.nodes),
            "kept": each.kept,
            "passed": each.passed,
            "best": float(each.scores[0]),
            "kth": each.kth,
            "worst": float(each.scores.min()),
            "nodes": [
                {
                    "node": node,
                    "rank": place + 1,
                    "score": score,
                    "kept": place < each.kept,
                    "items": items,
                    "popular": None if popular == PAD else name(popular),
                }
                for place, node, score, items, popular in rows
            ],
            "more": {
                "kept": each.kept - sum(place < each.kept for place in listed),
                "all": len(each.nodes) - len(listed),
            },
            "spread": {"kept": self._spread(each, each.kept), "candidates": self._spread(each, len(each.nodes))},
        }

    def _listed(self, each: Level) -> list[int]:
        """The places of at most `most` nodes: those on the way to what was asked for, the last that was kept, some that
        were pruned, those on the way to what was found, and the best.
        """
        first, places = self.levels[0].level, each.places()
        asked = [places.get(path.steps[each.level - first].node) for path in self.items if path.steps]
        pruned = range(each.kept, min(len(each.nodes), each.kept + self.most // 4))
        wanted = [
            *asked,
            each.kept - 1,
            *pruned,
            *(places.get(node) for node in self._ways(each)),
            *range(len(each.nodes)),
        ]
        return sorted(list(dict.fromkeys(place for place in wanted if place is not None))[: self.most])

    def _ways(self, each: Level) -> list[int]:
        """The ancestors of what was found."""
        last = self.levels[-1]
        slots = last.nodes[: self.m] - level_span(self.arity, last.level).start
        above = slots.div(self.arity ** (last.level - each.level), rounding_mode="floor")
        found: list[int] = (above + level_span(self.arity, each.level).start).tolist()
        return list(dict.fromkeys(found))

    def _spread(self, each: Level, count: int) -> list[int]:
        """How many of the first `count` nodes lie in each of BINS equal stretches of the level."""
        span = level_span(self.arity, each.level)
        place = (each.nodes[:count] - span.start) * BINS // len(span)
        found: list[int] = torch.bincount(place.cpu(), minlength=BINS).tolist()
        return found


def _path_as_dict(path: ItemPath, name: Name) -> dict[str, Any]:
    return {
        "item": name(path.item),
        "may_be_found": path.may_be_found,
        "rank": path.rank,
        "would_rank": path.would_rank,
        "score": path.score,
        "steps": [{**step._asdict(), "margin": step.margin} for step in path.steps],
        "lost": None if path.loss is None else _loss_as_dict(path.loss, name),
    }


def _loss_as_dict(loss: Loss, name: Name) -> dict[str, Any]:
    return {
        **loss.step._asdict(),
        "margin": loss.step.margin,
        "to": {"node": loss.to, "item": name(loss.to_item), "items": loss.to_items},
        "decided": loss.decided,
        "parts": [part.as_dict() for part in loss.parts],
        "together": None if loss.together is None else loss.together.as_dict(),
    }

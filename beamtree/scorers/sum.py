"""A sum of scorers: each part knows one thing, and all of them share one tree and one beam."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.scorers.base import Scorer, TableScorer
from beamtree.scorers.lifted import Lifted
from beamtree.scorers.memory import LiftedScorer
from beamtree.tree import PAD, Tree

Counting = tuple[list[tuple[int, Scorer]], list[tuple[int, LiftedScorer]]]


class SumContext(NamedTuple):
    parts: list[tuple[int, Scorer, Any]]  # the parts that are scored one by one: place, part and its context
    lifted: Lifted | None  # of the others
    rows: int


class SumScorer(TableScorer):
    """g(x, n) = Σ_p w_hp · g_p(x, n), a weight for every part p and level h.

    The parts in closed form are not trained by gradients: of the users they were made from they know too much. What is
    trained is the part named `learned`, if there is one, and alone; how much it counts beside the others is
    for validation users to say.

    Args:
        parts: scorers by name; those with rows of nodes for the same tree.
        height: H of the tree.
        learned: the name of the part that training changes; none unless given.
    """

    weights: Tensor

    def __init__(self, parts: Mapping[str, Scorer], height: int, learned: str | None = None) -> None:
        super().__init__()
        if not parts or (learned is not None and learned not in parts):
            raise ValueError(f"a sum of {', '.join(parts) or 'nothing'} cannot have {learned!r} for its learned part")
        self.parts = nn.ModuleDict(parts)
        self.learned = learned
        self.register_buffer("weights", torch.ones(height + 1, len(parts)))
        self._counting: tuple[object, Counting] = None, ([], [])

    @property
    def names(self) -> list[str]:
        """The parts, in the order of their weights."""
        return list(self.parts)

    def part(self, name: str) -> Scorer:
        """One of the parts."""
        part = self.parts[name]
        assert isinstance(part, Scorer)
        return part

    def learner(self) -> Scorer:
        return self if self.learned is None else self.part(self.learned)

    def changing(self) -> dict[str, Tensor]:
        own = f"parts.{self.learned}."
        state = self.state_dict().items()
        return {name: value for name, value in state if name == "weights" or name.startswith(own)}

    def weight_of(self, name: str) -> float:
        """What a part counts on the leaves."""
        return float(self.weights[-1, self.names.index(name)])

    def weigh(self, **weights: float) -> "SumScorer":
        """Let parts count so much on every level."""
        for name, weight in weights.items():
            self.weights[:, self.names.index(name)] = weight
        return self

    def without(self, name: str) -> "SumScorer":
        """The sum of the other parts, which it shares."""
        kept = [other for other in self.names if other != name]
        learned = self.learned if self.learned in kept else None
        found = SumScorer({other: self.part(other) for other in kept}, len(self.weights) - 1, learned)
        found.weights = self.weights[:, [self.names.index(other) for other in kept]].clone()
        return found.to(self.weights.device)

    def with_part(self, name: str, part: Scorer, weight: float, *, learned: bool = False) -> "SumScorer":
        """The sum of these parts, which it shares, and one more."""
        parts = {other: self.part(other) for other in self.names} | {name: part}
        found = SumScorer(parts, len(self.weights) - 1, name if learned else self.learned)
        found.weights = torch.cat([self.weights, torch.full_like(self.weights[:, :1], weight)], dim=1)
        return found

    def counting(self) -> Counting:
        """The parts that count at all, each after its place: those scored one by one, and those lifted together.

        Parts that are sparse over items are added before they are lifted, where they count the same on every level:
        the maximum of a sum is nearer to the truth than a sum of maxima, and found with one look.
        """
        state = self.weights._version, self.weights.data_ptr()
        if self._counting[0] != state:
            single: list[tuple[int, Scorer]] = []
            lifted: list[tuple[int, LiftedScorer]] = []
            for place, (name, column) in enumerate(zip(self.names, self.weights.T.tolist(), strict=True)):
                part = self.part(name)
                if isinstance(part, LiftedScorer) and len(set(column)) == 1 and any(column):
                    lifted.append((place, part))
                elif any(column):
                    single.append((place, part))
            self._counting = state, (single, lifted)
        return self._counting[1]

    def context(self, tree: Tree, x: Tensor) -> SumContext:
        single, lifted = self.counting()
        contexts = [(place, part, part.context(tree, x)) for place, part in single]
        if not lifted:
            return SumContext(contexts, None, len(x))
        items, scores = [], []
        for place, part in lifted:
            some, said = part.entries(x)
            items.append(some)
            scores.append(said * self.weights[-1, place])
        leaves = tree.leaf_of_item(torch.cat(items, dim=1))
        return SumContext(contexts, Lifted(tree, leaves, torch.cat(scores, dim=1)), len(x))

    def forward(self, context: SumContext, level: int, nodes: Tensor) -> Tensor:
        total = None if context.lifted is None else context.lifted.at(level, nodes, context.rows)
        for place, part, of_part in context.parts:
            scores = part.scores(of_part, level, nodes) * self.weights[level, place]
            total = scores if total is None else total + scores
        if total is None:
            total = torch.zeros(context.rows, nodes.shape[1], device=nodes.device)
        return total.masked_fill(nodes == PAD, -torch.inf)

    # What follows the items to another tree, and what a search is given

    def tables(self) -> dict[str, TableScorer]:
        """The parts that have rows of nodes."""
        return {name: part for name in self.names if isinstance(part := self.part(name), TableScorer)}

    def item_vectors(self, tree: Tree) -> Tensor:
        tables = self.tables()
        if not tables:
            raise ValueError("no part of this sum has rows of nodes to know the items by")
        name = self.learned if self.learned in tables else next(iter(tables))
        return tables[name].item_vectors(tree)

    def on_tree(self, old: Tree, new: Tree) -> "SumScorer":
        tables = self.tables()
        moved = {name: tables[name].on_tree(old, new) if name in tables else self.part(name) for name in self.names}
        found = SumScorer(moved, new.height, self.learned).to(self.weights.device)
        found.weights = self.weights[-1:].expand(new.height + 1, -1).clone()
        return found

    def for_search(self, tree: Tree) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": value
            for name, part in self.tables().items()
            for key, value in part.for_search(tree).items()
        }

    def use_for_search(self, tree: Tree, parts: dict[str, Tensor]) -> None:
        for name, part in self.tables().items():
            own = {key.removeprefix(f"{name}."): value for key, value in parts.items() if key.startswith(f"{name}.")}
            if own:
                part.use_for_search(tree, own)

    def settings(self) -> dict[str, Any]:
        parts = {name: [type(self.part(name)).__name__, self.part(name).settings()] for name in self.names}
        rows = [part.settings()["num_nodes"] for part in self.tables().values()]
        return {"parts": parts, "height": len(self.weights) - 1, "learned": self.learned} | (
            {"num_nodes": min(rows)} if rows else {}
        )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: Mapping[str, type[Scorer]]) -> "SumScorer":
        made = {name: kinds[kind].from_settings(of_part, kinds) for name, (kind, of_part) in settings["parts"].items()}
        return cls(made, settings["height"], settings["learned"])

    def check(self, x: Tensor) -> None:
        for name in self.names:
            self.part(name).check(x)

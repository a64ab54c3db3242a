"""A sum of scorers: each part knows one thing, and all of them share one tree and one beam."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.distributed.exchange import Pieces
from beamtree.distributed.partition import Shard
from beamtree.scorers.base import Scorer, TableScorer
from beamtree.scorers.memory import LiftedScorer
from beamtree.scorers.subtree_max import Lifted, lifted
from beamtree.tree import PAD, Tree

SIZES = ("num_nodes", "num_items")  # in settings of parts, that must fit the tree
Counting = tuple[list[tuple[list[float], Scorer]], list[tuple[float, LiftedScorer]]]


class SumContext(NamedTuple):
    parts: list[tuple[list[float], Scorer, Any]]  # those scored one by one: what each counts, by level, and its context
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
        made: how the parts were made, as a start in closed form tells it.
    """

    weights: Tensor
    calibration: Tensor  # a and b: of a leaf, σ(a g + b) is about how often its item is chosen

    def __init__(
        self,
        parts: Mapping[str, Scorer],
        height: int,
        learned: str | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not parts or (learned is not None and learned not in parts):
            raise ValueError(f"a sum of {', '.join(parts) or 'nothing'} cannot have {learned!r} for its learned part")
        self.parts = nn.ModuleDict(parts)
        self.learned, self.made = learned, dict(made or {})
        self.register_buffer("weights", torch.ones(height + 1, len(parts)))
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))
        self._counting: tuple[object, Counting] = None, ([], [])

    @property
    def reads_items(self) -> bool:  # type: ignore[override]
        """Whether any of its parts does."""
        return any(self.part(name).reads_items for name in self.names)

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

    @property
    def is_spread(self) -> bool:
        return any(self.part(name).is_spread for name in self.names)

    def spread_over(self, shard: Shard) -> None:
        for name in self.names:
            self.part(name).spread_over(shard)

    def pieces(self) -> dict[str, Pieces]:
        return {f"parts.{name}.{key}": each for name in self.names for key, each in self.part(name).pieces().items()}

    def changing(self) -> dict[str, Tensor]:
        own = f"parts.{self.learned}."
        state = self.state_dict().items()
        return {name: value for name, value in state if name in ("weights", "calibration") or name.startswith(own)}

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
        weights = self.weights[:, [self.names.index(other) for other in kept]].clone()
        return self._of({other: self.part(other) for other in kept}, weights, learned)

    def lean(self) -> "SumScorer":
        """The sum of the parts that count, which it shares."""
        found = self
        for name, column in zip(self.names, self.weights.T.tolist(), strict=True):
            if not any(column) and len(found.names) > 1:
                found = found.without(name)
        return found

    def with_part(self, name: str, part: Scorer, weight: float, *, learned: bool = False) -> "SumScorer":
        """The sum of these parts, which it shares, and one more."""
        parts = {other: self.part(other) for other in self.names} | {name: part}
        weights = torch.cat([self.weights, torch.full_like(self.weights[:, :1], weight)], dim=1)
        return self._of(parts, weights, name if learned else self.learned)

    def with_parts(self, changed: Mapping[str, Scorer]) -> "SumScorer":
        """The sum of these parts, of which some are changed; a new one counts as it is."""
        found = self
        for name in changed.keys() - set(self.names):
            found = found.with_part(name, changed[name], 1.0)
        parts = {name: changed.get(name, found.part(name)) for name in found.names}
        return found._of(parts, found.weights.clone(), found.learned)

    def _of(self, parts: Mapping[str, Scorer], weights: Tensor, learned: str | None) -> "SumScorer":
        """A sum of other parts or weights, made and calibrated as this one."""
        found = SumScorer(parts, len(weights) - 1, learned, self.made).to(weights.device)
        found.weights, found.calibration = weights, self.calibration.clone()
        return found

    def put(self, name: str, part: Scorer) -> None:
        """Let a part take the place of the one of this name."""
        self.parts[name] = part
        self._counting = None, ([], [])

    def counting(self) -> Counting:
        """The parts that count at all, each after what it counts: those scored one by one, and those lifted together.

        Parts that are sparse over items are added before they are lifted, where they count the same on every level:
        the maximum of a sum is nearer to the truth than a sum of maxima, and found with one look.
        """
        state = self.weights._version, self.weights.data_ptr()
        if self._counting[0] != state:
            single: list[tuple[list[float], Scorer]] = []
            lifted: list[tuple[float, LiftedScorer]] = []
            for name, column in zip(self.names, self.weights.T.tolist(), strict=True):
                part = self.part(name)
                if isinstance(part, LiftedScorer) and len(set(column)) == 1 and any(column):
                    lifted.append((column[0], part))
                elif any(column):
                    single.append((column, part))
            self._counting = state, (single, lifted)
        return self._counting[1]

    def context(self, tree: Tree, x: Tensor) -> SumContext:
        single, sparse = self.counting()
        contexts = [(counts, part, part.context(tree, x)) for counts, part in single]
        if not sparse:
            return SumContext(contexts, None, len(x))
        found = [(*part.entries(x), counts) for counts, part in sparse]
        leaves = tree.leaf_of_item(torch.cat([items for items, _, _ in found], dim=1))
        scores = torch.cat([said * counts for _, said, counts in found], dim=1)
        return SumContext(contexts, lifted(tree, leaves, scores, sparse[0][1].shard), len(x))

    def forward(self, context: SumContext, level: int, nodes: Tensor) -> Tensor:
        if context.lifted is not None:
            total = context.lifted.at(level, nodes)
        else:
            total = torch.zeros(context.rows, nodes.shape[1], device=nodes.device)
        for counts, part, of_part in context.parts:
            total.add_(part.scores(of_part, level, nodes), alpha=counts[level])
        return total.masked_fill_(nodes == PAD, -torch.inf)

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        scale, bias = self.calibration
        return logits * scale + bias if level == len(self.weights) - 1 else logits

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
        return self._of(moved, self.weights[-1:].expand(new.height + 1, -1).clone(), self.learned)

    def deeper(self, old: Tree, new: Tree) -> "SumScorer":
        tables = self.tables()
        parts = {name: tables[name].deeper(old, new) if name in tables else self.part(name) for name in self.names}
        return self._of(parts, torch.cat([self.weights, self.weights[-1:]]), self.learned)

    def put_vectors(self, tree: Tree, leaves: Tensor, vectors: Tensor) -> None:
        raise ValueError("a sum has several rows for a leaf: put vectors into its parts")

    def for_search(self, tree: Tree) -> Mapping[str, Tensor | Pieces]:
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
        how = {"height": len(self.weights) - 1, "learned": self.learned, "made": self.made}
        known = [part.settings() for part in map(self.part, self.names)]
        sizes = {key: min(each[key] for each in known if key in each) for key in SIZES if any(key in e for e in known)}
        return {"parts": parts, **how, **sizes}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: Mapping[str, type[Scorer]]) -> "SumScorer":
        parts = {name: kinds[kind].from_settings(of_part, kinds) for name, (kind, of_part) in settings["parts"].items()}
        return cls(parts, settings["height"], settings["learned"], settings["made"])

    def check(self, x: Tensor) -> None:
        for name in self.names:
            self.part(name).check(x)

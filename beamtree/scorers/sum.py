"""A sum of scorers: each part knows one thing, and all of them share one tree and one beam."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from beamtree.data.contexts import Values
from beamtree.data.inputs import HISTORY, InputColumns
from beamtree.kernels import compiling, is_plain
from beamtree.kernels.search_cpu import CompiledPart, WeightedParts
from beamtree.scorers.base import Contributions, NewItems, Scorer, TableScorer, says_last
from beamtree.scorers.memory import SubtreeMaxScorer
from beamtree.scorers.subtree_max import SubtreeMax
from beamtree.tree import PAD, Tree

SIZES = ("num_nodes", "num_items")  # in settings of parts, that must fit the tree
BEYOND = 0.25  # how fast logits change where no score was measured
MAX_LOGIT = 15.0  # of a probability: none is exactly 0 or 1
ActiveParts = tuple[list[tuple[list[float], Scorer]], list[tuple[float, SubtreeMaxScorer]]]


class PreparedSum(NamedTuple):
    parts: list[tuple[list[float], Scorer, Any]]  # scored one by one: weights by level, part, and what it prepared
    subtree_max: SubtreeMax | None  # the sum of the sparse parts
    rows: int


class SumScorer(TableScorer):
    """g(x, n) = Σ_p w_hp · g_p(x, n), with a weight for every part p and level h.

    Gradients train at most one part, `learned`. The closed-form parts overfit the users they were fitted on, so how
    much the learned part weighs beside them is chosen on validation users.

    Args:
        parts: scorers by name; those with rows of nodes for the same tree.
        height: H of the tree.
        learned: the name of the part that training changes; none unless given.
        hyperparameters: how the parts were fitted, as the closed-form builder records it.
        knots: points of the calibration; without it, a line through the origin.
    """

    hyperparameters: dict[str, Any]
    weights: Tensor
    calibration: Tensor  # scores and logits: how often an item with such a score is chosen [2, K]; see `calibrated`

    def __init__(
        self,
        parts: Mapping[str, Scorer],
        height: int,
        learned: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        knots: int | None = None,
    ) -> None:
        super().__init__()
        if not parts or (learned is not None and learned not in parts):
            raise ValueError(f"a sum of {', '.join(parts) or 'nothing'} cannot have {learned!r} for its learned part")
        self.parts = nn.ModuleDict(parts)
        self.learned, self.hyperparameters = learned, dict(hyperparameters or {})
        self.register_buffer("weights", torch.ones(height + 1, len(parts)))
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]) if knots is None else torch.zeros(2, knots))
        self._active: tuple[object, ActiveParts] = None, ([], [])
        self._columns: InputColumns | None = None  # this and the next are asked for several times by every search
        self._reads_items: bool | None = None

    @property
    def reads_items(self) -> bool:  # type: ignore[override]
        """Whether any of its parts does."""
        if self._reads_items is None:
            self._reads_items = any(part.reads_items for part in self.scorers().values())
        return self._reads_items

    @property
    def context_values(self) -> Values:
        return next((values for part in self.scorers().values() if (values := part.context_values)), {})

    @property
    def reads_clock(self) -> bool:  # type: ignore[override]
        """Whether any of its parts does."""
        return any(part.reads_clock for part in self.scorers().values())

    @property
    def history(self) -> int:  # type: ignore[override]
        """The most that any of its parts reads."""
        return max(part.history for part in self.scorers().values())

    @property
    def columns(self) -> InputColumns:
        if self._columns is None:
            clock, contexts = zip(*[part.columns for part in self.scorers().values()], strict=True)
            self._columns = InputColumns(any(clock), max(contexts))
        return self._columns

    def input_of(self, part: Scorer, x: Tensor) -> Tensor:
        """What one of the parts reads of x."""
        return self.inputs_of(x)(part)

    def inputs_of(self, x: Tensor) -> Callable[[Scorer], Tensor]:
        """What each of the parts reads of x; made once for those that read the same."""
        columns, found = self.columns, dict[tuple[InputColumns, int], Tensor]()

        def input_of(part: Scorer) -> Tensor:
            reads = part.columns, part.history
            if reads not in found:
                found[reads] = columns.narrowed(x, *reads)
            return found[reads]

        return input_of

    @property
    def exportable(self) -> bool:  # type: ignore[override]
        """Whether all of its parts are."""
        return all(part.exportable for part in self.scorers().values())

    @property
    def names(self) -> list[str]:
        """The parts, in the order of their weights."""
        return list(self.scorers())

    def scorers(self) -> Mapping[str, Scorer]:
        """The parts by name, without the detours of `nn.Module`: every search asks for them several times."""
        return self._modules["parts"]._modules  # type: ignore[union-attr, return-value]

    def part(self, name: str) -> Scorer:
        """One of the parts."""
        return self.scorers()[name]

    def trainable_part(self) -> Scorer:
        return self if self.learned is None else self.part(self.learned)

    @property
    def capturable(self) -> bool:
        return all(part.capturable for part in self.scorers().values())

    def trainable_state(self) -> dict[str, Tensor]:
        own = f"parts.{self.learned}."
        state = self.state_dict().items()
        return {name: value for name, value in state if name in ("weights", "calibration") or name.startswith(own)}

    def weight_of(self, name: str) -> float:
        """The weight of a part on the leaves; 0 for one that there is not."""
        return float(self.weights[-1, self.names.index(name)]) if name in self.scorers() else 0.0

    def set_weights(self, **weights: float) -> "SumScorer":
        """Set the weights of parts on all levels."""
        for name, weight in weights.items():
            self.weights[:, self.names.index(name)] = weight
        return self

    def without(self, name: str) -> "SumScorer":
        """The sum of the other parts, which it shares."""
        kept = [other for other in self.names if other != name]
        learned = self.learned if self.learned in kept else None
        weights = self.weights[:, [self.names.index(other) for other in kept]].clone()
        return self._of({other: self.part(other) for other in kept}, weights, learned)

    def drop_zero_parts(self) -> "SumScorer":
        """The sum of the parts whose weights are not 0, which it shares."""
        scorer = self
        for name, column in zip(self.names, self.weights.T.tolist(), strict=True):
            if not any(column) and len(scorer.names) > 1:
                scorer = scorer.without(name)
        return scorer

    def with_part(self, name: str, part: Scorer, weight: float, *, learned: bool = False) -> "SumScorer":
        """The sum of these parts, which it shares, and one more."""
        parts = {other: self.part(other) for other in self.names} | {name: part}
        weights = torch.cat([self.weights, torch.full_like(self.weights[:, :1], weight)], dim=1)
        return self._of(parts, weights, name if learned else self.learned)

    def with_parts(self, changed: Mapping[str, Scorer]) -> "SumScorer":
        """The sum of these parts, some of them replaced; a new one gets the weight 1."""
        scorer = self
        for name in changed.keys() - set(self.names):
            scorer = scorer.with_part(name, changed[name], 1.0)
        parts = {name: changed.get(name, scorer.part(name)) for name in scorer.names}
        return scorer._of(parts, scorer.weights.clone(), scorer.learned)

    def _of(self, parts: Mapping[str, Scorer], weights: Tensor, learned: str | None) -> "SumScorer":
        """A sum of other parts or weights with the same records and calibration."""
        scorer = SumScorer(parts, len(weights) - 1, learned, self.hyperparameters).to(weights.device)
        scorer.weights, scorer.calibration = weights, self.calibration.clone()
        return scorer

    def put(self, name: str, part: Scorer) -> None:
        """Replace the part of this name."""
        self.parts[name] = part
        self._active, self._columns, self._reads_items = (None, ([], [])), None, None

    def active_parts(self) -> ActiveParts:
        """Parts whose weights are not all 0, after their weights: those scored one by one, and the sparse ones.

        Sparse parts with one weight for all levels are added before the maximum of a subtree is taken: the maximum of
        the sum is closer to the truth than the sum of the maxima, and needs one lookup.
        """
        state = self.weights._version, self.weights.data_ptr()
        if self._active[0] != state:
            single: list[tuple[list[float], Scorer]] = []
            sparse: list[tuple[float, SubtreeMaxScorer]] = []
            for name, column in zip(self.names, self.weights.T.tolist(), strict=True):
                part = self.part(name)
                if isinstance(part, SubtreeMaxScorer) and len(set(column)) == 1 and any(column):
                    sparse.append((column[0], part))
                elif any(column):
                    single.append((column, part))
            self._active = state, (single, sparse)
        return self._active[1]

    def prepare(self, tree: Tree, x: Tensor) -> PreparedSum:
        (single, sparse), input_of = self.active_parts(), self.inputs_of(x)
        prepared = [(weights, part, part.prepare(tree, input_of(part))) for weights, part in single]
        if not sparse:
            return PreparedSum(prepared, None, x.shape[0])
        entries = [(*part.entries(input_of(part)), weight) for weight, part in sparse]
        leaves = tree.leaf_of_item(torch.cat([items for items, _, _ in entries], dim=1))
        scores = torch.cat([scores * weight for _, scores, weight in entries], dim=1)
        return PreparedSum(prepared, SubtreeMax(tree, leaves, scores), x.shape[0])

    def compiled_parts(self, tree: Tree) -> WeightedParts | None:
        single, sparse = self.active_parts()
        found: list[tuple[Sequence[float], CompiledPart]] = []
        for levels, part in (*single, *[([weight] * (tree.height + 1), part) for weight, part in sparse]):
            compiled = part.compiled_part(tree) if says_last(type(part), "compiled_part") else None
            if compiled is None:
                return None
            found.append((levels, compiled))
        return found if says_last(type(self), "compiled_parts") else None

    def forward(self, prepared: PreparedSum, level: int, nodes: Tensor) -> Tensor:
        if prepared.subtree_max is not None:
            total = prepared.subtree_max.at(level, nodes)
        else:
            total = torch.zeros(prepared.rows, nodes.shape[1], device=nodes.device)
        for weights, part, of_part in prepared.parts:
            total.add_(part.scores(of_part, level, nodes), alpha=weights[level])
        return total.masked_fill_(nodes == PAD, -torch.inf)

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        if level != len(self.weights) - 1:
            return logits
        return calibrated(self.calibration, logits)

    def contributions_by_part(self, tree: Tree, x: Tensor, items: Tensor) -> dict[str, Contributions]:
        found, of_context = {}, slice(x.shape[1] - self.columns.contexts, x.shape[1])
        for name, weight in zip(self.names, self.weights[-1].tolist(), strict=True):
            if weight:
                part = self.part(name)
                own = self.input_of(part, x)
                given, rest = part.contributions(tree, own, items)
                count = part.histories(own).shape[1]
                entries = pad(given[:, :, :count], (0, x.shape[1] - count))
                if part.context_values and x.shape[1] > HISTORY:
                    entries[:, :, of_context] = given[:, :, -part.columns.contexts :]
                found[name] = Contributions(entries * weight, rest * weight)
        return found

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

    def with_extra_level(self, old: Tree, new: Tree) -> "SumScorer":
        parts = {name: part.with_extra_level(old, new) for name, part in self.scorers().items()}
        return self._of(parts, torch.cat([self.weights, self.weights[-1:]]), self.learned)

    def with_items(self, old: Tree, new: Tree, items: NewItems) -> "SumScorer":
        return self.with_parts({name: part.with_items(old, new, items) for name, part in self.scorers().items()})

    def put_vectors(self, tree: Tree, leaves: Tensor, vectors: Tensor) -> None:
        raise ValueError("a sum has several rows for a leaf: put vectors into its parts")

    def search_cache(self, tree: Tree) -> Mapping[str, Tensor]:
        return {
            f"{name}.{key}": value
            for name, part in self.tables().items()
            for key, value in part.search_cache(tree).items()
        }

    def load_search_cache(self, tree: Tree, parts: dict[str, Tensor]) -> None:
        for name, part in self.tables().items():
            own = {key.removeprefix(f"{name}."): value for key, value in parts.items() if key.startswith(f"{name}.")}
            if own:
                part.load_search_cache(tree, own)

    def settings(self) -> dict[str, Any]:
        parts = {name: [self.part(name).kind, self.part(name).settings()] for name in self.names}
        how = {"height": len(self.weights) - 1, "learned": self.learned, "made": self.hyperparameters}
        if self.calibration.dim() == 2:
            how["knots"] = self.calibration.shape[1]
        known = [part.settings() for part in map(self.part, self.names)]
        sizes = {key: min(each[key] for each in known if key in each) for key in SIZES if any(key in e for e in known)}
        return {"parts": parts, **how, **sizes}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: Mapping[str, type[Scorer]]) -> "SumScorer":
        parts = {name: kinds[kind].from_settings(of_part, kinds) for name, (kind, of_part) in settings["parts"].items()}
        return cls(parts, settings["height"], settings["learned"], settings["made"], settings.get("knots"))

    def check(self, x: Tensor) -> None:
        super().check(x)
        own = [part for part in self.scorers().values() if type(part).check is not Scorer.check]
        for part in own:  # the others read less of what was checked
            part.check(self.input_of(part, x))


def as_sum(scorer: Scorer) -> SumScorer | None:
    """The scorer, if it is a sum."""
    return scorer if isinstance(scorer, SumScorer) else None


def calibrated(calibration: Tensor, scores: Tensor) -> Tensor:
    """Logits of the probabilities of scores, in the same order, within ±MAX_LOGIT; -inf for a score of -inf.

    A calibration is scores and logits at K points [2, K], with lines between them. Beyond the points, where nothing
    was measured, logits change slowly, with the logarithm of the distance. In models of 0.2 it is a line, a and b [2].
    """
    if calibration.dim() == 2 and scores.device.type == "cpu" and not (scores.requires_grad or is_plain()):
        return _calibrated_on_cpu(calibration, scores)
    if calibration.dim() == 1:
        logits = torch.addcmul(calibration[1], scores, calibration[0])
    else:
        points, values = calibration
        right = (scores.unsqueeze(-1) > points).sum(-1).clamp_(1, len(points) - 1)
        left = right - 1
        start = points.take(left)
        share = ((scores - start) / (points.take(right) - start)).clamp(0, 1)
        lowest, highest = points[0], points[-1]
        slope = (values[-1] - values[0]) / (highest - lowest)
        beyond = scores - scores.clamp(lowest, highest)  # how far above the last point, or below the first
        logits = torch.lerp(values.take(left), values.take(right), share)
        logits = logits + BEYOND * torch.log1p(slope * beyond.abs()).copysign(beyond)
    return torch.where(scores == -torch.inf, scores, logits.clamp(-MAX_LOGIT, MAX_LOGIT))


def _calibrated_on_cpu(calibration: Tensor, scores: Tensor) -> Tensor:
    """The same, compiled: for a few numbers in a tenth of the time."""
    given = scores.numpy()
    logits, calibrate = np.empty(given.size), compiling.load("compiled_search").calibrate
    calibrate(calibration.numpy().astype(np.float64), given.astype(np.float64).ravel(), BEYOND, MAX_LOGIT, logits)
    return torch.from_numpy(logits.reshape(given.shape).astype(given.dtype))

"""The content part: items of the log with similar features, as one more list of partners in the memory."""

from collections.abc import Mapping

import torch

from beamtree.closed_form.content import FeatureMatrix
from beamtree.closed_form.part_weights import USERS
from beamtree.data import BeforeAfter
from beamtree.data.catalogue import Catalogue
from beamtree.data.csr import CSR, group_rows
from beamtree.errors import requires
from beamtree.model import TreeModel
from beamtree.parts.acceptance import SUM, Acceptance
from beamtree.parts.base import Fitting, Part
from beamtree.parts.memory import MEMORY
from beamtree.scorers import MemoryScorer, Scorer, SumScorer, as_sum, with_inputs
from beamtree.scorers.memory import recency_weights
from beamtree.tree import PAD, Tree

CONTENT = "content"  # the weight of the last list of the memory in the hyperparameters, if that is of similar features
MAX_SIMILAR = 30  # of an item, with similar features
POWER = 2  # they count by their cosine to this power
MAX_ENTRIES_READ = 20_000  # entries of the features of other items that are read for these, of one item
MIN_Z = 2.5  # standard errors that the gain must be above 0: most tables of items say little that the log does not
LEAST_GAIN = 0.003  # relative gain in recall for which the list is worth its time
RECENCY = recency_weights(0.5)  # of the events whose partners it has


class KnownItems:
    """The features of the items of a tree that a table of items tells of.

    Args:
        catalogue: with a table of the items.
        tree: T.
    """

    def __init__(self, catalogue: Catalogue, tree: Tree) -> None:
        with requires("", "reading features"):
            from beamtree.ingest.item_features import ItemFeatures
        assert catalogue.table is not None
        frame = catalogue.attributes
        known = torch.arange(min(tree.num_items, len(frame)))
        placed = tree.leaf_of_item(known.to(tree.device)).cpu() != PAD
        self.items = known[placed]
        frame = frame[self.items.numpy()]
        self.features = ItemFeatures.fit(frame, leave_out=[catalogue.table.item])
        self.matrix = FeatureMatrix(self.features.transform(frame), self.features.width)

    @property
    def width(self) -> int:
        """How many features there are."""
        return self.features.width

    def partners(self, num_items: int) -> CSR:
        """For each item, others with similar features, weighted by a power of the cosine."""
        nearest, cosines = self.matrix.nearest(self.matrix, MAX_SIMILAR + 1, MAX_ENTRIES_READ)
        itself = torch.arange(len(nearest)).unsqueeze(1)
        real = (cosines > 0) & (nearest != itself)
        row, column = self.items[itself.expand_as(nearest)[real]], self.items[nearest[real]]
        return group_rows(row, column.int(), num_items, cosines[real] ** POWER)


class ContentPart(Part):
    """Partners by the columns of the table of items."""

    name = CONTENT

    def add(self, parts: SumScorer, fitting: Fitting) -> SumScorer:
        if fitting.catalogue is None:
            return parts
        parts.cpu()  # where the tree is
        known = KnownItems(fitting.catalogue, fitting.tree)
        return with_similar_items(parts, fitting.tree, known, fitting.data.val, fitting.first_level)

    def refit(self, scorer: SumScorer, fitted: Mapping[str, Scorer], fitting: Fitting) -> Mapping[str, Scorer]:
        """The list stays as it is: features do not change."""
        before, memory = scorer.scorers().get(MEMORY), fitted.get(MEMORY)
        if features_weight(scorer) and isinstance(before, MemoryScorer) and isinstance(memory, MemoryScorer):
            return {MEMORY: memory.with_list(*before.last_list())}
        return {}

    def report(self, scorer: Scorer) -> list[str]:
        weight = features_weight(scorer)
        line = f"Validation users find more with items of similar features: their weight is {weight:.2g}."
        return [line] * bool(weight)


def with_similar_items(
    scorer: SumScorer,
    tree: Tree,
    known: KnownItems,
    users: BeforeAfter,
    first_level: int,
    measured: SumScorer | None = None,
    measured_on: Tree | None = None,
) -> SumScorer:
    """The sum with items of similar features as one more list of its memory, if users find more with it.

    Args:
        scorer: with the parts and weights that it has without features.
        tree: T.
        known: the features of its items.
        users: validation users, by whom the weight is chosen.
        first_level: of the search.
        measured: the same sum before it was fitted to these users, if it was.
        measured_on: its tree, if that is another.
    """
    measured = measured or scorer
    if not len(users) or not known.width or not measured.weight_of(MEMORY):
        return scorer
    partners, device = known.partners(tree.num_items), str(tree.device)
    list_of_similar = MemoryScorer.from_partners([partners], [RECENCY]).to(device)
    sample = with_inputs(measured, users.sample(USERS))
    acceptance = Acceptance(measured_on or tree, measured, sample, first_level, device, errors=MIN_Z, least=LEAST_GAIN)
    trial = acceptance.measure_beside(CONTENT, list_of_similar)
    if not trial.accepted:
        return scorer
    weight, memory = trial.weights[CONTENT] / trial.weights[SUM], scorer.part(MEMORY)
    assert isinstance(memory, MemoryScorer)
    more = memory.with_list(partners, RECENCY * weight / measured.weight_of(MEMORY))
    changed = scorer.with_parts({MEMORY: more})
    changed.hyperparameters[CONTENT] = weight
    changed.calibration = trial.calibration.to(changed.weights.device)
    return changed


def with_content(model: TreeModel, catalogue: Catalogue, users: BeforeAfter, measured: TreeModel) -> TreeModel:
    """The model with items of similar features, as `with_similar_items` adds them; `measured` was fitted before."""
    scorer, before = as_sum(model.scorer), as_sum(measured.scorer)
    if scorer is None or before is None:
        return model
    known = KnownItems(catalogue, model.tree)
    changed = with_similar_items(scorer, model.tree, known, users, measured.first_level, before, measured.tree)
    return model if changed is scorer else model.with_scorer(changed).eval()


def features_weight(scorer: Scorer) -> float:
    """The weight of items with similar features in the memory of a sum; 0 where there are none."""
    return float(scorer.hyperparameters.get(CONTENT, 0.0))

"""The deep part: the paper's network, which gradients train on the nodes that a beam visits."""

from collections.abc import Callable, Mapping

from beamtree.data import Prepared
from beamtree.parts.base import Fitting, Part
from beamtree.scorers import DeepScorer, Scorer, SumScorer
from beamtree.tree import Tree

DEEP = "deep"  # the name of the part


class DeepPart(Part):
    """Added with the weight 0; validation users choose its weight while it is trained.

    Args:
        make: the network of a tree, a log and a seed. Default: `deep_from_factors`.
    """

    name = DEEP

    def __init__(self, make: Callable[[Tree, Prepared, int], Scorer] | None = None) -> None:
        self.make = make or deep_from_factors

    def obstacle(self, data: Prepared) -> str | None:
        return None

    def fit(self, fitting: Fitting) -> Scorer:
        return self.make(fitting.tree, fitting.data, fitting.seed)

    def add(self, parts: SumScorer, fitting: Fitting) -> SumScorer:
        return parts.with_part(self.name, self.fit(fitting), 0.0, learned=True)

    def refit(self, scorer: SumScorer, fitted: Mapping[str, Scorer], fitting: Fitting) -> Mapping[str, Scorer]:
        """It stays as it was trained."""
        return {}


def deep_from_factors(tree: Tree, data: Prepared, seed: int) -> DeepScorer:
    """The deep scorer with shared rows, initialized from co-occurrence factors."""
    return DeepScorer(tree.num_nodes, seed=seed).start_from(tree, data.factors)


def deep_as_published(tree: Tree, data: Prepared, seed: int) -> DeepScorer:
    """The deep scorer with separate rows drawn from N(0, 1)."""
    return DeepScorer(tree.num_nodes, scale=1.0, share=False, seed=seed)

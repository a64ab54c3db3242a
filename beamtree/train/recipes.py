"""How to train where nobody says otherwise."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from beamtree import methods
from beamtree.data import Log
from beamtree.methods import Method
from beamtree.model import TreeModel
from beamtree.scorers import DeepScorer
from beamtree.train.loop import constant, cosine
from beamtree.tree import Tree

# Device -> beam_size, batch_size, and about how many steps. On a CPU many small steps along narrow beams learn more in
# an hour than a few large ones.
USUAL = {"cpu": (100, 50, 3000), "cuda": (400, 200, 10_000)}

# Name -> the row, for a beam of k nodes and so many uniform nodes per level.
METHODS: dict[str, Callable[[int, int], Method]] = {
    "otm": lambda k, nodes: methods.otm(k),
    "otm-mixed": methods.otm_mixed,
    "otm-mixed-all": methods.otm_mixed_all,
    "otm-stochastic": lambda k, nodes: methods.otm_stochastic(k),
    "otm-no-beam": lambda k, nodes: methods.otm_no_beam(nodes),
    "otm-no-optest": lambda k, nodes: methods.otm_no_optest(k),
    "tdm": lambda k, nodes: methods.tdm_uniform(nodes),
    "tdm-positives": lambda k, nodes: methods.tdm(nodes),
    "plt": lambda k, nodes: methods.plt(),
    "hsm": lambda k, nodes: methods.hsm(),
}
WALKS = {"otm", "otm-mixed", "otm-mixed-all", "otm-stochastic", "otm-no-optest"}  # a beam means nothing at first


@dataclass(frozen=True)
class Recipe:
    scale: float  # of the node table at the start
    from_factors: bool  # whether the scorer starts from what users chose together
    share: bool  # whether rows share with their ancestors
    lr: float
    schedule: Callable[[float], float]
    epochs: int | None  # None: as many as make the usual number of steps
    warm_up: bool  # whether rows that walk a beam begin as TDM
    instances: Callable[[Log], Log]

    def model(
        self, tree: Tree, beam_size: int, factors: Callable[[], Tensor], seed: int = 0, *, lift: bool = True
    ) -> TreeModel:
        """A deep model over a tree, ready to be trained; `factors` gives vectors of the items [M, dim] if asked."""
        scorer = DeepScorer(tree.num_nodes, scale=self.scale, share=self.share, lift=lift, seed=seed)
        if self.from_factors:
            scorer.start_from(tree, factors())
        return TreeModel(tree, scorer, first_level=first_level(tree, beam_size))

    def begins_as(self, method: str, beam_size: int) -> Method | None:
        """The row that the first steps train, if not the method's own."""
        return methods.tdm_uniform(2 * beam_size) if self.warm_up and method in WALKS else None


RECIPES = {
    "beamtree": Recipe(0.05, True, True, 2e-3, cosine, None, True, lambda log: log.drawn()),
    "paper": Recipe(1.0, False, False, 1e-3, constant, 10, False, lambda log: log),
}


def first_level(tree: Tree, beam_size: int) -> int:
    """The first level whose parents all fit into a beam with room to spare: nothing is decided above it."""
    level = 1
    while level < tree.height and len(tree.level(level + 1)) <= beam_size:
        level += 1
    return level

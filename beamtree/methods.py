"""The methods of the paper, each a row: which nodes are trained, and what a node's label is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from beamtree.candidates import (
    Sampler,
    beam_candidates,
    children_of_positives,
    stochastic_beam,
    uniform,
    uniform_leaves,
    union,
    with_negatives,
)
from beamtree.loss import bce
from beamtree.model import Query, TreeModel
from beamtree.targets import Targets, any_relevant, best_child, labels_at
from beamtree.tree import first_of_each

Labels = Callable[[Query, list[Targets]], list[Targets]]
Instances = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def whole(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One instance per user, with all its targets."""
    return x, y


def one_per_target(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """|I_x| = 1: one instance per user and target, however often y repeats it."""
    y = y.sort(dim=1).values
    user, place = first_of_each(y).nonzero(as_tuple=True)
    return x[user], y[user, place].unsqueeze(1)


@dataclass(frozen=True)
class Method:
    """One row: S_h, the labels, whether p_g is chained, and what counts as an instance."""

    name: str
    candidates: Sampler
    targets: Labels
    chained: bool = False
    instances: Instances = whole
    options: Mapping[str, int] = field(default_factory=dict)  # how the row was made

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")

    def loss(self, model: TreeModel, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """L (Eq. 2; for OTM Eq. 16): the sum of ℓ_BCE over instances, levels and S_h."""
        x, y = self.instances(x, y)
        query = model.query(x)
        # z, which marks S_h⁺. Where ẑ has to score a whole level, that must not cost more than scoring b|I_x| nodes.
        positives = any_relevant(model.tree, y, None if model.scorer.cheap_levels else 1)
        targets = self.targets(query, positives)  # z or ẑ
        found = list(self.candidates(query, positives, generator))  # S_h
        return bce(torch.cat(query.logits_of(found), dim=1), torch.cat(labels_at(targets, found), dim=1))


def as_marked(query: Query, positives: list[Targets]) -> list[Targets]:
    """z itself: every positive node is relevant."""
    return positives


def plt() -> Method:
    """Probabilistic label tree: the children of positives, p_g chained."""
    return Method("plt", children_of_positives, as_marked, chained=True)


def hsm() -> Method:
    """Hierarchical softmax: PLT on instances with a single target."""
    return Method("hsm", children_of_positives, as_marked, chained=True, instances=one_per_target)


def tdm(negatives: int) -> Method:
    """Tree-based deep model: positives and uniform negatives."""
    options = {"negatives": negatives}
    return Method("tdm", with_negatives(negatives), as_marked, options=options)


def tdm_uniform(nodes: int) -> Method:
    """TDM as the authors ran it: uniform nodes, positives not forced in."""
    return Method("tdm-uniform", uniform(nodes), as_marked, options={"nodes": nodes})


def otm(beam_size: int) -> Method:
    """Algorithm 1: the nodes the beam visits, labelled by ẑ."""
    options = {"beam_size": beam_size}
    return Method("otm", beam_candidates(beam_size), best_child, options=options)


def otm_no_beam(nodes: int) -> Method:
    """OTM (-BS): ẑ on uniform nodes instead of the beam's."""
    return Method("otm-no-beam", uniform(nodes), best_child, options={"nodes": nodes})


def otm_no_optest(beam_size: int) -> Method:
    """OTM (-OptEst): the beam's nodes with z instead of ẑ."""
    options = {"beam_size": beam_size}
    return Method("otm-no-optest", beam_candidates(beam_size), as_marked, options=options)


def otm_mixed(beam_size: int, extra: int) -> Method:
    """OTM plus `extra` uniform leaves: our own row.

    The beam alone leaves the order of the leaves under-trained (m < k); random leaves mend it.
    """
    candidates = union(beam_candidates(beam_size), uniform_leaves(extra))
    options = {"beam_size": beam_size, "extra": extra}
    return Method("otm-mixed", candidates, best_child, options=options)


def otm_mixed_all(beam_size: int, extra: int) -> Method:
    """OTM plus `extra` uniform nodes on every level, so that every w_n > 0, as Proposition 3 asks."""
    candidates = union(beam_candidates(beam_size), uniform(extra))
    options = {"beam_size": beam_size, "extra": extra}
    return Method("otm-mixed-all", candidates, best_child, options=options)


def otm_stochastic(beam_size: int) -> Method:
    """OTM on the nodes of a stochastic beam search."""
    options = {"beam_size": beam_size}
    return Method("otm-stochastic", stochastic_beam(beam_size), best_child, options=options)

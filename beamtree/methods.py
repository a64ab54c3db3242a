"""Training methods, each a row of one table: which nodes are trained, with what labels and what loss."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.candidates import (
    Sampler,
    beam_and_leaves,
    beam_and_uniform,
    beam_candidates,
    children_of_positives,
    softmax_paths,
    stochastic_beam,
    uniform,
    with_negatives,
)
from beamtree.errors import lookup
from beamtree.losses import Objective, bce_and_margin, level_softmax, sum_of_bce, weighted_bce
from beamtree.model import BatchPart, Query, TreeModel
from beamtree.targets import Targets, any_relevant, best_child
from beamtree.tree import first_of_each

Labels = Callable[[Query, list[Targets]], list[Targets]]


def every_positive(query: Query, positives: list[Targets]) -> list[Targets]:
    """z_n (Eq. 1) itself: every node above a relevant item is relevant."""
    return positives


@dataclass(frozen=True)
class Method:
    """A training method: S_h, the labels, whether p_g is chained, and what training must know about it.

    Methods are equal if all of their fields are.

    Args:
        name: its name in tables and runs.
        candidates: S_h, a function from a query, the positives and a generator to the nodes of every level.
        labels: z, ẑ, or a function of your own from a query and the positives to the targets of every level.
        chained: whether p_g is the product down the path.
        single_target: whether every instance has one relevant item.
        uses_beam: whether S_h comes from a beam, so that training warms up first.
        objective: L, a function from a query, z, the labels and S_h to a sum over instances. Default: that of ℓ_BCE.
    """

    name: str
    candidates: Sampler
    labels: Labels
    chained: bool = False
    single_target: bool = False  # |I_x| = 1: trained on one instance per target
    uses_beam: bool = False  # S_h comes from a beam, which means nothing before the scorer does
    objective: Objective = sum_of_bce

    def loss(
        self,
        model: TreeModel,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        part_of: Callable[[int], BatchPart] | None = None,
    ) -> Tensor:
        """L (Eq. 2; for OTM Eq. 16): the sum of ℓ_BCE over instances, levels and S_h, or another objective.

        Args:
            model: the model that is trained.
            x: users.
            y: the items relevant to them.
            generator: for everything random.
            part_of: maps the size of a batch to the part whose loss is computed. Default: all of it.
        """
        if self.single_target:
            x, y = one_per_target(x, y)
        part = BatchPart(0, len(x), len(x)) if part_of is None else part_of(len(x))
        x, y = part.of(x), part.of(y)
        query = model.query(x, part)
        # z, which marks S_h⁺. Where ẑ has to score a whole level, that must not cost more than scoring b|I_x| nodes.
        positives = any_relevant(model.tree, y, None if model.scorer.cheap_levels else 1)
        targets = self.labels(query, positives)  # z or ẑ
        nodes = list(self.candidates(query, positives, generator))  # S_h
        loss = self.objective(query, positives, targets, nodes)
        return loss * 0 if part.is_empty else loss

    def describe(self) -> dict[str, str | bool]:
        """The functions and numbers of the method as text, which a resumed run compares."""
        return {
            "method": self.name,
            "candidates": describe_call(self.candidates),
            "labels": describe_call(self.labels),
            "chained": self.chained,
            "single_target": self.single_target,
            "walks": self.uses_beam,  # as checkpoints call it
            **({} if self.objective is sum_of_bce else {"objective": describe_call(self.objective)}),
        }


def one_per_target(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """|I_x| = 1: one instance per user and target, however often y repeats it."""
    y = y.sort(dim=1).values
    user, column = first_of_each(y).nonzero(as_tuple=True)
    return x[user], y[user, column].unsqueeze(1)


def describe_call(function: Callable[..., Any]) -> str:
    """A function as text, with the arguments of a `functools.partial` or the variables of a closure.

    The text is the same in every process: objects without a `__repr__` appear by name or type.
    """
    if isinstance(function, partial):
        arguments = [_value(value) for value in function.args]
        arguments += [f"{name}={_value(value)}" for name, value in function.keywords.items()]
        return f"{describe_call(function.func)}({', '.join(arguments)})"
    function = unwrap(function)  # out of a decorator such as torch.no_grad
    variables = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return f"{_name(function)}[{', '.join(map(_value, variables))}]" if variables else _name(function)


def _value(value: object) -> str:
    if isinstance(value, partial):
        return describe_call(value)
    return _name(value) if callable(value) or type(value).__repr__ is object.__repr__ else str(value)


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


class MethodRow(NamedTuple):
    """A method without its numbers."""

    candidates: Callable[..., Any]
    numbers: tuple[str, ...]  # the arguments of `candidates`
    labels: Labels
    chained: bool = False
    single_target: bool = False
    uses_beam: bool = False
    objective: Callable[..., Tensor] = sum_of_bce
    objective_numbers: tuple[str, ...] = ()  # the arguments of `objective`


METHODS: dict[str, MethodRow] = {
    "plt": MethodRow(children_of_positives, (), every_positive, chained=True),
    "hsm": MethodRow(children_of_positives, (), every_positive, chained=True, single_target=True),
    "tdm": MethodRow(uniform, ("nodes",), every_positive),
    "tdm-positives": MethodRow(with_negatives, ("negatives",), every_positive),
    "otm": MethodRow(beam_candidates, ("beam_size",), best_child, uses_beam=True),
    "otm-no-beam": MethodRow(uniform, ("nodes",), best_child),
    "otm-no-optest": MethodRow(beam_candidates, ("beam_size",), every_positive, uses_beam=True),
    "otm-mixed": MethodRow(beam_and_leaves, ("beam_size", "extra"), best_child, uses_beam=True),
    "otm-mixed-all": MethodRow(beam_and_uniform, ("beam_size", "extra"), best_child, uses_beam=True),
    "otm-stochastic": MethodRow(stochastic_beam, ("beam_size",), best_child, uses_beam=True),
    "otm-margin": MethodRow(
        beam_candidates, ("beam_size",), best_child,
        uses_beam=True, objective=bce_and_margin, objective_numbers=("beam_size",),
    ),
    "otm-level-weights": MethodRow(
        beam_candidates, ("beam_size",), best_child,
        uses_beam=True, objective=weighted_bce, objective_numbers=("beam_size",),
    ),
    "dtr": MethodRow(softmax_paths, ("nodes",), best_child, objective=level_softmax),
}  # fmt: skip


def by_name(name: str, **numbers: int) -> Method:
    """The row of the table with this name and these numbers."""
    row = METHODS[name]
    for number, value in numbers.items():
        if value < 1:
            raise ValueError(f"{number}={value}: must be at least 1")

    def filled(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
        return _filled(function, **{name: numbers[name] for name in names}) if names else function

    candidates, objective = filled(row.candidates, row.numbers), filled(row.objective, row.objective_numbers)
    return Method(name, candidates, row.labels, row.chained, row.single_target, row.uses_beam, objective)


@cache
def _filled(function: Callable[..., Any], **numbers: int) -> Callable[..., Any]:
    """The same object for the same numbers, so that otm(3) == otm(3): a `partial` only equals itself."""
    return partial(function, **numbers)


def sized(name: str, beam_size: int, nodes: int) -> Method:
    """The row of the table with this name, for a beam of k nodes and a number of others per level."""
    lookup(METHODS, "method", name)
    return by_name(name, beam_size=beam_size, nodes=nodes, negatives=nodes, extra=nodes)


def plt() -> Method:
    """Probabilistic label tree: the children of positives, p_g chained."""
    return by_name("plt")


def hsm() -> Method:
    """Hierarchical softmax: PLT on instances with a single target."""
    return by_name("hsm")


def tdm(nodes: int) -> Method:
    """Tree-based deep model as its authors ran it: uniform nodes of every level, positives not forced in."""
    return by_name("tdm", nodes=nodes)


def tdm_positives(negatives: int) -> Method:
    """Tree-based deep model as it is printed: positives and uniform negatives."""
    return by_name("tdm-positives", negatives=negatives)


def otm(beam_size: int) -> Method:
    """Algorithm 1: the nodes the beam visits, labelled by ẑ."""
    return by_name("otm", beam_size=beam_size)


def otm_no_beam(nodes: int) -> Method:
    """OTM (-BS): ẑ on uniform nodes instead of the beam's."""
    return by_name("otm-no-beam", nodes=nodes)


def otm_no_optest(beam_size: int) -> Method:
    """OTM (-OptEst): the beam's nodes with z instead of ẑ."""
    return by_name("otm-no-optest", beam_size=beam_size)


def otm_mixed(beam_size: int, extra: int) -> Method:
    """OTM plus `extra` uniform leaves: our own row.

    The beam alone leaves the order of the leaves under-trained (m < k); random leaves mend it.
    """
    return by_name("otm-mixed", beam_size=beam_size, extra=extra)


def otm_mixed_all(beam_size: int, extra: int) -> Method:
    """OTM plus `extra` uniform nodes on every level, so that every w_n > 0, as Proposition 3 asks."""
    return by_name("otm-mixed-all", beam_size=beam_size, extra=extra)


def otm_stochastic(beam_size: int) -> Method:
    """OTM on the nodes of a stochastic beam search."""
    return by_name("otm-stochastic", beam_size=beam_size)


def otm_margin(beam_size: int) -> Method:
    """OTM plus a penalty on every ancestor of a positive that is not among the best k of its level, after BEAR."""
    return by_name("otm-margin", beam_size=beam_size)


def otm_level_weights(beam_size: int) -> Method:
    """OTM with more weight on the levels where a user's positives fall out of the beam, after APAO."""
    return by_name("otm-level-weights", beam_size=beam_size)


def dtr(nodes: int) -> Method:
    """Deep Tree-based Retriever: softmax over each level with ẑ as labels, and nodes drawn down the tree."""
    return by_name("dtr", nodes=nodes)

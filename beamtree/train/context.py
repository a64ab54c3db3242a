"""The context part of a sum: added where validation users find more with it, with a weight for each column."""

from collections.abc import Sequence

import torch

from beamtree.closed_form.contexts import ContextFactors, fit_contexts
from beamtree.closed_form.part_weights import USERS, choose_weights
from beamtree.data import HISTORY, Events, Prepared
from beamtree.data.contexts import value_numbers
from beamtree.data.seeds import mix
from beamtree.progress import log
from beamtree.scorers import ContextScorer, Scorer, SumScorer
from beamtree.scorers.context import CONTEXT
from beamtree.scorers.dot_product import fit_to_maxima
from beamtree.scorers.table import NodeTable
from beamtree.train.backend import current_backend
from beamtree.tree import PAD, Tree

SAMPLE = 2048  # contexts of training events that inner nodes are fitted to


def add_context(
    parts: SumScorer, tree: Tree, data: Prepared, *, first_level: int, device: str = "cpu", seed: int = 0
) -> SumScorer:
    """The sum with a context part; the sum as it was where validation users do not find more with it.

    Args:
        parts: of the sum, with their weights.
        tree: T.
        data: the log, with the contexts of its events.
        first_level: of the search.
        device: where candidates are scored.
        seed: of the sample of contexts that inner nodes are fitted to.
    """
    parts.cpu()  # where the tree is
    backend = current_backend()
    factors = fit_contexts(data.train.events, data.num_items, backend.first)
    columns = list(factors.columns)
    record = {"columns": columns, "gain": 0.0, "users": min(USERS, len(data.val))}
    parts.hyperparameters[CONTEXT] = record
    if not len(data.val) or not len(factors.values):
        return parts
    active = parts.drop_zero_parts()
    start = {name: active.weight_of(name) for name in active.names}
    names = [f"{CONTEXT}: {column}" for column in columns]
    tried: dict[str, Scorer] = {name: active.part(name) for name in active.names}
    table = context_scorer(tree, factors).table
    for name in names:
        weights = [float(other == name) for other in names]
        tried[name] = ContextScorer.from_table(table, factors.columns, factors.values, weights)
    users = data.val.sample(USERS).with_contexts(factors.columns)
    candidates = backend.candidates(tree, tried, users, first_level, device)
    without = start | dict.fromkeys(names, 0.0)
    chosen = backend.first(choose_weights(candidates, without))
    before, after = candidates.user_recalls(without), candidates.user_recalls(chosen)
    rise = ((after - before) / before.mean(0).clamp(min=1e-9)).mean(1)  # of each user
    error = float(rise.std() / len(rise) ** 0.5) if len(rise) > 1 else 1.0
    gain, error = backend.first((float(rise.mean()), error))
    calibration = candidates.calibration(chosen).cpu()
    weights = [chosen.pop(name) for name in names]
    log.debug("context part: weights %s, gain %.2f %% ± %.2f %%", weights, 100 * gain, 100 * error)
    if not any(weights) or gain <= error:  # chance on few users
        return parts
    record |= {"gain": gain, "weights": dict(zip(columns, weights, strict=True))}
    part = context_scorer(tree, factors, [weight / max(weights) for weight in weights])
    fit_inner_nodes(part, tree, data.train.events, seed)
    result = parts.with_part(CONTEXT, part, max(weights)).set_weights(**chosen)
    result.calibration = calibration
    return result


def refit_context(part: ContextScorer, tree: Tree, events: Events, num_items: int, seed: int = 0) -> ContextScorer:
    """A context part fitted again, to these events, with the weights of its columns."""
    result = context_scorer(tree, fit_contexts(events, num_items, current_backend().first), part.weights.tolist())
    fit_inner_nodes(result, tree, events, seed)
    return result


def context_scorer(tree: Tree, factors: ContextFactors, weights: Sequence[float] | None = None) -> ContextScorer:
    """The scorer of a tree and factors; the vectors of inner nodes are means."""
    table = NodeTable.from_rows(torch.zeros(tree.num_nodes, factors.items.shape[1], device=tree.device))
    table.add_means(tree, factors.items.to(tree.device), share=False)
    scorer = ContextScorer.from_table(table, factors.columns, factors.values, weights)
    return scorer.to(tree.device)


def fit_inner_nodes(part: ContextScorer, tree: Tree, events: Events, seed: int) -> None:
    """Fit the vectors of inner nodes to the best item below them, for contexts of some events."""
    assert events.contexts is not None
    number, generator = events.contexts.number[events.span()], torch.Generator().manual_seed(mix(seed, 11))
    sample = number[torch.randint(len(number), (SAMPLE,), generator=generator)].long()
    values = value_numbers(part.values, events.contexts.contexts)[sample]
    x = torch.cat([torch.full((SAMPLE, HISTORY), PAD), values], dim=1).to(tree.device)
    fit_to_maxima(tree, part.table.weight, part.encode(tree, part.table.read(tree, share=False), x))

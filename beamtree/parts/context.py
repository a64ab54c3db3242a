"""The context part of a sum: added where validation users find more with it, with a weight for each column."""

from collections.abc import Mapping, Sequence

import torch

from beamtree.closed_form.contexts import ContextFactors, fit_contexts
from beamtree.data import HISTORY, Events, Prepared
from beamtree.data.contexts import value_numbers
from beamtree.data.seeds import mix
from beamtree.parts.base import Fitting, Part
from beamtree.scorers import ContextScorer, Scorer, SumScorer, context_part
from beamtree.scorers.context import CONTEXT
from beamtree.scorers.dot_product import fit_to_maxima
from beamtree.scorers.table import NodeTable
from beamtree.tree import PAD, Tree

SAMPLE = 2048  # contexts of training events that inner nodes are fitted to


class ContextPart(Part):
    """Products of the vectors of a request's context and of the items, with a weight for each column."""

    name = CONTEXT

    def obstacle(self, data: Prepared) -> str | None:
        return None if data.train.events.contexts is not None else "columns of a context: prepare with `context`"

    def add(self, parts: SumScorer, fitting: Fitting) -> SumScorer:
        parts.cpu()  # where the tree is
        tree, data = fitting.tree, fitting.data
        factors = fit_contexts(data.train.events, data.num_items, fitting.processes.broadcast)
        columns = list(factors.columns)
        acceptance = fitting.acceptance(parts, factors.columns)
        trial, part, weights = None, None, []
        if len(data.val) and len(factors.values):
            table, names = context_scorer(tree, factors).table, [f"{CONTEXT}: {column}" for column in columns]
            tried = {
                name: ContextScorer.from_table(
                    table, factors.columns, factors.values, [float(other == name) for other in names]
                )
                for name in names
            }
            trial = acceptance.measure(tried)
            weights = [trial.weights.pop(name) for name in names]
        if trial is not None and trial.accepted:
            part = context_scorer(tree, factors, [weight / max(weights) for weight in weights])
            fit_to_contexts(part, tree, data.train.events, fitting.seed)
            trial.weights[CONTEXT] = max(weights)
        result = acceptance.result(self.name, part, trial)
        result.hyperparameters[CONTEXT] |= {"columns": columns}
        if part is not None:
            result.hyperparameters[CONTEXT] |= {"weights": dict(zip(columns, weights, strict=True))}
        return result

    def refit(self, scorer: SumScorer, fitted: Mapping[str, Scorer], fitting: Fitting) -> Mapping[str, Scorer]:
        """Fitted again, with the weights of its columns."""
        before, tree, events = context_part(scorer), fitting.tree, fitting.fitted_events
        if before is None or events.contexts is None:
            return {}
        part = context_scorer(
            tree, fit_contexts(events, tree.num_items, fitting.processes.broadcast), before.weights.tolist()
        )
        fit_to_contexts(part, tree, events, fitting.seed)
        return {self.name: part}


def context_scorer(tree: Tree, factors: ContextFactors, weights: Sequence[float] | None = None) -> ContextScorer:
    """The scorer of a tree and factors; the vectors of inner nodes are means."""
    table = NodeTable.from_rows(torch.zeros(tree.num_nodes, factors.items.shape[1], device=tree.device))
    table.add_means(tree, factors.items.to(tree.device), share=False)
    scorer = ContextScorer.from_table(table, factors.columns, factors.values, weights)
    return scorer.to(tree.device)


def fit_to_contexts(part: ContextScorer, tree: Tree, events: Events, seed: int) -> None:
    """Fit the vectors of inner nodes to the best item below them, for contexts of some events."""
    assert events.contexts is not None
    number, generator = events.contexts.number[events.span()], torch.Generator().manual_seed(mix(seed, 11))
    sample = number[torch.randint(len(number), (SAMPLE,), generator=generator)].long()
    values = value_numbers(part.values, events.contexts.contexts)[sample]
    x = torch.cat([torch.full((SAMPLE, HISTORY), PAD), values], dim=1).to(tree.device)
    fit_to_maxima(tree, part.table.weight, part.encode(tree, part.table.read(tree, share=False), x))

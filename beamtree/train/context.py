"""The context part of a sum: added where validation users find more with it, with a weight for each column."""

import torch

from beamtree.closed_form.contexts import fit_contexts
from beamtree.closed_form.part_weights import USERS, Candidates, choose_weights
from beamtree.data import HISTORY, Prepared
from beamtree.data.contexts import value_numbers
from beamtree.data.seeds import mix
from beamtree.model import TreeModel
from beamtree.progress import log
from beamtree.scorers import ContextScorer, Scorer, SumScorer
from beamtree.scorers.context import CONTEXT
from beamtree.scorers.dot_product import fit_to_maxima
from beamtree.scorers.table import NodeTable
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
        seed: of the sample of contexts.
    """
    events = data.train.events
    assert events.contexts is not None
    columns, vectors, items = fit_contexts(events, data.num_items)
    record = {"columns": list(columns), "gain": 0.0, "users": min(USERS, len(data.val))}
    parts.hyperparameters[CONTEXT] = record
    if not len(data.val) or not len(vectors):
        return parts
    parts.cpu()  # where the tree is
    table = NodeTable.from_rows(torch.zeros(tree.num_nodes, items.shape[1]))
    table.add_means(tree, items, share=False)
    table.half()
    active = parts.drop_zero_parts()
    start = {name: active.weight_of(name) for name in active.names}
    names = [f"{CONTEXT}: {column}" for column in columns]
    one_column = [
        ContextScorer.from_table(table, columns, vectors, [float(other == name) for other in names]) for name in names
    ]
    all_parts: dict[str, Scorer] = {name: active.part(name) for name in active.names}
    users = data.val.sample(USERS).with_contexts(columns)
    candidates = Candidates(tree, all_parts | dict(zip(names, one_column, strict=True)), users, first_level, device)
    before = candidates.user_recalls(start | dict.fromkeys(names, 0.0))
    chosen = choose_weights(candidates, start | dict.fromkeys(names, 0.0))
    rise = ((candidates.user_recalls(chosen) - before) / before.mean(0).clamp(min=1e-9)).mean(1)  # of each user
    gain, error = float(rise.mean()), float(rise.std() / len(rise) ** 0.5) if len(rise) > 1 else 1.0
    weights = [chosen.pop(name) for name in names]
    log.debug("context part: weights %s, gain %.2f %% ± %.2f %%", weights, 100 * gain, 100 * error)
    if not any(weights) or gain <= error:  # chance on few users
        return parts
    record |= {"gain": gain, "weights": dict(zip(columns, weights, strict=True))}
    part = ContextScorer.from_table(table, columns, vectors, [weight / max(weights) for weight in weights])
    model = TreeModel(tree, part).to(device)
    number, generator = events.contexts.number[events.span()], torch.Generator().manual_seed(mix(seed, 11))
    sample = number[torch.randint(len(number), (SAMPLE,), generator=generator)].long()
    values = value_numbers(columns, events.contexts.contexts)[sample]
    x = torch.cat([torch.full((SAMPLE, HISTORY), PAD), values], dim=1).to(device)
    fit_to_maxima(model.tree, part.table.weight, part.encode(model.tree, part.table.read(model.tree, share=False), x))
    result = parts.with_part(CONTEXT, part.cpu(), 0.0).set_weights(**chosen, **{CONTEXT: max(weights)})
    result.calibration = candidates.calibration(chosen | dict(zip(names, weights, strict=True))).cpu()
    return result

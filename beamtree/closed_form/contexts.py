"""How much more often an item is chosen in a context than elsewhere, counted, without training.

The log-ratio of an item and a value, such as a country, is log (n + s) / (e + s): n events of the item had the value, e
would be expected if the item did not depend on it, and s is SMOOTHING. A context's score is the sum over its values, as
in naive Bayes. The matrix of all values and items is factorized, so that items have vectors of at most DIM numbers.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.data import Events
from beamtree.data.contexts import value_numbers
from beamtree.data.ids import as_id
from beamtree.tree import PAD

SMOOTHING = 5.0  # events
DIM = 64  # numbers of a vector, at most
MIN_EVENTS = 50  # of a value that is used
MAX_VALUES = 1024  # that are used, those with the most events
ENTRIES = 1 << 24  # of the matrix that are computed at once


class ContextFactors(NamedTuple):
    """Vectors whose inner products are the log-ratios, or near them where there are more than DIM values."""

    columns: dict[str, list[str]]  # the values of each column
    values: Tensor  # [V, dim]
    items: Tensor  # [M, dim]


def fit_contexts(
    events: Events, num_items: int, broadcast: Callable[[Tensor], Tensor] = lambda directions: directions
) -> ContextFactors:
    """The factors of the log-ratios of a log; `broadcast` gives several processes the directions of the first one."""
    columns = frequent_values(events)
    total = sum(map(len, columns.values()))
    gram = torch.zeros(total, total, dtype=torch.float64)
    for block in log_ratios(events, num_items, columns):
        gram += block.double() @ block.double().T
    largest = torch.linalg.eigh(gram).eigenvectors[:, -DIM:].float()
    directions = broadcast(largest)  # of the largest eigenvalues [V, dim]
    items = [block.T @ directions for block in log_ratios(events, num_items, columns)]
    return ContextFactors(columns, directions, torch.cat(items))


def frequent_values(events: Events) -> dict[str, list[str]]:
    """The values of each column that have enough events."""
    assert events.contexts is not None
    rows = torch.bincount(events.contexts.number[events.span()].long(), minlength=len(events.contexts.contexts))
    counts: Counter[tuple[str, str]] = Counter()
    for context, number in zip(events.contexts.contexts, rows.tolist(), strict=True):
        for column, value in context.items():
            counts[column, as_id(value) if value is not None else ""] += number
    frequent = {pair for pair, number in counts.most_common(MAX_VALUES) if number >= MIN_EVENTS and pair[1]}
    names = list(dict.fromkeys(column for column, _ in counts))
    return {name: sorted(value for column, value in frequent if column == name) for name in names}


def log_ratios(events: Events, num_items: int, columns: dict[str, list[str]]) -> Iterator[Tensor]:
    """The log-ratios of all values and some items [V, items], for one range of items after another."""
    assert events.contexts is not None
    of_context = value_numbers(columns, events.contexts.contexts)  # [N, columns]
    item, context = events.item_numbers().long().cpu(), events.contexts.number[events.span()].long()
    weight = events.confidence()
    weight = torch.ones(len(item)) if weight is None else weight.cpu()
    total = sum(map(len, columns.values()))
    ends = torch.tensor([0, *map(len, columns.values())]).cumsum(0).tolist()
    shares = torch.zeros(total, dtype=torch.float64)
    for column in of_context.T:
        value = column[context]
        known = value != PAD
        counts = torch.bincount(value[known], weight[known].double(), minlength=total)
        shares += counts / counts.sum().clamp(min=1e-9)
    size = max(1, ENTRIES // max(1, total))
    for start in range(0, num_items, size):
        count = min(size, num_items - start)
        inside = (item >= start) & (item < start + count)
        some_items, some_contexts, some_weights = item[inside] - start, context[inside], weight[inside]
        ratios = torch.zeros(total, count)
        for column, first, last in zip(of_context.T, ends, ends[1:], strict=False):
            value = column[some_contexts]
            known = value != PAD
            pair = (value[known] - first) * count + some_items[known]
            found = torch.bincount(pair, some_weights[known], minlength=(last - first) * count).view(-1, count)
            expected = found.sum(0) * shares[first:last].unsqueeze(1)
            ratios[first:last] = ((found + SMOOTHING) / (expected + SMOOTHING)).log().float()
        yield ratios

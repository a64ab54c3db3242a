"""Recall of items that are added with a few histories, compared with the same items trained from the start.

    python benchmarks/quality/bench_live.py prepared/movielens-1m [--share 0.01] [--histories 10] [--seed 5]
        [--json FILE]

Some items are removed from the training events, the closed form is fitted without them, and they are added again with
histories of training users who chose them.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import beamtree as bt
from beamtree.data import Events, Prepared
from beamtree.data.views import HISTORY, BeforeAfter
from beamtree.evaluate.metrics import hits
from beamtree.live import LiveModel, NewItem
from beamtree.live.edits import without_items
from beamtree.model import TreeModel
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, resolve_settings

CUTS = (10, 50, 100, 200)


def without(view: BeforeAfter, new_items: Tensor) -> BeforeAfter:
    """The same users without events of some items."""
    events, items = view.events, view.events.item_numbers().long()
    remaining = ~torch.isin(items, new_items)
    counts = torch.bincount(torch.repeat_interleave(events.counts())[remaining], minlength=len(events))
    return BeforeAfter(
        Events(pad(counts.cumsum(0), (1, 0)), items[remaining].int(), f"{events.name}, less", events.ids)
    )


def closed_form_model(data: Prepared, counted: Prepared) -> TreeModel:
    """The closed-form model, not trained further."""
    model = build_model(resolve_settings(data, TrainingOptions(steps=0)), data, bt.cluster_tree(data, arity=2, seed=0))
    model.ids, model.popularity = counted.items, data.train.events.popularity(data.num_items)
    return model


def histories(data: Prepared, item: int, new_items: Tensor, count: int, generator: torch.Generator) -> Any:
    """The histories of some training users before they chose an item."""
    events, items = data.train.events, data.train.events.item_numbers().long()
    events_of_item = (items == item).nonzero().squeeze(1)
    events_of_item = events_of_item[torch.randperm(len(events_of_item), generator=generator)[:count]]
    start = events.offsets[torch.searchsorted(events.offsets, events_of_item, right=True) - 1]
    result = []
    for first, at in zip(start.tolist(), events_of_item.tolist(), strict=True):
        past = items[max(first, at - HISTORY) : at]
        result.append(tuple(data.items[number] for number in past[~torch.isin(past, new_items)].tolist()))
    return tuple(history for history in result if history)


def recalls(model: TreeModel, data: Prepared, new_items: Tensor) -> dict[str, list[float]]:
    """Recall of the new items over all targets, and of the others over users, in percent."""
    x, y = data.test.batch(torch.arange(len(data.test)))
    ours, others = torch.isin(y, new_items), (y != bt.PAD) & ~torch.isin(y, new_items)
    retrieved = torch.cat([bt.retrieve(model, part, beam_size=400, m=CUTS[-1])[0] for part in x.split(200)])
    shares: dict[str, list[float]] = {"new": [], "others": []}
    for m in CUTS:
        hit = hits(y, retrieved[:, :m])
        shares["new"].append(float((hit & ours).sum() / ours.sum().clamp(min=1)) * 100)
        shares["others"].append(float(((hit & others).sum(1) / others.sum(1).clamp(min=1)).mean()) * 100)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    data, generator = bt.load_data(args.data), torch.Generator().manual_seed(args.seed)
    new_items = torch.randperm(data.num_items, generator=generator)[: int(data.num_items * args.share)].sort().values
    less = replace(data, train=without(data.train, new_items), val=without(data.val, new_items))
    records = [{"model": "trained with them", **recalls(closed_form_model(data, data), data, new_items)}]
    bare = without_items(closed_form_model(less, data), new_items.tolist())
    records.append({"model": "without them", **recalls(bare, data, new_items)})
    live = LiveModel(bare, data=less)
    for item in new_items.tolist():
        live.update_items(
            {data.items[item]: NewItem(histories=histories(data, item, new_items, args.histories, generator))}
        )
    records.append({"model": f"added with {args.histories} histories each", **recalls(live.model, data, new_items)})
    for record in records:
        new, others = (" ".join(f"{value:.2f}" for value in record[key]) for key in ("new", "others"))
        print(f"{record['model']:32} new {new}   others {others}")
    if args.json:
        args.json.write_text(json.dumps(records) + "\n")


if __name__ == "__main__":
    main()

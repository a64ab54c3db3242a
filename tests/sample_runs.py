"""Runs that were never trained, on data of random events."""

import json

import torch
from sample_logs import write_prepared

import beamtree as bt
from beamtree import TreeModel
from beamtree.data import Events, Ids
from beamtree.scorers import DeepScorer


def make_prepared_run(folder, train, val, test):
    """Prepared data of 60 items and so many users, and an untrained run on them."""
    users = train + val + test
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 30, (users,), generator=generator)
    items = torch.randint(60, (int(lengths.sum()),), generator=generator)
    events = Events(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), items, "test")
    names = [f"item {number}" for number in range(60)], [f"user {number}" for number in range(users)]
    write_prepared(folder / "data", events, *names, train=train, val=val, test=test)
    tree = bt.random_tree(60, seed=1)
    model = TreeModel(
        tree, DeepScorer(tree.num_nodes, scale=1.0), first_level=3, ids=Ids(folder / "data" / "items.txt")
    )
    bt.save_model(model, folder / "run")
    (folder / "run" / "run.json").write_text(json.dumps({"data": str(folder / "data")}))
    return folder

"""From a log to recommendations in Python: strings in, strings out.

python examples/recommend.py
"""

import tempfile
from pathlib import Path

import torch

import beamtree as bt
from beamtree.baselines import popularity
from beamtree.evaluate import leaving_out, measure
from beamtree.ingest.simulate import simulate
from beamtree.train import Schedule, Validation

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    simulate(folder / "market.parquet", users=1500, items=500, events=30_000)  # or a log of your own
    bt.prepare(folder / "market.parquet", folder / "prepared")
    data = bt.load_data(folder / "prepared")

    tree = bt.cluster_tree(data)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes).start_from(tree, data.factors), first_level=4)
    bt.fit(
        model,
        data.train.stretches(),
        bt.otm_mixed(beam_size=30, extra=60),
        epochs=4,
        batch_size=50,
        schedule=Schedule(warm_up=bt.tdm(60)),
        val=Validation(
            data.val, on_check=lambda step, recall: print(f"step {step}: recall {recall:.1%} on validation users")
        ),
    )

    print(bt.evaluate(model, data.test, beam_size=100, m=(10, 50)))
    plain = popularity(data.train.events, data.num_items)
    print("popularity alone:")
    print(measure(leaving_out(plain.retrieve, 50), data.test, m=(10, 50)))

    x, _ = data.test.batch(torch.arange(1))
    items, scores = bt.retrieve(model, x, beam_size=100, m=5)
    history = [data.items[int(item)] for item in x[0] if item != bt.PAD]
    print("newest events of a test user:", ", ".join(history[:5]))
    print("recommended:", ", ".join(data.items[int(item)] for item in items[0]))

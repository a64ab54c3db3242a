"""Show on which level the beam loses each of the most relevant items of one user.

python examples/trace_beam.py
"""

import torch

import beamtree as bt
from beamtree.beam import walk
from beamtree.train import Schedule, constant

data = bt.gaussian(num_items=200, dim=8, bias=-4.0, train=2000, test=50, seed=0)
tree = bt.random_tree(200, seed=0)
model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, dim=8))
bt.fit(model, data.train, bt.otm(beam_size=10), epochs=10, batch_size=100, schedule=Schedule(2e-2, constant))

x = data.test.x[:1]
best = data.eta(x).topk(10)
leaves = tree.leaf_of_item(best.indices)  # [1, 10]
dropped = torch.zeros(10, dtype=torch.int64)
with torch.no_grad():
    for step in walk(model.query(x), beam_size=10):
        in_beam = torch.isin(tree.ancestor(leaves, step.level), step.beam)[0]
        dropped = torch.where(~in_beam & (dropped == 0), step.level, dropped)
for item, eta, level in zip(best.indices[0].tolist(), best.values[0].tolist(), dropped.tolist(), strict=True):
    print(f"item {item:>3}  η = {eta:.3f}  " + (f"lost on level {level} of {tree.height}" if level else "retrieved"))

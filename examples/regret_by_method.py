"""Compare the regret of three methods on the paper's synthetic data, in under a minute.

Lower is better. At m = k = 20 the methods rank as in the paper. At m = 1 that depends on the seed.

python examples/regret_by_method.py
"""

import beamtree as bt
from beamtree.theory import regret
from beamtree.train import Schedule, constant

ROWS = {"TDM": bt.tdm(nodes=40), "OTM": bt.otm(beam_size=20), "OTM-mixed": bt.otm_mixed(beam_size=20, extra=40)}

data = bt.gaussian(num_items=300, dim=8, bias=-4.0, train=3000, test=500, seed=0)
eta = data.eta(data.test.x)  # the true probabilities
for name, method in ROWS.items():
    tree = bt.random_tree(300, seed=0)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, dim=8))
    bt.fit(model, data.train, method, epochs=30, batch_size=100, schedule=Schedule(2e-2, constant))
    items, _ = bt.retrieve(model, data.test.x, beam_size=20, m=20)
    print(f"{name:<10} regret@1 {regret(eta, items, 1).mean():.4f}  regret@20 {regret(eta, items, 20).mean():.4f}")

"""A new method is a row: here, ẑ on the beam's nodes and on the children of positives together.

python examples/your_own_method.py
"""

import beamtree as bt
from beamtree.candidates import beam_candidates, children_of_positives, union
from beamtree.targets import best_child

own = bt.Method("beam-and-children", union(beam_candidates(20), children_of_positives), best_child)

data = bt.gaussian(num_items=200, dim=8, bias=-4.0, train=2000, test=500, seed=0)
for method in (bt.otm(beam_size=20), own):
    tree = bt.random_tree(200, seed=0)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, dim=8))
    bt.fit(model, data.train, method, epochs=12, batch_size=100, lr=1e-2)
    quality = bt.evaluate(model, data.test, beam_size=20, m=(20,))
    print(f"{method.name:<18} recall@20 {quality['recall', 20]:.2%}")

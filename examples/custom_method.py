"""A custom method: ẑ on the nodes of the beam and on the children of positives.

python examples/custom_method.py
"""

from functools import partial

import torch

import beamtree as bt
from beamtree.candidates import Levels, beam_candidates, children_of_positives, union
from beamtree.model import Query
from beamtree.targets import Targets, best_child
from beamtree.train import Schedule, constant


def beam_and_children(query: Query, positives: list[Targets], generator: torch.Generator, *, beam_size: int) -> Levels:
    """S_h: the nodes that the beam visits, and the children of positives."""
    beam = beam_candidates(query, positives, generator, beam_size=beam_size)
    return union(query.tree, beam, children_of_positives(query, positives, generator))


if __name__ == "__main__":
    custom = bt.Method("beam-and-children", partial(beam_and_children, beam_size=20), best_child, uses_beam=True)
    data = bt.gaussian(num_items=200, dim=8, bias=-4.0, train=2000, test=500, seed=0)
    for method in (bt.otm(beam_size=20), custom):
        tree = bt.random_tree(200, seed=0)
        model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, dim=8))
        bt.fit(model, data.train, method, epochs=10, batch_size=100, schedule=Schedule(2e-2, constant))
        quality = bt.evaluate(model, data.test, beam_size=20, m=(20,))
        print(f"{method.name:<18} recall@20 {quality['recall', 20]:.2%}")

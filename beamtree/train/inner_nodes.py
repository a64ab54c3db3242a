"""Training the inner nodes of a sequence part under the beam of the whole sum, while the leaves stay as they are."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.beam import walk
from beamtree.closed_form.calibration import logistic
from beamtree.data import Data
from beamtree.methods import Method
from beamtree.model import TreeModel
from beamtree.parts.sequence import SEQUENCE
from beamtree.scorers import Scorer, SequenceScorer, SumScorer
from beamtree.targets import any_relevant
from beamtree.train.loop import fit
from beamtree.train.schedule import Schedule
from beamtree.tree import PAD, Tree

BATCH = 128
LR, WARM_SHARE = 1e-3, 0.5
USERS = 512  # on whom logits are calibrated


class InnerNodesScorer(Scorer):
    """A sum whose rows of inner nodes in the sequence part are trained.

    On every level σ of the logits estimates p(z_n = 1): the sum is scaled and shifted, by level.

    Args:
        scorer: the sum.
        height: of the tree.
        leaves: whether the leaves and the transformer are trained too.
    """

    scale: Tensor
    bias: Tensor
    reads_items = True

    def __init__(self, scorer: SumScorer, height: int, leaves: bool = False) -> None:
        super().__init__()
        self.sum, self.height, self.leaves = scorer, height, leaves
        part = scorer.part(SEQUENCE)
        assert isinstance(part, SequenceScorer)
        part.table.weight = nn.Parameter(part.table.weight.float())
        part.encoder.requires_grad_(leaves)
        part.frozen = not leaves
        self.register_buffer("scale", torch.ones(height + 1))
        self.register_buffer("bias", torch.zeros(height + 1))

    def context(self, tree: Tree, x: Tensor) -> Any:
        return self.sum.context(tree, x)

    def forward(self, context: Any, level: int, nodes: Tensor) -> Tensor:
        logits: Tensor = self.sum(context, level, nodes)
        logits = logits.detach() if level == self.height and not self.leaves else logits
        return (logits * self.scale[level] + self.bias[level]).masked_fill(nodes == PAD, -torch.inf)

    def settings(self) -> dict[str, Any]:
        return {}

    def check(self, x: Tensor) -> None:
        self.sum.check(x)

    @torch.no_grad()
    def calibrate(self, model: TreeModel, data: Data, beam_size: int) -> None:
        """Choose scale and bias of each level, on the nodes that the beams of training users visit."""
        device = model.tree.device
        rows = torch.arange(min(USERS, len(data)), device=device)
        x, y = data.to(device).batch(rows, torch.Generator(device).manual_seed(0))
        positives, context = any_relevant(model.tree, y), self.sum.context(model.tree, x)
        for step in list(walk(model.query(x), beam_size)):
            scores = self.sum(context, step.level, step.candidates)
            labels, real = positives[step.level].at(step.candidates), scores > -torch.inf
            self.scale[step.level], self.bias[step.level] = logistic(scores[real], labels[real])


def train_inner_nodes(
    model: TreeModel,
    data: Data,
    method: Method,
    *,
    beam_size: int,
    steps: int,
    warm_up: Method | None = None,
    lr: float = LR,
    leaves: bool = False,
    seed: int = 0,
) -> TreeModel:
    """The model with inner nodes that were trained by a method, on the nodes that beams of the whole sum visit.

    Args:
        model: with a sequence part; it stays as it was.
        data: instances, such as `data.train.random_crops()`.
        method: such as `bt.otm(beam_size)`.
        beam_size: k that logits are calibrated with.
        steps: how long.
        warm_up: the method of the first half of the steps.
        lr: learning rate.
        leaves: whether the leaves and the transformer are trained too.
        seed: of everything random.
    """
    assert isinstance(model.scorer, SumScorer)
    scorer = InnerNodesScorer(deepcopy(model.scorer), model.tree.height, leaves).to(model.tree.device)
    trained = model.with_scorer(scorer)
    scorer.calibrate(trained, data, beam_size)
    schedule = Schedule(lr, warm_up=warm_up, warm_share=WARM_SHARE)
    fit(trained, data, method, steps=steps, batch_size=BATCH, schedule=schedule, seed=seed)
    return trained.eval()

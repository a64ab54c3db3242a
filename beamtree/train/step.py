"""One step of Algorithm 1, and on a GPU its recording."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from beamtree.distributed.group import Ranks
from beamtree.distributed.sharded_table import SpreadTable
from beamtree.kernels.cuda_graphs import Recorder
from beamtree.methods import ALONE, Method
from beamtree.model import TreeModel
from beamtree.scorers.table import NodeTable

REHEARSALS = 3  # steps taken one kernel after another before a step is recorded


class Stepper:
    """Takes steps: B̃_h, ẑ and the loss under θ_t, and a move along its gradient.

    A step is hundreds of small kernels that a GPU waits for. Where the shapes of a batch recur, the step is recorded.
    """

    def __init__(self, model: TreeModel, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> None:
        self.model, self.optimizer, self.ranks = model, optimizer, ranks
        self._recorder = Recorder(REHEARSALS)

    def __call__(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of a batch before the step."""
        self.model.chained = method.chained  # p_g is what the method trains it to be

        def step(x: Tensor, y: Tensor) -> tuple[Tensor]:
            loss = method.loss(self.model, x, y, generator, self.ranks)
            self.optimizer.zero_grad()
            loss.backward()
            total = loss.detach() if self.ranks.size == 1 else sum_gradients(self.model, loss.detach(), self.ranks)
            self.optimizer.step()
            return (total,)

        if method.single_target or self.ranks.size > 1:  # as many as there are targets, or rows: shapes do not recur
            return step(x, y)[0]
        (loss,) = self._recorder(method, step, x, y, generator=generator)
        if x.is_cuda:
            for parameter in self.model.parameters():
                increment_version(parameter)  # torch cannot see what a recording writes
        return loss


@torch.no_grad()
def sum_gradients(model: TreeModel, loss: Tensor, ranks: Ranks) -> Tensor:
    """Let every rank have the gradients of the whole batch: of its own rows, and of all that every rank has.

    All but the rows goes in one sum. What comes back is the loss of the whole batch.
    """
    tables = [module for module in model.modules() if isinstance(module, NodeTable)]
    spread = [table for table in tables if isinstance(table, SpreadTable)]
    tops = [table.send_back() for table in spread]
    rows = {id(table.weight) for table in spread}
    dense = [each for each in model.parameters() if each.requires_grad and id(each) not in rows]
    there = loss.new_tensor([each.grad is not None for each in dense])
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in dense]
    parts = [loss.view(1), there, *grads, *tops]
    total = ranks.sum_(torch.cat([part.flatten() for part in parts]))
    loss, there, *sums = (
        part.view(like.shape) for part, like in zip(total.split([part.numel() for part in parts]), parts, strict=True)
    )
    for parameter, grad, found in zip(dense, sums, there.tolist(), strict=False):
        parameter.grad = grad if found else None
    for table, top in zip(spread, sums[len(dense) :], strict=True):
        table.take_sum(top)
    for each in tables:
        if each.touched is not None and not isinstance(each, SpreadTable):
            each.touched = ranks.sum_(each.touched.long()).clamp_(max=1).to(torch.uint8)
    return loss.view(())

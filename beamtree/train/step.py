"""One step of Algorithm 1, and on a GPU its CUDA graph."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from beamtree.kernels.cuda_graphs import CudaGraphCache
from beamtree.methods import Method
from beamtree.model import TreeModel

WARMUP_RUNS = 3  # steps that run one kernel after another before a step is recorded


class Stepper:
    """Takes steps: B̃_h, ẑ and the loss under θ_t, and a move along its gradient.

    A step is hundreds of small kernels that a GPU waits for. Where the shapes of a batch recur, the step is recorded.
    """

    def __init__(self, model: TreeModel, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self._graphs = CudaGraphCache(WARMUP_RUNS)

    def __call__(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of a batch before the step."""

        def step(x: Tensor, y: Tensor) -> tuple[Tensor]:
            return (self.take(method, x, y, generator),)

        if method.single_target or not self.model.scorer.capturable:  # as many rows as targets: shapes do not recur
            return step(x, y)[0]
        (loss,) = self._graphs(method, step, x, y, generator=generator)
        if x.is_cuda:
            for parameter in self.model.parameters():
                increment_version(parameter)  # torch cannot see what a CUDA graph writes
        return loss

    def take(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """One step without a CUDA graph."""
        loss = method.loss(self.model, x, y, generator)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

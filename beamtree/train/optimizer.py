"""Adam, over the whole table as in the paper or on the rows that a step touched."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from beamtree import kernels
from beamtree.model import TreeModel
from beamtree.scorers.table import NodeTable

Optimizer = Callable[[TreeModel, float], torch.optim.Adam]  # (model, lr)


def adam(model: TreeModel, lr: float) -> torch.optim.Adam:
    """The paper's: every parameter moves at every step, a row that was not touched by its momentum alone."""
    return torch.optim.Adam(model.parameters(), **_settings(model, lr))


class NoSteps(torch.optim.Adam):
    """The optimizer of a run without steps: the first real one makes torch import its compiler, which takes seconds."""

    def __init__(self) -> None:
        self.param_groups = []

    def state_dict(self) -> dict[str, Any]:
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """There is nothing to load."""


def lazy(model: TreeModel, lr: float) -> torch.optim.Adam:
    """Adam that passes over rows which a step did not touch: a step's cost does not grow with the tree."""
    return LazyAdam(model, lr)


def _settings(model: TreeModel, lr: float) -> dict[str, Any]:
    """On a GPU the learning rate lies in its memory, so that a recorded step can be run at another."""
    device = model.tree.device
    if device.type != "cuda":
        return {"lr": lr}
    return {"lr": torch.tensor(lr, device=device), "fused": True, "capturable": True}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


class LazyAdam(torch.optim.Adam):
    """Adam for every parameter but the rows of node tables; of these, for the rows that have a gradient.

    A row that is passed over keeps its moments as they are, and its next step is corrected for bias by the number of
    all steps, as in `torch.optim.SparseAdam`. Only tables whose gradients were gathered by `NodeTable.read` have
    rows to pass over.
    """

    def __init__(self, model: TreeModel, lr: float) -> None:
        self._tables = [module for module in model.modules() if isinstance(module, NodeTable)]
        super().__init__(model.parameters(), **_settings(model, lr))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        lazy = [(t, t.weight.grad, t.touched) for t in self._tables if t.weight.grad is not None]
        for table, _, touched in lazy:
            if touched is not None:
                table.weight.grad = None  # not for Adam over the whole table
        super().step(closure)
        for table, grad, touched in lazy:
            if grad is not None and touched is not None:
                self._step_rows(table.weight, grad, touched)
                table.touched = None
                table.reuse_zeros(grad, touched)

    def _step_rows(self, weight: Tensor, grad: Tensor, touched: Tensor) -> None:
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), device=weight.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if kernels.fits(weight):
            from beamtree.kernels import sparse_adam_gpu as on_gpu

            lr = torch.as_tensor(group["lr"], device=weight.device)
            on_gpu.adam(weight, grad, first, second, touched, lr, state["step"], beta1, beta2, group["eps"])
            increment_version(weight)
            return
        rows = touched.nonzero().squeeze(1)
        g = grad[rows]
        m = first[rows].lerp_(g, 1 - beta1)
        v = second[rows].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        first[rows], second[rows] = m, v
        step = state["step"].item()
        by = float(group["lr"]) / (1 - beta1**step)
        weight[rows] -= by * m / (v.sqrt() / (1 - beta2**step) ** 0.5 + group["eps"])
        grad[rows] = 0
        touched[rows] = 0


OPTIMIZERS: dict[str, Optimizer] = {"adam": adam, "lazy": lazy}

"""One step of Algorithm 1, and on a GPU its recording."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from beamtree.methods import Method, whole
from beamtree.model import TreeModel

REHEARSALS = 3  # steps taken one kernel after another before a step is recorded
RECORDINGS = 8  # kept at most


class Stepper:
    """Takes steps: B̃_h, ẑ and the loss under θ_t, and a move along its gradient.

    A step is hundreds of small kernels that a GPU waits for. Where the shapes of a batch recur, the step is recorded as
    a CUDA graph and run again from there: the same kernels on new data, without Python.
    """

    def __init__(self, model: TreeModel, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self._rehearsed: dict[object, int] = {}
        self._recorded: dict[object, _Recording] = {}

    def __call__(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of a batch before the step."""
        self.model.chained = method.chained  # p_g is what the method trains it to be
        if not x.is_cuda or method.instances is not whole:  # other instances: as many as there are targets
            return self._step(method, x, y, generator)
        key = (method.name, tuple(method.options.items()), x.shape, y.shape)
        if key not in self._recorded:
            self._rehearsed[key] = self._rehearsed.get(key, 0) + 1
            if self._rehearsed[key] <= REHEARSALS or len(self._recorded) == RECORDINGS:
                return self._rehearse(method, x, y, generator)
            self._recorded[key] = _Recording(self, method, x, y, generator)
        loss = self._recorded[key].play(x, y)
        for parameter in self.model.parameters():
            increment_version(parameter)  # which torch cannot see
        return loss

    def _step(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        loss = method.loss(self.model, x, y, generator)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _rehearse(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """A step on a stream of its own, as the recorded one will be."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self._step(method, x, y, generator)
        torch.cuda.current_stream().wait_stream(stream)
        return loss


class _Recording:
    def __init__(self, stepper: Stepper, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        self.x, self.y = x.clone(), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        stepper.optimizer.zero_grad()
        with torch.cuda.graph(self.graph):
            self.loss = stepper._step(method, self.x, self.y, generator)

    def play(self, x: Tensor, y: Tensor) -> Tensor:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss.clone()

"""Work on a GPU that is done over and over: recorded once, and run again without Python."""

import threading
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
REMEMBERED = 64  # keys of what is not recorded yet


class Recorder:
    """Runs functions of tensors; where the shapes recur, from a CUDA graph: the same kernels on new data.

    A function must do the same for the same key and shapes, and must not ask the GPU anything. Its first runs are
    rehearsals, in which kernels are compiled and caches filled; then it is recorded, up to `most` times. On a CPU it
    is just run.
    """

    def __init__(self, rehearsals: int, most: int = 8) -> None:
        self.rehearsals, self.most = rehearsals, most
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop all recordings: what they read has moved."""
        self._rehearsed: dict[Hashable, int] = {}
        self._recorded: dict[Hashable, _Recording] = {}

    def __call__(
        self,
        key: Hashable,
        run: Callable[..., Outputs],
        *inputs: Tensor,
        generator: torch.Generator | None = None,
    ) -> Outputs:
        if not inputs[0].is_cuda:
            return run(*inputs)
        key = (key, *(tensor.shape for tensor in inputs))
        with self._lock:  # a recording has one place for its inputs
            if key not in self._recorded:
                if len(self._rehearsed) >= REMEMBERED:  # a key may hold what should be let go
                    self._rehearsed.clear()
                self._rehearsed[key] = self._rehearsed.get(key, 0) + 1
                if self._rehearsed[key] <= self.rehearsals or len(self._recorded) == self.most:
                    return _rehearse(run, *inputs)
                self._recorded[key] = _Recording(run, inputs, generator)
            return self._recorded[key].play(inputs)


def _rehearse(run: Callable[..., Outputs], *inputs: Tensor) -> Outputs:
    """On a stream of its own, as a recording is."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = run(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    return found


class _Recording:
    def __init__(self, run: Callable[..., Outputs], inputs: Outputs, generator: torch.Generator | None) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads go on
            self.outputs = run(*self.inputs)

    def play(self, inputs: Outputs) -> Outputs:
        for place, tensor in zip(self.inputs, inputs, strict=True):
            place.copy_(tensor)
        self.graph.replay()
        return tuple(tensor.clone() for tensor in self.outputs)

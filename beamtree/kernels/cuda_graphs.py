"""CUDA graphs: repeated work on a GPU is recorded once and replayed without Python."""

import threading
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
REMEMBERED = 64  # keys of what is not recorded yet


class Recorder:
    """Runs functions of tensors; repeated shapes run from a CUDA graph: the same kernels on new data.

    A function must launch the same kernels for the same key and shapes, and must not read from the GPU. Its first runs
    compile kernels and fill caches; then it is recorded. At most `most` recordings are kept. On a CPU it is just run.
    """

    def __init__(self, rehearsals: int, most: int = 8) -> None:
        self.rehearsals, self.most = rehearsals, most
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop all recordings: the tensors they read have moved."""
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
        with self._lock:  # a recording has one buffer for each input
            if key not in self._recorded:
                if len(self._rehearsed) >= REMEMBERED:  # keys may hold objects that should be freed
                    self._rehearsed.clear()
                self._rehearsed[key] = self._rehearsed.get(key, 0) + 1
                if self._rehearsed[key] <= self.rehearsals or len(self._recorded) == self.most:
                    return _rehearse(run, *inputs)
                self._recorded[key] = _Recording(run, inputs, generator)
            return self._recorded[key].play(inputs)


def _rehearse(run: Callable[..., Outputs], *inputs: Tensor) -> Outputs:
    """Run on a separate stream, as a recording does."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs = run(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    return outputs


class _Recording:
    def __init__(self, run: Callable[..., Outputs], inputs: Outputs, generator: torch.Generator | None) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may use the GPU
            self.outputs = run(*self.inputs)

    def play(self, inputs: Outputs) -> Outputs:
        for buffer, tensor in zip(self.inputs, inputs, strict=True):
            buffer.copy_(tensor)
        self.graph.replay()
        return tuple(tensor.clone() for tensor in self.outputs)

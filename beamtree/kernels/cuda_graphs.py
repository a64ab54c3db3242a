"""CUDA graphs: repeated work on a GPU is recorded once and replayed without Python."""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Outputs = tuple[Tensor, ...]
WARMUP_RUNS = 16  # of one shape before it is recorded: more than a validation between steps needs
MAX_WARMUPS = 64  # keys whose runs are counted before they are recorded


class CudaGraphCache:
    """Runs functions of tensors; repeated shapes run from a CUDA graph: the same kernels on new data.

    A function must launch the same kernels for the same key and shapes, and must not read from the GPU. Its first runs
    compile kernels and fill caches; then it is recorded. At most `max_graphs` are kept. On a CPU it is just run.
    """

    def __init__(self, warmup_runs: int, max_graphs: int = 8) -> None:
        self.warmup_runs, self.max_graphs = warmup_runs, max_graphs
        self._lock = threading.Lock()
        self._warmups: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _CapturedGraph] = {}

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
        with self._lock:  # a graph has one buffer for each input
            if key not in self._graphs:
                if len(self._warmups) >= MAX_WARMUPS:  # keys may hold objects that should be freed
                    self._warmups.clear()
                self._warmups[key] = self._warmups.get(key, 0) + 1
                if self._warmups[key] <= self.warmup_runs or len(self._graphs) == self.max_graphs:
                    return _warm_up(run, *inputs)
                self._graphs[key] = _CapturedGraph(run, inputs, generator)
            return self._graphs[key].replay(inputs)


def _warm_up(run: Callable[..., Outputs], *inputs: Tensor) -> Outputs:
    """Run on a separate stream, as a capture does."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs = run(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    return outputs


class _CapturedGraph:
    def __init__(self, run: Callable[..., Outputs], inputs: Outputs, generator: torch.Generator | None) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may use the GPU
            self.outputs = run(*self.inputs)

    def replay(self, inputs: Outputs) -> Outputs:
        for buffer, tensor in zip(self.inputs, inputs, strict=True):
            buffer.copy_(tensor)
        self.graph.replay()
        return tuple(tensor.clone() for tensor in self.outputs)


def beside(device: torch.device, functions: Sequence[Callable[[], T]]) -> list[T]:
    """The results of functions that do not depend on each other: on streams of their own where a graph is recorded.

    Elsewhere one after another: without a graph, Python is slower than the GPU.
    """
    if len(functions) < 2 or device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return [function() for function in functions]
    current, streams = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in functions[1:]]
    for stream in streams:
        stream.wait_stream(current)
    results = []
    for stream, function in zip([current, *streams], functions, strict=True):
        with torch.cuda.stream(stream):
            results.append(function())
    for stream in streams:
        current.wait_stream(stream)
    return results

"""PyTorch as a contender: the same ops with the same weights, both memory formats, eager and as a CUDA graph.

Strict float32: no TF32. cuDNN may try its algorithms (cudnn.benchmark). The ops are those of the simplified graph, with
batch normalisation already folded and ReLU in place, so torch has no work that we have not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from vgg16gpu.bench.peers import PeerError, Setting
from vgg16gpu.bench.timing import Contender, Method, wall
from vgg16gpu.graph import Array, BatchNorm, Conv, Flatten, Gemm, Graph, Identity, Op, Pads, Pool, Relu, Softmax

Tensor: TypeAlias = Any
Layer: TypeAlias = Callable[[Tensor], Tensor]

_FORMATS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
_WARM_UP = 5  # runs before a capture: cuDNN tries its algorithms in the first ones


class TorchPeer:
    """The graph's ops in torch, on the GPU of the setting, or on the CPU with as many threads as ours."""

    notes: Sequence[str] = ()

    def __init__(self, setting: Setting) -> None:
        if setting.kind == "cuda" and not torch.cuda.is_available():
            raise PeerError("torch is installed without CUDA, or does not see the GPU: not compared")
        self._device = torch.device("cpu" if setting.kind == "cpu" else f"cuda:{setting.ordinal}")
        self._restore = _strict_float32(setting.threads if setting.kind == "cpu" else None)
        shared: dict[int, Tensor] = {}
        self._nets = {
            name: _network(setting.graph, self._device, format_, shared) for name, format_ in _FORMATS.items()
        }

    @contextmanager
    def contenders(self, x: Array) -> Iterator[Sequence[Contender]]:
        """NCHW and channels_last; on a GPU both eager and as a CUDA graph."""
        nets = {name: net for name, net in self._nets.items() if x.ndim == 4 or name == "NCHW"}
        found: list[Contender] = []
        for name, net in nets.items():
            if self._device.type == "cpu":
                found.append(_CpuContender(net, x, name))
            else:
                found += [_CudaContender(net, x, name, self._device, how) for how in ("eager", "CUDA graph")]
        try:
            yield found
        finally:
            found.clear()

    def close(self) -> None:
        """Free the weights and set torch's switches back."""
        self._nets.clear()
        self._restore()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


class _CpuContender:
    """On the CPU a run takes what a call takes: one method."""

    name = "torch"
    methods: Sequence[Method] = (Method.HOST_TO_HOST,)

    def __init__(self, net: Layer, x: Array, memory_format: str) -> None:
        self.variant = f"{memory_format}, eager, {torch.get_num_threads()} threads"
        self._net, self._x, self._format = net, x, _FORMATS[memory_format]

    def scores(self) -> Array:
        """The first output."""
        with torch.inference_mode():
            x = torch.from_numpy(self._x)
            return np.asarray(self._net(x.to(memory_format=self._format) if x.ndim == 4 else x).numpy())

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run."""
        del method
        return [wall(self.scores) for _ in range(runs)]


class _CudaContender:
    """On the GPU: input in place, output in place; copies through pinned memory, as ours."""

    name = "torch"
    methods: Sequence[Method] = tuple(Method)

    def __init__(self, net: Layer, x: Array, memory_format: str, device: Any, how: str) -> None:
        self.variant = f"{memory_format}, {how}, no TF32"
        self._x = x
        self._device = device
        with torch.inference_mode(), torch.cuda.device(device):
            self._pinned = torch.from_numpy(x).pin_memory()
            self._inp = self._pinned.to(device)
            if x.ndim == 4:
                self._inp = self._inp.to(memory_format=_FORMATS[memory_format])
            self._run, self._out = _eager(net, self._inp) if how == "eager" else _captured(net, self._inp)
            self._pinned_out = torch.empty(self._out().shape, pin_memory=True)

    def scores(self) -> Array:
        """The first output, by way of the host."""
        with torch.inference_mode(), torch.cuda.device(self._device):
            self._pinned.copy_(torch.from_numpy(self._x))
            self._inp.copy_(self._pinned, non_blocking=True)
            self._run()
            self._pinned_out.copy_(self._out(), non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return np.array(self._pinned_out.numpy())

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run, between events but for host to host."""
        with torch.inference_mode(), torch.cuda.device(self._device):
            match method:
                case Method.ISOLATED:
                    return [self._events(1) for _ in range(runs)]
                case Method.BACK_TO_BACK:
                    return [self._events(runs) / runs]
                case Method.HOST_TO_HOST:
                    return [wall(self.scores) for _ in range(runs)]

    def _events(self, times: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            self._run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3


def _eager(net: Layer, inp: Tensor) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """(run, output): the ops one after the other."""
    last: list[Tensor] = []

    def run() -> None:
        last[:] = [net(inp)]

    for _ in range(_WARM_UP):
        run()
    return run, lambda: last[0]


def _captured(net: Layer, inp: Tensor) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """(run, output): the ops as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            net(inp)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = net(inp)
    graph.replay()
    return graph.replay, lambda: out


def _network(graph: Graph, device: Any, memory_format: Any, shared: dict[int, Tensor]) -> Layer:
    """The whole graph as a function. `shared` keeps tensors that do not depend on the memory format."""

    def tensor(array: Array | None, *, formatted: bool = False) -> Tensor:
        if array is None:
            return None
        if not formatted or memory_format is torch.contiguous_format:
            if id(array) not in shared:
                shared[id(array)] = _tensor(array).to(device)
            return shared[id(array)]
        return _tensor(array).to(device).to(memory_format=memory_format)

    with torch.inference_mode():
        layers = [(op, _layer(op, tensor)) for op in graph.ops]

    def run(x: Tensor) -> Tensor:
        values = {graph.input.name: x}
        for op, layer in layers:
            values[op.y] = layer(values[op.x])
        return values[graph.outputs[0]]

    return run


def _tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nobody writes
        return torch.from_numpy(np.ascontiguousarray(array))


def _layer(op: Op, tensor: Callable[..., Tensor]) -> Layer:
    match op:
        case Conv():
            return partial(_conv, op, tensor(op.weight, formatted=True), tensor(op.bias))
        case Pool():
            return partial(_pool, op)
        case Gemm():
            return partial(_gemm, op, tensor(op.weight), tensor(op.bias))
        case BatchNorm():
            mean, variance, scale, shift = (tensor(array) for array in (op.mean, op.variance, op.scale, op.shift))
            return lambda x: functional.batch_norm(x, mean, variance, scale, shift, eps=op.epsilon)
        case Relu():
            return partial(functional.relu)
        case Flatten():
            return partial(torch.flatten, start_dim=1)
        case Softmax():
            return partial(torch.softmax, dim=-1)
        case Identity():
            return lambda x: x
        case _:
            raise PeerError(f"torch: no equivalent of {type(op).__name__} '{op.y}' is known: not compared")


def _conv(op: Conv, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    x, padding = _padded(x, op.window.pads, 0.0)
    y = functional.conv2d(x, weight, bias, op.window.strides, padding)
    if op.relu:
        y = y.relu_()
    return functional.max_pool2d(y, 2) if op.pool else y


def _pool(op: Pool, x: Tensor) -> Tensor:
    window = op.window
    if op.kind == "max":
        x, padding = _padded(x, window.pads, -torch.inf)
        return functional.max_pool2d(x, window.kernel, window.strides, padding)
    if window.pads[:2] != window.pads[2:]:
        raise PeerError(f"torch: average pool '{op.y}' has unequal padding {tuple(window.pads)}: not compared")
    counted = op.count_include_pad
    return functional.avg_pool2d(x, window.kernel, window.strides, window.pads[:2], count_include_pad=counted)


def _gemm(op: Gemm, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    y = functional.linear(
        torch.flatten(x, 1) if op.flattens else x, weight, bias
    )  # flatten gives ONNX order in both formats
    return y.relu_() if op.relu else y


def _padded(x: Tensor, pads: Pads, value: float) -> tuple[Tensor, tuple[int, int]]:
    """The map, and the padding that is left to the op: all of it where it is the same on both sides."""
    if pads[:2] == pads[2:]:
        return x, (pads.top, pads.left)
    return functional.pad(x, (pads.left, pads.right, pads.top, pads.bottom), value=value), (0, 0)


def _strict_float32(threads: int | None) -> Callable[[], None]:
    """Set torch's switches; a function that sets them back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, torch.get_num_threads()
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    cudnn.benchmark = True
    torch.set_num_threads(threads or before[3])

    def restore() -> None:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before[:3]
        torch.set_num_threads(before[3])

    return restore

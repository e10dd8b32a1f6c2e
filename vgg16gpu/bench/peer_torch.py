"""PyTorch as a contender: both memory formats, eager and as a CUDA graph, on request compiled with max-autotune.

fp32 is strict: no TF32. cuDNN may try its algorithms (cudnn.benchmark). fp16 and bf16: weights and input are cast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from vgg16gpu.bench.peers import PeerError, Setting
from vgg16gpu.bench.timing import Contender, Method, wall
from vgg16gpu.bench.torch_net import module, tensor
from vgg16gpu.graph import Array

Tensor: TypeAlias = Any
Net: TypeAlias = Callable[[Tensor], Tensor]
Run: TypeAlias = Callable[[], object]
Output: TypeAlias = Callable[[], Tensor]

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_FORMATS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
_WARM_UP = 5  # runs before a capture: cuDNN tries its algorithms in the first ones
_MODE = "max-autotune"


class TorchPeer:
    """The graph's ops in torch, on the GPU of the setting, or on the CPU with as many threads as ours."""

    notes: Sequence[str] = ()

    def __init__(self, setting: Setting) -> None:
        self._device = torch_device(setting)
        self._setting = setting
        self._type = TYPES[setting.precision]
        self._restore = _switches(setting.threads if setting.kind == "cpu" else None)
        shared: dict[int, Tensor] = {}
        self._nets = {name: self._network(format_, shared) for name, format_ in _FORMATS.items()}

    @contextmanager
    def contenders(self, x: Array) -> Iterator[Sequence[Contender]]:
        """NCHW and channels_last; on a GPU eager, as a CUDA graph and, if asked for, compiled."""
        x = np.ascontiguousarray(self._setting.graph.input.from_file(x))
        nets = {name: net for name, net in self._nets.items() if x.ndim == 4 or name == "NCHW"}
        found: list[Contender] = []
        if self._device.type == "cpu":
            found += [_CpuContender(net, x, name, self._type) for name, net in nets.items()]
        else:
            ways = [*_WAYS, *([_MODE] if self._setting.compiled else [])]
            found += [self._on_gpu(name, net, x, way) for (name, net), way in itertools.product(nets.items(), ways)]
        try:
            yield found
        finally:
            found.clear()
            if self._setting.compiled:
                torch._dynamo.reset()

    def close(self) -> None:
        """Free the weights and set torch's switches back."""
        self._nets.clear()
        self._restore()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _network(self, memory_format: Any, shared: dict[int, Tensor]) -> Net:
        """The model. `shared` keeps tensors that do not depend on the memory format."""

        def make(array: Array) -> Tensor:
            if array.ndim == 4 and memory_format is not torch.contiguous_format:
                return tensor(array).to(self._device, self._type).to(memory_format=memory_format)
            if id(array) not in shared:
                shared[id(array)] = tensor(array).to(self._device, self._type)
            return shared[id(array)]

        with torch.no_grad():
            net: Net = module(self._setting.graph, make)
        return net

    def _on_gpu(self, name: str, net: Net, x: Array, way: str) -> Contender:
        with torch.inference_mode(), torch.cuda.device(self._device):
            inp = torch.from_numpy(x).to(self._device, self._type)
            if x.ndim == 4:
                inp = inp.to(memory_format=_FORMATS[name])
            run, out = _WAYS.get(way, _compiled)(net, inp)
        strict = ", no TF32" if self._setting.precision == "fp32" else ""
        return TensorContender("torch", f"{name}, {way}{strict}", x, inp, run, out)


class _CpuContender:
    """On the CPU a run takes what a call takes: one method."""

    name = "torch"
    methods: Sequence[Method] = (Method.HOST_TO_HOST,)
    unchecked = ""

    def __init__(self, net: Net, x: Array, memory_format: str, type_: Any) -> None:
        self.variant = f"{memory_format}, eager, {torch.get_num_threads()} threads"
        self._net, self._x, self._format, self._type = net, x, _FORMATS[memory_format], type_

    def scores(self) -> Array:
        """The first output."""
        with torch.inference_mode():
            x = torch.from_numpy(self._x).to(self._type)
            return np.asarray(self._net(x.to(memory_format=self._format) if x.ndim == 4 else x).float().numpy())

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run."""
        del method
        return [wall(self.scores) for _ in range(runs)]


class TensorContender:
    """On the GPU: `run` computes from the tensor `inp` what `out()` then is; copies through pinned memory, as ours.

    `keeps` is what must live as long as `run`.
    """

    methods: Sequence[Method] = tuple(Method)
    unchecked = ""

    def __init__(
        self, name: str, variant: str, x: Array, inp: Tensor, run: Run, out: Output, keeps: object = None
    ) -> None:
        self.name, self.variant, self._keeps = name, variant, keeps
        self._x, self._inp, self._run, self._out = x, inp, run, out
        self._pinned = torch.from_numpy(x).pin_memory()
        self._pinned_out = torch.empty(out().shape, pin_memory=True)

    def scores(self) -> Array:
        """The first output, by way of the host."""
        with torch.inference_mode(), torch.cuda.device(self._inp.device):
            self._pinned.copy_(torch.from_numpy(self._x))
            self._inp.copy_(self._pinned, non_blocking=True)
            self._run()
            self._pinned_out.copy_(self._out(), non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return np.array(self._pinned_out.numpy())

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run, between events but for host to host."""
        with torch.inference_mode(), torch.cuda.device(self._inp.device):
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


def torch_device(setting: Setting) -> Any:
    """Where the setting wants torch. Raises PeerError when torch has no GPU there."""
    if setting.kind == "cuda" and not torch.cuda.is_available():
        raise PeerError("torch is installed without CUDA, or does not see the GPU: not compared")
    return torch.device("cpu" if setting.kind == "cpu" else f"cuda:{setting.ordinal}")


def captured(net: Net, inp: Tensor) -> tuple[Run, Output]:
    """(run, output): what `net` does with `inp` as one CUDA graph."""
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


def _eager(net: Net, inp: Tensor) -> tuple[Run, Output]:
    """(run, output): the ops one after the other."""
    last: list[Tensor] = []

    def run() -> None:
        last[:] = [net(inp)]

    for _ in range(_WARM_UP):
        run()
    return run, lambda: last[0]


def _compiled(net: Net, inp: Tensor) -> tuple[Run, Output]:
    """(run, output): torch.compile, which tunes its own kernels and captures a graph of them; takes minutes."""
    return _eager(torch.compile(net, mode=_MODE, dynamic=False), inp)


_WAYS: Mapping[str, Callable[[Net, Tensor], tuple[Run, Output]]] = {"eager": _eager, "CUDA graph": captured}


def _switches(threads: int | None) -> Callable[[], None]:
    """Set torch's switches: no TF32, cuDNN tries its algorithms; a function that sets them back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, torch.get_num_threads()
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    cudnn.benchmark = True
    torch.set_num_threads(threads or before[3])

    def restore() -> None:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before[:3]
        torch.set_num_threads(before[3])

    return restore

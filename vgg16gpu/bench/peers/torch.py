"""PyTorch as a contender: both memory formats, eager and as a CUDA graph, on request compiled with max-autotune.

fp32 is strict and, where the card has it, TF32 in convolutions (torch's default) and matrix products (its default is
float32 there). cuDNN may try its algorithms (cudnn.benchmark). fp16 and bf16: weights and input are cast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from vgg16gpu.bench.measure.timing import Contender, Method, wall
from vgg16gpu.bench.peers.base import PeerError, RunMethod, Setting
from vgg16gpu.bench.peers.torch_net import module, tensor
from vgg16gpu.compiler.graph.ops import Array

Tensor: TypeAlias = Any
Net: TypeAlias = Callable[[Tensor], Tensor]
Run: TypeAlias = Callable[[], object]
Output: TypeAlias = Callable[[], Tensor]
Runner: TypeAlias = Callable[[Net, Tensor], tuple[Run, Output]]

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
        torch.backends.cudnn.benchmark = True
        if setting.kind == "cpu":
            torch.set_num_threads(setting.threads)
        shared: dict[int, Tensor] = {}
        self._nets = {name: self._network(format_, shared) for name, format_ in _FORMATS.items()}

    def ways(self, x: Array) -> Sequence[RunMethod]:
        """Return NCHW and channels_last; on a GPU eager, CUDA graph and, if asked for, compiled; by arithmetic."""
        x = np.ascontiguousarray(self._setting.graph.input.from_file(x))
        formats = [name for name in self._nets if x.ndim == 4 or name == "NCHW"]
        if self._device.type == "cpu":
            return [
                RunMethod(name, partial(_TorchCpuContender, self._nets[name], x, name, self._type)) for name in formats
            ]
        pool = torch.cuda.graph_pool_handle()  # one for all graphs: no two of them run at once
        runners: dict[str, Runner] = {
            "eager": _eager,
            "CUDA graph": partial(captured, pool=pool),
            **({_MODE: _compiled} if self._setting.compiled else {}),
        }
        arithmetics = (False, True) if self._setting.tf32 else (False,)
        return [
            RunMethod(
                variant := self._variant(name, runner, tf32),
                partial(self._on_gpu, name, x, runners[runner], variant, tf32),
            )
            for tf32, name, runner in itertools.product(arithmetics, formats, runners)
        ]

    def release(self) -> None:
        """Free cached memory of the card: the others need it."""
        if self._setting.compiled:
            torch._dynamo.reset()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Free the weights."""
        self._nets.clear()
        self.release()

    def _network(self, memory_format: Any, shared: dict[int, Tensor]) -> Net:
        """Build the model. `shared` keeps tensors that do not depend on the memory format."""

        def make(array: Array) -> Tensor:
            if array.ndim == 4 and memory_format is not torch.contiguous_format:
                return tensor(array).to(self._device, self._type).to(memory_format=memory_format)
            if id(array) not in shared:
                shared[id(array)] = tensor(array).to(self._device, self._type)
            return shared[id(array)]

        with torch.no_grad():
            net: Net = module(self._setting.graph, make)
        return net

    def _variant(self, name: str, runner: str, tf32: bool) -> str:
        strict = ", no TF32" if self._setting.precision == "fp32" else ""
        return f"{name}, {runner}{', TF32' if tf32 else strict}"

    def _on_gpu(self, name: str, x: Array, runner: Runner, variant: str, tf32: bool) -> Contender:
        with torch.inference_mode(), torch.cuda.device(self._device), arithmetic(tf32=tf32):
            inp = torch.from_numpy(x).to(self._device, self._type)
            if x.ndim == 4:
                inp = inp.to(memory_format=_FORMATS[name])
            run, out = runner(self._nets[name], inp)
        torch.cuda.empty_cache()  # of the algorithms that cuDNN has tried: the others need it
        return TensorContender("torch", variant, x, inp, run, out, tf32=tf32)


class _TorchCpuContender:
    """On the CPU a run takes what a call takes: one method."""

    name = "torch"
    methods: Sequence[Method] = (Method.HOST_TO_HOST,)
    unchecked = ""
    tf32 = False

    def __init__(self, net: Net, x: Array, memory_format: str, type_: Any) -> None:
        self.variant = f"{memory_format}, eager, {torch.get_num_threads()} threads"
        self._net, self._x, self._format, self._type = net, x, _FORMATS[memory_format], type_

    def scores(self) -> Array:
        """Compute the first output."""
        with torch.inference_mode():
            x = torch.from_numpy(self._x).to(self._type)
            return np.asarray(self._net(x.to(memory_format=self._format) if x.ndim == 4 else x).float().numpy())

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return the seconds of each run."""
        del method
        return [wall(self.scores) for _ in range(runs)]


class TensorContender:
    """On the GPU: `run` computes from the tensor `inp` what `out()` then is; copies through pinned memory, as ours.

    `keeps` is what must live as long as `run`.
    """

    methods: Sequence[Method] = tuple(Method)
    unchecked = ""

    def __init__(
        self,
        name: str,
        variant: str,
        x: Array,
        inp: Tensor,
        run: Run,
        out: Output,
        *,
        tf32: bool = False,
        keeps: object = None,
    ) -> None:
        self.name, self.variant, self.tf32, self._keeps = name, variant, tf32, keeps
        self._x, self._inp, self._run, self._out = x, inp, run, out
        self._pinned = torch.from_numpy(x).pin_memory()
        self._pinned_out = torch.empty(out().shape, pin_memory=True)

    def scores(self) -> Array:
        """Compute the first output, from host to host."""
        with torch.inference_mode(), torch.cuda.device(self._inp.device), arithmetic(tf32=self.tf32):
            self._pinned.copy_(torch.from_numpy(self._x))
            self._inp.copy_(self._pinned, non_blocking=True)
            self._run()
            self._pinned_out.copy_(self._out(), non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return np.array(self._pinned_out.numpy())

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return seconds of each run, between events but for host to host."""
        with torch.inference_mode(), torch.cuda.device(self._inp.device), arithmetic(tf32=self.tf32):
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
    """Return the setting's torch device. Raises PeerError when torch has no GPU there."""
    if setting.kind == "cuda" and not torch.cuda.is_available():
        raise PeerError("torch is installed without CUDA, or does not see the GPU: not compared")
    return torch.device("cpu" if setting.kind == "cpu" else f"cuda:{setting.ordinal}")


@contextmanager
def arithmetic(*, tf32: bool) -> Iterator[None]:
    """Allow TF32 in float32 convolutions and matrix products inside the block, or not; outside of it, never."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        matmul.allow_tf32 = cudnn.allow_tf32 = False


def captured(net: Net, inp: Tensor, pool: Any = None) -> tuple[Run, Output]:
    """Return (run, output): `net` of `inp` as one CUDA graph, with memory from `pool`, if there is one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            net(inp)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = net(inp)
    graph.replay()
    return graph.replay, lambda: out


def _eager(net: Net, inp: Tensor) -> tuple[Run, Output]:
    """Return (run, output): the ops one after the other."""
    last: list[Tensor] = []

    def run() -> None:
        last[:] = [net(inp)]

    for _ in range(_WARM_UP):
        run()
    return run, lambda: last[0]


def _compiled(net: Net, inp: Tensor) -> tuple[Run, Output]:
    """Return (run, output): torch.compile, which tunes its own kernels and captures them in a graph, in minutes."""
    return _eager(torch.compile(net, mode=_MODE, dynamic=False), inp)

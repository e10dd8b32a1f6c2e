"""onnxruntime as a contender: its CPU provider, and its CUDA provider where there is one, that in fp16 too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from vgg16gpu.bench.peers import PeerError, Setting
from vgg16gpu.bench.timing import Contender, Method, wall
from vgg16gpu.errors import ModelError
from vgg16gpu.graph import Array
from vgg16gpu.onnxruntime_session import open_session

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class OnnxruntimePeer:
    """The model file itself in onnxruntime; on the cpu device with as many threads as ours, else with its default."""

    notes: Sequence[str] = ()

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._half = setting.precision == "fp16"
        self._has_cuda = setting.kind == "cuda" and _CUDA in onnxruntime.get_available_providers()
        if self._half and not self._has_cuda:
            raise PeerError("onnxruntime has no CUDA provider here (pip install onnxruntime-gpu): no fp16 compared")
        if setting.kind == "cuda" and not self._has_cuda:
            self.notes = [
                "onnxruntime has no CUDA provider here (pip install onnxruntime-gpu): its CPU provider is compared"
            ]
        self._source: Path | bytes = half_model(setting.path) if self._half else setting.path
        self._cpu = None if self._half else self._session(_CPU, {})

    @contextmanager
    def contenders(self, x: Array) -> Iterator[Sequence[Contender]]:
        """CPU in fp32; on a GPU also NCHW and NHWC, launched one by one and as a CUDA graph."""
        found: list[Contender] = [] if self._cpu is None else [_CpuContender(self._cpu, x)]
        if self._has_cuda:
            found += [
                _CudaContender(self._cuda_session(nhwc, graph), x, self._variant(nhwc, graph), self._setting.ordinal)
                for nhwc, graph in itertools.product((False, True), repeat=2)
            ]
        try:
            yield found
        finally:
            found.clear()

    def close(self) -> None:
        """Free the session."""
        self._cpu, self._source = None, b""

    def _variant(self, nhwc: bool, graph: bool) -> str:
        strict = "" if self._half else ", no TF32"
        return f"CUDA provider, {'NHWC' if nhwc else 'NCHW'}, {'CUDA graph' if graph else 'no graph'}{strict}"

    def _cuda_session(self, nhwc: bool, graph: bool) -> Any:
        settings = {
            "device_id": str(self._setting.ordinal),
            "use_tf32": "0",
            "prefer_nhwc": str(int(nhwc)),
            "enable_cuda_graph": str(int(graph)),
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
        }
        return self._session(_CUDA, settings)

    def _session(self, provider: str, settings: dict[str, str]) -> Any:
        threads = self._setting.threads if self._setting.kind == "cpu" else None
        try:
            session = open_session(self._source, provider=provider, settings=settings, threads=threads)
        except ModelError as error:
            raise PeerError(str(error)) from error
        if provider not in session.get_providers():
            raise PeerError(f"onnxruntime does not start its {provider}: not compared")
        return session


def half_model(path: Path) -> bytes:
    """The model file with weights, input and outputs in float16, by onnxruntime's own converter."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - slow, seldom needed

    return bytes(convert_float_to_float16(onnx.load(path), disable_shape_infer=True).SerializeToString())


class _CpuContender:
    """session.run with numpy arrays."""

    name = "onnxruntime"
    variant = "CPU provider"
    methods: Sequence[Method] = (Method.HOST_TO_HOST,)
    unchecked = ""

    def __init__(self, session: Any, x: Array) -> None:
        self._session = session
        self._feed = {session.get_inputs()[0].name: x}
        self._outputs = [session.get_outputs()[0].name]

    def scores(self) -> Array:
        """The first output."""
        return np.asarray(self._session.run(self._outputs, self._feed)[0])

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run."""
        del method
        return [wall(self.scores) for _ in range(runs)]


class _CudaContender:
    """Input and output bound on the device. Its calls wait for the GPU, so there is no running back to back."""

    name = "onnxruntime"
    methods: Sequence[Method] = (Method.ISOLATED, Method.HOST_TO_HOST)
    unchecked = ""

    def __init__(self, session: Any, x: Array, variant: str, ordinal: int) -> None:
        self.variant = variant
        self._session = session
        inp, out = session.get_inputs()[0], session.get_outputs()[0]
        type_ = np.float16 if inp.type == "tensor(float16)" else np.float32
        self._x = x.astype(type_, copy=False)
        self._binding = session.io_binding()
        self._inp = onnxruntime.OrtValue.ortvalue_from_numpy(self._x, "cuda", ordinal)
        self._binding.bind_ortvalue_input(inp.name, self._inp)
        self._out = onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(x), *out.shape[1:]], type_, "cuda", ordinal)
        self._binding.bind_ortvalue_output(out.name, self._out)

    def scores(self) -> Array:
        """The first output, by way of the host."""
        self._inp.update_inplace(self._x)
        self._run()
        return np.asarray(self._out.numpy(), np.float32)

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run, wall clock."""
        return [wall(self._run if method is Method.ISOLATED else self.scores) for _ in range(runs)]

    def _run(self) -> None:
        self._session.run_with_iobinding(self._binding)

"""onnxruntime as a contender: its CUDA provider in fp32, TF32 and fp16, and where there is none its CPU provider.

`pip install onnxruntime-gpu`, in place of onnxruntime, has both providers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from vgg16gpu.bench.measure.timing import Method, wall
from vgg16gpu.bench.peers.base import PeerError, RunMethod, Setting
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import ModelError

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_GRAPH_KEY, _NO_GRAPH = "gpu_graph_id", "-1"  # of a run: which captured graph is replayed
_NEEDS = ", which needs CUDA and cuDNN (pip install 'onnxruntime-gpu[cuda,cudnn]' brings them)"
_LACKS_CUDA = "onnxruntime has no CUDA provider here (pip install onnxruntime-gpu in place of onnxruntime)"


@dataclass(frozen=True)
class _Form:
    """What a session of the CUDA provider is made for."""

    nhwc: bool
    tf32: bool
    captures: bool = True  # CUDA graphs: not of a model that needs the CPU in between


class OnnxruntimePeer:
    """The model file itself in onnxruntime; on the cpu device with as many threads as ours, else with its default.

    Sessions live as long as the peer: a batch size more costs no other copy of the weights.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._half = setting.precision == "fp16"
        self._has_cuda = setting.kind == "cuda" and _CUDA in onnxruntime.get_available_providers()
        if self._half and not self._has_cuda:
            raise PeerError(f"{_LACKS_CUDA}: no fp16 compared")
        lacks = setting.kind == "cuda" and not self._has_cuda
        self.notes: Sequence[str] = (f"{_LACKS_CUDA}: its CPU provider is compared",) if lacks else ()
        if self._has_cuda:
            _preload()
        self._source: Path | bytes = half_model(setting.path) if self._half else setting.path
        self._session = cache(self._open)
        if self._has_cuda:
            self._gpu_session(_Form(nhwc=False, tf32=False), graph=False)  # refused now rather than at every batch size

    def ways(self, x: Array) -> Sequence[RunMethod]:
        """Return, on a GPU, NCHW and NHWC, launched one by one and as a CUDA graph, by arithmetic; else the CPU."""
        if not self._has_cuda:
            return [RunMethod("CPU provider", lambda: _OnnxruntimeCpuContender(self._session(None), x))]
        arithmetics = (False, True) if self._setting.tf32 else (False,)
        forms = [_Form(nhwc, tf32) for tf32, nhwc in itertools.product(arithmetics, (False, True))]
        return [self._way(form, graph, x) for form, graph in itertools.product(forms, (False, True))]

    def release(self) -> None:
        """Do nothing: the sessions stay."""

    def close(self) -> None:
        """Free the sessions."""
        self._session.cache_clear()
        self._source = b""

    def _way(self, form: _Form, graph: bool, x: Array) -> RunMethod:
        strict = "" if self._half else ", no TF32"
        layout, launched = "NHWC" if form.nhwc else "NCHW", "CUDA graph" if graph else "no graph"
        variant = f"CUDA provider, {layout}, {launched}{', TF32' if form.tf32 else strict}"
        return RunMethod(variant, partial(self._on_gpu, form, graph, x, variant))

    def _on_gpu(self, form: _Form, graph: bool, x: Array, variant: str) -> _CudaContender:
        session = self._gpu_session(form, graph=graph)
        return _CudaContender(session, x, variant, form.tf32, graph, self._setting.ordinal)

    def _gpu_session(self, form: _Form, *, graph: bool) -> Any:
        """Return one session for both ways to launch where the model can be captured. Raises PeerError."""
        try:
            return self._session(form)
        except PeerError:
            if graph:
                raise
            return self._session(replace(form, captures=False))

    def _open(self, form: _Form | None) -> Any:
        """Open a session of the CUDA provider; of the CPU provider without a form. Raises PeerError."""
        provider, settings = (_CPU, {}) if form is None else (_CUDA, self._cuda_settings(form))
        threads = self._setting.threads if self._setting.kind == "cpu" else None
        try:
            session = open_session(self._source, provider=provider, settings=settings, threads=threads)
        except ModelError as error:
            raise PeerError(str(error)) from error
        if provider not in session.get_providers():
            raise PeerError(f"onnxruntime does not start its {provider}{'' if form is None else _NEEDS}")
        return session

    def _cuda_settings(self, form: _Form) -> Mapping[str, str]:
        return {
            "device_id": str(self._setting.ordinal),
            "use_tf32": str(int(form.tf32)),
            "prefer_nhwc": str(int(form.nhwc)),
            "enable_cuda_graph": str(int(form.captures)),  # each run says whether it is one
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
            "arena_extend_strategy": "kSameAsRequested",  # there are four sessions, and the others need memory too
        }


def half_model(path: Path) -> bytes:
    """Convert weights, input and outputs to float16, by onnxruntime's own converter; return the file's bytes."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - slow, seldom needed

    return bytes(convert_float_to_float16(onnx.load(path), disable_shape_infer=True).SerializeToString())


def _preload() -> None:
    """Load CUDA and cuDNN from Python packages, where they are; onnxruntime prints what it does not find."""
    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        onnxruntime.preload_dlls()


class _OnnxruntimeCpuContender:
    """session.run with numpy arrays."""

    name = "onnxruntime"
    variant = "CPU provider"
    methods: Sequence[Method] = (Method.HOST_TO_HOST,)
    unchecked = ""
    tf32 = False

    def __init__(self, session: Any, x: Array) -> None:
        self._session = session
        self._feed = {session.get_inputs()[0].name: x}
        self._outputs = [session.get_outputs()[0].name]

    def scores(self) -> Array:
        """Compute the first output."""
        return np.asarray(self._session.run(self._outputs, self._feed)[0])

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return the seconds of each run."""
        del method
        return [wall(self.scores) for _ in range(runs)]


class _CudaContender:
    """Input and output bound on the device. Each of its calls waits for the GPU, also back to back."""

    name = "onnxruntime"
    methods: Sequence[Method] = (Method.BACK_TO_BACK, Method.HOST_TO_HOST)
    unchecked = ""

    def __init__(self, session: Any, x: Array, variant: str, tf32: bool, graph: bool, ordinal: int) -> None:
        self.variant, self.tf32 = variant, tf32
        self._session = session
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry(_GRAPH_KEY, str(len(x)) if graph else _NO_GRAPH)
        inp, out = session.get_inputs()[0], session.get_outputs()[0]
        type_ = np.float16 if inp.type == "tensor(float16)" else np.float32
        self._x = x.astype(type_, copy=False)
        self._binding = session.io_binding()
        self._inp = onnxruntime.OrtValue.ortvalue_from_numpy(self._x, "cuda", ordinal)
        self._binding.bind_ortvalue_input(inp.name, self._inp)
        self._out = onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(x), *out.shape[1:]], type_, "cuda", ordinal)
        self._binding.bind_ortvalue_output(out.name, self._out)
        self._run()  # it tries cuDNN's algorithms, and captures

    def scores(self) -> Array:
        """Compute the first output, from host to host."""
        self._inp.update_inplace(self._x)
        self._run()
        return np.asarray(self._out.numpy(), np.float32)

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return seconds of each run, wall clock; back to back the calls follow one another, time over count."""
        if method is Method.HOST_TO_HOST:
            return [wall(self.scores) for _ in range(runs)]
        return [wall(lambda: self._queue(runs)) / runs]

    def _queue(self, runs: int) -> None:
        for _ in range(runs):
            self._run()

    def _run(self) -> None:
        self._session.run_with_iobinding(self._binding, self._options)

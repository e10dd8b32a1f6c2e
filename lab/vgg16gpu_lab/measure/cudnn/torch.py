"""CuDNN through torch: the one algorithm that it settles on after trying all of them (cudnn.benchmark), no TF32."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Self

import numpy as np

from vgg16gpu.devices.base import ArrayInterop, Device
from vgg16gpu_lab.measure.cudnn.base import Candidate, Inputs, MissingLibraryError, Order, Request, told, too_large
from vgg16gpu_lab.problem import Array, Problem

_FIRST: Final = Problem(1, 1, 8, 8, 1)
_SWITCHES: Final = ("benchmark", "benchmark_limit", "allow_tf32")  # of torch.backends.cudnn


class Torch:
    """`base.Way`. Raises MissingLibraryError without torch, without its CUDA, or without its cuDNN."""

    def __init__(self, device: Device, foreign: ArrayInterop) -> None:
        self._device, self._foreign = device, foreign
        self._torch = torch = _import()
        if not (torch.cuda.is_available() and torch.backends.cudnn.is_available()):
            raise MissingLibraryError("torch is installed without CUDA, or does not see the GPU")
        number = int(torch.backends.cudnn.version())
        self.version = f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
        self.through = f"torch {torch.__version__}"
        self.heuristics: tuple[str, ...] = ("torch's benchmark",)
        self.session(
            _FIRST, _FIRST.random(), "NCHW", Request(2**31, tf32=False)
        ).close()  # loads what the first one loads

    def session(self, problem: Problem, inputs: Inputs, order: Order, request: Request) -> TorchSession:
        """Copy the arrays to the card and let cuDNN choose."""
        return TorchSession(self._torch, self._device, self._foreign, problem, inputs, order, request)


class TorchSession:
    """`base.Session` of one candidate: torch's choice, on our compute stream and in torch's own memory."""

    def __init__(
        self,
        torch: Any,
        device: Device,
        foreign: ArrayInterop,
        problem: Problem,
        inputs: Inputs,
        order: Order,
        request: Request,
        beside: TorchSession | None = None,
    ) -> None:
        self._torch, self._device, self._problem, self._order = torch, device, problem, order
        self._foreign, self._inputs, self._request = foreign, inputs, request
        self._card = foreign.ordinal
        self._stream = torch.cuda.ExternalStream(foreign.stream, device=foreign.ordinal)
        self._kept: list[Any] = []  # CUDA graphs
        self._out: Any = None
        switches = torch.backends.cudnn
        self._before = {name: getattr(switches, name) for name in _SWITCHES}
        switches.benchmark, switches.benchmark_limit, switches.allow_tf32 = True, 0, request.tf32
        try:
            layout = torch.contiguous_format if order == "NCHW" else torch.channels_last
            with self._current():
                self._x, self._weight = (
                    torch.from_numpy(array).to(f"cuda:{foreign.ordinal}").contiguous(memory_format=layout)
                    for array in inputs
                )
            if beside is not None:
                self._x = beside._x
            self.candidates = [self._choose(request)]
        except BaseException:
            self.close()
            raise

    def bound(self, candidate: Candidate, times: int) -> tuple[Callable[[], None], bool]:
        """Return what enqueues the candidate `times` times, and whether it is a CUDA graph; valid as the session is."""
        work = candidate.repeated(times)
        graph = self._torch.cuda.CUDAGraph()

        def replay() -> None:
            with self._current():
                graph.replay()

        try:
            with self._torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError:  # it can be run all the same
            return work, False
        self._kept.append(graph)
        return replay, True

    def again(self, name: str) -> TorchSession:  # noqa: ARG002 - torch chooses again
        """Return a session with its own weights and y for the same problem and x; torch's handle is one."""
        own = self._torch, self._device, self._foreign, self._problem, self._inputs, self._order, self._request
        return TorchSession(*own, beside=self)

    def clear(self) -> None:
        """Enqueue that y becomes zero."""
        with self._current():
            self._out.zero_()

    def y(self) -> Array:
        """Return the result, (N, outputs, rows, columns), on the host."""
        with self._current():
            found: Array = np.ascontiguousarray(self._out.cpu().numpy())
        return found

    def close(self) -> None:
        """Free the arrays and set torch's switches back. Safe to call twice."""
        for name, value in self._before.items():
            setattr(self._torch.backends.cudnn, name, value)
        self._kept.clear()
        self._x = self._weight = self._out = None
        with suppress(RuntimeError):  # of a device beyond use, which somebody is about to report
            self._torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _current(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return found

    def _run(self) -> None:
        problem = self._problem
        with self._torch.no_grad(), self._current():
            self._out = self._torch.nn.functional.conv2d(
                self._x, self._weight, stride=problem.stride, padding=problem.padding
            )

    def _choose(self, request: Request) -> Candidate:
        """Run it once, which is when cuDNN tries its algorithms, and once more to see what memory the choice takes."""
        name = f"torch's choice, {'contiguous' if self._order == 'NCHW' else 'channels_last'}"
        cuda = self._torch.cuda
        start = time.perf_counter()
        try:
            self._run()
            self._device.synchronize()
            setup_s = time.perf_counter() - start
            self._out = None
            before = cuda.memory_allocated(self._card)
            cuda.reset_peak_memory_stats(self._card)
            self._run()
            nbytes = max(0, cuda.max_memory_allocated(self._card) - before - 4 * int(np.prod(self._problem.y_shape)))
        except RuntimeError as error:  # torch's own, of memory too
            return Candidate(name, None, told(error))
        reason = too_large(nbytes, request.workspace_nbytes)
        return Candidate(name, None if reason else self._run, reason, nbytes, setup_s)


def _import() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise MissingLibraryError("torch is not installed") from error

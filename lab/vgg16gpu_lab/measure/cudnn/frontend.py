"""CuDNN through NVIDIA's Python front end (package nvidia-cudnn-frontend), on memory and stream of our own device.

The graph API, https://docs.nvidia.com/deeplearning/cudnn/frontend/latest: a graph of one convolution, every execution
plan that the heuristics know of, built and run by its index. Works with versions 1.10 and later.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

import numpy as np

from vgg16gpu.devices.base import ArrayInterop, Captured, Device
from vgg16gpu.errors import Error
from vgg16gpu_lab.layout import channels_first, in_layout, room
from vgg16gpu_lab.measure.cudnn.base import (
    LAYOUTS,
    Candidate,
    Inputs,
    MissingLibraryError,
    Order,
    Request,
    told,
    too_large,
)
from vgg16gpu_lab.problem import Array, Problem

PACKAGE: Final = "nvidia-cudnn-frontend"

_HEURISTICS: Final = ("A", "B", "FALLBACK")
_INEXACT: Final = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
_DESELECTED: Final = "on tensor cores or with rounded inputs: not allowed without TF32"
_FIRST: Final = Problem(1, 1, 8, 8, 1)  # that which loads the libraries, so that no other one's set-up does

_loaded: set[tuple[int, int]] = set()  # front ends (their identity), and cards, on which a plan has been built


class Frontend:
    """`base.Way`. Raises MissingLibraryError where package or library are not here, or do not start."""

    def __init__(self, device: Device, foreign: ArrayInterop) -> None:
        self._device, self._foreign = device, foreign
        self._cudnn = _import()
        self.version = str(self._cudnn.backend_version_string())
        self.through = f"{PACKAGE} {self._cudnn.__version__}"
        self.heuristics: tuple[str, ...] = _HEURISTICS
        self._start()

    def session(self, problem: Problem, inputs: Inputs, order: Order, request: Request) -> FrontendSession:
        """Describe the problem, build its plans. Raises DeviceError without memory."""
        return FrontendSession(self._cudnn, self._device, self._foreign, problem, inputs, order, request)

    def _start(self) -> None:
        """Load what cuDNN loads with its first plans; one must work."""
        key = id(self._cudnn), self._foreign.ordinal
        if key in _loaded:
            return
        try:
            with self.session(_FIRST, _FIRST.random(), "NCHW", Request(2**31, tf32=False)) as session:
                candidates = session.candidates
        except Error:
            raise
        except Exception as error:
            raise MissingLibraryError(f"cuDNN {self.version} does not start: {told(error)}") from error
        if not any(candidate.run for candidate in candidates):
            reasons = "; ".join(dict.fromkeys(candidate.reason for candidate in candidates))
            raise MissingLibraryError(f"cuDNN {self.version} through {self.through} has no plan that works: {reasons}")
        _loaded.add(key)


class FrontendSession:
    """`base.Session`: a graph, its plans, and the arrays that they work on.

    `beside`: another session of the problem, whose x this one reads; `only`: the one plan that it builds, "" for all.
    """

    def __init__(
        self,
        cudnn: Any,
        device: Device,
        foreign: ArrayInterop,
        problem: Problem,
        inputs: Inputs,
        order: Order,
        request: Request,
        beside: FrontendSession | None = None,
        only: str = "",
    ) -> None:
        self._cudnn, self._device, self._foreign = cudnn, device, foreign
        self._problem, self._inputs, self._order, self._request = problem, inputs, order, request
        self._only = only
        self._handle: Any = None
        self._places: list[int] = beside._places[:1] if beside else []  # x, weights, y, workspace
        self._borrowed = len(self._places)  # that are the other one's to free
        self._captured: list[Captured] = []
        try:
            with foreign.current():
                self._graph, self._tensors, self._setup_s, reason = self._describe()
                self.candidates = [Candidate("-", None, reason)] if reason else list(self._build())
            self._fill()
        except BaseException:
            self.close()
            raise

    def bound(self, candidate: Candidate, times: int) -> tuple[Callable[[], None], bool]:
        """Return what enqueues the candidate `times` times, and whether it is a CUDA graph; valid as the session is."""
        work = candidate.repeated(times)
        try:
            captured = self._foreign.capture(work)
        except Exception:  # a plan that cannot be captured, or no cuda-bindings: it can be run all the same
            return work, False
        self._captured.append(captured)
        return captured, True

    def again(self, name: str) -> FrontendSession:
        """Return a session with its own handle, weights and y for the same problem and x: the plan `name` alone."""
        own = self._cudnn, self._device, self._foreign, self._problem, self._inputs, self._order, self._request
        return FrontendSession(*own, beside=self, only=name)

    def clear(self) -> None:
        """Enqueue that y becomes zero."""
        self._device.zero(self._places[2], 4 * int(np.prod(self._problem.y_shape)))

    def y(self) -> Array:
        """Return the result, (N, outputs, rows, columns), on the host."""
        layout = LAYOUTS[self._order]
        found = room(self._problem.y_shape, layout)
        self._device.copy_out(found, self._places[2])
        self._device.synchronize()
        return channels_first(found, layout)

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        with suppress(Error):  # of a device beyond use, which somebody is about to report
            for captured in self._captured:
                captured.close()
            self._captured.clear()
            while self._places[self._borrowed :]:
                self._device.free(self._places.pop())
            if self._handle is not None:
                handle, self._handle = self._handle, None
                with self._foreign.current(), suppress(Exception):
                    self._cudnn.destroy_handle(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _describe(self) -> tuple[Any, tuple[Any, ...], float, str]:
        """Return graph, tensors (x, weights, y), seconds of handle, graph and heuristics; and why there is no plan."""
        start = time.perf_counter()
        self._handle = self._cudnn.create_handle()
        self._cudnn.set_stream(handle=self._handle, stream=self._foreign.stream)
        graph, tensors = convolution_graph(self._cudnn, self._handle, self._problem, self._order)
        modes = [getattr(self._cudnn.heur_mode, name) for name in _HEURISTICS]
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans(modes)
        except Exception as error:
            return graph, tensors, 0.0, told(error)
        if not self._request.tf32:
            graph.deselect_numeric_notes([getattr(self._cudnn.numerical_note, name) for name in _INEXACT])
        return graph, tensors, time.perf_counter() - start, ""

    def _build(self) -> Iterator[Candidate]:
        """Yield every plan, those that two heuristics name once."""
        seen: set[str] = set()
        for index in range(self._graph.get_execution_plan_count()):
            name = self._graph.get_plan_name_at_index(index)
            if name not in seen and self._only in ("", name):
                seen.add(name)
                yield self._candidate(index, name)

    def _candidate(self, index: int, name: str) -> Candidate:
        start = time.perf_counter()
        try:
            self._graph.build_plan_at_index(index)
            setup_s = self._setup_s + time.perf_counter() - start
            nbytes = int(self._graph.get_workspace_size_plan_at_index(index))
        except Exception as error:
            text = told(error)
            return Candidate(name, None, _DESELECTED if "eselect" in text else text)
        reason = too_large(nbytes, self._request.workspace_nbytes)
        return Candidate(name, None if reason else partial(self._run, index), reason, nbytes, setup_s)

    def _run(self, index: int) -> None:
        *places, workspace = self._places
        pack = dict(zip(self._tensors, places, strict=True))
        self._graph.execute_plan_at_index(pack, workspace, index, handle=self._handle)

    def _fill(self) -> None:
        """Allocate the arrays, with a workspace that is enough for every plan, and send x and the weights."""
        arrays = [in_layout(array, LAYOUTS[self._order]) for array in self._inputs]
        workspace = max((candidate.workspace_nbytes or 0 for candidate in self.candidates if candidate.run), default=0)
        sizes = (*(array.nbytes for array in arrays), 4 * int(np.prod(self._problem.y_shape)), max(workspace, 1))
        for nbytes in sizes[self._borrowed :]:
            self._places.append(self._device.allocate(nbytes))
        for place, array in zip(self._places[self._borrowed :], arrays[self._borrowed :], strict=False):
            self._device.copy_in(place, array)
        self._device.synchronize()


def convolution_graph(cudnn: Any, handle: Any, problem: Problem, order: Order) -> tuple[Any, tuple[Any, Any, Any]]:
    """Return a graph that computes a problem in float32, and its tensors x, weights and y."""
    kind = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(handle=handle, io_data_type=kind, intermediate_data_type=kind, compute_data_type=kind)
    x, weight = (
        graph.tensor(name=name, dim=list(shape), stride=list(strides(shape, order)), data_type=kind)
        for name, shape in (("x", problem.x_shape), ("weight", problem.weight_shape))
    )
    y = graph.conv_fprop(
        image=x,
        weight=weight,
        padding=[problem.padding] * 2,
        stride=[problem.stride] * 2,
        dilation=[1, 1],
        compute_data_type=kind,
    )
    y.set_output(True).set_data_type(kind)
    y.set_dim(list(problem.y_shape)).set_stride(list(strides(problem.y_shape, order)))
    return graph, (x, weight, y)


def strides(shape: tuple[int, int, int, int], order: Order) -> tuple[int, int, int, int]:
    """Return the elements from one (n, c, h, w) to the next along each dimension."""
    _, channels, rows, columns = shape
    if order == "NCHW":
        return channels * rows * columns, rows * columns, columns, 1
    return channels * rows * columns, 1, columns * channels, channels


def _import() -> Any:
    try:
        cudnn = importlib.import_module("cudnn")
        cudnn.backend_version()  # finds the library, or does not
    except ModuleNotFoundError as error:
        if error.name != "cudnn":
            raise MissingLibraryError(f"{PACKAGE} needs a package that is not here: {told(error)}") from error
        raise MissingLibraryError(f"{PACKAGE} is not installed: pip install 'vgg16gpu[cudnn]'") from error
    except Exception as error:  # the loader's, whatever it is
        raise MissingLibraryError(
            f"{PACKAGE} does not find cuDNN ({told(error)}): install nvidia-cudnn-cu13 (-cu12 for a CUDA 12 driver)"
        ) from error
    return cudnn

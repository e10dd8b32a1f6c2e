"""What PyCUDA lacks, from NVIDIA's cuda-bindings, on the same context and stream: CUDA graphs, kernel signatures.

cuda-bindings is optional: without it, kernels are launched one by one and signatures go unchecked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import KernelError

Signature: TypeAlias = tuple[tuple[int, int], ...]  # (offset, bytes) of each parameter


def load_bindings() -> Any | None:
    """cuda.bindings.driver, or None where it is not installed or does not go with the driver."""
    try:
        with stage("import of cuda-bindings"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from cuda.bindings import driver  # noqa: PLC0415 - it may be missing

        driver.cuDriverGetVersion()
    except (ImportError, RuntimeError):
        return None
    return driver


class CudaGraph:
    """A captured sequence of launches and copies, replayed by one call. Its context must be current in every method."""

    def __init__(
        self, bindings: Any, stream: int, enqueue: Callable[[], None], programmatic: Sequence[bool] = ()
    ) -> None:
        """Capture what `enqueue` puts into `stream`; nothing is executed.

        `programmatic` says of each launch whether it may start before a launch right before it has ended (programmatic
        dependent launch): its kernel then waits itself. Raises KernelError.
        """
        self._bindings = bindings
        self._stream = bindings.CUstream(stream)
        self._executable: Any = None
        graph = self._capture(enqueue)
        try:
            if any(programmatic):
                _make_dependent(bindings, graph, programmatic)
            self._executable = self._call("cuGraphInstantiate", graph, 0)
        finally:
            bindings.cuGraphDestroy(graph)
        try:
            self._call("cuGraphUpload", self._executable, self._stream)  # else the first launch would do it
        except KernelError:
            self.destroy()
            raise

    def launch(self) -> None:
        """Enqueue the whole sequence. Raises KernelError."""
        self._call("cuGraphLaunch", self._executable, self._stream)

    def destroy(self) -> None:
        """Give it back. Safe to call twice, and on a context that a kernel has broken."""
        if self._executable is not None:
            self._bindings.cuGraphExecDestroy(self._executable)
            self._executable = None

    def _capture(self, enqueue: Callable[[], None]) -> Any:
        # Thread-local: work of other threads on the card, torch's say, neither breaks the capture nor is broken.
        mode = self._bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._stream, mode)
        try:
            enqueue()
        except BaseException:
            error, graph = self._bindings.cuStreamEndCapture(self._stream)
            if error == self._bindings.CUresult.CUDA_SUCCESS:
                self._bindings.cuGraphDestroy(graph)
            raise
        return self._call("cuStreamEndCapture", self._stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        return _call(self._bindings, name, *arguments)


def _make_dependent(bindings: Any, graph: Any, programmatic: Sequence[bool]) -> None:
    """Turn the edge from a launch to one that may start before its end into a programmatic one; those to copies stay.

    `graph` is a chain. CUDA programming guide, "Programmatic Dependent Launch and Synchronization", use in CUDA graphs.
    """
    may_start = iter(programmatic)
    after_launch = False
    for node, edge in _chain(bindings, graph):
        is_launch = _call(bindings, "cuGraphNodeGetType", node) == bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        if is_launch and next(may_start) and after_launch:
            _make_programmatic(bindings, graph, *edge)
        after_launch = is_launch


def _chain(bindings: Any, graph: Any) -> list[tuple[Any, Any]]:
    """The nodes of a chain in order, each with the edge (tail, head, data) that leads to it; None for the first."""
    following = {int(edge[0]): edge for edge in _edges(bindings, graph)}
    chain: list[tuple[Any, Any]] = [(_call(bindings, "cuGraphGetRootNodes", graph, 1)[0][0], None)]
    while edge := following.get(int(chain[-1][0])):
        chain.append((edge[1], edge))
    return chain


def _make_programmatic(bindings: Any, graph: Any, tail: Any, head: Any, data: Any) -> None:
    programmatic = bindings.CUgraphEdgeData()
    programmatic.from_port = int(bindings.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
    programmatic.type = int(bindings.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    _with_edge_data(bindings, "cuGraphRemoveDependencies", graph, [tail], [head], [data])
    _with_edge_data(bindings, "cuGraphAddDependencies", graph, [tail], [head], [programmatic])


def _with_edge_data(bindings: Any, name: str, graph: Any, tails: list[Any], heads: list[Any], data: list[Any]) -> None:
    """The form of a function that takes edge data has its plain name from CUDA 13 on."""
    name = f"{name}_v2" if hasattr(bindings, f"{name}_v2") else name
    _call(bindings, name, graph, tails, heads, data, len(tails))


def _edges(bindings: Any, graph: Any) -> list[tuple[Any, Any, Any]]:
    name = "cuGraphGetEdges_v2" if hasattr(bindings, "cuGraphGetEdges_v2") else "cuGraphGetEdges"
    count = _call(bindings, name, graph, 0)[-1]
    tails, heads, data, _ = _call(bindings, name, graph, count)
    return list(zip(tails, heads, data, strict=True))


def kernel_signature(bindings: Any, cubin: bytes, name: str) -> Signature | None:
    """Where each parameter of a kernel lies in its argument buffer; None if the driver (before CUDA 12.4) cannot say.

    Needs a current context. PyCUDA keeps its function handles to itself, so the cubin is loaded once more for a moment.
    """
    module = _call(bindings, "cuModuleLoadData", cubin)
    try:
        function = _call(bindings, "cuModuleGetFunction", module, name.encode())
        places: list[tuple[int, int]] = []
        while True:
            error, offset, nbytes = bindings.cuFuncGetParamInfo(function, len(places))
            if error == bindings.CUresult.CUDA_ERROR_INVALID_VALUE:  # past the last one
                return tuple(places)
            if error != bindings.CUresult.CUDA_SUCCESS:
                return None
            places.append((int(offset), int(nbytes)))
    except RuntimeError:  # how cuda-bindings says that the driver has no such function
        return None
    finally:
        bindings.cuModuleUnload(module)


def _call(bindings: Any, name: str, *arguments: Any) -> Any:
    """Call a driver function; its result, a tuple if it has several, None if none.

    Raises KernelError with the driver's text.
    """
    try:
        error, *results = getattr(bindings, name)(*arguments)
    except RuntimeError as problem:
        raise KernelError(f"{name}: {problem}; cuda-bindings and the NVIDIA driver do not fit") from problem
    if error != bindings.CUresult.CUDA_SUCCESS:
        _, text = bindings.cuGetErrorString(error)
        raise KernelError(f"{name} failed: {text.decode() if text else error}")
    return results[0] if len(results) == 1 else (tuple(results) or None)

"""What PyCUDA lacks, from NVIDIA's cuda-bindings, on the same context and stream: CUDA graphs, kernel signatures.

cuda-bindings is optional: without it, kernels are launched one by one and signatures go unchecked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import KernelError

FIRST_WITH_CONDITIONS: Final = 12040  # CUDA version of the driver

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

    def __init__(self, bindings: Any, stream: int, enqueue: Callable[[], None]) -> None:
        """Capture what `enqueue` puts into `stream`; nothing is executed. Raises KernelError."""
        self._bindings = bindings
        self._stream = bindings.CUstream(stream)
        self._executable: Any = None
        graph = self._capture(enqueue)
        try:
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


def start_early(bindings: Any, stream: int) -> None:
    """Let the launch that is captured next start before the launch right before it has ended: it waits itself.

    That is programmatic dependent launch, by the edge between the two (CUDA programming guide, "Programmatic Dependent
    Launch and Synchronization", use in CUDA graphs). In the capture of a caller, torch's say, as in ours. Nothing
    happens where the stream does not capture, or has no single launch right before. Raises KernelError.
    """
    captured = _captured(bindings, stream)
    if captured is None or len(captured.before) != 1:
        return
    kind = _call(bindings, "cuGraphNodeGetType", captured.before[0])
    if kind != bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return
    edge = bindings.CUgraphEdgeData()
    edge.from_port = int(bindings.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
    edge.type = int(bindings.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    _go_on_behind(bindings, stream, captured.before[0], [edge])


def has_conditional_nodes(bindings: Any) -> bool:
    """Return whether a graph can leave out launches by what kernels before them have found: from CUDA 12.4 on."""
    has_function = hasattr(bindings, "cuGraphConditionalHandleCreate")
    return has_function and int(_call(bindings, "cuDriverGetVersion")) >= FIRST_WITH_CONDITIONS


def is_capturing(bindings: Any, stream: int) -> bool:
    """Return whether what is enqueued goes into a graph. Raises KernelError."""
    return _captured(bindings, stream) is not None


@contextmanager
def conditional_node(bindings: Any, stream: int, inner: int, decide: Callable[[int], None]) -> Iterator[None]:
    """Make a node of what is enqueued on the stream `inner` meanwhile; it runs where its condition is set, else not.

    `stream` captures, for us or for a caller. decide: given the handle of the condition, enqueues on `stream` what sets
    it. CUDA programming guide, "Conditional Graph Nodes". Raises KernelError.
    """
    captured = _captured(bindings, stream)
    assert captured is not None
    context = _call(bindings, "cuCtxGetCurrent")
    assigned = int(bindings.CU_GRAPH_COND_ASSIGN_DEFAULT)
    condition = _call(bindings, "cuGraphConditionalHandleCreate", captured.graph, context, 0, assigned)
    decide(int(condition))
    captured = _captured(bindings, stream)
    assert captured is not None
    wanted = bindings.CUgraphNodeParams()
    wanted.type = bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    wanted.conditional.handle = condition
    wanted.conditional.type = bindings.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
    wanted.conditional.size = 1
    wanted.conditional.ctx = context
    behind = captured.graph, list(captured.before), None, len(captured.before)
    node = _call_with_edges(bindings, "cuGraphAddNode", "_v2", *behind, wanted)
    mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    body, queue = wanted.conditional.phGraph_out[0], bindings.CUstream(inner)
    _call(bindings, "cuStreamBeginCaptureToGraph", queue, body, None, None, 0, mode)
    try:
        yield
    except BaseException:
        bindings.cuStreamEndCapture(queue)
        raise
    _call(bindings, "cuStreamEndCapture", queue)
    _go_on_behind(bindings, stream, node, None)


class _Captured(NamedTuple):
    """The capture of a stream, so far."""

    graph: Any
    before: Sequence[Any]  # nodes that the next one will depend on


def _captured(bindings: Any, stream: int) -> _Captured | None:
    """Return what a stream has captured so far; None where it does not capture."""
    found = _call_with_edges(bindings, "cuStreamGetCaptureInfo", "_v3", bindings.CUstream(stream))
    status, _, graph, before, *_ = found
    active = bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return _Captured(graph, before or ()) if status == active else None


def _go_on_behind(bindings: Any, stream: int, node: Any, edges: Sequence[Any] | None) -> None:
    """Let what is captured next depend on this node alone, by these edges; None: a plain one."""
    replace = int(bindings.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    arguments = bindings.CUstream(stream), [node], edges, 1, replace
    _call_with_edges(bindings, "cuStreamUpdateCaptureDependencies", "_v2", *arguments)


def _call_with_edges(bindings: Any, name: str, version: str, *arguments: Any) -> Any:
    """Call the form of a function that knows edge data, which has its plain name from CUDA 13 on."""
    return _call(bindings, f"{name}{version}" if hasattr(bindings, f"{name}{version}") else name, *arguments)


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

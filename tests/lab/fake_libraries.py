"""Stand-ins for `cudnn` (nvidia-cudnn-frontend) and `torch`, which behave as documented, on the cpu device's memory.

They compute on the host. While work is captured nothing is computed: it is when what was captured is launched.
"""

import ctypes
import time
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np

from vgg16gpu.errors import KernelError
from vgg16gpu_lab.problem import Problem

STREAM = 0x5EED


class FakeForeign:
    """`devices.base.Foreign` as far as libraries need it."""

    ordinal = 0
    stream = STREAM

    def __init__(self):
        self.depth, self.recording, self.live, self.captures = 0, None, [], True

    @contextmanager
    def current(self):
        self.depth += 1
        yield
        self.depth -= 1

    def capture(self, work):
        if not self.captures:
            raise KernelError("operation not permitted when stream is capturing")
        self.recording = recorded = []
        try:
            work()
        finally:
            self.recording = None
        captured = FakeCaptured(self, recorded)
        self.live.append(captured)
        return captured

    def enqueue(self, work):
        """What a library's kernel does, now or when the graph that it is recorded in is launched."""
        if self.recording is None:
            work()
        else:
            self.recording.append(work)


class FakeCaptured:
    def __init__(self, foreign, recorded):
        self.foreign, self.recorded = foreign, recorded

    def __call__(self):
        assert self in self.foreign.live, "launched after it was given back"
        for work in self.recorded:
            work()

    def close(self):
        self.foreign.live.remove(self)


def right(x, weight, expected):
    return expected(x, weight)


def rounded(x, weight, expected):
    """As tensor cores round float32: 10 bits of mantissa."""
    cut = [(array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for array in (x, weight)]
    return expected(*cut)


def partly(x, weight, expected):
    """The last row is left out."""
    return expected(x, weight)[:, :, :-1]


def crashing(*_):
    raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\n at execute")


@dataclass(frozen=True)
class Engine:
    name: str
    compute: object = right
    notes: tuple = ()
    workspace: int = 0
    builds: bool = True
    orders: tuple = ("NCHW", "NHWC")
    seconds: float = 0.0
    can_capture: bool = True


class NotSupportedError(RuntimeError):
    pass


class FakeCudnn(ModuleType):
    """The front end; `engines` is what its heuristics find. A `clock` in seconds runs on with every call that costs."""

    __version__ = "1.99.0"
    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815

    def __init__(self, foreign, engines):
        super().__init__("cudnn")
        self.foreign, self.engines = foreign, engines
        self.handles, self.clock, self.plan_error, self.built = {}, 0.0, None, []
        self.data_type = SimpleNamespace(FLOAT="float")
        self.heur_mode = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK", OPENSOURCE="OPENSOURCE")
        notes = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "WINOGRAD", "FFT")
        self.numerical_note = SimpleNamespace(**{name: name for name in notes})

    def backend_version(self):
        return 91234

    def backend_version_string(self):
        return "9.12.34"

    def create_handle(self):
        assert self.foreign.depth, "no context is current"
        self.clock += 1.0
        handle = len(self.handles) + 100
        self.handles[handle] = None
        return handle

    def set_stream(self, handle, stream):
        self.handles[handle] = stream

    def destroy_handle(self, handle):
        del self.handles[handle]

    def pygraph(self, *, handle, io_data_type, intermediate_data_type, compute_data_type):
        assert {io_data_type, intermediate_data_type, compute_data_type} == {"float"}
        return FakeGraph(self, handle)


class FakeTensor:
    def __init__(self, dim=None, stride=None):
        self.dim, self.stride, self.output = dim, stride, False

    def set_output(self, value):
        self.output = value
        return self

    def set_data_type(self, kind):
        assert kind == "float"
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def at(self, address):
        """The array of this tensor there."""
        floats = (ctypes.c_float * int(np.prod(self.dim))).from_address(address)
        flat = np.frombuffer(floats, np.float32)
        return np.lib.stride_tricks.as_strided(flat, self.dim, [4 * step for step in self.stride])


class FakeGraph:
    def __init__(self, cudnn, handle):
        self.cudnn, self.handle, self.state, self.barred, self.plans = cudnn, handle, "new", set(), {}

    def tensor(self, *, name, dim, stride, data_type):
        assert (isinstance(name, str), data_type) == (True, "float")
        return FakeTensor(dim, stride)

    def conv_fprop(self, *, image, weight, padding, stride, dilation, compute_data_type):
        assert (dilation, compute_data_type, padding[0], stride[0]) == ([1, 1], "float", padding[1], stride[1])
        batch, channels, height, width = image.dim
        self.problem = Problem(batch, channels, height, width, weight.dim[0], weight.dim[2], stride[0], padding[0])
        assert list(self.problem.weight_shape) == weight.dim
        self.image, self.weight, self.y = image, weight, FakeTensor()
        self.order = "NCHW" if image.stride[3] == 1 else "NHWC"
        return self.y

    def advance(self, expected, state):
        assert self.state == expected, f"{state} after {self.state}"
        self.state = state

    def validate(self):
        self.advance("new", "valid")
        assert self.y.output
        assert self.y.dim == list(self.problem.y_shape)

    def build_operation_graph(self):
        self.advance("valid", "lowered")

    def create_execution_plans(self, modes):
        self.advance("lowered", "planned")
        assert modes == ["A", "B", "FALLBACK"]
        self.cudnn.clock += 2.0
        if self.cudnn.plan_error:
            raise NotSupportedError(self.cudnn.plan_error)

    def deselect_numeric_notes(self, notes):
        assert self.state == "planned"
        for index, engine in enumerate(self.cudnn.engines):
            if set(engine.notes) & set(notes):
                self.barred.add(index)

    def get_execution_plan_count(self):
        return len(self.cudnn.engines)

    def get_plan_name_at_index(self, index):
        return self.cudnn.engines[index].name

    def build_plan_at_index(self, index):
        engine = self.cudnn.engines[index]
        if index in self.barred:
            raise RuntimeError("Deselecting execution plan")
        if not engine.builds or self.order not in engine.orders:
            raise NotSupportedError(f"CUDNN_STATUS_NOT_SUPPORTED: {engine.name}")
        self.cudnn.clock += 4.0
        self.plans[index] = engine
        self.cudnn.built.append((self.order, engine.name))

    def get_workspace_size_plan_at_index(self, index):
        return self.plans[index].workspace

    def execute_plan_at_index(self, pack, workspace, index, handle=None):
        engine, cudnn = self.plans[index], self.cudnn
        assert cudnn.handles[handle] == STREAM, "not on our stream"
        assert {type(value) for value in (*pack.values(), workspace)} == {int}
        if cudnn.foreign.recording is not None and not engine.can_capture:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED: capture")
        x, weight, y = (tensor.at(pack[tensor]) for tensor in (self.image, self.weight, self.y))

        def kernel():
            assert handle in cudnn.handles, "after destroy_handle"
            time.sleep(engine.seconds)
            ctypes.memset(workspace, 0xFF, engine.workspace)
            found = engine.compute(np.ascontiguousarray(x), np.ascontiguousarray(weight), self.problem.expected)
            y[:, :, : found.shape[2]] = found

        cudnn.foreign.enqueue(kernel)


class FakeTorch(ModuleType):
    """Torch with CUDA and cuDNN; every convolution takes `workspace` bytes beside its result."""

    __version__ = "2.99.0+cu130"
    contiguous_format, channels_last = "contiguous", "channels_last"

    def __init__(self, foreign, workspace=0):
        super().__init__("torch")
        self.foreign, self.workspace, self.compute, self.calls = foreign, workspace, right, []
        self.peak, self.available, self.stream, self.captures = 0, True, None, True
        self.backends = SimpleNamespace(
            cudnn=SimpleNamespace(
                benchmark=False,
                benchmark_limit=10,
                allow_tf32=True,
                is_available=lambda: self.available,
                version=lambda: 91002,
            )
        )
        self.cuda = SimpleNamespace(
            is_available=lambda: self.available,
            ExternalStream=lambda handle, device: ("stream", handle, device),
            stream=self.on_stream,
            graph=self.capture,
            CUDAGraph=SimpleNamespace,
            memory_allocated=lambda card: 1000 + card,
            max_memory_allocated=lambda card: self.peak + card,
            reset_peak_memory_stats=lambda card: setattr(self, "peak", 0),  # noqa: ARG005
            empty_cache=lambda: None,
        )
        self.nn = SimpleNamespace(functional=SimpleNamespace(conv2d=self.conv2d))

    @contextmanager
    def on_stream(self, stream):
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def no_grad(self):
        yield

    def from_numpy(self, array):
        return TorchTensor(self, array)

    @contextmanager
    def capture(self, graph, *, stream, capture_error_mode):
        assert (stream, capture_error_mode) == (("stream", STREAM, 0), "thread_local")
        if not self.captures:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.foreign.recording = graph.recorded = []
        graph.replay = lambda: [work() for work in graph.recorded]
        try:
            yield
        finally:
            self.foreign.recording = None

    def conv2d(self, x, weight, *, stride, padding):
        assert self.stream == ("stream", STREAM, 0)
        cudnn = self.backends.cudnn
        assert (cudnn.benchmark, cudnn.benchmark_limit) == (True, 0)
        self.calls.append((x.format, cudnn.allow_tf32))
        batch, channels, height, width = x.array.shape
        problem = Problem(batch, channels, height, width, *weight.array.shape[::2][:2], stride, padding)
        out = TorchTensor(self, np.full(problem.y_shape, np.nan, np.float32))
        self.peak = 1000 + out.array.nbytes + self.workspace

        def kernel():
            out.array[:] = self.compute(x.array, weight.array, problem.expected)

        self.foreign.enqueue(kernel)
        return out


class TorchTensor:
    def __init__(self, torch, array, format_=""):
        self.torch, self.array, self.format = torch, array, format_

    def to(self, where):
        assert where == "cuda:0"
        return TorchTensor(self.torch, self.array.copy())

    def contiguous(self, *, memory_format):
        return TorchTensor(self.torch, self.array, memory_format)

    def zero_(self):
        self.array[:] = 0

    def cpu(self):
        return self

    def numpy(self):
        return self.array

"""Steps resolved for PyCUDA, and why PyCUDA does not load: no GPU needed."""

from __future__ import annotations

import re
import struct
import sys
from types import ModuleType, SimpleNamespace

import pytest

from vgg16gpu.devices.base import KernelResources
from vgg16gpu.devices.cuda import driver as cuda_driver
from vgg16gpu.devices.cuda.compiler import CubinUnit
from vgg16gpu.devices.cuda.context import pick_card
from vgg16gpu.devices.cuda.driver import import_problem
from vgg16gpu.devices.cuda.launch import BuiltKernel, LaunchSequence, encode, resolve
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar, TmaDescriptor
from vgg16gpu.program.types import Arena, DType, Pointer

KERNEL = Kernel("tiny.cu", "tiny_f32", (("TILE", 4),))
SIGNATURE = ((0, 8), (8, 4), (16, 8), (24, 4))
ARGUMENTS = (Pointer(Arena.ACTIVATIONS, 256), Scalar(7), Pointer(Arena.WEIGHTS, 0), Scalar(0.5, "f"))
BLOCK = Dim3(32, 2)
BASES = {Arena.ACTIVATIONS: 0x10000, Arena.WEIGHTS: 0x20000}


class FakeFunction:
    def prepare(self, formats):
        self.formats = formats


def built(signature=SIGNATURE):
    return BuiltKernel(CubinUnit("tiny.cu"), KernelResources(), 256, signature)


def step(arguments=ARGUMENTS, block=BLOCK, label="conv1"):
    return KernelLaunch(KERNEL, Dim3(5), block, arguments, shared=16, label=label)


def test_a_step_is_resolved():
    """Into one buffer, each argument at the place that the kernel's signature names."""
    function = FakeFunction()
    launch = resolve(step(), function, built(), BASES)
    assert function.formats == ["28s"]
    assert launch.arguments == (struct.pack("<Qi4xQf", 0x10100, 7, 0x20000, 0.5),)
    assert (launch.grid, launch.block, launch.shared, launch.programmatic) == ((5, 1, 1), (32, 2, 1), 16, False)
    assert launch.name == "conv1 (tiny_f32<4>)"


def test_without_a_signature_pycuda_packs():
    function = FakeFunction()
    launch = resolve(step(), function, built(None), BASES)
    assert function.formats == ["P", "i", "P", "f"]
    assert launch.arguments == (0x10100, 7, 0x20000, 0.5)


@pytest.mark.parametrize(
    "signature",
    [SIGNATURE[:3], (*SIGNATURE, (28, 4)), (), ((0, 8), (8, 4), (12, 4), (16, 8)), ((0, 8), (8, 4), (16, 8), (24, 8))],
)
def test_other_parameters_are_refused(signature):
    with pytest.raises(
        KernelError, match=rf"conv1 \(tiny_f32<4>\): the step has 4 arguments .*takes {len(signature)} "
    ):
        resolve(step(), FakeFunction(), built(signature), BASES)


# ---- Tensor maps

MAP = TmaDescriptor(Pointer(Arena.ACTIVATIONS, 512), DType.F16, (64, 14, 14, 2), (128, 1792, 25088), (64, 10, 16, 1))


class FakeBindings:
    """What cuda-bindings offers for tensor maps: it notes what it is asked for."""

    def __init__(self, error=0):
        self.error = error
        self.asked = None

    def __getattr__(self, name):
        if name.startswith("cuuint"):
            return int
        return SimpleNamespace(CUDA_SUCCESS=0) if name == "CUresult" else Names()

    def cuTensorMapEncodeTiled(self, *asked):  # noqa: N802
        self.asked = asked
        return self.error, SimpleNamespace(opaque=range(16))


class Names:
    def __getattr__(self, name):
        return name


def test_a_tensor_map_is_an_argument_of_128_bytes():
    signature = ((0, 8), (64, 128))
    arguments = (Pointer(Arena.WEIGHTS, 0), MAP)
    launch = resolve(step(arguments), FakeFunction(), built(signature), BASES, FakeBindings())
    (buffer,) = launch.arguments
    assert len(buffer) == 192
    assert buffer[64:] == b"".join(word.to_bytes(8, "little") for word in range(16))


def test_what_the_driver_is_asked_for():
    bindings = FakeBindings()
    assert len(encode(bindings, "conv1", MAP, 0x10200)) == 128
    data_type, rank, address, dimensions, strides, box, steps, *modes = bindings.asked
    assert data_type == "CU_TENSOR_MAP_DATA_TYPE_FLOAT16"
    assert (rank, address) == (4, 0x10200)
    assert (tuple(dimensions), tuple(strides), tuple(box), steps) == (MAP.dimensions, MAP.strides, MAP.box, [1] * 4)
    assert "CU_TENSOR_MAP_SWIZZLE_128B" in modes


@pytest.mark.parametrize(
    ("element", "channels", "data_type", "swizzle"),
    [
        (DType.F32, 32, "FLOAT32", "128B"),
        (DType.F16_PAIR, 64, "FLOAT16", "128B"),
        (DType.BF16, 64, "BFLOAT16", "128B"),
        (DType.U8, 64, "UINT8", "64B"),
        (DType.S8, 128, "UINT8", "128B"),
        (DType.F32, 64, "FLOAT32", "NONE"),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_elements_and_swizzles(element, channels, data_type, swizzle):
    bindings = FakeBindings()
    encode(bindings, "conv1", TmaDescriptor(MAP.pointer, element, (channels, 8), (channels,), (channels, 8)), 0)
    assert bindings.asked[0] == f"CU_TENSOR_MAP_DATA_TYPE_{data_type}"
    assert f"CU_TENSOR_MAP_SWIZZLE_{swizzle}" in bindings.asked


def test_a_map_that_cannot_be():
    with pytest.raises(KernelError, match=r"conv1 .*: no tensor map of .* in boxes of \(64, 10, 16, 1\)"):
        resolve(step((MAP,)), FakeFunction(), built(((0, 128),)), BASES, FakeBindings(error=1))


def test_a_map_needs_a_signature():
    with pytest.raises(KernelError, match=r"conv1 .*: tensor maps need cuda-bindings and a driver of CUDA 12.4"):
        resolve(step((MAP,)), FakeFunction(), built(None), BASES, None)


# ---- Launches that were given back


def test_launches_that_were_given_back_are_no_longer_made():
    made = []
    graph = SimpleNamespace(launch=lambda: made.append("graph"), destroy=lambda: made.append("destroyed"))
    sequence = LaunchSequence(None, None, "stream", [], graph=graph)
    sequence.launch()
    sequence.clear()
    with pytest.raises(KernelError, match="given back"):
        sequence.launch()
    assert made == ["graph", "destroyed"]


# ---- What is refused


@pytest.mark.parametrize("grid", [Dim3(0), Dim3(2**31), Dim3(1, 65536), Dim3(1, 1, 65536)])
def test_a_grid_that_no_card_takes(grid):
    with pytest.raises(KernelError, match=r"conv1 .*a grid of \(.*each from 1 to \(2147483647, 65535, 65535\)"):
        resolve(KernelLaunch(KERNEL, grid, BLOCK, ARGUMENTS, label="conv1"), FakeFunction(), built(), BASES)


@pytest.mark.parametrize("block", [Dim3(0), Dim3(1, 1, 65), Dim3(1025)])
def test_a_block_that_no_card_takes(block):
    with pytest.raises(KernelError, match=r"conv1 .*a block of \(.*each from 1 to \(1024, 1024, 64\)"):
        resolve(step(block=block), FakeFunction(), built(), BASES)


def test_too_many_threads():
    with pytest.raises(KernelError, match=r"conv1 .*a block of 288 threads; .* 256 at most"):
        resolve(step(block=Dim3(32, 3, 3)), FakeFunction(), built(), BASES)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 0.5, float("inf")])
def test_an_int_that_is_none(value):
    arguments = (ARGUMENTS[0], Scalar(value), *ARGUMENTS[2:])
    with pytest.raises(KernelError, match="not an int of 32 bits"):
        resolve(step(arguments), FakeFunction(), built(), BASES)


def test_an_arena_without_address():
    with pytest.raises(KernelError, match="tiny_f32<4>: it uses the arena 'weights'"):
        resolve(step(label=""), FakeFunction(), built(), {Arena.ACTIVATIONS: 0})


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            ModuleNotFoundError("No module named 'pycuda'", name="pycuda"),
            r"not installed \(python -m vgg16gpu.cuda_setup",
        ),
        (ImportError("_driver.so: undefined symbol: cuCtxCreate_v4"), "driver is too old.*cuCtxCreate_v4.*cuda_setup"),
        (ImportError("version `GLIBC_2.38' not found"), "does not load: version `GLIBC_2.38'"),
        (ModuleNotFoundError("No module named 'pytools'", name="pytools"), "does not load: No module named 'pytools'"),
    ],
)
def test_why_pycuda_does_not_load(error, problem):
    assert re.search(problem, import_problem(error))


def test_a_pycuda_without_what_it_depends_on_is_said_when_the_gpu_is_opened(monkeypatch, tmp_path):
    """An installation that broke off leaves one whose driver module loads, and whose compiler does not."""
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda _: None)
    package = ModuleType("pycuda")
    package.__path__, package.driver = [str(tmp_path)], ModuleType("pycuda.driver")
    (tmp_path / "compiler.py").write_text("import pytools_that_is_missing")
    monkeypatch.setenv(cuda_driver.VARIABLE, "pycuda")
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", package.driver)
    with pytest.raises(DeviceError, match=r"does not load: .*pytools_that.*cuda_setup installs what is missing"):
        cuda_driver.load_driver()


@pytest.mark.parametrize(
    ("count", "ordinal", "message"),
    [
        (0, 0, "sees no GPU"),
        (1, 1, "there is 1 GPU here, cuda:0$"),
        (4, 9, "there are 4 GPUs here, cuda:0 to cuda:3"),
        (2, -1, "no GPU cuda:-1"),
    ],
)
def test_a_card_that_is_not_there(count, ordinal, message):
    with pytest.raises(DeviceError, match=message):
        pick_card(SimpleNamespace(Device=SimpleNamespace(count=lambda: count)), ordinal)

"""Steps resolved for PyCUDA, and why PyCUDA does not load: no GPU needed."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from vgg16gpu.devices.base import KernelResources
from vgg16gpu.devices.cuda_compiler import Unit
from vgg16gpu.devices.cuda_context import import_problem, pick_card
from vgg16gpu.devices.cuda_launch import BuiltKernel, check_signature, resolve
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program import Arena, Dim3, Kernel, Pointer, Scalar, Step

KERNEL = Kernel("tiny.cu", "tiny_f32", (("TILE", 4),))
SIGNATURE = ((0, 8), (8, 4), (16, 8), (24, 4))
ARGUMENTS = (Pointer(Arena.ACTIVATIONS, 256), Scalar(7), Pointer(Arena.WEIGHTS, 0), Scalar(0.5, "f"))
BLOCK = Dim3(32, 2)
BASES = {Arena.ACTIVATIONS: 0x10000, Arena.WEIGHTS: 0x20000}


class FakeFunction:
    def prepare(self, formats):
        self.formats = formats


def built(signature=SIGNATURE):
    return BuiltKernel(Unit("tiny.cu"), KernelResources(), 256, signature)


def step(arguments=ARGUMENTS, block=BLOCK, label="conv1"):
    return Step(KERNEL, Dim3(5), block, arguments, shared=16, label=label)


def test_a_step_is_resolved():
    function = FakeFunction()
    launch = resolve(step(), function, built(), BASES)
    assert function.formats == ["P", "i", "P", "f"]
    assert launch.arguments == (0x10100, 7, 0x20000, 0.5)
    assert (launch.grid, launch.block, launch.shared) == ((5, 1, 1), (32, 2, 1), 16)
    assert launch.name == "conv1 (tiny_f32<4>)"


@pytest.mark.parametrize(
    "signature",
    [SIGNATURE[:3], (*SIGNATURE, (28, 4)), (), ((0, 8), (8, 4), (12, 4), (16, 8)), ((0, 8), (8, 4), (16, 8), (24, 8))],
)
def test_other_parameters_are_refused(signature):
    with pytest.raises(
        KernelError, match=rf"conv1 \(tiny_f32<4>\): the step has 4 arguments .*takes {len(signature)} "
    ):
        resolve(step(), FakeFunction(), built(signature), BASES)


def test_an_unknown_signature_is_not_checked():
    check_signature("tiny", ["P", "i", "f"], None)


@pytest.mark.parametrize("grid", [Dim3(0), Dim3(2**31), Dim3(1, 65536), Dim3(1, 1, 65536)])
def test_a_grid_that_no_card_takes(grid):
    with pytest.raises(KernelError, match=r"conv1 .*a grid of \(.*each from 1 to \(2147483647, 65535, 65535\)"):
        resolve(Step(KERNEL, grid, BLOCK, ARGUMENTS, label="conv1"), FakeFunction(), built(), BASES)


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

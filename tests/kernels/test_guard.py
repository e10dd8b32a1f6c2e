"""Kernels compiled as GUARDED: nothing happens for whom nobody asked, and the same as without it for the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits, kernels_of
from tests.support.onnx_models import Model, random_input, vgg_features
from vgg16gpu import Engine
from vgg16gpu.compiler import model as compiler
from vgg16gpu.compiler.compile import EngineOptions, compile_model
from vgg16gpu.compiler.op_kernels import MODULES
from vgg16gpu.compiler.op_kernels.guard import guarded
from vgg16gpu.compiler.op_kernels.layout.give import give
from vgg16gpu.compiler.op_kernels.layout.take import take
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.facts import H200
from vgg16gpu.devices.kernel_source import read_source
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, DType, Pointer, TensorFormat

BATCH = 3
LEFT, ROOM = 0x5A, 0x5B  # what the arena and the outputs hold where nobody has written
AT_THE_EDGES = ("take.cu", "give.cu", "layout.cu", "preprocess.cu")  # they stand in every program


def vgg() -> Model:
    """With a convolution of several groups of sums, which blocks share, and one whose tiles span images."""
    model = Model(("n", 3, 16, 16))
    x, _ = vgg_features(model, (8, 96, "M", 8))
    model.node("Flatten", [x], "flat")
    model.gemm("flat", "fc", 8 * 64, 10)
    model.node("Softmax", ["fc"], "y", axis=1)
    return model


def general() -> Model:
    model = Model(("n", 8, 6, 5))
    model.conv("input", "c", 4, 8, group=2)
    model.node("LRN", ["c"], "l", size=3)
    model.node("LeakyRelu", ["l"], "s", alpha=0.25)
    model.node("Mul", ["s", "c"], "m")
    model.node("Transpose", ["m"], "t", perm=[0, 2, 3, 1])
    model.node("MatMul", ["t", model.weight("w", 8, 8)], "p")
    model.node("Softmax", ["p"], "x", axis=2)
    model.node("Gather", ["x", model.constant("rows", np.array([2, 0, 1]))], "g", axis=3)
    model.node("GlobalAveragePool", ["c"], "pooled")
    model.node("Reshape", ["g", model.constant("shape", np.array([-1, 90]))], "y")
    return model


MODELS = {  # what, its outputs, by kernels for which devices
    "direct": (vgg, ("y", "relu1"), "cpu"),
    "vgg": (vgg, ("y", "relu1"), "cuda"),
    "general": (general, ("y", "pooled", "m"), "cuda"),
}
both = pytest.mark.parametrize("name", MODELS)


@dataclass(frozen=True)
class Arranged:
    """An engine on float32 kernels, and its program with a guard around each step."""

    engine: Engine
    x: Any
    guard: int  # addresses
    arena: int
    images: int
    rooms: tuple[int, ...]  # for the outputs

    def all_steps(self) -> list[KernelLaunch]:
        """Images from somebody's array, the program, and its outputs."""
        program, entry = self.engine.program, self.engine.program.input.entries["float32"]
        strides = [stride // 4 for stride in self.x.strides]
        end = Pointer(Arena.ACTIVATIONS, program.control.end)
        first = take(Pointer(Arena.STAGING, self.images), DType.F32, self.x.shape, strides, entry.pointer, end)
        pairs = zip(program.stored_outputs, self.rooms, strict=True)
        last = [give(stored, TensorFormat(), Pointer(Arena.STAGING, room)) for stored, room in pairs]
        return [first, *entry.steps, *program.steps, *last]

    def run(self, *needed: int) -> None:
        """With the guard saying that these images need it."""
        words = np.zeros(1 + BATCH, np.int32)
        words[[1 + image for image in needed]] = 1
        words[0] = bool(needed)
        self.engine.device.copy_in(self.guard, words)
        steps = [guarded(step, Pointer(Arena.STAGING, self.guard), BATCH) for step in self.all_steps()]
        self.engine.device.build({step.kernel for step in steps})
        for step in steps:
            self.engine.executor.bind((step,), beside=0)()

    def memory(self) -> Any:
        """The activation arena."""
        return self._read(self.arena, self.engine.plan.activations_nbytes)

    def leave_alone(self) -> None:
        """Fill it and the outputs."""
        places = zip(self.rooms, self.engine.program.outputs, strict=True)
        rooms = [(room, y.nbytes, ROOM) for room, y in places]
        for address, nbytes, value in ((self.arena, self.engine.plan.activations_nbytes, LEFT), *rooms):
            self.engine.device.copy_in(address, np.full(nbytes, value, np.uint8))

    def outputs(self) -> list[Any]:
        places = zip(self.rooms, self.engine.program.outputs, strict=True)
        return [self._read(room, y.nbytes).view(np.float32).reshape(y.shape) for room, y in places]

    def _read(self, address: int, nbytes: int) -> Any:
        found = np.empty(nbytes, np.uint8)
        self.engine.device.copy_out(found, address)
        self.engine.device.synchronize()
        return found


@contextmanager
def arranged(device: Device, name: str, folder: Path) -> Iterator[Arranged]:
    make, outputs, kind = MODELS[name]
    path = make().save(folder / "model.onnx", outputs)
    x = random_input((BATCH, *make().input_shape[1:]))  # type: ignore[arg-type]
    if name == "general":  # its images lie with their channels last, which another kernel takes
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    options: Any = {"batch": BATCH, "kernels": "ffma", "outputs": outputs, "keep_values": True}
    with kernels_of(kind), Engine(path, device=device.facts.kind, **options) as engine:
        sizes = (4 * (1 + BATCH), x.nbytes, *(y.nbytes for y in engine.program.outputs))
        guard, images, *rooms = map(engine.device.allocate, sizes)
        engine.device.copy_in(images, x.ravel(order="K"))
        made = Arranged(engine, x, guard, engine.executor._bases[Arena.ACTIVATIONS], images, tuple(rooms))
        made.leave_alone()
        yield made


@pytest.mark.first_case(reason="every kernel's float64 test has watched memory around its arrays")
@both
def test_nothing_is_written_where_nobody_needs_it(device: Device, tmp_path: Path, name: str) -> None:
    with arranged(device, name, tmp_path) as made:
        made.run()
        assert (made.memory() == LEFT).all()
        assert all((y.view(np.uint8) == ROOM).all() for y in made.outputs())


@pytest.mark.first_case(reason="runtime/on_device/test_second_pass.py has the runs of an engine")
@both
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_images_that_need_it_have_the_bits_of_an_ordinary_run(
    device: Device, tmp_path: Path, name: str, needed: tuple[int, ...]
) -> None:
    with arranged(device, name, tmp_path) as made:
        expected = made.engine.run(made.x)
        made.leave_alone()
        made.run(*needed)
        for y, right in zip(made.outputs(), expected, strict=True):
            assert_same_bits(y[list(needed)], right[list(needed)])
            others = [n for n in range(BATCH) if n not in needed]
            assert (np.ascontiguousarray(y[others]).view(np.uint8) == ROOM).all()


@pytest.mark.sanitize
@pytest.mark.first_case(reason="vgg16gpu runs conv_direct on the CPU, conv_igemm on GPUs")
@pytest.mark.parametrize("name", ["direct", "vgg"])
def test_a_convolution_computes_images_that_need_it_alone(device: Device, tmp_path: Path, name: str) -> None:
    """No tile has pixels of two of these."""
    with arranged(device, name, tmp_path) as made:
        made.run(1)
        value = next(value for value in made.engine.program.values if value.name == "relu0")
        rows = made.memory()[value.pointer.offset :][: value.nbytes].reshape(BATCH, -1)
        assert [bool((row != LEFT).any()) for row in rows] == [False, True, False]


def test_the_nets_have_the_kernels_that_are_guarded(tmp_path: Path) -> None:
    """But for those that bring images in and out, which are added here."""
    found = set()
    for make, outputs, _ in MODELS.values():
        model = compiler.Model(make().save(tmp_path / "model.onnx", outputs))
        options: Any = {"batch": BATCH, "kernels": "ffma", "outputs": outputs}
        plan = compile_model(model, EngineOptions(**options), H200)
        found |= {step.kernel.source for step in plan.programs[0].steps}
    wanted = {
        "conv_igemm",
        "conv_general",
        "gemm_splitk",
        "elementwise",
        "lrn",
        "matmul",
        "rearrange",
        "softmax",
        "pool",
    }
    assert {f"{name}.cu" for name in wanted} <= found


def guarded_sources() -> list[str]:
    """Of kernels that second passes may launch: float32 arithmetic."""
    rows = [row for row in MODULES if "ffma" in row.families and "PowerOfTwo" not in row.ops]  # that is float16's
    return sorted({*AT_THE_EDGES, *(f"{row.module.rpartition('.')[2]}.cu" for row in rows)})


def test_every_kernel_of_a_second_pass_has_a_guard() -> None:
    for source in guarded_sources():
        _, *kernels = read_source(source).split('extern "C" __global__')
        assert kernels, source
        for text in kernels:
            assert " GUARD_PARAMETERS) {\n" in text, source
            assert "\n  RETURN_UNLESS_NEEDED" in text, source

"""Plans of losses: what targets are made of, where they lie, and what a share of a mean is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import STREAM, CpuForeign
from tests.support.traced_device import HOPPER
from vgg16gpu.compiler.model import Model
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, DType, Pointer, TensorFormat
from vgg16gpu.runtime.on_device.graph_cache import can_be_read
from vgg16gpu.runtime.on_device.results import RunOptions
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.plans.loss_engine import LossEngine
from vgg16gpu.runtime.plans.loss_inputs import LossInputs
from vgg16gpu.runtime.plans.losses import FeatureComparison, LossKey, loss_programs
from vgg16gpu.runtime.plans.program_cache import ProgramCache
from vgg16gpu.zoo.generate import make_vgg

SHAPE = (2, 3, 32, 32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "vgg.onnx"
    make_vgg(path, variant="vgg11", size=32, width=64, hidden=64, classes=10)
    return path


def inputs_of(path: Path, facts: Any, precision: str) -> tuple[LossInputs, ProgramCache[LossKey]]:
    compared = FeatureComparison.of(Model.of(path), {"relu1_1": 1.0, "relu2_1": 0.5}, {"relu2_1": 1.0}, "squared")
    device: Any = SimpleNamespace(facts=facts)
    programs = loss_programs(compared, device, precision, "auto", None)
    return LossInputs(compared, precision, SHAPE[0], programs), programs


def read_by_losses(steps: tuple[KernelLaunch, ...]) -> list[tuple[str, Arena]]:
    """The macros of each loss, and the arena of its target."""
    found = []
    for step in steps:
        if step.kernel.name == "feature_loss_f32":
            target = step.arguments[4]
            assert isinstance(target, Pointer)
            found.append((step.kernel.label, target.arena))
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_on_hopper_targets_are_what_features_are_stored_as_and_lie_in_no_arena(wide: Path, precision: str) -> None:
    inputs, programs = inputs_of(wide, HOPPER, precision)
    elements = inputs.target_elements(SHAPE)
    assert elements == (DType.F32,) * 3  # of fp16, too: what its rounding leaves is stored beside it
    spec, plan = programs.planned(LossKey("loss", SHAPE, gradients=1, given=elements))
    (program,) = plan.programs
    assert tuple(value.name for value in program.given) == spec.others
    maps = {"fp32": {"feature_loss_f32"}, "fp16": {"feature_loss_f32<3,1>"}}[precision]
    assert {*read_by_losses(program.steps)} == {(name, Arena.GIVEN) for name in (*maps, "feature_loss_f32")}
    _, taken = programs.planned(LossKey("loss", SHAPE, gradients=1))
    assert {arena for _, arena in read_by_losses(taken.programs[0].steps)} == {Arena.ACTIVATIONS}
    assert not taken.programs[0].given
    targets = sum(value.nbytes for value in taken.programs[0].others)
    assert program.sent_nbytes + targets <= taken.programs[0].sent_nbytes


@pytest.mark.parametrize(
    ("address", "strides", "is_dense"),
    [
        (64, (24, 6, 1), True),
        (64, (0, 6, 1), False),
        (64, (24, 1, 4), False),
        (72, (24, 6, 1), False),
    ],
)
def test_what_can_be_read_where_it_lies(address: int, strides: tuple[int, ...], is_dense: bool) -> None:
    assert can_be_read(StridedView(address, (2, 4, 6), strides, "float32")) is is_dense
    assert can_be_read(StridedView(address, (1, 4, 6), strides, "float32")) is (is_dense or strides[0] == 0)


@contextmanager
def open_loss(path: Path) -> Iterator[tuple[LossEngine, Any]]:
    """A loss on the CPU, whose memory stands for a card's."""
    with LossEngine(path, {"relu1_1": 1.0}, device="cpu") as engine:
        device: Any = engine.device
        device.foreign = CpuForeign(device)
        yield engine, device


def placed(device: Any, *arrays: Any) -> list[StridedView]:
    """Copies of arrays in memory of a device."""
    found = []
    for array in arrays:
        memory = device.foreign.memory(array.nbytes)
        device.copy_in(memory.address, np.ascontiguousarray(array))
        strides = TensorFormat().strides(array.shape)
        found.append(StridedView(memory.address, array.shape, strides, "float32", owner=memory))
    return found


def read(view: StridedView) -> Any:
    memory: Any = view.owner
    found = np.empty(view.shape, np.float32)
    memory.read(found)
    return found


def numbers() -> Any:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


def test_shares_of_a_mean_add_up(wide: Path) -> None:
    x = numbers()
    with open_loss(wide) as (engine, _):
        targets = engine.targets(-x)
        whole, share = (engine.value_and_gradient(x, targets, mean=is_mean) for is_mean in (False, True))
        for ours, others in zip(whole, share, strict=True):
            np.testing.assert_array_equal(ours, len(x) * others)


def test_a_run_is_repeated_as_long_as_it_is_kept(wide: Path) -> None:
    x = numbers()
    with open_loss(wide) as (engine, device):
        targets = engine.targets(-x)
        right = engine.value(x, targets)
        images, target, out = placed(device, x, *targets, np.zeros(2, np.float32))
        options = RunOptions(STREAM, None, [out], wait=False)
        for is_one_launch in (False, True):
            _, done = engine.on_device("loss", (images, target), options)
            device.zero(out.address, 8)
            assert engine.repeat(done, STREAM) is is_one_launch
        np.testing.assert_array_equal(read(out), right)
        engine.check()
        engine._programs.close()
        assert not engine.repeat(done, STREAM)


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in pieces"])
def test_arrays_on_the_device_give_the_bits_of_those_on_the_host(
    wide: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    x = numbers()
    with open_loss(wide) as (engine, device):
        if is_cut:
            monkeypatch.setattr(engine._programs, "fitting", lambda *_: 1)  # room for one image
        targets = engine.targets(-x)
        images, others, *goals = placed(device, x, -x, *targets)

        outs = placed(device, *map(np.zeros_like, targets))
        options = RunOptions(STREAM, None, outs, wait=False)
        _, done = engine.on_device("targets", (others,), options, terms=(0,))
        assert len(done) == (SHAPE[0] if is_cut else 1)
        for view, right in zip(outs, targets, strict=True):
            np.testing.assert_array_equal(read(view), right)
        for gradients in (0, 1, 2):
            outs = placed(device, np.zeros(SHAPE[:1], np.float32), *[np.zeros_like(x)] * gradients)
            options = RunOptions(STREAM, None, outs, wait=False)
            engine.on_device("pair", (images, others), options, gradients=gradients, mean=True)
            for view, right in zip(outs, engine.compare(x, -x, gradients=gradients, mean=True), strict=True):
                np.testing.assert_array_equal(read(view), right)
            if gradients < 2:
                engine.on_device("loss", (images, *goals), options, gradients=gradients, mean=True)
                expected = engine.on_host("loss", (x, *targets), gradients=gradients, mean=True)
                for view, right in zip(outs, expected, strict=True):
                    np.testing.assert_array_equal(read(view), right)
        engine.check()

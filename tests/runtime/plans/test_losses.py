"""Plans of losses: what targets are made of, where they lie, and what a share of a mean is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import CpuForeign
from tests.support.traced_device import HOPPER
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, DType, Pointer, TensorFormat
from vgg16gpu.runtime.on_device.graph_cache import can_be_read
from vgg16gpu.runtime.on_device.runner import ErrorSink
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.plans.losses import FeatureComparison, Losses, _Key
from vgg16gpu.zoo.generate import make_vgg

SHAPE = (2, 3, 32, 32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "vgg.onnx"
    make_vgg(path, variant="vgg11", size=32, width=64, hidden=64, classes=10)
    return path


def losses_on(device: CpuDevice, path: Path) -> Losses:
    compared = FeatureComparison.of(Model.of(path), {"relu1_1": 1.0}, None, "squared")
    return Losses(compared.graph, compared.terms, device, "fp32", "auto", None)


def losses_of(path: Path, facts: Any, precision: str) -> Losses:
    compared = FeatureComparison.of(Model.of(path), {"relu1_1": 1.0, "relu2_1": 0.5}, {"relu2_1": 1.0}, "squared")
    device: Any = SimpleNamespace(facts=facts)
    return Losses(compared.graph, compared.terms, device, precision, "auto", None)


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
    losses = losses_of(wide, HOPPER, precision)
    assert losses.stored(SHAPE) == (DType.F32,) * 3  # of fp16, too: what its rounding leaves is stored beside it
    wanted, plan = losses._programs.planned(_Key("loss", SHAPE, gradients=1, given=losses.stored(SHAPE)))
    (program,) = plan.programs
    assert tuple(value.name for value in program.given) == wanted.others
    maps = {"fp32": {"feature_loss_f32"}, "fp16": {"feature_loss_f32<3,1>"}}[precision]
    assert {*read_by_losses(program.steps)} == {(name, Arena.GIVEN) for name in (*maps, "feature_loss_f32")}
    _, taken = losses._programs.planned(_Key("loss", SHAPE, gradients=1))
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


def test_shares_add_up(cpu: CpuDevice, wide: Path) -> None:
    losses = losses_on(cpu, wide)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    targets = losses.targets(-x, (0,))
    whole, share = (losses.loss(x, targets, gradient=True, share=count) for count in (1, 4))
    for ours, others in zip(whole, share, strict=True):
        np.testing.assert_array_equal(ours, 4 * others)
    losses.close()


def test_a_run_is_repeated_as_long_as_it_is_kept(cpu: CpuDevice, wide: Path) -> None:
    losses, foreign = losses_on(cpu, wide), CpuForeign(cpu)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    targets = losses.targets(-x, (0,))
    (right,) = losses.loss(x, targets, gradient=False)
    arrays = [x, *targets, np.zeros(2, np.float32)]
    memory = [foreign.memory(array.nbytes) for array in arrays]
    for place, array in zip(memory, arrays, strict=True):
        cpu.copy_in(place.address, array)
    images, target, out = (
        StridedView(place.address, array.shape, TensorFormat().strides(array.shape), "float32")
        for place, array in zip(memory, arrays, strict=True)
    )
    verdict = ErrorSink(foreign.memory(12).address, 0, allows_nonfinite=True)
    for is_one_launch in (False, True):
        done = losses.loss_on_device(images, [target], [out], verdict, singly=False)
        cpu.zero(out.address, 8)
        assert losses.repeat(done) is is_one_launch
    found = np.empty(2, np.float32)
    memory[-1].read(found)
    np.testing.assert_array_equal(found, right)
    losses.close()
    assert not losses.repeat(done)


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in pieces"])
def test_arrays_on_the_device_give_the_bits_of_those_on_the_host(
    cpu: CpuDevice, wide: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    losses, foreign = losses_on(cpu, wide), CpuForeign(cpu)
    if is_cut:
        monkeypatch.setattr(losses._programs, "fitting", lambda *_: 1)  # room for one image
    memory = []

    def place(array: np.ndarray[Any, np.dtype[np.float32]]) -> StridedView:
        memory.append(foreign.memory(array.nbytes))
        cpu.copy_in(memory[-1].address, np.ascontiguousarray(array))
        return StridedView(memory[-1].address, array.shape, TensorFormat().strides(array.shape), "float32")

    def read(view: StridedView) -> Any:
        found = np.empty(view.shape, np.float32)
        next(each for each in memory if each.address == view.address).read(found)
        return found

    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    targets = losses.targets(-x, (0,))
    verdict = ErrorSink(foreign.memory(12).address, 0, allows_nonfinite=True)
    images, others, *goals = map(place, (x, -x, *targets))

    outs = [place(np.zeros_like(target)) for target in targets]
    done = losses.targets_on_device(others, (0,), outs, verdict, singly=False)
    assert len(done) == (SHAPE[0] if is_cut else 1)
    for view, right in zip(outs, targets, strict=True):
        np.testing.assert_array_equal(read(view), right)
    for gradients in (0, 1, 2):
        outs = [place(np.zeros(SHAPE[:1], np.float32)), *(place(np.zeros_like(x)) for _ in range(gradients))]
        losses.compare_on_device(images, others, outs, verdict, singly=False, share=2)
        for view, right in zip(outs, losses.compare(x, -x, gradients, share=2), strict=True):
            np.testing.assert_array_equal(read(view), right)
        if gradients < 2:
            losses.loss_on_device(images, goals, outs, verdict, singly=False, share=2)
            for view, right in zip(outs, losses.loss(x, targets, gradient=gradients > 0, share=2), strict=True):
                np.testing.assert_array_equal(read(view), right)
    losses.close()

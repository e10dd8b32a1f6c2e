"""`memory` of engines with gradients and of losses: what lies on the device at most, and what is cut or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.plans.conftest import CUT, Card
from tests.support.foreign_arrays import Placed
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from vgg16gpu import Engine, LossEngine
from vgg16gpu.compiler.compile import EngineOptions, sampler
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.runtime.on_device.results import RunOptions
from vgg16gpu.runtime.plans.gradients import gradient_plan
from vgg16gpu.runtime.plans.sizes import added_weights_nbytes

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
SIDES = (32, 40)


def images(count: int, sides: tuple[int, int] = SIDES) -> Any:
    return normal(seeded(f"memory {sides}"), count, 3, *sides)


def open_engine(model: Model, card: Card, **options: Any) -> Engine:
    options = {"outputs": [CUT], "kernels": "ffma", "gradient": True} | options
    return Engine(model, device=Opened(card, "a test"), **options)


def open_loss(model: Model, card: Card, **options: Any) -> LossEngine:
    return LossEngine(model, LAYERS, device=Opened(card, "a test"), kernels="ffma", **options)


def vjp(engine: Engine, x: Any) -> Any:
    return engine.vjp(x, np.ones_like(np.asarray(engine.run(x))))


def test_weights_of_the_way_there_lie_once(whole: Model, cpu: CpuDevice) -> None:
    options: dict[str, Any] = {"kernels": "auto"}
    with open_engine(whole, Card(cpu), gradient=False, **options) as engine:
        there, alone = engine.plan, engine.sizes.nbytes
        shape, graph = engine.program.input.shape, engine.graph
    samples = sampler(whole, EngineOptions(outputs=[CUT]), graph)
    plan = gradient_plan(graph, shape, cpu.facts, "fp32", "auto", samples)
    added = added_weights_nbytes(plan, there)
    shared = plan.weights.weights_nbytes - added
    assert 0.98 * there.weights.weights_nbytes < shared <= there.weights.weights_nbytes  # it needs no output
    card = Card(cpu)
    with open_engine(whole, card, **options) as engine:
        assert engine.sizes.nbytes == card.nbytes == alone + added + plan.activations_nbytes
        assert (engine.sizes.planned, engine.sizes.gradients, engine.sizes.made) == ((shape[2:],), 1, 2)
        assert vjp(engine, images(1, (48, 48))).any()
    assert not card.used


def test_gradients_are_within_the_bound(whole: Model, cpu: CpuDevice) -> None:
    """Of sizes that do not all fit, what was used longest ago goes; the engine's own plan stays, and bits do."""
    sizes = [(16, 16), (24, 24), SIDES]
    card = Card(cpu)
    with open_engine(whole, card) as engine:
        for sides in sizes:
            expected = {sides: vjp(engine, images(1, sides)) for sides in sizes}
        all_of_them = card.nbytes
    card = Card(cpu)
    bound = all_of_them * 2 // 3
    with open_engine(whole, card, memory=bound) as engine:
        for sides in (*sizes, *sizes[::-1]):
            assert_same_bits(vjp(engine, images(1, sides)), expected[sides])
            assert engine.sizes.nbytes == card.nbytes <= bound
            assert engine.sizes.planned[-1] == sides
        use = engine.sizes
        assert use.dropped == use.made - len(use.planned) - use.gradients > 0
    assert not card.used
    assert not card.bound


@pytest.mark.parametrize("size", [None, SIDES])
@pytest.mark.parametrize("where", ["host", "device"])
def test_a_gradient_that_does_not_fit_is_cut(whole: Model, cpu: CpuDevice, size: Any, where: str) -> None:
    """Of four images there is room for two: the plan of four would not be within the bound even by itself."""
    x = images(6)
    with open_engine(whole, Card(cpu), size=SIDES, batch=2) as engine:
        expected = vjp(engine, x)
        needs = {2: engine.sizes.nbytes}
    with open_engine(whole, Card(cpu), size=SIDES, batch=4) as engine:
        needs[4] = engine.sizes.nbytes
    with open_engine(whole, Card(cpu), size=SIDES, batch=4, gradient=False) as engine:
        forward = engine.sizes.nbytes
    with open_engine(whole, Card(cpu), size=SIDES, batch=2, gradient=False) as engine:
        bound = forward + needs[2] - engine.sizes.nbytes
    assert bound < needs[4]
    card = Card(cpu)
    with open_engine(whole, card, size=size, batch=4, memory=bound) as engine:
        y = np.ones_like(np.asarray(engine.run(x)))
        slopes: Any = y if where == "host" else Placed(cpu, y)
        given: Any = x if where == "host" else Placed(cpu, x)
        for _ in range(2):
            found: Any = engine.vjp(given, slopes)
            assert_same_bits(found if where == "host" else found.numpy(), expected)
            assert engine.sizes.nbytes <= bound


def test_not_one_image_is_refused_and_says_what_to_do(whole: Model, cpu: CpuDevice) -> None:
    card = Card(cpu)
    words = r"the gradient of a batch of shape \(1, 3, 48, 48\) needs .* MB of memory beside .* and memory=20000 allows"
    with pytest.raises(DeviceError, match=words):
        open_engine(whole, card, memory=20000, size=48)
    with open_engine(whole, card, memory=20000) as engine:  # smaller images may come
        assert np.isfinite(engine.run(images(1, (48, 48)))).all()
        with pytest.raises(DeviceError, match=words):
            vjp(engine, images(1, (48, 48)))
        assert np.isfinite(engine.run(images(1, (48, 48)))).all()
    assert not card.used
    with pytest.raises(DeviceError, match=r"needs .* and memory=20000 allows 0.0 MB in all; give more, or use smaller"):
        open_loss(whole, card, memory=20000).targets(images(1))
    card = Card(cpu, free=100_000)
    with pytest.raises(DeviceError, match=r"MB are free in all; use smaller images, a smaller batch"):
        open_loss(whole, card).targets(images(1))


def test_a_loss_is_within_its_bound(whole: Model, cpu: CpuDevice) -> None:
    """The weights, and programs of targets, values and gradients; what is too large for it is cut, to the same bits."""
    x, y = images(5), -images(5)
    card = Card(cpu)
    with open_loss(whole, card) as engine:
        targets = engine.targets(y)
        expected = engine.value_and_gradient(x, targets)
        everything = engine.nbytes
        assert everything == card.nbytes
    with open_loss(whole, Card(cpu), batch=2) as engine:
        engine.value_and_gradient(x[:2], [target[:2] for target in targets])
        two = engine.nbytes
    assert two < everything / 2
    for share in (1, 2):
        card = Card(cpu)
        with open_loss(whole, card, memory=share * two) as engine:
            for ours, others in zip(engine.targets(y), targets, strict=True):
                assert_same_bits(ours, others)
            for _ in range(2):
                for ours, others in zip(engine.value_and_gradient(x, targets), expected, strict=True):
                    assert_same_bits(ours, others)
                assert_same_bits(engine.value(x, targets), expected[0])
                assert engine.nbytes == card.nbytes <= share * two
        assert not card.used
        assert not card.bound


def test_a_loss_on_the_device_is_cut_alike(whole: Model, cpu: CpuDevice) -> None:
    x, y = images(5), -images(5)
    with open_loss(whole, Card(cpu)) as engine:
        targets = engine.targets(y)
        expected = engine.value_and_gradient(x, targets, mean=True)
    with open_loss(whole, Card(cpu), batch=2) as engine:
        engine.value_and_gradient(x[:2], [target[:2] for target in targets])
        bound = engine.nbytes
    with open_loss(whole, Card(cpu), memory=bound) as engine:
        given, goals = Placed(cpu, x), engine.targets(Placed(cpu, y))
        for ours, others in zip(goals, targets, strict=True):
            assert_same_bits(ours.numpy(), others)
        one = engine.targets(Placed(cpu, y[:1]))
        for wait in ({}, {"stream": 0, "wait": False}):
            found = engine.value_and_gradient(given, goals, mean=True, **wait)
            for ours, others in zip(found, expected, strict=True):
                assert_same_bits(ours.numpy(), others)
            assert engine.nbytes <= bound
        again = engine.value(x, [target.numpy() for target in one])
        assert_same_bits(engine.value(given, one).numpy(), again)
        options = RunOptions(0, None, found, wait=False)
        _, enqueued = engine.on_device("loss", (given, *goals), options, gradients=1, mean=True)
        assert len(enqueued) == 3  # pieces of 3 would be too large: 2, 1 and 2, as the CPU's arenas are
        engine.repeat(enqueued, 0)  # some program may be gone; nothing breaks
        engine.check()


def test_what_a_graph_has_captured_stays(whole: Model, cpu: CpuDevice) -> None:
    """It may be replayed at any time."""
    card = Card(cpu)
    with open_loss(whole, card, memory=900_000) as engine:
        arrays = {sides: Placed(cpu, images(1, sides)) for sides in (SIDES, (48, 48), (64, 64))}
        targets = {sides: engine.targets(array) for sides, array in arrays.items()}
        options: dict[str, Any] = {"stream": 0, "wait": False}
        out = engine.value(arrays[SIDES], targets[SIDES], **options)
        card.foreign.capturing = True
        engine.value(arrays[SIDES], targets[SIDES], out=out, **options)
        card.foreign.capturing = False
        for _ in range(2):
            for sides in ((48, 48), (64, 64)):
                engine.value(arrays[sides], engine.targets(arrays[sides]))
        kept = cpu.counters.allocations
        engine.value(arrays[SIDES], targets[SIDES], out=out)
        assert cpu.counters.allocations == kept
        assert engine.nbytes <= 900_000


def test_an_engines_plan_that_a_graph_has_captured_stays(whole: Model, cpu: CpuDevice) -> None:
    card = Card(cpu)
    with open_engine(whole, card, memory=1) as engine:
        x = Placed(cpu, images(1))
        out = engine.run(x, stream=0, wait=False)
        card.foreign.capturing = True
        engine.run(x, stream=0, wait=False, out=out)
        card.foreign.capturing = False
        engine.run(images(1, (16, 16)))
        engine.run(images(1, (24, 24)))
        assert engine.sizes.planned == (SIDES, (24, 24))


@pytest.mark.parametrize("memory", [0, True, 1.5, "1 GB"])
def test_a_bound_is_a_number_of_bytes(whole: Model, memory: Any) -> None:
    with pytest.raises(InputError, match=r"memory .*: give a number of bytes"):
        LossEngine(whole, LAYERS, device="cpu", memory=memory)

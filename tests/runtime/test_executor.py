"""Plans on a device: what is allocated is what was said, and all of it is given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_harness import assert_same_bits, normal, seeded
from vgg16gpu.checks.accuracy import assert_close
from vgg16gpu.compiler import lowering as ops
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Graph, GraphInput, Identity, Op
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.lowering.base import AnyLowering, Layer, Lowering, NoWeights, Places, no_weights
from vgg16gpu.compiler.lowering.layout import convert
from vgg16gpu.compiler.lowering.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner import selection
from vgg16gpu.compiler.planner.options import PlanOptions
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.launches import Step
from vgg16gpu.program.plans import Plan
from vgg16gpu.program.values import Arena, Element, Layout, Pointer, Value
from vgg16gpu.runtime.executor import Executor, check_memory
from vgg16gpu.runtime.stored import decoded


def graph(outputs: tuple[str, ...] = ("scores",)) -> Graph:
    random = seeded("resident")
    window = Window((3, 3), pads=Pads(1, 1, 1, 1))
    conv = Conv("x", "a", ("a",), normal(random, 5, 3, 3, 3), normal(random, 5), window, relu=True, pool=True)
    gemm = Gemm("a", "scores", ("scores",), normal(random, 4, 5 * 9), normal(random, 4), flattens=True)
    return Graph(GraphInput("x", (None, 3, 6, 6)), (conv, gemm), outputs)


def plan_for(device: Device, *batches: int, **options: Any) -> Plan:
    chosen = PlanOptions(kernels="ffma", **options)
    return make_plan(graph(), device.facts, [(batch, 3, 6, 6) for batch in batches], chosen)


def images(count: int) -> Array:
    return normal(seeded("images"), count, 3, 6, 6)


class Ledger:
    """A device that remembers what is allocated; its copies fail after `copies` of them."""

    def __init__(self, device: Device, copies: int = 1 << 30) -> None:
        self._device = device
        self._copies = copies
        self.live: dict[int, int] = {}
        self.peak = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, nbytes: int) -> int:
        address = self._device.allocate(nbytes)
        self.live[address] = nbytes
        self.peak = max(self.peak, sum(self.live.values()))
        return address

    def free(self, address: int) -> None:
        del self.live[address]
        self._device.free(address)

    def copy_in(self, address: int, source: npt.NDArray[np.generic]) -> None:
        self._copies -= 1
        if self._copies < 0:
            raise DeviceError("the copy failed")
        self._device.copy_in(address, source)


@pytest.mark.parametrize("batches", [(1,), (1, 4)], ids=str)
def test_the_plan_tells_the_memory_that_is_allocated(device: Device, batches: tuple[int, ...]) -> None:
    plan = plan_for(device, *batches)
    device.build(plan.kernels)
    ledger = Ledger(device)
    resident = Executor(plan, ledger)
    assert sum(ledger.live.values()) == plan.device_nbytes
    assert ledger.peak == plan.device_nbytes + plan.weights.staging_nbytes
    before = dict(ledger.live)
    resident.run(1, images(1))
    assert ledger.live == before
    resident.close()
    resident.close()
    assert not ledger.live


@pytest.mark.parametrize("copies", range(4))
def test_a_failure_on_the_way_leaves_nothing_behind(device: Device, copies: int) -> None:
    plan = plan_for(device, 1)
    device.build(plan.kernels)
    ledger = Ledger(device, copies)
    with pytest.raises(DeviceError, match="the copy failed"):
        Executor(plan, ledger)
    assert not ledger.live


def test_too_little_memory_is_said_before_anything_is_allocated(device: Device) -> None:
    class Small(Ledger):
        facts = replace(device.facts, memory_free=1000)

    small = Small(device)
    with pytest.raises(DeviceError, match=r"needs 0 MB of memory for batch 2 and 0 MB are free; use a smaller batch"):
        check_memory(plan_for(device, 2), small)
    assert small.peak == 0


def test_launchers_run_what_lies_on_the_device(device: Device) -> None:
    normalisation = Normalisation((0.5,) * 3, (0.25,) * 3)
    plan = plan_for(device, 1, normalisation=normalisation, keep_values=True)
    device.build(plan.kernels)
    resident = Executor(plan, device)
    program = plan.programs[0]
    (expected,) = resident.run(1, images(1)).outputs
    launch: Callable[[], None] = resident.launcher(1)
    launch()
    assert_same_bits(resident.read(program.outputs[0]), expected)
    resident.run(1, np.zeros((1, 6, 6, 3), np.uint8))
    assert (resident.read(program.values[0]) == -2).all()
    resident.launcher(1, "uint8")()
    resident.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_kernels_bring_what_is_small(hopper: Any, precision: str) -> None:
    """In and out, however many counters lie between: a copy node of the graph would take longer."""
    options = PlanOptions(precision, normalisation=Normalisation((0.5,) * 3, (0.25,) * 3), samples=lambda: images(3))
    plan = make_plan(graph(), hopper.facts, [(batch, 3, 6, 6) for batch in (1, 2, 3)], options)
    with closing(Executor.load(plan, hopper)) as executor:
        trips: list[Any] = [bound.round_trip for bound in executor._bound.values()]
        sequences = [trip.sequence for trip in trips]
        assert len(sequences) == 6
        assert {(sequence.upload, sequence.download) for sequence in sequences} == {(None, None)}
        launches = [launch for sequence in sequences for launch in (sequence.launches[0], sequence.launches[-1])]
        assert {(launch.name.split()[0], launch.programmatic) for launch in launches} == {("copy", True)}


@pytest.mark.parametrize("element", Element, ids=lambda element: element.name)
def test_stored_numbers_are_decoded(element: Element) -> None:
    value = Value("v", (1, 3), Layout.NHWC, Pointer(Arena.ACTIVATIONS, 0), element, step=0.5)
    numbers = np.zeros(value.pitch, np.float32)
    numbers[:3] = 1, 2.5, 100
    high = numbers.astype(np.float16)
    stored = {
        Element.F32: numbers,
        Element.F16: high,
        Element.BF16: (numbers.view(np.uint32) >> 16).astype(np.uint16),
        Element.F16_PAIR: np.stack([high, high / np.float16(2048)]),
        Element.U8: (2 * numbers).astype(np.uint8),
        Element.S8: (-numbers).astype(np.int8),
    }[element]
    expected = {Element.F16_PAIR: numbers * np.float32(1 + 2.0**-11), Element.S8: np.trunc(numbers) * -0.5}
    found = decoded(value, np.ascontiguousarray(stored).reshape(-1).view(np.uint8))
    np.testing.assert_array_equal(found[0], expected.get(element, numbers))


# ---- Scales and second pass, with a copy in the place of a tensor core: it only passes its input through float16


def through_float16(element: Element) -> Callable[[Op, str], tuple[AnyLowering, ...]]:
    """Lowerings of which Identity takes `element` and gives float32."""

    def steps(layer: Layer[Identity], x: Value, y: Value, held: NoWeights, places: Places) -> tuple[Step, ...]:
        del layer, held
        return (convert.convert(x, y, places.maxima),)

    copy = Lowering(Identity, steps, no_weights, family="mma", takes=lambda _: (element,))

    def lowerings(op: Op, family: str) -> tuple[AnyLowering, ...]:
        copies = (copy,) if isinstance(op, Identity) else ()
        return ops.lowerings(op, family) if family == "ffma" else copies

    return lowerings


@contextmanager
def resident_through(
    device: Device, element: Element, precision: str, batch: int, samples: Array
) -> Iterator[tuple[Executor, Executor]]:
    """A convolution, the copy and a fully connected layer; and the same on float32."""
    conv, gemm = graph().ops
    net = Graph(graph().input, (conv, Identity("a", "b", ("b",)), replace(gemm, x="b")), ("scores",))
    shape = [(batch, 3, 6, 6)]
    with mock.patch.object(selection, "lowerings", through_float16(element)):
        made = make_plan(net, device.facts, shape, PlanOptions(precision, kernels="mma", samples=lambda: samples))
    exact = make_plan(net, device.facts, shape, PlanOptions(kernels="ffma"))
    device.build(made.kernels | exact.kernels)
    with closing(Executor(made, device)) as first, closing(Executor(exact, device)) as second:
        yield first, second


def test_values_pass_through_pairs_with_the_scales_of_the_samples(device: Device) -> None:
    x = images(4)
    with resident_through(device, Element.F16_PAIR, "fp32", 4, 1e-6 * x) as (made, exact):
        (scores,), (expected,) = (plan.run(4, 1e-6 * x).outputs for plan in (made, exact))
        assert made.second_passes == 0
        assert_close(scores, expected, 2.0**-19 * float(np.abs(expected).max()))


def test_images_out_of_range_alone_are_run_again(device: Device) -> None:
    x = images(5)
    with resident_through(device, Element.F16_PAIR, "fp32", 5, x) as (made, exact):
        (clean,) = made.run(5, x).outputs
        assert made.second_passes == 0
        x[1], x[4] = 1e6 * x[1], np.nan
        (scores,), nonfinite, out_of_range = made.run(5, x)
        (expected,) = exact.run(5, x).outputs
        assert made.second_passes == 2
        assert not out_of_range.any()
        assert nonfinite.tolist() == [False] * 4 + [True]
        assert_same_bits(scores[1], expected[1])
        assert np.isnan(scores[4]).all()
        assert_same_bits(scores[[0, 2, 3]], clean[[0, 2, 3]])  # the neighbours keep their bits


def test_what_float16_alone_cannot_hold_is_marked(device: Device) -> None:
    x = images(3)
    with resident_through(device, Element.F16, "fp16", 3, x) as (made, exact):
        (scores,), _, out_of_range = made.run(3, x)
        (expected,) = exact.run(3, x).outputs
        assert_close(scores, expected, 2.0**-9 * float(np.abs(expected).max()))
        assert not out_of_range.any()
        x[1] *= 1e6
        _, nonfinite, out_of_range = made.run(3, x)
        assert out_of_range.tolist() == [False, True, False]
        assert not nonfinite.any()
        assert made.second_passes == 0  # there is nothing more exact in this plan

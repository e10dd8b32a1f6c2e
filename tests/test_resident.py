"""Plans on a device: what is allocated is what was said, and all of it is given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernel_harness import assert_same_bits, normal, seeded
from tests.reference import evaluate
from vgg16gpu.accuracy import assert_close
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError
from vgg16gpu.graph import Array, Conv, Gemm, Graph, GraphInput, Pads, Window
from vgg16gpu.ops.preprocess import Normalisation
from vgg16gpu.plan import Wish, make_plan
from vgg16gpu.program import Plan
from vgg16gpu.resident import ResidentPlan, check_memory


def graph(outputs: tuple[str, ...] = ("scores",)) -> Graph:
    random = seeded("resident")
    window = Window((3, 3), pads=Pads(1, 1, 1, 1))
    conv = Conv("x", "a", ("a",), normal(random, 5, 3, 3, 3), normal(random, 5), window, relu=True, pool=True)
    gemm = Gemm("a", "scores", ("scores",), normal(random, 4, 5 * 9), normal(random, 4), flattens=True)
    return Graph(GraphInput("x", (None, 3, 6, 6)), (conv, gemm), outputs)


def plan_for(device: Device, *batches: int, **options: Any) -> Plan:
    wish = Wish(kernels="ffma", **options)
    return make_plan(graph(), device.facts, [(batch, 3, 6, 6) for batch in batches], wish)


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
    resident = ResidentPlan(plan, ledger)
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
        ResidentPlan(plan, ledger)
    assert not ledger.live


def test_too_little_memory_is_said_before_anything_is_allocated(device: Device) -> None:
    class Small(Ledger):
        facts = replace(device.facts, memory_free=1000)

    small = Small(device)
    with pytest.raises(DeviceError, match=r"needs 0 MB of memory for batch 2 and 0 MB are free; use a smaller batch"):
        check_memory(plan_for(device, 2), small)
    assert small.peak == 0


def test_fewer_images_than_the_batch(device: Device) -> None:
    plan, x = plan_for(device, 5), images(5)
    device.build(plan.kernels)
    resident = ResidentPlan(plan, device)
    (full,) = resident.run(5, x).outputs
    x[3:] = np.nan  # what an earlier run left in the staging buffer must not come back
    resident.run(5, x)
    (part,), nonfinite, _ = resident.run(5, x[:3])
    assert part.shape == (3, 4)
    assert nonfinite.tolist() == [False] * 3
    assert_same_bits(part, full[:3])
    resident.close()


def test_results_outlive_the_next_run(device: Device) -> None:
    plan, x = plan_for(device, 1), images(2)
    device.build(plan.kernels)
    resident = ResidentPlan(plan, device)
    (first,) = resident.run(1, x[:1]).outputs
    kept = first.copy()
    resident.run(1, x[1:])
    assert_same_bits(first, kept)
    resident.close()


def test_values_can_be_read(device: Device) -> None:
    plan, x = plan_for(device, 2, keep_values=True), images(2)
    device.build(plan.kernels)
    resident = ResidentPlan(plan, device)
    resident.run(2, x)
    expected = evaluate(graph(), x)
    for value in plan.programs[0].values:
        read = resident.read(value)
        assert read.flags.c_contiguous
        assert_close(read, expected[value.name], 1e-5, label=value.name)
    resident.close()


def test_launchers_run_what_lies_on_the_device(device: Device) -> None:
    normalisation = Normalisation((0.5,) * 3, (0.25,) * 3)
    plan = plan_for(device, 1, normalisation=normalisation, keep_values=True)
    device.build(plan.kernels)
    resident = ResidentPlan(plan, device)
    program = plan.programs[0]
    (expected,) = resident.run(1, images(1)).outputs
    launch: Callable[[], None] = resident.launcher(1)
    launch()
    assert_same_bits(resident.read(program.outputs[0]), expected)
    resident.run(1, np.zeros((1, 6, 6, 3), np.uint8))
    assert (resident.read(program.values[0]) == -2).all()
    resident.launcher(1, "uint8")()
    resident.close()

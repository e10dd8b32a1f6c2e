"""Plans on a device: what is allocated is what was said, and all of it is given back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_harness import normal, seeded
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import Arena, DType, Layout, Pointer, TensorDesc
from vgg16gpu.runtime.executor import Executor, check_memory
from vgg16gpu.runtime.outputs import decoded


def graph(outputs: tuple[str, ...] = ("scores",)) -> Graph:
    random = seeded("resident")
    window = Window((3, 3), pads=Pads(1, 1, 1, 1))
    conv = Conv("x", "a", ("a",), normal(random, 5, 3, 3, 3), normal(random, 5), window, relu=True, pool=True)
    gemm = Gemm("a", "scores", ("scores",), normal(random, 4, 5 * 9), normal(random, 4), flattens=True)
    return Graph(GraphInput("x", (None, 3, 6, 6)), (conv, gemm), outputs)


def plan_for(device: Device, *batches: int, **options: Any) -> CompiledModel:
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


@pytest.mark.parametrize("element", DType, ids=lambda element: element.name)
def test_stored_numbers_are_decoded(element: DType) -> None:
    value = TensorDesc("v", (1, 3), Layout.NHWC, Pointer(Arena.ACTIVATIONS, 0), element, step=0.5)
    numbers = np.zeros(value.pitch, np.float32)
    numbers[:3] = 1, 2.5, 100
    high = numbers.astype(np.float16)
    stored = {
        DType.F32: numbers,
        DType.F16: high,
        DType.BF16: (numbers.view(np.uint32) >> 16).astype(np.uint16),
        DType.F16_PAIR: np.stack([high, high / np.float16(2048)]),
        DType.U8: (2 * numbers).astype(np.uint8),
        DType.S8: (-numbers).astype(np.int8),
    }[element]
    expected = {DType.F16_PAIR: numbers * np.float32(1 + 2.0**-11), DType.S8: np.trunc(numbers) * -0.5}
    found = decoded(value, np.ascontiguousarray(stored).reshape(-1).view(np.uint8))
    np.testing.assert_array_equal(found[0], expected.get(element, numbers))

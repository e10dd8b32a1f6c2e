"""Memory and streams that are shared with other libraries: the driver's functions that are called, in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.foreign_arrays import STREAM, numbers
from vgg16gpu.devices.base import Counters
from vgg16gpu.devices.cuda import interop as cuda_foreign
from vgg16gpu.devices.cuda.interop import CudaInterop, CudaMemory
from vgg16gpu.errors import DeviceError


class FakeDriver:
    """The functions of the driver's library that were called; those in `failing` fail. Memory begins at 4096."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuMemAlloc_v2":
                arguments[0]._obj.value = 4096
            if name == "cuPointerGetAttribute":
                arguments[0]._obj.value = 3
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"it failed"
            return 2 * (name in self.failing)

        return call


RETAINED = ["cuDeviceGet", "cuDevicePrimaryCtxRetain"]
RELEASED = ["cuDevicePrimaryCtxRelease_v2"]


def within(name: str) -> list[str]:
    return ["cuCtxPushCurrent_v2", name, "cuCtxPopCurrent_v2"]


def drive(monkeypatch: pytest.MonkeyPatch, *failing: str) -> FakeDriver:
    made = FakeDriver(*failing)
    monkeypatch.setattr(cuda_foreign, "_library", lambda: made)
    return made


def test_memory_holds_the_context_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive(monkeypatch)
    memory = CudaMemory(0, 100)
    assert memory.address == 4096
    assert driver.calls == [*RETAINED, *within("cuMemAlloc_v2")]
    driver.calls.clear()
    memory.read(numbers(5))
    assert driver.calls == within("cuMemcpyDtoH_v2")
    driver.calls.clear()
    del memory
    assert driver.calls == [*within("cuMemFree_v2"), *RELEASED]


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive(monkeypatch, "cuMemAlloc_v2")
    with pytest.raises(DeviceError, match=r"no 1,000 bytes for results on cuda:2 \(cuMemAlloc_v2 failed: it failed\)"):
        CudaMemory(2, 1000)
    assert driver.calls == [
        *RETAINED,
        *within("cuMemAlloc_v2")[:2],
        "cuGetErrorString",
        "cuCtxPopCurrent_v2",
        *RELEASED,
    ]


def test_a_context_that_is_broken_is_released_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive(monkeypatch)
    memory = CudaMemory(0, 100)
    driver.failing = ("cuCtxPushCurrent_v2", "cuMemFree_v2")
    driver.calls.clear()
    del memory
    assert driver.calls == ["cuCtxPushCurrent_v2", "cuGetErrorString", *RELEASED]


class Current:
    """The part of `Held` that is needed where our stream follows another."""

    driver = SimpleNamespace(Error=RuntimeError, Context=SimpleNamespace(pop=lambda: None))
    context = SimpleNamespace(push=lambda: None)
    stream = SimpleNamespace(handle=STREAM)


@pytest.mark.parametrize("failing", [(), ("cuEventRecord",)])
def test_the_lane_follows_by_an_event_of_the_moment(monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]) -> None:
    driver, counters = drive(monkeypatch, *failing), Counters()
    foreign = CudaInterop(Current(), 3, counters)  # type: ignore[arg-type]
    assert (foreign.stream, foreign.card_of(4096)) == (STREAM, 3)
    driver.calls.clear()
    if failing:
        with pytest.raises(DeviceError, match="cuEventRecord failed: it failed"):
            foreign.follow(1)
    else:
        foreign.follow(1)
    made = ["cuEventCreate", "cuEventRecord"]
    middle = ["cuGetErrorString"] if failing else ["cuStreamWaitEvent"]
    assert driver.calls == [*made, *middle, "cuEventDestroy_v2"]
    assert foreign.memory(8).address == 4096
    assert counters == Counters(allocations=1)


def test_no_memory_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    drive(monkeypatch, "cuPointerGetAttribute")
    assert CudaInterop(Current(), 0, Counters()).card_of(4096) is None  # type: ignore[arg-type]

"""What an engine counts is what reaches the driver: one copy each way for a batch, its launches, one wait."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.narrow_vgg import images, pixels
from vgg16gpu import Engine
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.devices.cuda.driver import load_driver
from vgg16gpu.errors import DeviceError


def runs(count: int, launches: int) -> Counters:
    """What that many runs of one batch each count."""
    return Counters(count, count, count * launches, count, 0)


class DriverCalls:
    """Counts, below the device, what goes to the driver; or on the cpu, to the C library and the compiled kernels."""

    def __init__(self) -> None:
        self.counted = Counters()

    def count(self, patch: pytest.MonkeyPatch, owner: Any, name: str, field: str) -> None:
        original = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            setattr(self.counted, field, getattr(self.counted, field) + 1)
            return original(*arguments, **options)

        patch.setattr(owner, name, counting)

    def watch_cpu(self, patch: pytest.MonkeyPatch) -> None:
        from vgg16gpu.devices.cpu import library as cpu_library
        from vgg16gpu.devices.cpu import memory as cpu_memory
        from vgg16gpu.devices.cpu.device import CpuDevice

        original, heaps = cpu_memory.copy, []
        remember = cpu_memory.Heap.__init__

        def made(heap: Any, *arguments: Any, **options: Any) -> None:
            remember(heap, *arguments, **options)
            heaps.append(heap)

        def copy(target: int, source: int, nbytes: int) -> None:
            inwards = any(lies_in(heap, target, nbytes) for heap in heaps)
            outwards = any(lies_in(heap, source, nbytes) for heap in heaps)
            assert inwards != outwards
            self.counted.copies_in += inwards
            self.counted.copies_out += outwards
            original(target, source, nbytes)

        patch.setattr(cpu_memory.Heap, "__init__", made)
        patch.setattr(cpu_memory, "copy", copy)
        self.count(patch, cpu_memory.Heap, "allocate", "allocations")
        self.count(patch, cpu_library.BoundLaunch, "__call__", "launches")
        self.count(patch, CpuDevice, "synchronize", "synchronisations")

    def watch_cuda(self, patch: pytest.MonkeyPatch) -> None:
        driver = load_driver()
        prefixes = {"memcpy_htod": "copies_in", "memcpy_dtoh": "copies_out", "mem_alloc": "allocations"}
        prefixes |= {"pagelocked": "allocations", "managed": "allocations", "memcpy_dtod": "launches"}
        prefixes |= {"memset": "launches", "matrix": "launches"}
        for name in dir(driver):
            for prefix, field in prefixes.items():
                if name.startswith(prefix):
                    self.count(patch, driver, name, field)
        for owner in (driver.Stream, driver.Event, driver.Context):
            if hasattr(owner, "synchronize"):
                self.count(patch, owner, "synchronize", "synchronisations")
        for name in {"prepared_call", "__call__"} & set(dir(driver.Function)):
            self.count(patch, driver.Function, name, "launches")
        self.watch_launches(patch, driver)
        self.watch_graphs(patch)

    def watch_launches(self, patch: pytest.MonkeyPatch, driver: Any) -> None:
        """A kernel whose first argument is where to write, or whose second is where to read, on the host: a copy."""
        pinned: list[tuple[int, int]] = []
        allocate, launch = driver.pagelocked_empty, driver.Function.prepared_async_call

        def counting_allocate(*arguments: Any, **options: Any) -> Any:
            buffer = allocate(*arguments, **options)
            pinned.append((buffer.ctypes.data, buffer.nbytes))
            return buffer

        def counting_launch(function: Any, grid: Any, block: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
            packed = arguments[0] if arguments and isinstance(arguments[0], bytes) else b""
            places = struct.unpack("<QQ", packed[:16]) if len(packed) >= 16 else (0, 0)
            host = [any(start <= place < start + nbytes for start, nbytes in pinned) for place in places]
            field = "copies_out" if host[0] else "copies_in" if host[1] else "launches"
            setattr(self.counted, field, getattr(self.counted, field) + 1)
            return launch(function, grid, block, stream, *arguments, **options)

        patch.setattr(driver, "pagelocked_empty", counting_allocate)
        patch.setattr(driver.Function, "prepared_async_call", counting_launch)

    def watch_graphs(self, patch: pytest.MonkeyPatch) -> None:
        """A graph does what was recorded into it whenever it is launched. Recording itself does nothing."""
        try:
            from cuda.bindings import driver as bindings  # type: ignore[import-not-found]
        except ImportError:
            return
        begin, end, instantiate = (
            getattr(bindings, name) for name in ("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate")
        )
        launch = bindings.cuGraphLaunch
        before, recorded, held = [Counters()], [Counters()], {}

        def begin_capture(*arguments: Any) -> Any:
            before[0] = Counters(**vars(self.counted))
            return begin(*arguments)

        def end_capture(*arguments: Any) -> Any:
            recorded[0], self.counted = self.counted.since(before[0]), before[0]
            return end(*arguments)

        def make_executable(*arguments: Any) -> Any:
            error, *results = instantiate(*arguments)
            held[int(results[0])] = recorded[0]
            return error, *results

        def launch_graph(graph: Any, stream: Any) -> Any:
            for field, number in vars(held[int(graph)]).items():
                setattr(self.counted, field, getattr(self.counted, field) + number)
            return launch(graph, stream)

        patch.setattr(bindings, "cuStreamBeginCapture", begin_capture)
        patch.setattr(bindings, "cuStreamEndCapture", end_capture)
        patch.setattr(bindings, "cuGraphInstantiate", make_executable)
        patch.setattr(bindings, "cuGraphLaunch", launch_graph)


def lies_in(heap: Any, address: int, nbytes: int) -> bool:
    try:
        heap.require(address, nbytes)
    except DeviceError:
        return False
    return True


@pytest.mark.first_case(reason="uint8 goes the same way, with fewer bytes")
@pytest.mark.parametrize("element_type", ["float32", "uint8"])
def test_counters_against_the_calls_that_reach_the_driver(
    device: Device, model: Path, element_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = DriverCalls()
    calls.watch_cpu(monkeypatch) if device.facts.kind == "cpu" else calls.watch_cuda(monkeypatch)
    x = images(2) if element_type == "float32" else pixels(2)
    with Engine(model, device=device.facts.kind) as engine:
        built = Counters(**vars(calls.counted))
        assert built.allocations >= 3
        assert built.copies_in > 30  # the weights
        engine.run(x)
        expected = runs(2, 1 + len(engine.program.steps))
        assert calls.counted.since(built) == expected
        assert engine.counters == expected

"""The cpu device: argument checks, memory, counters, life."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.devices.cpu.test_language import sequence
from tests.support.cpu_kernels import fixture_kernel, launch
from vgg16gpu.devices.base import Counters, Stream, Transfer
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.launch import Argument, Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Arena, Pointer

# ---- Arguments and geometry


ONE, WARP = Dim3(1), Dim3(32)


def scale_step(
    arguments: tuple[Argument, ...] | None = None, grid: Dim3 = ONE, block: Dim3 = WARP, shared: int = 0
) -> KernelLaunch:
    good: tuple[Argument, ...] = (
        Pointer(Arena.ACTIVATIONS, 0),
        Pointer(Arena.ACTIVATIONS, 256),
        Scalar(2.0, "f"),
        Scalar(8),
    )
    return KernelLaunch(fixture_kernel("scale"), grid, block, good if arguments is None else arguments, shared)


POINTER = Pointer(Arena.ACTIVATIONS, 0)
REAL = Scalar(1.0, "f")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (scale_step((POINTER, POINTER, REAL)), "scale: 3 arguments given, the kernel takes 4"),
        (
            scale_step((POINTER, Scalar(1), REAL, Scalar(1))),
            "argument 1 is a 32-bit integer, the kernel takes a pointer",
        ),
        (scale_step((POINTER, POINTER, Scalar(1), Scalar(1))), "argument 2 is a 32-bit integer, .* takes a float"),
        (scale_step((POINTER, POINTER, REAL, REAL)), "argument 3 is a float, the kernel takes a 32-bit integer"),
        (scale_step((POINTER, POINTER, REAL, POINTER)), "argument 3 is a pointer, the kernel takes a 32-bit integer"),
        (
            scale_step((POINTER, POINTER, REAL, Scalar(2**32))),
            "argument 3 is 4294967296, which is not a 32-bit integer",
        ),
        (scale_step((POINTER, POINTER, REAL, Scalar(0.5))), "argument 3 is 0.5, which is not a 32-bit integer"),
        (scale_step((Pointer(Arena.STAGING, 0), POINTER, REAL, Scalar(1))), "arena staging, which is not there"),
        (scale_step(block=Dim3(1025)), r"block \(1025, 1, 1\) is not within"),
        (scale_step(block=Dim3(32, 33)), r"block of \(32, 33, 1\) has 1056 threads, at most 1024"),
        (scale_step(block=Dim3(1, 1, 65)), r"block \(1, 1, 65\) is not within"),
        (scale_step(grid=Dim3(0)), r"grid \(0, 1, 1\) is not within"),
        (scale_step(grid=Dim3(1, 65536)), r"grid \(1, 65536, 1\) is not within"),
        (scale_step(shared=232449), "232449 bytes of shared memory asked for, at most 232448"),
    ],
)
def test_a_step_that_does_not_fit_its_kernel_is_refused(device: CpuDevice, step: KernelLaunch, message: str) -> None:
    device.build([step.kernel])
    with pytest.raises(KernelError, match=message):
        device.bind([step], {Arena.ACTIVATIONS: device.allocate(512)})


def test_kernels_must_be_built_and_be_in_their_file(device: CpuDevice) -> None:
    with pytest.raises(KernelError, match=r"scale of .*basics.cu is not built"):
        device.bind([scale_step()], {Arena.ACTIVATIONS: 0})
    with pytest.raises(KernelError, match="has no kernel nonesuch"):
        device.build([fixture_kernel("nonesuch")])
    with pytest.raises(KernelError, match=r"'nonesuch.cu' not found in .*kernels; there are: .*\.cu"):
        device.build([Kernel("nonesuch.cu", "scale")])


def test_the_compilers_message_comes_through(device: CpuDevice, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('#include "common.cuh"\nextern "C" __global__ void wrong(int* y) { y[0] = nonsense; }\n')
    with pytest.raises(KernelError, match=r"wrong\.cu.* does not compile:(.|\n)*wrong\.cu:2:.*nonsense"):
        device.build([Kernel(str(source), "wrong")])
    source.write_text(
        '#include "common.cuh"\nextern "C" __global__ void wrong(int* y) {\n'
        "  volatile int local[8192];\n  local[y[0]] = 1;\n  y[0] = local[y[1]];\n}\n"
    )
    with pytest.raises(KernelError, match=r"frame size.*16384"):  # more than the stack of a thread holds
        device.build([Kernel(str(source), "wrong")])


# ---- Memory, counters, life


def test_memory_is_aligned_checked_and_freed(device: CpuDevice) -> None:
    addresses = [device.allocate(n) for n in (0, 1, 255, 1 << 20)]
    assert all(address % 256 == 0 for address in addresses)
    assert len(set(addresses)) == 4
    assert device.pinned(1000).ctypes.data % 256 == 0
    data = np.arange(256, dtype=np.uint8)
    with pytest.raises(DeviceError, match=r"256 bytes at .* do not lie inside device memory"):
        device.copy_in(addresses[2], data)
    device.copy_in(addresses[3] + (1 << 20) - 256, data)
    back = np.zeros_like(data)
    device.copy_out(back, addresses[3] + (1 << 20) - 256)
    assert np.array_equal(back, data)
    with pytest.raises(DeviceError, match="contiguous"):
        device.copy_out(back[::2], addresses[3])
    back.flags.writeable = False
    with pytest.raises(DeviceError, match="writable"):
        device.copy_out(back, addresses[3])
    device.free(addresses[3])
    with pytest.raises(DeviceError, match="not the start of device memory"):
        device.free(addresses[3])


def test_copies_from_place_to_place(device: CpuDevice) -> None:
    source, target = device.allocate(256), device.allocate(256)
    data = np.arange(256, dtype=np.uint8)
    device.copy_in(source, data, Stream.UPLOAD)
    device.copy_on_device(target, source, 256)
    back = np.zeros_like(data)
    device.copy_out(back, target, Stream.DOWNLOAD)
    assert np.array_equal(back, data)
    assert device.counters == Counters(1, 1, 1, 0, 2)
    for places in ((target, source + 1), (target + 1, source)):
        with pytest.raises(DeviceError, match="do not lie inside device memory"):
            device.copy_on_device(*places, 256)


def test_a_round_trip_copies_launches_copies_and_waits(device: CpuDevice) -> None:
    kernel = fixture_kernel("scale", FACTOR=3)
    device.build([kernel])
    address = device.allocate(4096)
    pointers = Pointer(Arena.ACTIVATIONS, 2048), Pointer(Arena.ACTIVATIONS, 0)
    step = KernelLaunch(kernel, Dim3(1), Dim3(128), (*pointers, Scalar(0.5, "f"), Scalar(100)))
    source, target = device.pinned(400), device.pinned(400)
    launch = device.bind([step], {Arena.ACTIVATIONS: address})
    run = device.round_trip(Transfer(source, address), launch, Transfer(target, address + 2048))
    before = Counters(**vars(device.counters))
    for start in (0, 1):
        source.view(np.float32)[:] = sequence(100) + start
        run()
        assert np.array_equal(target.view(np.float32), np.float32(1.5) * (sequence(100) + start))
    assert device.counters.since(before) == Counters(2, 2, 2, 2, 0)
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        run()


def test_events_are_always_reached(device: CpuDevice) -> None:
    event = device.event()
    device.record(event, Stream.UPLOAD)
    device.follow(Stream.COMPUTE, event)
    device.wait(event)
    assert device.counters == Counters(synchronisations=1)
    device.close()
    for use in (device.event, lambda: device.wait(event), lambda: device.record(event, Stream.COMPUTE)):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_more_memory_than_the_machine_has_is_refused(device: CpuDevice) -> None:
    need = device.facts.memory_total + 1
    with pytest.raises(DeviceError, match=f"not enough memory: {need:,} bytes needed, .* free"):
        device.allocate(need)


def test_closing_frees_and_ends_everything(device: CpuDevice) -> None:
    device.build([scale_step().kernel])
    run = device.bind([scale_step()], {Arena.ACTIVATIONS: device.allocate(512)})
    device.close()
    device.close()
    for use in (run, device.synchronize, lambda: device.allocate(1), lambda: device.build([])):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_devices_in_parallel_threads_do_not_meet() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            opened = CpuDevice()
            for i in range(20):
                x, y = sequence(128 * 5) + seed + i, np.empty(128 * 5, np.float32)
                launch(opened, fixture_kernel("turn_round"), [y, x], grid=(5,), block=(128,))
                assert np.array_equal(y.reshape(5, 128), x.reshape(5, 128)[:, ::-1])
            opened.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_go_on(device: CpuDevice) -> None:
    x, y = sequence(128 * 5), np.empty(128 * 5, np.float32)
    launch(device, fixture_kernel("turn_round"), [y, x], grid=(5,), block=(128,))
    device._lock.acquire()  # as if another thread were just launching
    child = os.fork()
    if child == 0:
        z = np.empty_like(y)
        launch(device, fixture_kernel("turn_round"), [z, x], grid=(5,), block=(128,))
        os._exit(0 if np.array_equal(z, y) else 1)
    device._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

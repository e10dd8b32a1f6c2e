"""The GPU device on a real GPU: threads, neighbours, and everything given back."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from tests.devices.cuda_device.harness import BLOCK, COUNT, MEBIBYTE, NEAR_BASELINE, chain, chained, numbers, run_chain
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.devices.base import Stream, Transfer
from vgg16gpu.devices.cuda.context import CHUNK_NBYTES
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.types import Arena

pytestmark = pytest.mark.gpu

# Threads, neighbours, and the end


def in_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def free_memory():
    with closing(CudaDevice()) as device:
        return device.facts.memory_free


def one_life(kernel, call=lambda work: work()):
    """Open, build, run and close, each step by `call`."""
    device = call(CudaDevice)
    call(partial(device.build, [kernel]))
    address = call(partial(device.allocate, 64 * MEBIBYTE))
    call(partial(device.pinned, MEBIBYTE))
    call(partial(device.copy_in, address, np.zeros(2 * CHUNK_NBYTES, np.uint8)))
    call(partial(device.record, call(device.event), Stream.DOWNLOAD))
    launch = call(partial(device.bind, chain(kernel, 5), {Arena.ACTIVATIONS: address}))
    result = call(partial(run_chain, device, launch, address, numbers(), 5))
    buffer = call(partial(device.pinned, 8192))
    trip = call(partial(device.round_trip, Transfer(buffer, address), launch, Transfer(buffer, address)))
    call(trip)
    call(partial(device.measure, launch, 2))
    call(device.close)
    np.testing.assert_array_equal(result, chained(numbers(), 5))


@pytest.mark.alone(reason="counts the GPU's free memory")
@pytest.mark.usefixtures("gpu")  # keeps the context: what a new one takes is not the device's
@pytest.mark.parametrize("call", [lambda work: work(), in_a_thread], ids=["one thread", "a thread each"])
def test_close_gives_the_memory_back(kernel, call):
    one_life(kernel, call)  # the driver keeps some of what it first takes
    assert any(abs(taken_by_lives(kernel, call)) <= NEAR_BASELINE for _ in range(5))  # others use the card too


def taken_by_lives(kernel, call):
    before = free_memory()
    for _ in range(4):
        one_life(kernel, call)
    return before - free_memory()


def test_close_with_work_under_way(kernel):
    device = CudaDevice()
    device.build([kernel])
    address = device.allocate(8192)
    launch = device.bind(chain(kernel, 200), {Arena.ACTIVATIONS: address})
    launch()
    event, buffer = device.event(), device.pinned(8192)
    trip = device.round_trip(Transfer(buffer, address), launch, Transfer(buffer, address))
    device.copy_in(address, buffer, Stream.UPLOAD)
    device.record(event, Stream.UPLOAD)
    device.close()
    device.close()
    uses = (device.event, partial(device.wait, event), partial(device.follow, Stream.COMPUTE, event))
    for use in (launch, trip, device.synchronize, partial(device.allocate, 1), partial(device.build, [kernel]), *uses):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_two_devices_live_side_by_side(gpu, kernel):
    with closing(CudaDevice()) as other:
        bound = []
        for device in (gpu, other):
            device.build([kernel])
            address = device.allocate(8192)
            bound.append((device, device.bind(chain(kernel, 3), {Arena.ACTIVATIONS: address}), address))
        for device, launch, address in bound + bound:
            np.testing.assert_array_equal(run_chain(device, launch, address, numbers(), 3), chained(numbers(), 3))
    device, launch, address = bound[0]
    np.testing.assert_array_equal(run_chain(device, launch, address, numbers(), 3), chained(numbers(), 3))
    device.free(address)


def current_context():
    found = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found))
    return found.value


def test_the_threads_own_context_is_left_alone(gpu, kernel):
    before = current_context()
    one_life(kernel)
    assert current_context() == before
    with pytest.raises(DeviceError):
        gpu.allocate(gpu.facts.memory_total + 1)
    assert current_context() == before


def test_beside_torch(kernel):
    torch = torch_with_cuda()
    ours = torch.arange(COUNT, device="cuda", dtype=torch.float32)
    one_life(kernel)
    with closing(CudaDevice()) as device, ThreadPoolExecutor(1) as pool:
        device.build([kernel])
        address = device.allocate(8192)
        theirs = pool.submit(lambda: [torch.rand(256, 256, device="cuda").sum().item() for _ in range(50)])
        launches = [
            device.bind(chain(kernel, 4), {Arena.ACTIVATIONS: address}) for _ in range(20)
        ]  # captures meanwhile
        results = [run_chain(device, launch, address, numbers(), 4) for launch in launches]
        assert all(0 < value < 256 * 256 for value in theirs.result())
    for result in results:
        np.testing.assert_array_equal(result, chained(numbers(), 4))
    in_a_thread(partial(one_life, kernel))
    assert float((ours * 2).sum()) == COUNT * (COUNT - 1)
    torch.cuda.synchronize()


def run_alone(code, source):
    """Run code in a process of its own, with warnings as errors; what it prints and complains of."""
    prelude = f"""
        import ctypes, threading
        import numpy as np
        from vgg16gpu.devices.cuda.device import CudaDevice
        from vgg16gpu.errors import KernelError
        from vgg16gpu.program.types import Arena, Pointer
        from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch

        def context_is_active():
            flags, active = ctypes.c_uint(), ctypes.c_int()
            ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
            return bool(active.value)

        def bound(device, name, block=1):
            kernel = Kernel({source!r}, name, (("BLOCK", {BLOCK}),))
            device.build([kernel])
            steps = [KernelLaunch(kernel, Dim3(1), Dim3(block), (Pointer(Arena.ACTIVATIONS, 0),))] * 2
            return device.bind(steps, {{Arena.ACTIVATIONS: 16}})
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split(), result.stderr


def test_the_context_is_released(source):
    said, complaints = run_alone(
        """
        device = CudaDevice()
        print(context_is_active())
        bound(device, "fault_f32")
        thread = threading.Thread(target=device.close)
        thread.start()
        thread.join()
        print(context_is_active())
        CudaDevice().close()
        print(context_is_active())
        """,
        source,
    )
    assert said == ["True", "False", "False"]
    assert complaints == ""


def test_a_device_that_is_dropped_gives_its_memory_back(source):
    said, complaints = run_alone(
        """
        import gc
        device = CudaDevice()
        device.allocate(1 << 20)
        del device
        gc.collect()
        print(context_is_active())
        """,
        source,
    )
    assert said == ["False"]
    assert complaints == ""


def test_after_a_kernel_has_broken_the_context(source):
    said, _ = run_alone(
        """
        device = CudaDevice()
        address = device.allocate(1 << 20)
        buffer = device.pinned(1 << 20)
        launch = bound(device, "fault_f32")
        try:
            launch()
            device.synchronize()
        except KernelError as error:
            print("refused" if "illegal" in str(error) else error)
        device.free(address)
        device.close()
        device.close()
        print("closed")
        """,
        source,
    )
    assert said == ["refused", "closed"]

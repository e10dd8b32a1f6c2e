"""Arrays on the GPU in and out: what is taken, in which order, at which address, and whose memory it is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from tests.support.torch_here import torch_module, torch_with_cuda
from vgg16gpu import Engine
from vgg16gpu.compiler.lowering.wgmma import has_wgmma
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.devices.cuda import dlpack
from vgg16gpu.devices.cuda import foreign as cuda_foreign
from vgg16gpu.devices.cuda.foreign import CudaForeign, CudaMemory
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.io.imagenet import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.runtime import device_array
from vgg16gpu.runtime.device_array import DeviceArray, is_on_device, stream_handle, view_of

SIZE = 16
LANE = 0x7700


class HostMemory:
    """Memory of the host in the place of a card's."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros(nbytes, np.uint8)
        self.address = self.array.ctypes.data

    def read(self, target: Any) -> None:
        target.reshape(-1).view(np.uint8)[:] = self.array[: target.nbytes]


class FakeForeign:
    """A card whose memory is the host's; it notes which streams were waited for."""

    ordinal = 1
    stream = LANE

    def __init__(self, card: int | None = 1) -> None:
        self.card = card
        self.followed: list[int] = []

    def card_of(self, address: int) -> int | None:
        assert address > 0
        return self.card

    def follow(self, stream: int) -> None:
        self.followed.append(stream)

    def memory(self, nbytes: int) -> HostMemory:
        return HostMemory(nbytes)


class ByInterface:
    """An array with the CUDA array interface; `changes` to the interface's keys."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        place = array.__array_interface__
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": place["typestr"],
            "data": place["data"],
            "strides": place["strides"],
            "version": 3,
            "stream": None,
            **changes,
        }


class ByDlpack:
    """An array with DLPack; it notes which streams it was to make wait."""

    def __init__(self, array: Any, kind: int = dlpack.CUDA, number: int = 1) -> None:
        self.array, self.dtype, self.place = array, array.dtype, (kind, number)
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, stream: Any = None) -> object:
        self.streams.append(stream)
        return dlpack.wrap(self.array, self.place)


class ByBoth(ByInterface, ByDlpack):
    def __init__(self, array: Any, **changes: Any) -> None:
        ByDlpack.__init__(self, array)
        ByInterface.__init__(self, array, **changes)


def numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- What is taken


@pytest.mark.parametrize("make", [ByInterface, ByDlpack, ByBoth])
@pytest.mark.parametrize("x", [numbers(3, 4), numbers(2, 3, 5, 7), np.arange(24, dtype=np.uint8).reshape(2, 3, 4)])
def test_a_view_is_where_the_array_is(make: Any, x: Any) -> None:
    given = make(x)
    assert is_on_device(given)
    view = view_of(given, FakeForeign())
    assert (view.address, view.shape, view.dtype) == (x.ctypes.data, x.shape, x.dtype)


def test_rows_of_a_view() -> None:
    x = numbers(5, 2, 3)
    view = view_of(ByInterface(x), FakeForeign())
    assert view.rows(1, 3) == (x[1:].ctypes.data, x[1:3].nbytes)
    assert view.rows(4, 8) == (x[4:].ctypes.data, x[4:].nbytes)


def test_what_lies_on_the_host_is_left_to_numpy() -> None:
    x = numbers(2, 3)
    others = (x, [1, 2], 3.0, None, {"x": x}, ByDlpack(x, *dlpack.CPU), ByDlpack(x, 3, 0), ByDlpack(x, 10, 0))
    assert not any(is_on_device(other) for other in others)
    assert not is_on_device(torch_module().zeros(3))


class Reluctant:
    """As a tensor of torch that wants gradients."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("use detach")


def test_what_is_refused_says_why() -> None:
    x = numbers(4, 6)
    foreign = FakeForeign()

    def refused(given: Any, message: str) -> None:
        assert is_on_device(given)
        with pytest.raises(InputError, match=message):
            view_of(given, foreign)

    refused(
        ByInterface(x[:, ::2]), r"shape \(4, 3\), strides \(24, 8\), is not contiguous; use x\.contiguous\(\) in torch"
    )
    refused(ByDlpack(x.T), r"shape \(6, 4\), strides \(4, 24\), is not contiguous")
    refused(ByInterface(x, mask=ByInterface(x)), "it is masked")
    refused(ByInterface(x, typestr="bfloat"), "ByInterface of an unknown element type on a GPU, cannot be taken: ")
    refused(ByInterface(x, stream="s"), "cannot be taken: 'str' object")
    refused(Reluctant(), "cannot be taken: use detach")
    refused(ByDlpack(x, number=2), r"lies on cuda:2, this engine runs on cuda:1; .* device='cuda:2'")
    assert foreign.followed == []
    foreign.card = 0
    refused(ByInterface(x), r"lies on cuda:0, this engine runs on cuda:1")
    foreign.card = None
    refused(ByInterface(x), "its address is none there")


def test_elements_that_numpy_does_not_know() -> None:
    torch = torch_module()
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    given = ByDlpack(tensor)
    given.__dlpack__ = lambda **_: tensor.__dlpack__()  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"of torch\.bfloat16 on a GPU, cannot be taken"):
        view_of(given, FakeForeign())


# ---- What is waited for


@pytest.mark.parametrize(
    ("changes", "followed"),
    [
        ({"stream": None}, []),
        ({"stream": 1}, [1]),
        ({"stream": 0x55}, [0x55]),
        ({"version": 2}, [device_array.LEGACY_STREAM]),
        ({"version": 2, "stream": 0x55}, [device_array.LEGACY_STREAM]),
    ],
)
def test_the_interface_names_the_stream(changes: Any, followed: list[int]) -> None:
    foreign = FakeForeign()
    view_of(ByInterface(numbers(2, 3), **changes), foreign)
    assert foreign.followed == followed


@pytest.mark.parametrize("make", [ByDlpack, ByBoth])
def test_dlpack_makes_our_lane_wait_itself(make: Any) -> None:
    foreign, given = FakeForeign(), make(numbers(2, 3))
    view_of(given, foreign)
    assert given.streams == [LANE]
    assert foreign.followed == []


@pytest.mark.parametrize(("make", "asked"), [(ByInterface, None), (ByDlpack, [-1]), (ByBoth, [])])
def test_a_stream_that_is_given_is_the_only_one(make: Any, asked: Any) -> None:
    foreign, given = FakeForeign(), make(numbers(2, 3))
    view_of(given, foreign, 0x66)
    assert getattr(given, "streams", None) == asked
    assert foreign.followed == [0x66]


class CudaCoreStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 21


def test_handles_of_streams() -> None:
    streams = (0, np.int64(7), SimpleNamespace(cuda_stream=5), SimpleNamespace(ptr=6), CudaCoreStream())
    assert [stream_handle(stream) for stream in streams] == [0, 7, 5, 6, 21]
    for stream in ("main", 1.0, object()):
        with pytest.raises(InputError, match=r"is none; give its handle, or an object of torch, CuPy or cuda\.core"):
            stream_handle(stream)


# ---- Capsules


def test_capsules_of_torch() -> None:
    tensor = torch_module().arange(24.0).reshape(2, 3, 4)[1:]
    array, device = dlpack.unwrap(tensor.__dlpack__())
    assert device == dlpack.CPU
    assert array.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(array, tensor.numpy())


def test_capsules_for_torch() -> None:
    torch = torch_module()
    x = numbers(2, 3, 4)
    tensor = torch.from_dlpack(dlpack.wrap(x, dlpack.CPU))
    assert tensor.data_ptr() == x.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), x)


def test_a_capsule_keeps_what_it_shows_until_nobody_has_it() -> None:
    class Watched(np.ndarray):
        pass

    x = numbers(2, 3).view(Watched)
    gone = weakref.ref(x)
    capsule = dlpack.wrap(x, (dlpack.CUDA, 3))
    del x
    array, device = dlpack.unwrap(capsule)
    assert device == (dlpack.CUDA, 3)
    del capsule
    assert gone() is not None
    np.testing.assert_array_equal(array, numbers(2, 3))
    del array
    assert gone() is None
    dlpack.wrap(numbers(2).view(Watched), (dlpack.CUDA, 3))  # and one that nobody takes


def test_used_capsules_and_no_capsules() -> None:
    capsule = dlpack.wrap(numbers(2), (dlpack.CUDA, 0))
    dlpack.unwrap(capsule)
    for wrong in (capsule, object()):
        with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
            dlpack.unwrap(wrong)


# ---- Results


def test_a_result_describes_itself() -> None:
    y = DeviceArray(FakeForeign(), (3, 4))
    interface = y.__cuda_array_interface__
    address = interface["data"][0]
    assert interface == {
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (address, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }
    assert (y.shape, y.dtype, y.nbytes, len(y), y.device) == ((3, 4), np.float32, 48, 3, 1)
    assert [y.row_address(row) - address for row in range(3)] == [0, 16, 32]
    assert y.__dlpack_device__() == (dlpack.CUDA, 1)
    assert repr(y) == "DeviceArray(float32 (3, 4) on cuda:1)"
    with pytest.raises(TypeError, match=r"lies on the GPU; its numpy\(\) makes a copy"):
        np.asarray(y)
    for wish in ({"copy": True}, {"dl_device": dlpack.CPU}):
        with pytest.raises(BufferError, match="stays on cuda:1"):
            y.__dlpack__(**wish)


def test_a_result_is_an_input_again() -> None:
    foreign = FakeForeign()
    y = DeviceArray(foreign, (3, 4))
    view = view_of(y, foreign)
    assert (view.address, view.shape, view.dtype) == (y.row_address(0), (3, 4), np.float32)
    assert foreign.followed == []


def test_the_memory_of_a_result_goes_with_the_last_who_has_it() -> None:
    y = DeviceArray(FakeForeign(), (2, 3))
    memory: Any = y._memory
    memory.array.view(np.float32)[:] = range(6)
    copy, gone = y.numpy(), weakref.ref(memory)
    address = memory.address
    del memory
    capsule = y.__dlpack__(stream=5, max_version=(1, 0), dl_device=(dlpack.CUDA, 1), copy=False)
    array, device = dlpack.unwrap(capsule)
    assert (array.ctypes.data, array.shape, device) == (address, (2, 3), (dlpack.CUDA, 1))
    del y, capsule
    gc.collect()
    assert gone() is not None
    del array
    assert gone() is None
    assert_same_bits(copy, numbers(2, 3))


# ---- Engines; on the cpu device memory of its own stands for a card's


class CpuForeign(FakeForeign):
    """A cpu device as the card that others have arrays on."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def memory(self, nbytes: int) -> Any:
        return CpuMemory(self.device, nbytes)


class CpuMemory:
    def __init__(self, device: Device, nbytes: int) -> None:
        self.device, self.address = device, device.allocate(nbytes)
        self.device.copy_in(self.address, np.full(nbytes, 0xFF, np.uint8))
        device.counters.copies_in -= 1
        weakref.finalize(self, _free, device, self.address).atexit = False

    def read(self, target: Any) -> None:
        self.device.copy_out(target, self.address)
        self.device.counters.copies_out -= 1


def _free(device: Device, address: int) -> None:
    with suppress(DeviceError):  # closed meanwhile
        device.free(address)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg(size=SIZE).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


@contextmanager
def opened(model: Path, device: Device, **options: Any) -> Iterator[Engine]:
    with Engine(model, device=device.facts.kind, **options) as engine:
        if engine.device.foreign is None:
            engine.device.foreign = CpuForeign(engine.device)  # type: ignore[misc]
        yield engine


class Placed(ByInterface):
    """A copy of an array in memory of a device, `shift` bytes behind where an allocation begins."""

    def __init__(self, device: Device, array: Any, shift: int = 0) -> None:
        address = device.allocate(array.nbytes + shift) + shift
        device.copy_in(address, np.ascontiguousarray(array))
        device.synchronize()
        super().__init__(array, data=(address, False), strides=None)


def pixels(count: int) -> Any:
    return structured_images(count, SIZE, seed=5)


def images(count: int) -> Any:
    return normalise(pixels(count), IMAGENET_MEAN, IMAGENET_STD)


def inputs(element_type: str, count: int) -> Any:
    return images(count) if element_type == "float32" else pixels(count)


def check_same(engine: Engine, x: Any, given: Any, stream: Any = None) -> None:
    """The device's answer is the host's to the last bit, and nothing was copied."""
    expected = engine.run(x)
    before = engine.counters
    y = engine.run(given, stream=stream)
    done = engine.counters.since(before)
    assert (done.copies_in, done.copies_out) == (0, 0)
    assert isinstance(y, DeviceArray)
    assert_same_bits(y.numpy(), expected)


@pytest.mark.parametrize("element_type", ["float32", "uint8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_same_bits_as_from_the_host(device: Device, model: Path, precision: str, element_type: str) -> None:
    with opened(model, device, batch=(1, 4), precision=precision) as engine:
        for count in (5, 1, 4, 2, 3):
            x = inputs(element_type, count)
            check_same(engine, x, Placed(engine.device, x))
        check_same(engine, x, {"input": Placed(engine.device, x, shift=1 if element_type == "uint8" else 4)})
        check_same(engine, x, Placed(engine.device, x), stream=1)


def test_counters(device: Device, model: Path) -> None:
    with opened(model, device, batch=(1, 4)) as engine:
        given = [Placed(engine.device, images(count)) for count in (1, 5)]
        launches = {program.batch: len(program.all_steps()) for program in engine.plan.programs}
        before = engine.counters
        first = engine.run(given[0])
        # beside the program's: images in, zeros behind them, control words to the host, scores out
        assert engine.counters.since(before) == Counters(0, 0, launches[1] + 4, 1, 1)
        before = engine.counters
        second = engine.run(given[1])
        assert engine.counters.since(before) == Counters(0, 0, launches[4] + launches[1] + 8, 2, 1)
        assert (len(first), len(second)) == (1, 5)


def test_several_outputs(device: Device, model: Path) -> None:
    x = images(3)
    with opened(model, device, batch=2, outputs=["flatten", "relu0"]) as engine:
        expected = engine.run(x)
        found = engine.run(Placed(engine.device, x))
        assert isinstance(found, tuple)
        for y, right in zip(found, expected, strict=True):
            assert_same_bits(y.numpy(), right)


def test_nan_and_infinity(device: Device, model: Path) -> None:
    x = images(5)
    x[2, 0, 0, 0], x[4, 2, 5, 5] = np.nan, np.inf
    with opened(model, device, batch=2) as engine:
        given = Placed(engine.device, x)
        with pytest.raises(InputError, match=r"input 2, 4 of 5 \(counted from 0\) holds NaN or Inf"):
            engine.run(given)
        check_same(engine, images(5), Placed(engine.device, images(5)))
    with opened(model, device, batch=2, allow_nonfinite=True) as engine:
        check_same(engine, x, Placed(engine.device, x))


def test_what_leaves_the_range_of_float16(device: Device, model: Path) -> None:
    x = images(3)
    x[1] *= np.float32(3e4)
    with opened(model, device, batch=2, precision="fp16", kernels="mma") as engine:
        with pytest.raises(InputError, match=r"input 1 of 3 \(counted from 0\): values leave the range of float16"):
            engine.run(Placed(engine.device, x))
        assert engine.second_passes == 0


@pytest.mark.usefixtures("second_passes")
@pytest.mark.parametrize("element_type", ["float32", "uint8"])
def test_images_out_of_range_are_run_again(device: Device, model: Path, element_type: str) -> None:
    x = inputs(element_type, 5)
    with opened(model, device, batch=(1, 4), precision="fp16", kernels="mma") as engine:
        expected = engine.run(x)
        assert engine.second_passes == 5
        given = Placed(engine.device, x)
        before = engine.counters
        found = engine.run(given)
        assert engine.second_passes == 10
        launches = {program.batch: len(program.all_steps(element_type)) + 4 for program in engine.plan.programs}
        total = launches[4] + 6 * launches[1]
        assert engine.counters.since(before) == Counters(0, 0, total, 7, 1)
        assert_same_bits(found.numpy(), expected)


def test_a_kernel_that_gave_up(device: Device, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(model, device, batch=2) as engine:
        given = Placed(engine.device, images(2))
        resident, program = engine.executor, engine.program
        place = resident._address(program.control.error.arena, program.control.error.offset)
        zero = engine.device.zero

        def fail(address: int, nbytes: int) -> None:
            zero(address, nbytes)
            engine.device.copy_in(place, np.array([1], np.int32))

        monkeypatch.setattr(engine.device, "zero", fail)
        with pytest.raises(KernelError, match=r"operator 1 .*gave up"):
            engine.run(given)


def test_what_does_not_fit_the_model(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        with pytest.raises(
            InputError, match=r"input 'input' is float32 \(1, 3, 8, 8\); this model takes float32 \(N, 3,"
        ):
            engine.run(Placed(engine.device, np.zeros((1, 3, 8, 8), np.float32)))
        with pytest.raises(InputError, match=r"is float64 .*; convert it with x\.float\(\) in torch, x\.astype"):
            engine.run(Placed(engine.device, images(1).astype(np.float64)))
        with pytest.raises(InputError, match="stream is for arrays on the GPU, and this input is on the host"):
            engine.run(images(1), stream=1)  # type: ignore[call-overload]
        given = Placed(engine.device, images(1))
    with pytest.raises(InputError, match="the engine is closed"):
        engine.run(given)


def test_an_engine_on_the_cpu_takes_no_array_on_a_gpu(model: Path) -> None:
    with (
        Engine(model, device="cpu") as engine,
        pytest.raises(InputError, match="lies on a GPU, this engine runs on the CPU; build it with device='cuda'"),
    ):
        engine.run(ByInterface(images(1)))


def test_values_are_of_the_batch_that_ran_last(device: Device, model: Path) -> None:
    x = images(2)
    with opened(model, device, batch=(1, 2), keep_values=True) as engine:
        engine.run(images(1))
        engine.run(Placed(engine.device, x))
        last = {names[-1]: array for names, array in engine.read_values()}
        assert_same_bits(last["input"], x)


def test_memory_of_results_comes_back(device: Device, model: Path) -> None:
    with opened(model, device) as engine:
        given = Placed(engine.device, images(1))
        y = engine.run(given)
        gone = weakref.ref(y._memory)
        del y
        assert gone() is None


# ---- What the driver is asked for


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
    """The part of `Held` that a lane that follows needs."""

    driver = SimpleNamespace(Error=RuntimeError, Context=SimpleNamespace(pop=lambda: None))
    context = SimpleNamespace(push=lambda: None)
    stream = SimpleNamespace(handle=LANE)


@pytest.mark.parametrize("failing", [(), ("cuEventRecord",)])
def test_the_lane_follows_by_an_event_of_the_moment(monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]) -> None:
    driver, counters = drive(monkeypatch, *failing), Counters()
    foreign = CudaForeign(Current(), 3, counters)  # type: ignore[arg-type]
    assert (foreign.stream, foreign.card_of(4096)) == (LANE, 3)
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
    assert CudaForeign(Current(), 0, Counters()).card_of(4096) is None  # type: ignore[arg-type]


# ---- The GPU itself


@pytest.fixture
def torch() -> Any:
    return torch_with_cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("element_type", ["float32", "uint8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_tensors_of_torch(torch: Any, model: Path, precision: str, element_type: str) -> None:
    with Engine(model, device="cuda", batch=(1, 4), precision=precision) as engine:
        for count in range(1, 6):
            x = inputs(element_type, count)
            check_same(engine, x, torch.from_numpy(x).cuda())
        tensor = torch.from_numpy(x).cuda()
        y = engine.run(tensor)
        for taken in (torch.as_tensor(y, device="cuda"), torch.from_dlpack(y)):
            assert taken.data_ptr() == y.row_address(0)
            assert_same_bits(taken.cpu().numpy(), engine.run(x))


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["current", "given", "handle"])
def test_streams_of_torch(torch: Any, model: Path, how: str) -> None:
    """The input is late: its stream has milliseconds of other work before it."""
    x = images(4)
    with Engine(model, device="cuda", batch=4) as engine:
        expected = engine.run(x)
        source, stream = torch.from_numpy(x).cuda(), torch.cuda.Stream()
        for _ in range(3):
            with torch.cuda.stream(stream):
                late = torch.full_like(source, torch.nan)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                late.copy_(source)
                if how == "current":
                    y = engine.run(late)
            if how != "current":
                y = engine.run(late, stream=stream if how == "given" else stream.cuda_stream)
            with torch.cuda.stream(stream):
                doubled = 2 * torch.as_tensor(y, device="cuda")
            stream.synchronize()
            assert_same_bits(doubled.cpu().numpy(), 2 * expected)


@pytest.mark.alone
@pytest.mark.gpu
def test_other_streams_are_not_waited_for(torch: Any, model: Path) -> None:
    with Engine(model, device="cuda", batch=4) as engine:
        tensor, stream = torch.from_numpy(images(4)).cuda(), torch.cuda.Stream()
        engine.run(tensor)
        torch.cuda.synchronize()
        done = torch.cuda.Event()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000)
            done.record()
        y = engine.run(tensor)
        assert not done.query()
        assert len(y) == 4  # kept until here: to free it waits for all streams
        done.synchronize()


@pytest.mark.gpu
def test_tensors_that_are_refused(torch: Any, model: Path) -> None:
    tensor = torch.from_numpy(images(2)).cuda()
    with Engine(model, device="cuda") as engine:
        with pytest.raises(InputError, match=r"is not contiguous; use x\.contiguous\(\)"):
            engine.run(tensor.to(memory_format=torch.channels_last))
        with pytest.raises(InputError, match="gradient"):
            engine.run(tensor.clone().requires_grad_())
        with pytest.raises(InputError, match=r"convert it with x\.float\(\)"):
            engine.run(tensor.half())
        with pytest.raises(InputError, match="its address is none there"):
            engine.run(ByInterface(images(1)))
        with pytest.raises(InputError, match="bfloat16"):
            engine.run(tensor.bfloat16())
    with Engine(model, device="cpu") as engine, pytest.raises(InputError, match="this engine runs on the CPU"):
        engine.run(tensor)


@pytest.mark.gpu
def test_results_outlive_the_engine_and_then_go(torch: Any, model: Path) -> None:
    x = images(3)
    with Engine(model, device="cuda", batch=4) as engine:
        expected = engine.run(x)
        y = engine.run(torch.from_numpy(x).cuda())
    tensor = torch.from_dlpack(y)
    assert_same_bits(y.numpy(), expected)
    gone = weakref.ref(y._memory)
    del y
    gc.collect()
    assert gone() is not None
    assert_same_bits(tensor.cpu().numpy(), expected)
    del tensor
    assert gone() is None


@pytest.mark.alone
@pytest.mark.gpu
def test_large_results_are_freed(torch: Any) -> None:
    def free() -> int:
        return int(torch.cuda.mem_get_info()[0])

    def is_freed() -> bool:
        before = free()
        held = CudaMemory(0, 1 << 30)
        taken = before - free()
        del held
        return taken >= 1 << 29 and before - free() < 1 << 29

    torch.cuda.synchronize()
    assert any(is_freed() for _ in range(5))  # others use the card too
    with pytest.raises(
        DeviceError, match=r"no [0-9,]+ bytes for results on cuda:0 \(cuMemAlloc_v2 failed: .*free memory"
    ):
        CudaMemory(0, 1 << 50)


@pytest.mark.gpu
def test_a_second_pass_of_pairs(torch: Any, tmp_path: Path) -> None:
    model = torch_vgg((64, 64, "M", 128, "M"), SIZE, hidden=128, classes=20).save(tmp_path / "wide.onnx")
    with Engine(model, device="cuda", batch=(1, 4)) as engine:
        if not has_wgmma(engine.device.facts):
            pytest.skip("fp32 runs on float32 kernels here")
        x = images(5)
        x[1] *= np.float32(1e6)
        x[4] *= np.float32(1e-7)
        expected = engine.run(x)
        again = engine.second_passes
        assert again >= 1
        y = engine.run(torch.from_numpy(x).cuda())
        assert engine.second_passes == 2 * again
        assert_same_bits(y.numpy(), expected)


@pytest.mark.gpu
def test_int8(torch: Any) -> None:
    from vgg16gpu.io.shipped import digits_model
    from vgg16gpu.zoo.digits import heldout

    digits = heldout()[1][:5]
    with Engine(digits_model(), device="cuda", batch=(1, 4), precision="int8") as engine:
        check_same(engine, digits, torch.from_numpy(digits).cuda())

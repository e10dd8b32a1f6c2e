"""Arrays on the GPU in and out: what is taken, in which order, at which address, and whose memory a result is."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import STREAM, ByBoth, ByDlpack, ByInterface, FakeForeign, numbers
from tests.support.kernel_harness import assert_same_bits
from tests.support.torch_here import torch_module
from vgg16gpu.devices.cuda import interop
from vgg16gpu.errors import InputError
from vgg16gpu.program.types import DType, TensorFormat
from vgg16gpu.runtime import on_device
from vgg16gpu.runtime.on_device import is_on_device
from vgg16gpu.runtime.on_device.results import DeviceArray
from vgg16gpu.runtime.on_device.views import LEGACY_STREAM, StridedView, stream_handle, view_of


@pytest.mark.parametrize("name", on_device.__all__)
def test_each_name_of_the_package_is_found(name: str) -> None:
    assert getattr(on_device, name).__name__ == name


# ---- What is taken


@pytest.mark.parametrize("make", [ByInterface, ByDlpack, ByBoth])
def test_strides_are_told(make: Any) -> None:
    x = numbers(4, 6, 5, 2)[:, 1::2].transpose(0, 3, 1, 2)
    view = view_of(make(x), FakeForeign())
    assert view == StridedView(x.ctypes.data, (4, 2, 3, 5), (60, 1, 20, 2), "float32")


@pytest.mark.parametrize("x", [numbers(5, 2, 3), numbers(6, 3, 2).transpose(0, 2, 1)[:5]])
def test_rows_of_a_view(x: Any) -> None:
    view = view_of(ByInterface(x), FakeForeign())
    assert (view.rows(1, 3).address, view.rows(1, 3).shape) == (x[1:].ctypes.data, (2, 2, 3))
    assert (view.rows(4, 8).address, view.rows(4, 8).shape) == (x[4:].ctypes.data, (1, 2, 3))


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

    refused(ByInterface(x, strides=(24, 6)), r"its strides \(24, 6\) are not whole elements")
    refused(ByInterface(x.astype(">f4")), "its elements are >f4, in another byte order")
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


def test_bfloat16_comes_by_dlpack() -> None:
    torch = torch_module()
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    given = ByDlpack(tensor)
    given.__dlpack__ = lambda **_: tensor.__dlpack__()  # type: ignore[method-assign]
    view = view_of(given, FakeForeign())
    assert view == StridedView(tensor.data_ptr(), (2, 3), (3, 1), "bfloat16")
    assert view.input_type == np.float32


class WithGradient(ByDlpack):
    """As a tensor of torch that wants gradients."""

    requires_grad = True

    def detach(self) -> ByDlpack:
        return ByDlpack(self.array)

    def __dlpack__(self, *, stream: Any = None) -> object:
        raise BufferError("use detach")


def test_what_wants_gradients_is_taken_without_them() -> None:
    x = numbers(2, 3)
    assert view_of(WithGradient(x), FakeForeign()).address == x.ctypes.data


class OfTorch:
    """A stand-in for a torch tensor on a card, whose own attributes are read; other arrays are read by DLPack."""

    is_cuda = True
    dtype = "torch.float32"
    layout = "strided"
    is_negated = False
    has_memory = True
    device = "cuda:1"

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array, self.by_dlpack, self.card = array, 0, 1
        self.__dict__.update(changes)
        self.shape = array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // 4 for step in self.array.strides)

    def data_ptr(self) -> int:
        if not self.has_memory:
            raise RuntimeError("it has no memory of its own")
        return int(self.array.ctypes.data)

    def is_neg(self) -> bool:
        return self.is_negated

    def get_device(self) -> int:
        return self.card

    def __dlpack_device__(self) -> tuple[int, int]:
        return (interop.CUDA, self.card)

    def __dlpack__(self, *, stream: Any = None) -> object:
        self.by_dlpack += 1
        return interop.wrap(np.ascontiguousarray(self.array), self.__dlpack_device__())


class ParameterOfTorch(OfTorch):
    pass


class OtherOfTorch(OfTorch):
    """A class whose numbers may be elsewhere."""


@pytest.fixture
def torch_with_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream={"cuda:1": 0x33}[device]))
    found = SimpleNamespace(
        Tensor=OfTorch, nn=SimpleNamespace(Parameter=ParameterOfTorch), strided="strided", cuda=streams
    )
    monkeypatch.setitem(sys.modules, "torch", found)


@pytest.mark.usefixtures("torch_with_a_card")
@pytest.mark.parametrize("kind", [OfTorch, ParameterOfTorch])
def test_a_dense_tensor_of_torch_is_taken_by_its_attributes(kind: Any) -> None:
    x, foreign = numbers(4, 6)[:, ::2], FakeForeign()
    tensor = kind(x)
    assert is_on_device(tensor)
    view = view_of(tensor, foreign)
    assert view == StridedView(x.ctypes.data, (4, 3), (6, 2), "float32")
    assert view.owner is tensor
    view_of(tensor, foreign, 0x55)
    view_of(tensor, foreign, 0x55, waits=False)
    assert (foreign.followed, tensor.by_dlpack) == ([0x33, 0x55], 0)
    with pytest.raises(InputError, match=r"lies on cuda:2, this engine runs on cuda:1"):
        view_of(kind(x, card=2), foreign)


@pytest.mark.usefixtures("torch_with_a_card")
@pytest.mark.parametrize(
    "tensor",
    [
        OtherOfTorch(numbers(4, 6)),
        OfTorch(numbers(4, 6), layout="sparse"),
        OfTorch(numbers(4, 6), is_negated=True),
        OfTorch(numbers(4, 6), dtype="torch.float64"),
        OfTorch(numbers(4, 6), has_memory=False),
    ],
    ids=["another class", "sparse", "of negated numbers", "float64", "without memory"],
)
def test_any_other_tensor_of_torch_is_taken_by_dlpack(tensor: Any) -> None:
    view = view_of(tensor, FakeForeign())
    assert (view.shape, tensor.by_dlpack) == ((4, 6), 1)


# ---- What is waited for


@pytest.mark.parametrize(
    ("changes", "followed"),
    [
        ({"stream": None}, []),
        ({"stream": 1}, [1]),
        ({"stream": 0x55}, [0x55]),
        ({"version": 2}, [LEGACY_STREAM]),
        ({"version": 2, "stream": 0x55}, [LEGACY_STREAM]),
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
    assert given.streams == [STREAM]
    assert foreign.followed == []


@pytest.mark.parametrize(("make", "asked"), [(ByInterface, None), (ByDlpack, [-1]), (ByBoth, [-1])])
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
    tensor = torch_module().arange(24.0).reshape(2, 3, 4)[1:].permute(0, 2, 1)
    found = interop.describe(tensor.__dlpack__())
    assert found == (tensor.data_ptr(), (1, 4, 3), tensor.stride(), "float32", interop.CPU)


def test_capsules_for_torch() -> None:
    torch = torch_module()
    x = numbers(2, 3, 4)
    tensor = torch.from_dlpack(interop.wrap(x, interop.CPU))
    assert tensor.data_ptr() == x.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), x)


def test_a_capsule_keeps_what_it_shows_until_nobody_has_it() -> None:
    class Watched(np.ndarray):
        pass

    x = numbers(2, 3).view(Watched)
    gone = weakref.ref(x)
    capsule = interop.wrap(x, (interop.CUDA, 3))
    del x
    assert interop.describe(capsule).device == (interop.CUDA, 3)
    assert gone() is not None
    del capsule
    assert gone() is None


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
    assert y.__dlpack_device__() == (interop.CUDA, 1)
    assert repr(y) == "DeviceArray(float32 (3, 4) on cuda:1)"
    with pytest.raises(TypeError, match=r"lies on the GPU; its numpy\(\) makes a copy"):
        np.asarray(y)
    for options in ({"copy": True}, {"dl_device": interop.CPU}):
        with pytest.raises(BufferError, match="stays on cuda:1"):
            y.__dlpack__(**options)


def test_the_memory_of_a_result_goes_with_the_last_who_has_it() -> None:
    y = DeviceArray(FakeForeign(), (2, 3))
    memory: Any = y._memory
    memory.array.view(np.float32)[:] = range(6)
    copy, gone = y.numpy(), weakref.ref(memory)
    address = memory.address
    del memory
    capsule = y.__dlpack__(stream=5, max_version=(1, 0), dl_device=(interop.CUDA, 1), copy=False)
    assert interop.describe(capsule) == (address, (2, 3), (3, 1), "float32", (interop.CUDA, 1))
    del y
    gc.collect()
    assert gone() is not None
    del capsule
    assert gone() is None
    assert_same_bits(copy, numbers(2, 3))


STORED = TensorFormat(DType.BF16, 8)


def test_a_result_as_it_is_stored() -> None:
    y = DeviceArray(FakeForeign(), (2, 3, 4, 5), STORED)
    assert (y.strides, y.element_type, y.nbytes) == ((160, 1, 40, 8), "bfloat16", 2 * 320)
    assert repr(y) == "DeviceArray(bfloat16 (2, 3, 4, 5), channels last on cuda:1)"
    assert not hasattr(y, "__cuda_array_interface__")
    assert interop.describe(y.__dlpack__()) == (y.row_address(0), y.shape, y.strides, "bfloat16", (interop.CUDA, 1))
    memory: Any = y._memory
    stored = np.arange(320, dtype=np.float32)
    memory.array.view(np.uint16)[:] = stored.view(np.uint32) >> 16
    stored = (stored.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert_same_bits(y.numpy(), stored.reshape(2, 4, 5, 8)[..., :3].transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize(
    ("shape", "strides", "pitch"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), None),
        ((2, 3, 4, 5), (60, 1, 15, 3), 3),
        ((2, 3, 4, 5), (160, 1, 40, 8), 8),
        ((1, 3, 4, 1), (7, 1, 8, 9), 8),
        ((2, 3, 1, 1), (64, 1, 64, 64), 64),
        ((2, 3), (3, 1), None),
        ((2, 3), (4, 1), 4),
        ((2, 3, 4), (12, 4, 1), None),
    ],
)
def test_strides_say_which_form_is_wanted(shape: Any, strides: Any, pitch: Any) -> None:
    assert StridedView(0, shape, strides, "float16").form == TensorFormat(DType.F16, pitch)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 3, 4, 5), (120, 40, 10, 2)), ((2, 3, 4, 5), (40, 1, 10, 2)), ((2, 3), (2, 1)), ((2, 3), (1, 2))],
)
def test_strides_of_no_form(shape: Any, strides: Any) -> None:
    assert StridedView(0, shape, strides, "float32").form is None
    assert StridedView(0, (2, 3), (3, 1), "uint8").form is None

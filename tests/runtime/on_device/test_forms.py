"""In which form arrays come in and outputs go out on the device: the bits of the way that was there before."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, ByDlpack, Placed, images, opened, pixels
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda import interop
from vgg16gpu.errors import InputError
from vgg16gpu.runtime.on_device.results import FORMS

LAYERS = ["relu0", "relu1", "relu3", "flatten"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = (64, 6, "M", 64, "M")
    return torch_vgg(layers, SIZE, hidden=9).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


def rounded(x: Any, element_type: str) -> Any:
    """The nearest numbers of a type, as float32."""
    if element_type == "float16":
        return x.astype(np.float16).astype(np.float32)
    if element_type == "bfloat16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return x


def as_bfloat16(x: Any) -> Any:
    """Its bits."""
    return (rounded(x, "bfloat16").view(np.uint32) >> 16).astype(np.uint16)


class Seen:
    def __init__(self, interface: Any) -> None:
        self.__array_interface__ = {key: interface[key] for key in ("shape", "typestr", "data", "strides")}


def described(interface: Any) -> Any:
    """An array in memory of a device as numpy sees it, which must not touch it."""
    return np.asarray(Seen(interface))


class PlacedBfloat16(ByDlpack):
    """A copy of float32 numbers as bfloat16 in memory of a device."""

    def __init__(self, device: Device, array: Any) -> None:
        self.placed = Placed(device, as_bfloat16(array))
        super().__init__(array, number=device.foreign.ordinal)

    def __dlpack__(self, *, stream: Any = None) -> object:
        del stream
        return interop.wrap(described(self.placed.__cuda_array_interface__), self.place, is_bfloat=True)


def is_channels_last(y: Any) -> bool:
    return bool(y.strides[1] == 1 and y.shape[1] > 1)


# ---- Outputs


@pytest.mark.first_case(reason="conversion does not ask what computed the values")
@pytest.mark.parametrize(("precision", "kernels"), [("fp32", "auto"), ("fp16", "mma")])
def test_every_form_has_the_bits_of_float32(device: Device, model: Path, precision: str, kernels: str) -> None:
    with opened(model, device, batch=(1, 2), precision=precision, kernels=kernels, outputs=LAYERS) as engine:
        for form, count in zip(FORMS, itertools.cycle((3, 1)), strict=False):
            x = images(count)
            expected = engine.run(x)
            for _ in range(3):  # launched singly, then as one
                found = engine.run(Placed(engine.device, x), form=form)
                assert isinstance(found, tuple)
                for y, right in zip(found, expected, strict=True):
                    assert_same_bits(y.numpy().astype(np.float32), rounded(right, y.element_type))
                    assert y.shape == right.shape
            if form != "stored":
                assert {y.element_type for y in found} == {form.removesuffix(" channels_last")}
                assert [is_channels_last(y) for y in found[:3]] == [form.endswith("last")] * 3


def test_the_callers_arrays(device: Device, model: Path) -> None:
    """Element type and strides say what is wanted; what lies beside the arrays stays."""
    count = 3
    x = images(count)
    with opened(model, device, batch=(1, 4), precision="fp16", kernels="mma", outputs=LAYERS) as engine:
        expected = engine.run(x)
        room = [np.full((count, SIZE, SIZE, 80), 7, np.float16), np.full((count, 6, SIZE, SIZE), 7, np.float32)]
        room += [np.full((count + 1, *y.shape[1:]), 7, np.float16) for y in expected[2:]]
        # The first 64 of 80 channels of each pixel, then arrays with something behind their last row.
        inner = [room[0][..., :64].transpose(0, 3, 1, 2), room[1], *(array[:count] for array in room[2:])]
        out = tuple(Inside(engine.device, whole, part) for whole, part in zip(room, inner, strict=True))
        assert engine.run(Placed(engine.device, x), out=out) == out
        for y, whole, right in zip(out, room, expected, strict=True):
            left = np.empty_like(whole)
            engine.device.copy_out(left, y.start)
            engine.device.synchronize()
            place = same_place(left, whole, y.array)
            assert_same_bits(place.astype(np.float32), right.astype(place.dtype).astype(np.float32))
            place[...] = 7
            assert (left == 7).all()


class Inside(Placed):
    """A part of an array in memory of a device."""

    def __init__(self, device: Device, whole: Any, part: Any) -> None:
        super().__init__(device, whole)
        self.start = self.__cuda_array_interface__["data"][0]
        self.array = part
        place = part.__array_interface__
        address = self.start + place["data"][0] - whole.__array_interface__["data"][0]
        changes = {"shape": part.shape, "data": (address, False), "strides": part.strides}
        self.__cuda_array_interface__ = {**self.__cuda_array_interface__, **changes}


def same_place(copy: Any, whole: Any, part: Any) -> Any:
    """The part of a copy of `whole` that `part` is of `whole`."""
    start = (part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // whole.itemsize
    return np.lib.stride_tricks.as_strided(copy.reshape(-1)[start:], part.shape, part.strides)


def test_what_cannot_be_written_to_is_refused(device: Device, model: Path) -> None:
    with opened(model, device, batch=2, outputs=LAYERS[:2]) as engine:
        given = Placed(engine.device, images(2))
        right = [Placed(engine.device, np.zeros((2, channels, SIZE, SIZE), np.float32)) for channels in (64, 6)]

        def refused(message: str, **options: Any) -> None:
            with pytest.raises(InputError, match=message):
                engine.run(given, **options)

        refused(r"form 'half' is not known; accepted: stored, float32, float16, bfloat16, float32 ch", form="half")
        refused("form and out are both given", form="stored", out=tuple(right))
        refused("out has 1 arrays; the model has 2 outputs", out=right[0])
        refused(r"output 1 \(counted from 0\) of out is no array on a GPU", out=(right[0], np.zeros(3)))
        refused(r"output 1 .* has shape \(2, 64, 16, 16\); for this input it is \(2, 6, 16, 16\)", out=(right[0],) * 2)
        wrong = Placed(engine.device, np.zeros((2, 6, SIZE, SIZE), np.float64))
        refused(r"output 1 .* is float64 with strides .*; give float32", out=(right[0], wrong))
        for name, value in (("form", "stored"), ("out", right[0])):
            with pytest.raises(InputError, match=f"{name} is for arrays on the GPU, and this input is on the host"):
                engine.run(images(1), **{name: value})


# ---- Inputs


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("order", ["contiguous", "channels last", "every second row"])
@pytest.mark.parametrize("element_type", ["float32", "float16", "bfloat16", "uint8"])
def test_inputs(device: Device, model: Path, element_type: str, order: str, count: int) -> None:
    x = pixels(3)[:count] if element_type == "uint8" else rounded(images(3)[:count], element_type)
    with opened(model, device, batch=(1, 2), outputs=["relu0", "output"]) as engine:
        expected = engine.run(x)
        lying = x.astype(np.float16) if element_type == "float16" else x
        make: Any = PlacedBfloat16 if element_type == "bfloat16" else Placed
        if order == "contiguous":
            found = engine.run(make(engine.device, lying))
        else:
            found = engine.run(strided(make, engine.device, lying, order))
        for y, right in zip(found, expected, strict=True):
            assert_same_bits(y.numpy(), right)


def strided(make: Any, device: Device, x: Any, order: str) -> Any:
    """The same images in another order of memory."""
    if order == "channels last":
        axes, back = ((0, 3, 1, 2), (0, 2, 3, 1)) if x.dtype == np.uint8 else ((0, 2, 3, 1), (0, 3, 1, 2))
        return Turned(make(device, x.transpose(axes).copy()), lambda y: y.transpose(back))
    return Turned(make(device, np.repeat(x, 2, axis=2)), lambda y: y[:, :, ::2])


class Turned:
    """Another view of an array in memory of a device."""

    def __init__(self, placed: Any, turn: Any) -> None:
        is_bfloat = isinstance(placed, PlacedBfloat16)
        self.placed = placed.placed if is_bfloat else placed
        place = self.placed.__cuda_array_interface__
        self.turned = turn(described(place))
        if is_bfloat:
            self.__dlpack_device__ = placed.__dlpack_device__
        else:
            seen = self.turned.__array_interface__
            changes = {"shape": self.turned.shape, "strides": self.turned.strides, "data": seen["data"]}
            self.__cuda_array_interface__ = {**place, **changes}

    def __dlpack__(self, *, stream: Any = None) -> object:
        del stream
        return interop.wrap(self.turned, self.__dlpack_device__(), is_bfloat=True)

"""settle.cu against its description: what is noted of each image, which rows become NaN, and that nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import Bench
from vgg16gpu.compiler.op_kernels.layout.settle import WORDS, RunOutput, settle
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import StatusBlock
from vgg16gpu.program.types import DType, TensorFormat

BATCH = 5
SHAPES = ((BATCH, 3, 4, 5), (BATCH, 7), (BATCH, 2, 3))
FORMS = (
    TensorFormat(),
    TensorFormat(DType.F16),
    TensorFormat(DType.BF16, 7),
    TensorFormat(DType.F32, 8),
    TensorFormat(DType.F16, 9),
)
GOOD = 100.0


def settled(
    device: Device,
    *,
    error: int = 0,
    status: Any = (),
    maxima: Any = (),
    lowest: float = 0.0,
    count: int = BATCH,
    first: int = 0,
    allows: bool = False,
    has_second_pass: bool = False,
) -> tuple[list[int], list[list[bool]], list[int]]:
    """The words that were noted; for each output which images became NaN, all of an image or nothing; the guard."""
    bench = Bench(device)
    watched = np.full((2, BATCH), GOOD, np.float32)
    for (value, image), largest in dict(maxima).items():
        watched[value, image] = largest
    words = np.zeros(1 + BATCH, np.int32)
    words[0] = error
    words[[1 + image for image in status]] = 1
    place = bench.put(np.concatenate([words.view(np.uint32), watched.reshape(-1).view(np.uint32)]))
    control = StatusBlock(place, place, BATCH, ("a", "b"), lowest)
    found = bench.put(np.zeros(WORDS, np.uint32))
    guard = bench.put(np.full(2 + BATCH, 7, np.int32))
    outputs = []
    for form, shape in ((form, shape) for form in FORMS for shape in SHAPES):
        if form.pitch is None or len(shape) != 3:
            room = bench.put(np.zeros(form.element.nbytes * form.extent(shape), np.uint8))
            outputs.append(RunOutput(room, shape, form, is_whole=False))
    asked = guard if has_second_pass else None
    bench.run(*settle(control, found, outputs, count, first, allows_nonfinite=allows, guard=asked))
    rows = []
    for room, shape, form, _ in outputs:
        number: Any = f"u{form.element.nbytes}"
        raw = bench.get(room, (form.extent(shape),), number)
        steps = [raw.itemsize * stride for stride in form.strides(shape)]
        inside = np.lib.stride_tricks.as_strided(raw, shape, steps)
        per_image = inside.reshape(BATCH, -1)
        nan = 0x7FFFFFFF if form.element is DType.F32 else 0x7FFF
        assert all((image == image[0]).all() and image[0] in (0, nan) for image in per_image)
        rows.append([bool(image[0]) for image in per_image])
        inside[...] = 0
        assert not raw.any()  # nothing between
    noted = bench.get(found, (WORDS,), np.uint32).tolist()
    return noted, rows, bench.get(guard, (2 + BATCH,), np.int32).tolist()


def only(*chosen: int) -> list[bool]:
    return [image in chosen for image in range(BATCH)]


def word(image: int) -> int:
    return 0xFFFFFFFF - image


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("given", "words", "images"),
    [
        ({}, [0, 0, 0, 0], ()),
        ({"status": (3, 1)}, [0, word(1), 0, 0], (1, 3)),
        ({"status": (3, 1), "first": 40}, [0, word(41), 0, 0], (1, 3)),
        ({"status": (3, 1), "count": 3}, [0, word(1), 0, 0], (1,)),
        ({"status": (3,), "allows": True}, [0, 0, 0, 0], ()),
        ({"maxima": {(1, 2): 65505.0, (0, 4): np.nan}}, [0, 0, word(2), 0], (2, 4)),
        ({"maxima": {(1, 2): 65504.0, (0, 4): 7.0}, "lowest": 8.0}, [0, 0, word(4), 0], (4,)),
        ({"maxima": {(1, 2): np.inf}, "status": (2, 0)}, [0, word(0), 0, 0], (0, 2)),
        ({"maxima": {(1, 2): np.inf}, "status": (2,), "allows": True}, [0, 0, 0, 0], ()),
        ({"maxima": {(1, 2): np.inf}, "status": (2,), "allows": True, "lowest": 8.0}, [0, 0, word(2), 0], (2,)),
        ({"status": (2,), "allows": True, "lowest": 8.0}, [0, 0, 0, 0], ()),
        ({"error": 6}, [6, 0, 0, 0], (0, 1, 2, 3, 4)),
    ],
    ids=str,
)
def test_the_verdict(device: Device, given: Any, words: list[int], images: tuple[int, ...]) -> None:
    noted, rows, guard = settled(device, **given)
    assert noted == words
    assert rows == [only(*images)] * len(rows)
    assert guard == [7] * len(guard)


@pytest.mark.parametrize(
    ("given", "words", "images", "needed"),
    [
        ({}, [0, 0, 0, 0], (), ()),
        ({"maxima": {(1, 2): 65505.0, (0, 4): np.nan}}, [0, 0, 0, 2], (), (2, 4)),
        ({"maxima": {(1, 2): 65505.0, (0, 4): np.nan}, "count": 4}, [0, 0, 0, 1], (), (2,)),
        ({"maxima": {(1, 2): np.inf, (0, 4): 7.0}, "status": (2, 0)}, [0, word(0), 0, 1], (0, 2), (4,)),
        ({"maxima": {(1, 2): np.inf}, "status": (2, 0), "allows": True}, [0, 0, 0, 1], (), (2,)),
        ({"maxima": {(0, 3): 7.0}, "error": 6}, [6, 0, 0, 0], (0, 1, 2, 3, 4), ()),
    ],
    ids=str,
)
def test_who_needs_a_second_pass(
    device: Device, given: Any, words: list[int], images: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    """Once for all outputs, though one launch takes four of them."""
    noted, rows, guard = settled(device, **given, lowest=8.0, has_second_pass=True)
    assert noted == words
    assert rows == [only(*images)] * len(rows)
    assert guard == [int(bool(needed)), *map(int, only(*needed)), 7]


@pytest.mark.parametrize("form", [TensorFormat(), TensorFormat(DType.F16, 6)])
def test_an_output_without_rows_becomes_nan_as_a_whole(device: Device, form: TensorFormat) -> None:
    bench = Bench(device)
    words = bench.put(np.array([0, 1], np.int32))
    found, shape = bench.put(np.zeros(WORDS, np.uint32)), (3, 4, 2, 2)
    room = bench.put(np.zeros(form.element.nbytes * form.extent(shape), np.uint8))
    control = StatusBlock(words, words, 1)
    bench.run(*settle(control, found, [RunOutput(room, shape, form, is_whole=True)], 1, 0, allows_nonfinite=False))
    raw = bench.get(room, (form.extent(shape),), f"u{form.element.nbytes}")  # type: ignore[arg-type]
    inside = np.lib.stride_tricks.as_strided(raw, shape, [raw.itemsize * stride for stride in form.strides(shape)])
    assert (inside != 0).all()
    assert np.count_nonzero(raw) == inside.size

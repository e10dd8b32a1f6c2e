"""Streams: the same answers as runs, in order, whatever is overlapped, abandoned, refused or shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import ByDlpack, ByInterface
from tests.support.kernel_harness import assert_same_bits
from tests.support.stream_items import PARTS, items
from vgg16gpu import Engine
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.runtime.streaming import DEPTH
from vgg16gpu.zoo.generate import make_vgg

SIZE = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=SIZE, width=8, hidden=32, classes=10)
    return path


@pytest.fixture(scope="module")
def pixels() -> Any:
    return structured_images(sum(PARTS), SIZE, seed=5)


@pytest.fixture
def engine(device: Device, model: Path) -> Iterator[Engine]:
    """On float32 kernels, whose bits do not depend on the batch size: runs and streams make different batches."""
    with Engine(model, device=device.facts.kind, batch=[1, 4], kernels="ffma") as opened:
        yield opened


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(one, other, f"item {index}")


# ---- The same as run


@pytest.mark.parametrize("batch", [None, 1, 4])
@pytest.mark.parametrize("element_type", ["uint8", "float32"])
def test_a_stream_gives_what_runs_give(engine: Engine, pixels: Any, element_type: str, batch: int | None) -> None:
    x = pixels if element_type == "uint8" else normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)
    expected = [engine.run(item) for item in items(x)]
    assert_same(list(engine.stream(items(x), batch)), expected)
    assert_same(list(engine.stream(iter(items(x)), batch)), expected)


def test_element_types_may_change(engine: Engine, pixels: Any) -> None:
    numbers = normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)
    mixed = [pixels[:3], pixels[3:5], numbers[5:6], numbers[6:9], pixels[9:10]]
    assert_same(list(engine.stream(mixed)), [engine.run(item) for item in mixed])


def test_memory_may_be_used_again_for_the_next_item(engine: Engine, pixels: Any) -> None:
    def refilled() -> Iterator[Any]:
        memory = np.empty_like(pixels[:1])
        for image in pixels:
            memory[0] = image
            yield memory
            memory[0] = 0

    assert_same_bits(np.concatenate(list(engine.stream(refilled()))), engine.run(pixels))


def test_it_costs_one_copy_each_way_for_a_batch(engine: Engine, pixels: Any) -> None:
    list(engine.stream(pixels[:1][None]))  # allocates
    before = Counters(**vars(engine.counters))
    list(engine.stream([pixels[:12]]))
    steps = len(engine.program.all_steps("uint8"))
    assert engine.counters.since(before) == Counters(3, 3, 3 * (steps + 2), 3, 0)


def test_two_batches_are_read_ahead_and_no_more(engine: Engine, pixels: Any) -> None:
    read = []

    def watched() -> Iterator[Any]:
        for index, image in enumerate(pixels):
            read.append(index)
            yield image[None]

    stream = engine.stream(watched())
    next(stream)
    assert len(read) == DEPTH * 4


# ---- What goes wrong


def test_an_item_that_does_not_fit_is_named_after_the_results_before_it(engine: Engine, pixels: Any) -> None:
    stream = engine.stream([pixels[:1], pixels[1:6], pixels[:1, 1:], pixels[:1]])
    assert_same([next(stream), next(stream)], [engine.run(pixels[:1]), engine.run(pixels[1:6])])
    with pytest.raises(InputError, match=r"item 2 of the stream: input 'input' is uint8 \(1, 31, 32, 3\); this model"):
        next(stream)


def test_what_the_iterable_raises_comes_after_the_results_before_it(engine: Engine, pixels: Any) -> None:
    class BrokenError(Exception):
        pass

    def failing() -> Iterator[Any]:
        yield pixels[:1]
        yield pixels[1:4]
        raise BrokenError("the camera fell down")

    stream = engine.stream(failing())
    assert_same([next(stream), next(stream)], [engine.run(pixels[:1]), engine.run(pixels[1:4])])
    with pytest.raises(BrokenError, match="the camera fell down"):
        next(stream)
    assert_same(list(engine.stream(items(pixels))), [engine.run(item) for item in items(pixels)])


def test_nan_is_refused_by_item_and_input(device: Device, model: Path, pixels: Any) -> None:
    x = normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)
    bad = [x[:3], x[3:4], x[4:11].copy(), x[11:12]]
    bad[2][[1, 5], 0, 3, 3] = np.nan
    with Engine(model, device=device.facts.kind, batch=4) as engine:
        stream = engine.stream(bad)
        assert_same([next(stream), next(stream)], [engine.run(x[:3]), engine.run(x[3:4])])
        with pytest.raises(InputError, match=r"item 2 of the stream: input 1, 5 of 7 \(counted from 0\) holds NaN"):
            next(stream)
        assert_same(list(engine.stream(items(x))), [engine.run(item) for item in items(x)])
    with Engine(model, device=device.facts.kind, batch=4, allow_nonfinite=True) as engine:
        scores = list(engine.stream(bad))
        assert np.isnan(scores[2][[1, 5]]).all()
        assert_same_bits(scores[2][[0, 2, 3, 4, 6]], engine.run(x[[4, 6, 7, 8, 10]]))


def test_what_a_stream_cannot_take_is_refused_at_once(engine: Engine) -> None:
    for batch in (0, 2, 8):
        with pytest.raises(InputError, match=f"batch {batch}: the engine is built for 1, 4; give one of these"):
            engine.stream([], batch)
    for given in (5, None, np.float32(1), np.array(1.0)):
        kind = type(given).__name__
        with pytest.raises(InputError, match=f"stream takes inputs one after the other, .* no {kind}; "):
            engine.stream(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [ByInterface, ByDlpack])
def test_an_array_on_a_gpu_that_is_not_the_engines_is_named(engine: Engine, pixels: Any, place: Any) -> None:
    # On a GPU it is the address that is none there, or the card that is another.
    message = "(says that it lies on a GPU, but|lies on (a GPU|cuda:1), this engine runs on)"
    for item in (place(pixels), {"input": place(pixels)}):
        stream = engine.stream([pixels, item])
        next(stream)
        with pytest.raises(InputError, match=f"item 1 of the stream: the input {message}"):
            next(stream)


# ---- Company


@pytest.mark.parametrize("results", [0, 1, 3])
def test_leaving_a_stream_early_leaves_the_engine_usable(engine: Engine, pixels: Any, results: int) -> None:
    expected = [engine.run(item) for item in items(pixels)]
    for _ in range(3):
        stream = engine.stream(items(pixels[::-1]))
        for _ in range(results):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert_same(list(engine.stream(items(pixels))), expected)
        assert_same_bits(engine.run(pixels[:3]), expected[0])
    assert engine.counters.allocations == 4  # the frames of the first stream served all


def test_a_stream_ends_with_its_engine(device: Device, model: Path, pixels: Any) -> None:
    engine = Engine(model, device=device.facts.kind, batch=4)
    stream, unused = engine.stream(items(pixels)), engine.stream(items(pixels))
    next(stream)
    engine.close()
    for left in (stream, unused):
        with pytest.raises(InputError, match="the engine is closed; build a new one"):
            list(left)


# ---- The input in pinned memory


def test_the_input_can_be_filled_in_place(engine: Engine, pixels: Any) -> None:
    numbers = normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)
    for element_type, x in (("float32", numbers), ("uint8", pixels)):
        memory = engine.input(element_type)
        assert memory.shape == (4, *x.shape[1:])
        assert memory.dtype == element_type
        for first, count in ((0, 4), (4, 3), (7, 1)):
            memory[:count] = x[first : first + count]
            assert_same_bits(engine.run(memory[:count]), engine.run(x[first : first + count]))
    assert engine.input().dtype == np.float32


def test_input_refuses_other_types_and_closed_engines(engine: Engine) -> None:
    with pytest.raises(InputError, match="element type 'float64': this model takes float32 or uint8"):
        engine.input("float64")
    engine.close()
    with pytest.raises(InputError, match="the engine is closed"):
        engine.input()

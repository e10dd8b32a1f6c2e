"""Engines for images of any size: the bits of an engine of that size alone, weights once, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.runtime.plans.conftest import CUT
from tests.support.kernel_harness import assert_same_bits, seeded
from vgg16gpu import Engine
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import calibrate, calibration_engine

SIZES = ((16, 16), (33, 47), (64, 48), (224, 96))
SMALL = SIZES[:3]


def images(count: int, sides: tuple[int, int], element_type: str = "float32") -> Any:
    random = seeded(f"any size {sides}")
    if element_type == "uint8":
        return random.integers(0, 256, (count, *sides, 3), dtype=np.uint8)
    return random.standard_normal((count, 3, *sides)).astype(np.float32)


@pytest.fixture(scope="module")
def scales(whole: Model) -> Any:
    with calibration_engine(whole, device="cpu", outputs=[CUT]) as engine:
        assert engine.program.input.shape == (1, 3, 48, 48)
        with pytest.raises(InputError, match="48x48"):  # of one size
            engine.run(images(1, (16, 16)))
        return calibrate(engine, [NamedInput("", x) for x in images(2, (48, 48))]).scales


@pytest.mark.first_case(reason="each kernel has its sizes; one net shows that plans are chosen by them")
@pytest.mark.parametrize(
    ("precision", "kernels"), [("fp32", "auto"), ("fp16", "mma"), ("bf16", "mma"), ("fp16", "auto"), ("int8", "auto")]
)
def test_the_bits_are_those_of_an_engine_of_that_size_alone(
    whole: Model, scales: Any, precision: str, kernels: str
) -> None:
    options: dict[str, Any] = {"device": "cpu", "outputs": [CUT], "precision": precision, "kernels": kernels}
    options |= {"batch": (1, 2), "scales": scales if precision == "int8" else None}
    sizes = SIZES if kernels == "auto" and precision == "fp32" else SMALL
    with Engine(whole, **options) as engine:
        for sides in (*sizes, *sizes[::-1]):
            with Engine(whole, size=sides, **options) as alone:
                for element_type in ("float32", "uint8"):
                    x = images(3, sides, element_type)
                    assert_same_bits(np.asarray(engine.run(x)), np.asarray(alone.run(x)))
                    assert_same_bits(np.asarray(engine.run(x[:1])), np.asarray(alone.run(x[:1])))
        assert engine.sizes.made == 1 + len(sizes)


def head(folder: Any, side: int | str = "s") -> Model:
    """A convolution, the mean of each channel, and a fully connected layer: open in height and width."""
    random = seeded("head")
    weights = {"w": (64, 3, 3, 3), "b": (64,), "v": (7, 64), "c": (7,)}
    arrays = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["y"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "c"], ["scores"], transB=1),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, side, side])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 7])
    graph = helper.make_graph(nodes, "head", [given], [scores], arrays)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "head.onnx")
    return Model(folder / "head.onnx")


def test_a_file_that_leaves_its_size_open_takes_any_without_being_asked(tmp_path: Any) -> None:
    model = head(tmp_path)
    with Engine(model, device="cpu") as engine:
        assert "float32 (N, 3, ?, ?) -> scores: float32 (N, 7)" in repr(engine)
        assert engine.program.input.shape == (1, 3, 224, 224)
        assert engine.sizes.planned == ((224, 224),)
        for sides in ((1, 1), (5, 300)):
            with Engine(model, device="cpu", size=sides) as alone:
                assert_same_bits(np.asarray(engine.run(images(2, sides))), np.asarray(alone.run(images(2, sides))))
        assert engine.program.input.shape == (1, 3, 5, 300)  # of what ran last
        with pytest.raises(InputError, match=r"is float32 \(1, 4, 9, 9\); this model takes float32 \(N, 3, any, any\)"):
            engine.run(np.zeros((1, 4, 9, 9), np.float32))
        with pytest.raises(InputError, match=r"is float32 \(1, 3, 0, 9\)"):
            engine.run(np.zeros((1, 3, 0, 9), np.float32))
    with (
        Engine(model, device="cpu", size=24) as engine,
        pytest.raises(InputError, match="built for 24x24; without size it takes any that the model fits"),
    ):
        engine.run(images(1, (25, 24)))


def test_outputs_that_vary_with_the_size_say_so(whole: Model) -> None:
    with Engine(whole, device="cpu", outputs=[CUT], size="any") as engine:
        (y,) = engine.outputs
        assert y.shape == (None, 32, None, None)
        (x,) = engine.inputs
        assert x.shape == (None, 3, None, None)
        assert engine.program.input.shape == (1, 3, 48, 48)


def test_what_fixes_the_size_says_so(whole: Model, tmp_path: Any) -> None:
    fixes = r"Gemm '.*classifier.*' takes 64 numbers, which 48x48 gives; give outputs=\[\.\.\.\] that end before it"
    with pytest.raises(ModelError, match=f"does not take images of any size: {fixes}, or 48x48 images"):
        Engine(whole, device="cpu", size="any")
    with Engine(whole, device="cpu") as engine, pytest.raises(InputError, match=fixes):
        engine.run(images(1, (64, 64)))
    declared = head(tmp_path, 20)
    with pytest.raises(ModelError, match=r"the file fixes 20x20 .*; give outputs"):
        Engine(declared, device="cpu", size="any")
    with Engine(declared, device="cpu", outputs=["scores"], size="any") as engine:
        assert np.asarray(engine.run(images(1, (33, 9)))).shape == (1, 7)
    with pytest.raises(ModelError, match="takes rows; leave size out"):
        Engine(rows(tmp_path), device="cpu", size="any")
    with pytest.raises(InputError, match=r"size 'all': give one number of pixels, height and width, or 'any'"):
        Engine(declared, device="cpu", size="all")  # type: ignore[arg-type]


def rows(folder: Any) -> Model:
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 5]) for name in "xy"]
    graph = helper.make_graph([node], "rows", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "r.onnx")
    return Model(folder / "r.onnx")


def test_a_size_that_a_layer_does_not_fit_is_refused_and_costs_nothing(whole: Model) -> None:
    with Engine(whole, device="cpu", outputs=[CUT]) as engine:
        before = engine.sizes
        with pytest.raises(
            InputError, match=r"image size 1x9 .* not fit: .*; height from 4 on, width from 4 on would fit"
        ):
            engine.run(images(1, (1, 9)))
        assert engine.sizes == before


def test_weights_are_uploaded_once(whole: Model) -> None:
    with Engine(whole, device="cpu", outputs=[CUT]) as engine:
        engine.run(images(1, (48, 48)))
        weights = engine.plan.weights.weights_nbytes
        for sides in SMALL:
            before = engine.counters
            engine.run(images(1, sides))
            done = engine.counters.since(before)
            assert done.copies_in == 1  # the image
            assert done.allocations <= 4  # activations, staging, and what is pinned
        activations = sum(each.plan.activations_nbytes for each in engine._any._kept.values)  # type: ignore[union-attr]
        assert engine.sizes.nbytes == weights + activations


def test_no_images_give_no_rows(whole: Model) -> None:
    for size in (None, 48):
        with Engine(whole, device="cpu", outputs=[CUT, "relu2_1"], size=size, batch=(1, 4)) as engine:
            first, second = engine.run(images(0, (48, 48)))
            assert (first.shape, second.shape) == ((0, 32, 12, 12), (0, 16, 24, 24))
            assert first.dtype == np.float32
            x = images(3, (48, 48))
            found = [y[0] for y in engine.stream([x[:0], x[:1], x[:0], x[1:], x[:0]])]
            assert [len(y) for y in found] == [0, 1, 0, 2, 0]
            assert_same_bits(np.concatenate(found), engine.run(x)[0])


@pytest.mark.parametrize("element_type", ["float32", "uint8"])
def test_a_stream_of_many_sizes_gives_what_runs_give(whole: Model, element_type: str) -> None:
    with Engine(whole, device="cpu", outputs=[CUT], batch=(1, 2)) as engine:
        items = [images(count, sides, element_type) for sides in SMALL for count in (1, 3)] * 2
        expected = [engine.run(x) for x in items]
        for found, wanted in zip(engine.stream(items), expected, strict=True):
            assert_same_bits(np.asarray(found), np.asarray(wanted))
        found = engine.stream([items[0], images(1, (1, 9), element_type), items[0]])
        assert_same_bits(np.asarray(next(found)), np.asarray(expected[0]))
        with pytest.raises(InputError, match=r"item 1 of the stream: .*image size 1x9"):
            next(found)


def test_threads_with_different_sizes(whole: Model) -> None:
    with Engine(whole, device="cpu", outputs=[CUT], batch=2, memory=1) as engine:  # each size drops the other
        expected = {sides: engine.run(images(2, sides)) for sides in SMALL[:2]}

        def work(sides: tuple[int, int]) -> list[Any]:
            x = images(2, sides)
            return [engine.run(x) for _ in range(8)] + list(engine.stream([x] * 4))

        with ThreadPoolExecutor(2) as pool:
            for sides, found in zip(expected, pool.map(work, expected), strict=True):
                for y in found:
                    assert_same_bits(np.asarray(y), np.asarray(expected[sides]))
        assert engine.sizes.made > 3

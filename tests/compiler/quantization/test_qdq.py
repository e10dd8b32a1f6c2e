"""compiler/quantization/qdq.py: ops "quantise" become scales, clips or nothing; and whole files in int8, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.onnx_models import Model, random_input
from tests.support.quantised_reference import evaluate
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Clip, Conv, FakeQuantize, Flatten, Gemm, Identity, Op, Pool, Relu, Softmax
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.compiler.quantization.qdq import absorb_qdq, strip_qdq
from vgg16gpu.compiler.quantization.scheme import Scale, held_scales

SYMMETRIC: Any = np.int8(0)
SIGNED, UNSIGNED, ODD = (0.5, -128.0, 127.0), (0.25, 0.0, 255.0), (0.5, -120.0, 135.0)


def chain(*steps: Any, outputs: tuple[str, ...] = (), rank: int = 4) -> Graph:
    """Ops one behind the other, v0 -> v1 -> ...; numbers stand for a FakeQuantize."""
    ops = []
    for index, step in enumerate(steps):
        names = f"v{index}", f"v{index + 1}", (f"v{index + 1}",)
        ops.append(FakeQuantize(*names, (), *step) if isinstance(step, tuple) else step(*names))
    shape = (None, 3, 8, 8) if rank == 4 else (None, 3, *(8,) * (rank - 2))
    return Graph(GraphInput("v0", shape), tuple(ops), outputs or (f"v{len(steps)}",))


def conv(x: str, y: str, names: tuple[str, ...]) -> Op:
    return Conv(x, y, names, np.zeros((3, 3, 1, 1), np.float32), None, Window((1, 1)))


def gemm(x: str, y: str, names: tuple[str, ...]) -> Op:
    return Gemm(x, y, names, np.zeros((3, 192), np.float32), None)


def pool(x: str, y: str, names: tuple[str, ...]) -> Op:
    return Pool(x, y, names, "max", MAX_POOL_2X2)


def average(x: str, y: str, names: tuple[str, ...]) -> Op:
    return Pool(x, y, names, "average", MAX_POOL_2X2)


def types(graph: Graph) -> list[type[Op]]:
    return [type(op) for op in graph.ops]


@pytest.mark.parametrize("change", [strip_qdq, absorb_qdq])
def test_a_graph_without_them_stays(change: Callable[[Graph], Graph]) -> None:
    graph = chain(conv, Relu)
    assert change(graph) is graph


def clips(graph: Graph) -> Sequence[tuple[float, float]]:
    return [op.range for op in graph.ops if isinstance(op, Clip)]


@pytest.mark.parametrize(
    ("numbers", "limits"), [(SIGNED, (-64.0, 63.5)), (ODD, (-60.0, 67.5)), (UNSIGNED, (0.0, 63.75))]
)
@pytest.mark.parametrize("rank", [3, 4])
def test_rounding_is_left_out_and_saturation_kept(
    numbers: tuple[float, ...], limits: tuple[float, float], rank: int
) -> None:
    graph = strip_qdq(chain(numbers, Identity, numbers, rank=rank))
    assert types(graph) == [Clip, Identity, Identity]  # who is in its range already is not clipped again
    assert clips(graph) == [limits]
    assert graph.integers == {}
    assert [op.y for op in graph.ops] == ["v1", "v2", "v3"]
    assert clips(strip_qdq(chain(numbers, conv, numbers))) == [limits] * 2


def test_limits_that_change_nothing_are_left_out() -> None:
    """An average keeps limits around 0, so does a softmax those around 0..1; others, narrower ones, clip again."""
    graph = strip_qdq(chain(conv, ODD, average, ODD, pool, ODD, Flatten, ODD, gemm))
    assert types(graph) == [Conv, Clip, Pool, Identity, Pool, Identity, Flatten, Identity, Gemm]
    assert types(strip_qdq(chain(Flatten, Softmax, (2.0**-7, -128.0, 128.0)))) == [Flatten, Softmax, Identity]
    assert clips(strip_qdq(chain(Flatten, Softmax, (2.0**-8, 0.0, 255.0)))) == [(0.0, 255 / 256)]
    narrower = strip_qdq(chain(conv, UNSIGNED, SIGNED, (0.25, -8.0, 9.0), ODD))
    assert clips(narrower) == [(0.0, 63.75), (-64.0, 63.5), (-2.0, 2.25)]


def test_a_value_that_several_round_alike_is_clipped_once() -> None:
    first = chain(conv, SIGNED, conv, outputs=("v3", "w3"))
    for numbers, count in ((SIGNED, 1), (UNSIGNED, 2)):
        second = FakeQuantize("v1", "w2", ("w2",), (), *numbers), conv("w2", "w3", ("w3",))
        graph = strip_qdq(replace(first, ops=(*first.ops, *second)))
        assert len(clips(graph)) == count
        assert [op.x for op in graph.ops if isinstance(op, Identity)] == ["v2"] * (2 - count)


def test_what_kernels_can_hold_becomes_a_scale() -> None:
    graph = absorb_qdq(chain(SIGNED, conv, Relu, UNSIGNED, Identity, pool, conv))
    assert types(graph) == [Identity, Conv, Relu, Identity, Identity, Pool, Conv]
    signed, unsigned = (0.5, True), (0.25, False)
    assert graph.integers == {"v0": signed, "v1": signed, **dict.fromkeys(["v3", "v4", "v5", "v6"], unsigned)}


def test_a_value_that_all_who_read_it_round_alike() -> None:
    """Some exporters write QuantizeLinear once for each operator that follows."""
    first = chain(conv, SIGNED, conv, outputs=("v3", "w3"))
    second = (
        FakeQuantize("v1", "w2", ("w2",), (), *SIGNED),
        conv("w2", "w3", ("w3",)),
    )
    graph = absorb_qdq(replace(first, ops=(*first.ops, *second)))
    assert types(graph) == [Conv, Identity, Conv, Identity, Conv]
    assert graph.integers == dict.fromkeys(["v1", "v2", "w2"], (0.5, True))
    other = FakeQuantize("v1", "w2", ("w2",), (), *UNSIGNED)
    graph = absorb_qdq(replace(first, ops=(*first.ops, other, second[1])))
    assert types(graph) == [Conv, FakeQuantize, Conv, FakeQuantize, Conv]
    assert graph.integers == {"v2": (0.5, True), "w2": (0.25, False)}


@pytest.mark.parametrize("behind", [(), (Identity,), (Identity, Flatten), (pool, Flatten), (Softmax,)])
def test_what_comes_out_is_rounded(behind: tuple[Any, ...]) -> None:
    graph = absorb_qdq(chain(SIGNED, conv, UNSIGNED, *behind))
    assert types(graph)[:3] == [Identity, Conv, FakeQuantize]
    assert types(strip_qdq(chain(SIGNED, conv, UNSIGNED, *behind)))[:3] == [Clip, Conv, Clip]


def test_fewer_integers_than_a_byte_has_become_a_clip_to_their_ends() -> None:
    graph = absorb_qdq(chain((0.5, -127.0, 127.0), conv))
    assert types(graph) == [Clip, Conv]
    assert held_scales(graph)["v1"] == Scale(0.5, signed=True)
    (clip, _) = graph.ops
    assert isinstance(clip, Clip)
    assert (clip.low, clip.high) == (-63.5, math.inf)  # a byte ends at 127 by itself
    (clip, _) = absorb_qdq(chain((0.25, 0.0, 15.0), conv)).ops
    assert isinstance(clip, Clip)
    assert (clip.low, clip.high) == (0, 3.75)
    assert held_scales(absorb_qdq(chain((0.25, 0.0, 15.0), conv)))["v1"] == Scale(0.25, signed=False)


# ---- Whole files


def rounded(model: Model, x: str, step: float, zero: Any) -> str:
    """X through QuantizeLinear and DequantizeLinear."""
    operands = [model.constant(f"{x}_s", np.float32(step)), model.constant(f"{x}_z", np.asarray(zero))]
    return model.node(
        "DequantizeLinear", [model.node("QuantizeLinear", [x, *operands], f"{x}_q"), *operands], f"{x}_dq"
    )


def weight(model: Model, name: str, *shape: int) -> str:
    """Signed bytes with a step for each output, the least and the largest among them."""
    q = model.random.integers(-128, 128, shape).astype(np.int8)
    q.flat[:2] = -128, 127
    steps = (model.random.uniform(0.5, 1, shape[0]) / math.prod(shape[1:]) ** 0.5 / 64).astype(np.float32)
    operands = [model.constant(f"{name}_q", q), model.constant(f"{name}_s", steps)]
    zeros = model.constant(f"{name}_z", np.zeros(shape[0], np.int8))
    return model.node("DequantizeLinear", [*operands, zeros], name, axis=0)


def network(zero: Any = SYMMETRIC, relu: bool = True, steps: tuple[float, float] = (0.03, 0.012)) -> Model:
    """Conv, MaxPool, Conv, Flatten, Gemm, all on integers; with zero points at 0 a ReLU may be left out."""
    model = Model(("n", 3, 12, 12))
    x, channels = rounded(model, "input", steps[0], zero), 3
    for index, filters in enumerate((8, 12)):
        operands = [x, weight(model, f"w{index}", filters, channels, 3, 3), model.weight(f"b{index}", filters)]
        x, channels = model.node("Conv", operands, f"conv{index}", pads=[1] * 4), filters
        x = model.node("Relu", [x], f"relu{index}") if relu else x
        x = rounded(model, x, steps[1], np.uint8(0))
        if index == 0:
            x = model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Flatten", [x], "flat")
    model.node("Gemm", [x, weight(model, "w2", 5, 432), model.weight("b2", 5)], "y", transB=1)
    return model


def exact(path: Path, x: Any) -> Any:
    """What onnxruntime makes of the file, op by op."""
    return open_session(path, optimise=False).run(None, {"input": x})[0]


def run(path: Path, x: Any, precision: str) -> Any:
    with Engine(path, device="cpu", batch=len(x), precision=precision) as engine:
        return engine.run(x)


def test_the_sums_of_integers_are_exact(tmp_path: Path) -> None:
    path, x = network().save(tmp_path / "m.onnx"), random_input((4, 3, 12, 12))
    graph = OnnxModel(path).graph("int8")
    assert [type(op) for op in graph.ops] == [Conv, Conv, Gemm]
    assert all(op.weight_steps is not None for op in graph.ops if isinstance(op, Conv | Gemm))
    expected = evaluate(graph, held_scales(graph), x)
    assert [value.dtype for value in expected.stored.values()] == [np.int8, np.uint8, np.uint8, np.float32]
    scores = run(path, x, "int8")
    assert np.array_equal(scores, expected.stored["y"])
    # One of a byte's steps where x / step and x * (1 / step) round apart; most are the same.
    assert score_error(scores, exact(path, x)).max() < 0.01


def clipped(model: Model, x: str, step: float, kind: type[Any], ends: tuple[int, int] | None) -> str:
    """Lead x through QuantizeLinear, Clip to `ends` and DequantizeLinear, as Brevitas writes it."""
    operands = [model.constant(f"{x}_s", np.float32(step)), model.constant(f"{x}_z", kind(0))]
    y = model.node("QuantizeLinear", [x, *operands], f"{x}_q")
    if ends:
        limits = [model.constant(f"{x}_{i}", kind(end)) for i, end in enumerate(ends)]
        y = model.node("Clip", [y, *limits], f"{x}_c")
    return model.node("DequantizeLinear", [y, *operands], f"{x}_dq")


FORMS: dict[str, tuple[type[Any], tuple[int, int], tuple[int, int]]] = {  # activations: type, ends; weights: ends
    "narrow": (np.int8, (-127, 127), (-127, 127)),
    "4 bits": (np.int8, (-8, 7), (-7, 7)),
    "4 bits, unsigned": (np.uint8, (0, 15), (-127, 127)),
    "bytes": (np.uint8, (0, 255), (-127, 127)),
    "above zero": (np.int8, (3, 100), (-127, 127)),
}


@pytest.mark.parametrize("form", FORMS)
def test_clips_between_rounding_run_on_integers(tmp_path: Path, form: str) -> None:
    """Compare bits of int8 with the integers of a file whose weights and activations are as Brevitas exports them."""
    kind, ends, weight_ends = FORMS[form]
    model, most = Model(("n", 3, 12, 12)), weight_ends[1]
    x, channels = clipped(model, "input", 3 / 127, np.int8, (-127, 127)), 3
    for index, filters in enumerate((8, 12)):
        stored = model.constant(f"w{index}", model.random.standard_normal((filters, channels, 3, 3)).astype(np.float32))
        operands = [x, clipped(model, stored, 2.5 / most, np.int8, weight_ends), model.weight(f"b{index}", filters)]
        x, channels = model.node("Conv", operands, f"conv{index}", pads=[1] * 4), filters
        x = clipped(model, x, 8 / ends[1], kind, ends)
        if index == 0:
            x = model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Flatten", [x], "flat")
    model.node("Gemm", [x, weight(model, "w2", 5, 432), model.weight("b2", 5)], "y", transB=1)
    path, inputs = model.save(tmp_path / "m.onnx"), random_input((4, 3, 12, 12)) * np.float32(3)

    graph = OnnxModel(path).graph("int8")
    products = [op for op in graph.ops if isinstance(op, Conv | Gemm)]
    assert all(op.weight_steps is not None and op.x in held_scales(graph) for op in products)
    scores = evaluate(graph, held_scales(graph), inputs).stored["y"]  # as the kernels compute them: see above
    assert score_error(scores, exact(path, inputs)).max() < 0.01
    if form != "bytes":  # the ends matter
        wide = onnx.load(path)
        for tensor in wide.graph.initializer:
            if tensor.name in ("conv0_0", "conv0_1", "conv1_0", "conv1_1"):
                limits = np.iinfo(kind)
                end = limits.min if tensor.name.endswith("0") else limits.max
                tensor.CopyFrom(onnx.numpy_helper.from_array(kind(end), tensor.name))
        onnx.save(wide, tmp_path / "wide.onnx")
        assert np.abs(exact(tmp_path / "wide.onnx", inputs) - exact(path, inputs)).max() > 0


def test_outputs_are_rounded_as_the_file_says(tmp_path: Path) -> None:
    """Where no byte inside is off, scores on the file's own grid are onnxruntime's, saturated ones included."""
    model = network(relu=True)
    y = rounded(model, "y", 0.01, np.uint8(160))
    path, x = model.save(tmp_path / "m.onnx", [y, "relu1_dq"]), random_input((4, 3, 12, 12))
    (scores, _), expected = run(path, x, "int8"), exact(path, x)
    largest = 0.01 * (255 - 160)
    assert expected.max() == pytest.approx(largest)
    assert scores.max() == pytest.approx(largest)
    assert (scores == expected).mean() > 0.8
    assert np.abs(scores - expected).max() < 0.025  # where a byte inside is off by one


def test_a_branch_around_rounding(tmp_path: Path) -> None:
    """What the first Conv computes is rounded for the second, and added to it as it is."""
    model = Model(("n", 3, 12, 12))
    x = rounded(model, "input", 0.03, SYMMETRIC)
    first = model.node("Conv", [x, weight(model, "w0", 8, 3, 3, 3)], "first", pads=[1] * 4)
    operands = [rounded(model, first, 0.02, SYMMETRIC), weight(model, "w1", 8, 8, 3, 3)]
    x = model.node("Add", [model.node("Conv", operands, "second", pads=[1] * 4), first], "sum")
    model.node("Flatten", [model.node("Relu", [x], "relu")], "y")
    path, images = model.save(tmp_path / "m.onnx"), random_input((2, 3, 12, 12))
    graph = OnnxModel(path).graph("int8")
    assert sum(op.x in graph.integers for op in graph.ops if isinstance(op, Conv)) == 2
    scores, expected = run(path, images, "int8"), exact(path, images)
    assert np.abs(scores - expected).max() < 0.02  # one step of an element
    assert np.median(np.abs(scores - expected)) < 1e-6


@pytest.mark.first_case(reason="without a ReLU the same operators are taken out")
@pytest.mark.parametrize("relu", [True, False])
def test_other_precisions_do_not_round(tmp_path: Path, relu: bool) -> None:
    """With small steps and a wide range onnxruntime hardly rounds either. Without the ReLU back it would be far off."""
    path = network(SYMMETRIC, relu, (2.0**-5, 2.0**-6)).save(tmp_path / "m.onnx")
    x = random_input((4, 3, 12, 12)).clip(-3, 3)
    scores = run(path, x, "fp32")
    graph = OnnxModel(path).graph()
    assert [type(op) for op in graph.ops] == [Clip, Conv, Clip, Pool, Conv, Clip, Gemm]
    assert 1e-5 < score_error(scores, exact(path, x)).max() < 0.05

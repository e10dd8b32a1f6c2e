"""compiler/quantization/value_ranges.py: between which numbers values lie."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.compiler.graph.test_fuse_clip import Made, chain, clip, conv, pool
from vgg16gpu.compiler.graph.ops import Concat, FakeQuantize, Flatten, LeakyRelu, Limits, Pad, Relu, Softmax
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.quantization.qdq import ANY, value_ranges

QUANTISED = FakeQuantize("x", "y", ("y",), (), scale=0.1, low=-20.0, high=235.0)


@pytest.mark.parametrize(
    ("makers", "expected"),
    [
        ((conv(),), ANY),
        ((conv(relu=True),), (0.0, math.inf)),
        ((Relu,), (0.0, math.inf)),
        ((clip(-1, 6),), (-1.0, 6.0)),
        ((clip(-1, 6), Relu), (0.0, 6.0)),
        ((clip(-1, 6, relu=True),), (0.0, 6.0)),
        ((clip(-1, 6), pool(), Flatten), (-1.0, 6.0)),
        ((clip(2, 6), pool("average", Window((2, 2), pads=Pads(1, 1, 1, 1)), count_include_pad=True)), (0.0, 6.0)),
        ((clip(2, 6), lambda x, y, names: Pad(x, y, names, (0,) * 4, (0, 0, 1, 1), -3.0)), (-3.0, 6.0)),
        ((Flatten, Softmax), (0.0, 1.0)),
        ((clip(-1, 6), LeakyRelu), ANY),
        ((lambda x, y, names: replace(QUANTISED, x=x, y=y, names=names),), (-2.0, 23.5)),
        ((lambda x, y, names: replace(QUANTISED, x=x, y=y, names=names, relu=True),), (0.0, 23.5)),
    ],
)
@pytest.mark.every_case
def test_ranges(makers: tuple[Made, ...], expected: Limits) -> None:
    graph = chain(*makers)
    assert value_ranges(graph)[graph.outputs[0]] == pytest.approx(expected)


def test_the_range_of_several_is_that_of_all() -> None:
    made = chain(clip(-1, 2), clip(0, 9))
    both = Concat("v1", "both", ("both",), ("v2",), axis=1)
    assert value_ranges(replace(made, ops=(*made.ops, both), outputs=("both",)))["both"] == (-1.0, 9.0)
    with_input = Concat("v1", "all", ("all",), ("v0",), axis=1)
    assert value_ranges(replace(made, ops=(*made.ops, with_input), outputs=("all",)))["all"] == ANY

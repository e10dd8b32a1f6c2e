"""compiler/graph/loss.py: graphs of losses in float64, against formulas written out, and differences of themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.graph.test_gradient import WINDOWS, conv, graph_of
from tests.support.graph_reference import Array64, compute
from tests.support.kernel_harness import normal, seeded
from tests.support.loss_reference import gram, unit
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.loss import Kind, Term, loss_graph, target_graph, target_shape
from vgg16gpu.compiler.graph.ops import Flatten, Pool, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.errors import ModelError

RANDOM = seeded("loss")
STEP = 1e-6
SHAPE: Shape = (2, 3, 9, 8)

_WINDOW = WINDOWS["3x3-same"]
_OPS = (
    conv("x", "a", (4, 3), _WINDOW, relu=True),
    Pool("a", "p", ("p",), "max", MAX_POOL_2X2),
    conv("p", "b", (5, 4), _WINDOW, relu=True),
    conv("b", "c", (6, 5), _WINDOW, relu=True, pool=True),
)
FEATURES = graph_of(*_OPS, outputs=("a", "b", "c"))


def images() -> Array64:
    return normal(RANDOM, *SHAPE).astype(np.float64)


def targets_of(terms: list[Term], y: Array64, graph: Graph = FEATURES) -> list[Array64]:
    found = target_graph(graph, terms, y.shape)
    values = compute(found, {"x": y})
    return [
        np.moveaxis(value, 1, -1).reshape(target_shape(value.shape)) if value.ndim == 4 else value
        for value in (values[name] for name in found.outputs)
    ]


def losses(terms: list[Term], x: Array64, targets: list[Array64], gradient: bool = True) -> list[Array64]:
    found = loss_graph(FEATURES, terms, x.shape, gradient=gradient)
    assert [target.shape for target in targets] == list(found.targets.values())
    values = compute(found.graph, {"x": x, **dict(zip(found.targets, targets, strict=True))})
    return [values[name] for name in found.graph.outputs]


def written_out(term: Term, x: Array64, y: Array64) -> Array64:
    """The definition of a term, by hand."""
    f, t = (compute(FEATURES, {"x": image})[FEATURES.outputs[term.output]] for image in (x, y))
    if term.kind == "gram":
        return term.weight * ((gram(f) - gram(t)) ** 2).mean((1, 2))
    if term.kind == "unit":
        last = unit(np.moveaxis(f, 1, -1))[0] - unit(np.moveaxis(t, 1, -1))[0]
        return term.weight * (last**2 @ (np.ones(f.shape[1]) if term.channels is None else term.channels)).mean((1, 2))
    difference = abs(f - t) if term.kind == "absolute" else (f - t) ** 2
    return term.weight * difference.mean((1, 2, 3))


def check(terms: list[Term]) -> None:
    """Values by the definition; the gradient in random directions is what central differences give."""
    x, y = images(), images()
    targets = targets_of(terms, y)
    loss, gradient = losses(terms, x, targets)
    assert gradient.shape == x.shape
    np.testing.assert_allclose(loss, sum(written_out(term, x, y) for term in terms), rtol=1e-10)
    np.testing.assert_array_equal(losses(terms, x, targets, gradient=False)[0], loss)
    for _ in range(4):
        direction = images()
        more, less = (losses(terms, x + sign * STEP * direction, targets)[0] for sign in (1, -1))
        np.testing.assert_allclose(
            (gradient * direction).sum((1, 2, 3)), (more - less) / (2 * STEP), rtol=1e-5, atol=1e-8
        )


@pytest.mark.parametrize("output", [0, 1, 2])
@pytest.mark.parametrize("kind", ["squared", "absolute", "gram", "unit"])
def test_one_term(kind: Kind, output: int) -> None:
    check([Term(output, kind, 1.5)])


def test_more_terms_than_one_sum_takes() -> None:
    """And several of one layer."""
    check([Term(k % 3, kind, 1.0 + k) for k in range(6) for kind in ("squared", "gram", "unit")])  # type: ignore[misc]


def test_a_loss_of_the_input_itself() -> None:
    """Its gradient is the difference alone."""
    graph = graph_of(*_OPS, outputs=("x", "a"))
    x, y = images(), images()
    terms = [Term(0)]
    found = loss_graph(graph, terms, x.shape, gradient=True)
    values = compute(found.graph, {"x": x, **dict(zip(found.targets, targets_of(terms, y, graph), strict=True))})
    np.testing.assert_allclose(values[found.graph.outputs[1]], 2 * (x - y) / x[0].size, rtol=1e-12)
    assert len(found.graph.ops) == 3  # the convolutions are not needed


def test_refusals() -> None:
    flat = graph_of(conv("x", "a", (4, 3), _WINDOW), Flatten("a", "y", ("y",)))
    with pytest.raises(ModelError, match=r"a loss compares feature maps, and 'y' has shape \(2, 288\)"):
        loss_graph(flat, [Term(0)], SHAPE, gradient=False)
    wrong: Any = np.ones(3, np.float32)
    with pytest.raises(ModelError, match=r"'b' has 5 channels, and \(3,\) weights are given for them"):
        target_graph(FEATURES, [Term(1, "unit", 1.0, wrong)], SHAPE)

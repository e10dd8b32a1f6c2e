"""What explains, without a server around it: models with a softmax, channels last, on every device; its bounds."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits
from tests.support.softmax_tails import ORDER, TAILS, digits_with
from vgg16gpu import Engine
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu_serving.page.explainer import Explainer
from vgg16gpu_serving.page.layers import explainable
from vgg16gpu_serving.page.messages import Question, packed_question, receive
from vgg16gpu_serving.page.process import _answered, _serve
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Description, EngineChoice, Tensor

CHOICE = EngineChoice(str(digits_model()), "cpu", "fp32", 1, None, None, None, None, 0.0)
DESCRIPTION = Description(Tensor("input", (1, 32, 32)), (1, 32, 32), (32, 32, 1), False, (), (1,), "cpu")
ROW = np.random.default_rng(2).standard_normal((1, 1, 32, 32)).astype(np.float32)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def explaining():
    """A function that makes one, for a file and a device."""
    made = []

    def make(model=CHOICE.model, device="cpu", **others):
        made.append(Explainer(replace(CHOICE, model=str(model), device=device, **others), DESCRIPTION))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("device", DEVICES)
def test_maps_and_gradients_are_those_of_engines(explaining, device):
    explainer = explaining(device=device)
    with Engine("digits", device=device, outputs=["relu2_1"], size=32) as engine:
        maps, channels = explainer.maps(ROW, "relu2_1", 5)
        assert_same_bits(maps, engine.run(ROW)[:, channels])
    with Engine("digits", device=device, gradient=True) as engine:
        wanted = engine.vjp(ROW, np.eye(10, dtype=np.float32)[[3]])
    for _ in range(2):
        assert_same_bits(explainer.gradient(ROW, 3), wanted)
        explainer.close()  # what is asked for later is built anew


def test_engines_are_kept_in_small_numbers(explaining):
    explainer = explaining()
    first = explainer.maps(ROW, "relu1_1", 1)
    for layer in ("relu1_2", "pool1", "conv1_1"):
        explainer.maps(ROW, layer, 1)
    assert list(explainer._layers) == ["pool1", "conv1_1"]
    assert_same_bits(explainer.maps(ROW, "relu1_1", 1)[0], first[0])


@pytest.fixture(scope="module")
def gradient_of():
    """gradient_of(digit): of the digits as they are, without a softmax."""
    explainer = Explainer(CHOICE, DESCRIPTION)
    yield cache(lambda digit: explainer.gradient(ROW, digit))
    explainer.close()


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("tail", "class_index", "digit", "factor"),
    [
        ("1x1 map", 3, 3, 1),
        ("1x1 map, channels last", 3, 3, 1),
        ("1x1 map and Flatten", 3, 3, 1),
        ("Unsqueeze, Softmax, Squeeze", 3, 3, 1),
        ("Clip(1e-7, 1)", 3, 3, 1),
        ("divided by 1, minus 0", 3, 3, 1),
        ("Gather that reorders", 3, ORDER[3], 1),
        ("Slice of five", 3, 3, 1),
        ("Concat of two softmaxes", 13, 3, 0.5),
        ("Concat of halves", 8, 3, 1),
        ("Pad by a class", 4, 3, 1),
    ],
)
def test_q2_the_gradient_is_that_of_what_the_softmax_reads(
    explaining, gradient_of, tmp_path, tail, class_index, digit, factor
):
    wanted = gradient_of(digit) * factor
    path = digits_with(TAILS[tail], tmp_path / "tail.onnx")
    explainer = explaining(path)
    np.testing.assert_allclose(explainer.gradient(ROW, class_index), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    if tail == "Concat of two softmaxes":  # the first class is of another softmax
        other = gradient_of(2)
        np.testing.assert_allclose(explainer.gradient(ROW, 2), other, rtol=0, atol=1e-5 * np.abs(other).max())
    told = explainable(Model(path), (1, 32, 32))
    assert told.classes >= class_index
    assert told.are_probabilities


def test_layers_and_classes_that_are_none(explaining):
    with pytest.raises(InputError, match="has no feature maps"):
        explaining().maps(ROW, "fc6", 1)
    with pytest.raises(InputError, match="class 10: the model has 0 to 9"):
        explaining().gradient(ROW, 10)


@pytest.mark.parametrize(("most", "seconds", "status"), [(100, 9.0, 413), (1 << 20, -1.0, 503)])
def test_large_answers_and_late_questions_are_refused(explaining, most, seconds, status):
    question = Question("relu1_1", 4, None, "float32", ROW.shape, time.monotonic() + seconds)
    with pytest.raises(RefusedError) as refused:
        _answered(explaining(), question, ROW.tobytes(), most)
    assert refused.value.status == status


def test_a11_nothing_is_explained_to_who_has_hung_up():
    """A question that waited is there, and whoever asked is not: nothing is computed for it."""
    question = Question("relu1_1", 4, None, "float32", ROW.shape, time.monotonic() + 60)

    class Explaining:
        asked = 0

        def maps(self, *_):
            Explaining.asked += 1
            return ROW[:, :1], [0]

    for is_there in (True, False):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(packed_question(question, ROW.data))
            if not is_there:
                ours.shutdown(socket.SHUT_RDWR)
            _serve(Explaining(), theirs, 1 << 20)
            assert Explaining.asked == 1
            if is_there:
                head, raw = receive(ours)
                assert (head["status"], raw) == (200, ROW.tobytes())

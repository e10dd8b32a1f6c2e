"""Explanations over HTTP: they equal what an Engine gives, are bounded, and serving goes on beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.serving.test_faults import until
from tests.serving.test_serve import SAMPLE, as_bytes, tensor
from tests.support import selection
from tests.support.kernel_harness import assert_same_bits
from vgg16gpu import Engine
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.pictures.images import load_image
from vgg16gpu_serving.page.explanations import Explanations
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Served

PATH = "/v2/models/digits/explain"


def explain(server, message, raw, headers=None):
    head = json.dumps(message).encode()
    return server.ask("POST", PATH, head + raw, Inference_Header_Content_Length=str(len(head)), **(headers or {}))


def asked(server, rows, headers=None, is_patient=True, **parameters):
    raw = rows.tobytes()
    name = "UINT8" if rows.dtype == np.uint8 else "FP32"
    message = {"inputs": [tensor(rows, name, binary_data_size=len(raw))], "parameters": parameters}
    replies = [explain(server, message, raw, headers)]

    def is_answered():
        if replies[-1].status == 503:
            replies.append(explain(server, message, raw, headers))
        return replies[-1].status != 503

    if is_patient:  # who explains has the lowest priority, other tests have more
        until(is_answered)
    return replies[-1]


def outputs(reply):
    """The arrays of an answer by name, and the parameters of each."""
    assert reply.status == 200, reply.body
    found, place = {}, 0
    for output in reply.json["outputs"]:
        size = output["parameters"]["binary_data_size"]
        element = np.uint8 if output["datatype"] == "UINT8" else np.float32
        data = np.frombuffer(reply.binary[place : place + size], element).reshape(output["shape"])
        found[output["name"]] = data, output["parameters"]
        place += size
    assert place == len(reply.binary)
    return found


def test_any_layer_has_its_maps_without_outputs(server, digits):
    layers = server.ask("GET", PATH).json["layers"]
    assert [layer["name"] for layer in layers][:3] == ["conv1_1", "relu1_1", "conv1_2"]
    for layer in layers if selection.choice() != selection.REPRESENTATIVE else layers[1::5]:
        with Engine(digits_model(), device="cpu", outputs=[layer["name"]], size=32) as engine:
            wanted = engine.run(digits[:1])
        assert list(wanted.shape[1:]) == layer["shape"]
        maps, told = outputs(asked(server, digits[:1], layer=layer["name"], maps=8))["maps"]
        assert maps.shape == (1, min(8, wanted.shape[1]), *wanted.shape[2:])
        assert_same_bits(maps, wanted[:, told["channels"]])
        strength = np.abs(wanted[0]).mean(axis=(1, 2))
        assert min(strength[told["channels"]]) >= max(np.delete(strength, told["channels"]), default=0)


@pytest.mark.parametrize("element", [np.float32, np.uint8])
def test_the_gradient_is_that_of_vjp(server, digits, element):
    rows = digits[:1]
    if element == np.uint8:
        rows = np.random.default_rng(8).integers(0, 256, (1, 32, 32, 1), dtype=np.uint8)
        preprocess = Model(digits_model()).preprocess(Model(digits_model()).graph(), (1, 1, 32, 32))
        given = normalise(rows, preprocess.unit_mean, preprocess.unit_std)
    else:
        given = rows
    with Engine(digits_model(), device="cpu", gradient=True) as engine:
        for index in (0, 7):
            found = outputs(asked(server, rows, **{"class": index}))
            assert_same_bits(found["gradient"][0], engine.vjp(given, np.eye(10, dtype=np.float32)[[index]]))
            assert ("pixels" in found) == (element == np.uint8)


def test_a_picture_is_explained_as_it_is_fitted(server):
    raw = as_bytes(SAMPLE.read_bytes())
    given = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}}
    reply = explain(server, {"id": "mine", "inputs": [given], "parameters": {"layer": "pool1", "class": 2}}, raw)
    found = outputs(reply)
    assert list(found) == ["maps", "gradient", "pixels"]
    model = Model(digits_model())
    fitted = load_image(SAMPLE, 1, 32, 32, model.preprocess(model.graph(), (1, 1, 32, 32)))
    assert (found["pixels"][0][0] == fitted).all()
    assert reply.json["id"] == "mine"
    assert reply.json["parameters"].keys() == {"decode_us", "queue_us", "device_us"}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "nothing is asked for"),
        ({"layer": "nothing"}, "has the list"),
        ({"layer": ["relu1_1"]}, "has the list"),
        ({"layer": "relu1_1", "maps": 0}, "from 1 to"),
        ({"class": 10}, "this model has 10"),
        ({"class": -1}, "class is -1"),
        ({"class": True}, "class is True"),
        ({"class": 1, "colour": "red"}, "an explanation takes"),
    ],
)
def test_what_cannot_be_explained_gets_400_and_one_line(server, digits, parameters, words):
    reply = asked(server, digits[:1], **parameters)
    assert (reply.status, words in reply.json["error"]) == (400, True), reply.body


def test_without_the_page_nothing_is_explained():
    served = Served("digits", None, None, (), None, (), None)
    with pytest.raises(RefusedError, match="--no-page") as refused:
        Explanations("device", served).told()
    assert refused.value.status == 404

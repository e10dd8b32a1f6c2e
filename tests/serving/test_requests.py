"""Hostile and unusual requests, unit by unit: A10, counts before what they count; A13, long and deep JSON; Q12.

Statuses are those of Triton (src/http_server.cc): 400 for INVALID_ARG, 404 for NOT_FOUND, 501 for UNSUPPORTED.
"""

from __future__ import annotations

import base64
import json
import math
import time
import tracemalloc

import numpy as np
import pytest

from tests.serving.test_serve import ONE, as_bytes
from vgg16gpu_serving.protocol import requests
from vgg16gpu_serving.protocol.answers import Request, Wanted, respond
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Description, Tensor

DESCRIPTION = Description(
    Tensor("input", (1, 32, 32)),
    (1, 32, 32),
    (32, 32, 1),
    False,
    (Tensor("output", (10,)), Tensor("map", (4, 8, 8))),
    (1, 4),
    "cpu",
)
LONG = 10**4299  # of 4,300 digits: one more, and Python writes and reads it no more
INPUT = {"name": "input", "datatype": "BYTES", "shape": [2]}


def refused(message: object, raw: bytes | None = None) -> RefusedError:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    with pytest.raises(RefusedError) as found:
        requests.parse(text + (raw or b""), None if raw is None else len(text), DESCRIPTION)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500
    return found.value


def of_bytes(shape: list[int], raw: bytes) -> tuple[dict, bytes]:
    return {"inputs": [INPUT | {"shape": shape, "parameters": {"binary_data_size": len(raw)}}]}, raw


def pixels_of(dtype: str, shape: list[int], data: object) -> dict:
    return {"inputs": [INPUT | {"datatype": dtype, "shape": shape, "data": data}]}


IMAGES = np.arange(2 * 32 * 32, dtype=np.float32).reshape(2, 1, 32, 32)


@pytest.mark.parametrize("nested", [(2048,), (2, 1, 32, 32), (2, 1024), (2, 1, 1024), (1, 2048), (2, 32, 32)])
def test_data_are_flat_or_nested_as_the_shape_says(nested) -> None:
    message = pixels_of("FP32", [2, 1, 32, 32], IMAGES.reshape(nested).tolist())
    request = requests.parse(json.dumps(message).encode(), None, DESCRIPTION)
    np.testing.assert_array_equal(request.rows, IMAGES)


@pytest.mark.parametrize("nested", [(32, 2, 1, 32), (1024, 2), (32, 32, 2), (64, 4, 8)])
def test_data_nested_in_another_order_are_not_taken_as_they_lie(nested) -> None:
    message = pixels_of("FP32", [2, 1, 32, 32], IMAGES.reshape(nested).tolist())
    assert f"'data' is nested as {list(nested)}; FP32 [2, 1, 32, 32] is nested so, or flat" in str(refused(message))


@pytest.mark.parametrize("nested", [False, True])
def test_pictures_may_be_nested_as_their_shape(nested) -> None:
    texts = [base64.b64encode(data).decode() for data in (b"one", b"two")]
    data = [[text] for text in texts] if nested else texts
    request = requests.parse(json.dumps(pixels_of("BYTES", [2, 1], data)).encode(), None, DESCRIPTION)
    assert request.pictures == [b"one", b"two"]


@pytest.mark.parametrize(
    ("value", "words"), [(1.5, "not whole"), (256, "outside of 0..255"), (10**30, "outside"), (math.nan, "outside")]
)
def test_pixels_are_whole_numbers_of_a_byte(value, words) -> None:
    assert words in str(refused(pixels_of("UINT8", [1, 32, 32, 1], [value] + [1] * 1023)))


@pytest.mark.parametrize(
    ("shape", "raw", "words"),
    [
        ([4], as_bytes(b"ab") * 5_000_000, "bytes follow the 4 elements"),
        ([5], as_bytes(*[b"ab"] * 5), "5 images: a request has 1 to 4"),
        ([2_000_000_000], as_bytes(b"ab"), "a request has 1 to 4"),
        ([2], as_bytes(b"ab"), "cut short"),
        ([2], as_bytes(b"ab", b"cd")[:-1], "cut short"),
        ([1], b"\xff\xff\xff\xff", "cut short"),
        ([1], b"", "cut short"),
        ([2, 2], as_bytes(b"ab", b"cd"), "the shape of N pictures is"),
        ([], as_bytes(b"ab"), "0 sides"),
        ([1] * 100, as_bytes(b"ab"), "100 sides"),
    ],
)
def test_a10_elements_are_counted_by_the_shape(shape, raw, words) -> None:
    began = time.thread_time()
    error = refused(*of_bytes(shape, raw))
    assert time.thread_time() - began < 0.05
    assert (error.status, words in str(error)) == (400, True), str(error)


def test_a10_pictures_are_not_copied() -> None:
    message, raw = of_bytes([4], as_bytes(*[bytes(1 << 22)] * 4))
    body = json.dumps(message).encode() + raw
    tracemalloc.start()
    try:
        found = requests.parse(memoryview(body), len(body) - len(raw), DESCRIPTION)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(picture) for picture in found.pictures] == [1 << 22] * 4
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "message",
    [
        {"inputs": [ONE | {"shape": [LONG, 1, 32, 32]}]},
        {"inputs": [ONE | {"shape": [1, LONG, LONG, LONG]}]},
        {"inputs": [ONE | {"data": [LONG] * 1024}]},
        {"inputs": [ONE | {"shape": [-LONG, 1, 32, 32]}]},
        {"inputs": [INPUT | {"shape": [LONG], "data": ["AAAA"]}]},
        {"inputs": [ONE | {"parameters": {"binary_data_size": LONG}}]},
        {"inputs": [ONE], "outputs": [{"name": "output", "parameters": {"classification": LONG}}]},
        {"inputs": [ONE], "id": LONG},
        {"inputs": LONG},
        LONG,
        b'{"inputs": [{"name": "input", "shape": [1' + b"0" * 4300 + b"]}]}",
        b"[" * 100_000,
        b'{"inputs":' * 50_000,
        b'{"inputs": ' + b"[" * 70 + b"]" * 70 + b"}",
        {"inputs": [ONE | {"data": [[[[[[0.0]]]]]] * 1023}]},
        {"inputs": [ONE | {"name": "x" * 1_000_000}]},
        {"inputs": [ONE | {"datatype": "x" * 1_000_000}]},
        {"inputs": [ONE], "outputs": [{"name": "output"}] * 100_000},
        {"inputs": [ONE] * 500},
        {"inputs": [ONE | {"shape": [1] * 100_000}]},
    ],
    ids=range(20),
)
def test_a13_long_and_deep_requests_are_a_line(message) -> None:
    assert refused(message).status == 400


def test_a13_a_length_of_the_json_is_checked_before_it_is_read() -> None:
    for length in ("9" * 4300, "9" * 4301, "03", "-1", "3.0", "3", "\u0663"):
        with pytest.raises(RefusedError) as found:
            requests.head_length(b"{}", length)
        assert found.value.status == 400
    assert requests.head_length(b"{}", "2") == 2
    assert requests.head_length(b"{}", None) is None


REGION = {"shared_memory_region": "mine", "shared_memory_byte_size": 4096}


def one(**changed: object) -> dict:
    """A good request but for its input."""
    return {"inputs": [{key: value for key, value in {**ONE, **changed}.items() if value is not ...}]}


def output(name: str = "output", **parameters: object) -> dict:
    return {"inputs": [ONE], "outputs": [{"name": name, "parameters": parameters}]}


def request(**changed: object) -> dict:
    return {"inputs": [ONE], **changed}


TWICE = [{"name": "output"}, {"name": "output"}]
STRICT = {
    "input in shared memory": (one(data=..., parameters=REGION), 404, "'mine'"),
    "output in shared memory": (output(**REGION), 404, "'mine'"),
    "text as a flag": (output(binary_data="false"), 400, "true or false"),
    "a number as a flag": (request(parameters={"binary_data_output": 1}), 400, "true or false"),
    "null as a flag": (request(parameters={"binary_data_output": None}), 400, "true or false"),
    "true among numbers": (one(data=[0.5] * 1023 + [True]), 400, "True"),
    "true alone": (one(data=[True] * 1024), 400, "True"),
    "null among numbers": (one(data=[0.5] * 1023 + [None]), 400, "None"),
    "an object among numbers": (one(data=[[0.5] * 1023, [{}]]), 400, "numbers alone"),
    "true as a side": (one(shape=[True, 1, 32, 32]), 400, "whole number"),
    "a fraction as a side": (one(shape=[1.0, 1, 32, 32]), 400, "whole number"),
    "a list as parameters": (request(parameters=[]), 400, "no JSON object"),
    "a text as outputs": (request(outputs="output"), 400, "no list"),
    "an object as outputs": (request(outputs={}), 400, "no list"),
    "true as a count of classes": (output(classification=True), 400, "whole number"),
    "classes of a map": (output("map", classification=1), 400, "no classes"),
    "an output twice": (request(outputs=TWICE), 400, "twice"),
    "too many outputs": (request(outputs=TWICE + TWICE), 400, "name each once"),
    "numbers as pictures": ({"inputs": [INPUT | {"shape": [1], "data": [1]}]}, 400, "base64"),
    "fewer pictures": ({"inputs": [INPUT | {"data": ["AAAA"]}]}, 400, "the shape says 2"),
}


@pytest.mark.parametrize("case", STRICT)
def test_q12_nothing_is_taken_for_something_else(case) -> None:
    message, status, words = STRICT[case]
    error = refused(message)
    assert (error.status, words in str(error)) == (status, True), str(error)


@pytest.mark.parametrize("outputs", [None, []])
def test_outputs_that_are_left_out_are_all(outputs) -> None:
    found = requests.parse(json.dumps({"inputs": [ONE], "outputs": outputs}).encode(), None, DESCRIPTION)
    assert [(wanted.index, wanted.is_binary) for wanted in found.wanted] == [(0, False), (1, False)]


def request_of(*wanted: Wanted, images: int = 1) -> Request:
    return Request("mine", np.zeros((images, 1, 32, 32), np.float32), (), wanted, {})


def test_answers_are_written_in_pieces_as_at_once() -> None:
    """json.dumps of all is what is sent, whatever the pieces."""
    tensors = Tensor("y", (9000,)), Tensor("z", (2, 3))
    description = Description(Tensor("x", (1,)), (1,), None, False, tensors, (8,), "cpu")
    chance = np.random.default_rng(0)
    outputs = [chance.standard_normal((2, 9000)).astype(np.float32), chance.standard_normal((2, 6)).astype(np.float32)]
    request = request_of(Wanted(0, False, 0), Wanted(1, False, 0), images=2)
    found = respond("m", request, description, outputs, (), {"batch_size": 8})
    wanted = {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 9000], "data": outputs[0].reshape(-1).tolist()},
            {"name": "z", "datatype": "FP32", "shape": [2, 2, 3], "data": outputs[1].reshape(-1).tolist()},
        ],
        "parameters": {"batch_size": 8},
        "id": "mine",
    }
    assert found.json_length is None
    assert found.data == json.dumps(wanted, separators=(",", ":")).encode()
    outputs[0][1, 8999] = math.nan
    with pytest.raises(RefusedError, match="NaN"):
        respond("m", request, description, outputs, (), {})


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v2/models/digits/versions/2", 404, "has the version 1 alone, and not '2'"),
        ("GET", "/v2/models/digits/versions/two", 404, "version 1 alone"),
        ("POST", "/v2/models/digits/versions/2/infer", 404, "version 1 alone"),
        ("GET", "/v2/models/digits/versions/" + "9" * 5000, 404, "version 1 alone"),
        ("GET", "/v2/models/other/versions/1", 404, "no such model"),
        ("POST", "/v2/systemsharedmemory/region/mine/register", 501, "does not support memory that clients share"),
        ("POST", "/v2/cudasharedmemory/region/mine/unregister", 501, "does not support"),
        ("POST", "/v2/repository/models/digits/load", 501, "loading and unloading"),
        ("GET", "/v2/trace/setting", 501, "traces"),
        ("GET", "/v2/models/digits/trace/setting", 501, "traces"),
        ("GET", "/v2/logging", 501, "log"),
        ("POST", "/v2/models/digits/generate", 501, "generated text"),
        ("GET", "/v2/models/digits/nothing", 404, "no such path"),
        ("GET", "/v2/nothing", 404, "no such path"),
    ],
)
def test_q12_what_is_not_here_has_the_status_of_triton(server, method, path, status, words) -> None:
    reply = server.ask(method, path, b"{}" if method == "POST" else None)
    assert (reply.status, words in reply.json["error"]) == (status, True), reply.body


@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 196_605, 196_606, 196_607, 196_608, 196_609, 400_000])
def test_base64_is_read_in_pieces_as_at_once(nbytes) -> None:
    data = np.random.default_rng(nbytes).bytes(nbytes)
    text = base64.b64encode(data).decode()
    assert requests._decoded(text) == data
    for wrong in (
        text + "A",
        "A" + text,
        "A===" + text,
        text[:4] + "A=" + text[6:],
        "?" + text[1:],
        "é" * 4,
    ):
        try:
            wanted = base64.b64decode(wrong, validate=True)
        except ValueError:
            with pytest.raises(ValueError, match=r"\w"):
                requests._decoded(wrong)
        else:
            assert requests._decoded(wrong) == wanted

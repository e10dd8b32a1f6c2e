"""The protocol over HTTP: every answer equals `Engine.run` at the batch size that the answer names."""

from __future__ import annotations

import base64
import io
import mmap
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.serving.conftest import BATCH
from tests.support.kernel_harness import assert_same_bits
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.pictures.images import load_image

SAMPLE = digits_model().parent / "digit_sample.png"
NAMES = {"FP32": np.float32, "FP16": np.float16, "UINT8": np.uint8}


def tensor(rows: np.ndarray, name: str, **parameters: object) -> dict:
    return {"name": "input", "datatype": name, "shape": list(rows.shape), "parameters": parameters}


def binary_request(rows: np.ndarray, name: str) -> tuple[dict, bytes]:
    raw = rows.astype(NAMES[name]).tobytes()
    message = {"inputs": [tensor(rows, name, binary_data_size=len(raw))], "parameters": {"binary_data_output": True}}
    return message, raw


def as_bytes(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def scores(reply) -> np.ndarray:
    """Of an answer as JSON or as binary data."""
    assert reply.status == 200, reply.body
    (output,) = reply.json["outputs"]
    if "data" in output:
        return np.array(output["data"], np.float32).reshape(output["shape"])
    return np.frombuffer(reply.binary, "<f4").reshape(output["shape"])


def batch_of(reply) -> int:
    return reply.json["parameters"]["batch_size"]


@pytest.mark.parametrize("count", [1, 3, BATCH])
@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.parametrize("form", ["json", "binary"])
def test_tensors_get_the_scores_of_the_engine(server, run_at, digits, name, count, form):
    rows = digits[:count]
    if name == "UINT8":
        rows = np.random.default_rng(5).integers(0, 256, (count, 32, 32, 1), dtype=np.uint8)
    rows = rows.astype(NAMES[name])
    if form == "binary":
        reply = server.infer(*binary_request(rows, name))
    else:
        reply = server.infer({"id": "seven", "inputs": [tensor(rows, name) | {"data": rows.tolist()}]})
        assert reply.json["id"] == "seven"
    assert_same_bits(scores(reply), run_at(rows, batch_of(reply)))


def test_pictures_are_decoded_as_infer_decodes_them(server, run_at):
    channels, height, width = 1, 32, 32
    jpeg = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 70, 3), dtype=np.uint8)).save(jpeg, "JPEG")
    given = [SAMPLE.read_bytes(), jpeg.getvalue()]
    model = Model(digits_model())
    from vgg16gpu.pictures.images import fitted

    preprocess = model.preprocess(model.graph(), (1, 1, 32, 32))
    wanted = np.stack([fitted(data, "picture", channels, height, width, preprocess) for data in given])
    assert (wanted[0] == load_image(SAMPLE, channels, height, width, preprocess)).all()
    raw = as_bytes(*given)
    asked = {"name": "input", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw)}}
    reply = server.infer({"inputs": [asked]}, raw)
    with_engine = run_at(wanted, batch_of(reply))
    assert_same_bits(scores(reply), with_engine)
    as_json = {
        "name": "input",
        "datatype": "BYTES",
        "shape": [2, 1],
        "data": [base64.b64encode(d).decode() for d in given],
    }
    assert_same_bits(scores(server.infer({"inputs": [as_json]})), with_engine)


def test_pictures_of_too_many_pixels_are_refused_unread(server):
    large = io.BytesIO()
    Image.new("1", (8000, 8000)).save(large, "PNG")
    raw = as_bytes(large.getvalue())
    asked = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}}
    reply = server.infer({"inputs": [asked]}, raw)
    assert reply.status == 413, reply.body


@pytest.mark.parametrize("is_binary", [False, True])
def test_classes_come_with_their_scores_and_names(server, run_at, digits, is_binary):
    message, raw = binary_request(digits[:2], "FP32")
    message["outputs"] = [{"name": "output", "parameters": {"classification": 3, "binary_data": is_binary}}]
    reply = server.infer(message, raw)
    (output,) = reply.json["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 3])
    wanted = run_at(digits[:2], batch_of(reply))
    texts = [f"{row[i]!s}:{i}:{i}" for row in wanted for i in np.argsort(-row, kind="stable")[:3]]
    if is_binary:
        assert reply.binary == as_bytes(*[text.encode() for text in texts])
    else:
        assert output["data"] == texts


def test_what_the_server_and_its_model_are(server):
    assert {"name", "version", "extensions"} <= server.ask("GET", "/v2").json.keys()
    for path in ("/v2/models/digits", "/v2/models/digits/versions/1"):
        told = server.ask("GET", path).json
        assert told["inputs"][0]["shape"] == [-1, 1, 32, 32]
        assert told["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 10]}]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"):
        assert server.ask("GET", path).status == 200
    assert server.ask("GET", "/v2", X_Request_Id="mine").headers["x-request-id"] == "mine"


ONE = {"name": "input", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}
BAD = {
    "another input": ({"inputs": [ONE | {"name": "x"}]}, "this model has one, 'input'"),
    "two inputs": ({"inputs": [ONE, ONE]}, "2 inputs"),
    "no inputs": ({}, "'inputs' is None"),
    "another type": ({"inputs": [ONE | {"datatype": "INT64"}]}, "this model takes FP32"),
    "a type of a type": ({"inputs": [ONE | {"datatype": {}}]}, "this model takes FP32"),
    "another shape": ({"inputs": [ONE | {"shape": [1, 3, 32, 32]}]}, "this model takes"),
    "too few": ({"inputs": [ONE | {"data": [0.0]}]}, "holds 1 numbers"),
    "words": ({"inputs": [ONE | {"data": ["a"] * 1024}]}, "numbers alone"),
    "ragged": ({"inputs": [ONE | {"data": [[1], [1, 2]]}]}, "ragged"),
    "huge numbers": ({"inputs": [ONE | {"data": [10**400] * 1024}]}, "too large|not numbers"),
    "not finite": ({"inputs": [ONE | {"data": [float("nan")] * 1024}]}, "NaN"),
    "too large for a float": ({"inputs": [ONE | {"data": [1e300] * 1024}]}, "NaN or Inf"),
    "too many": ({"inputs": [ONE | {"shape": [5, 1, 32, 32], "data": [0.0] * 5120}]}, "1 to 4"),
    "none": ({"inputs": [ONE | {"shape": [0, 1, 32, 32], "data": []}]}, "0 images"),
    "negative": ({"inputs": [ONE | {"shape": [-1, 1, 32, 32]}]}, "from 0 to"),
    "another output": ({"inputs": [ONE], "outputs": [{"name": "y"}]}, "this server has output"),
    "not base64": ({"inputs": [ONE | {"datatype": "BYTES", "shape": [1], "data": ["?"]}]}, "base64"),
    "no picture": ({"inputs": [ONE | {"datatype": "BYTES", "shape": [1], "data": ["AAAA"]}]}, "not a readable image"),
    "nulls": ({"inputs": [None]}, "no JSON object"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_get_400_and_one_line(server, case):
    message, words = BAD[case]
    reply = server.infer(message)
    assert reply.status == 400, reply.body
    error = reply.json["error"]
    assert "\n" not in error
    assert any(word in error for word in words.split("|")), error


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Host: localhost\r\nContent-Length: 99999999999", 413),
        (b"Host: localhost\r\nContent-Length: 5\r\nContent-Length: 6", 400),
        (b"Host: localhost\r\nContent-Length: -5", 400),
        (b"Host: localhost\r\nContent-Length: +2", 400),
        (b"Host: localhost\r\nContent-Length: 2, 2", 400),
        (b"Host: localhost\r\nTransfer-Encoding: identity", 400),
        (b"Host: localhost\r\nTransfer-Encoding: chunked", 411),
        (b"Host: localhost\r\nTransfer-Encoding: gzip, chunked", 411),
        (b"Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 411),
        (b"Host: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked", 411),
        (b"Host: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 2", 411),
        (b"Content-Length: 2", 400),
        (b"Host: localhost\r\nHost: y\r\nContent-Length: 2", 400),
        (b"Host : x\r\nContent-Length: 2", 400),
        (b"Host: localhost\r\n folded\r\nContent-Length: 2", 400),
    ],
)
def test_bodies_are_refused_by_their_heads(server, head, status):
    """And what follows is no request of its own: the connection ends."""
    behind = b"0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\n" + head + b"\r\n\r\n" + behind)
        answer = b""
        with suppress(ConnectionResetError):  # what it has not read is lost
            while part := connection.recv(4096):
                answer += part
    assert int(answer.split()[1]) == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"live"' not in answer


@pytest.mark.parametrize("text", [b"[]," * 600_000 + b"[]", b"1," * 1_000_001 + b"1", b"[" * 1_100_000])
def test_json_with_too_many_values_is_not_read(server, text):
    body = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [' + text + b"]}]}"
    reply = server.ask("POST", "/v2/models/digits/infer", body)
    assert reply.status == 413
    assert "send binary data" in reply.json["error"]


def statistics(server) -> dict:
    (found,) = server.ask("GET", "/v2/models/digits/stats").json["model_stats"]
    return found


def test_metrics_have_every_stage_and_the_memory_of_the_device(server):
    raw = as_bytes(SAMPLE.read_bytes())
    asked = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}}
    assert server.infer({"inputs": [asked]}, raw).status == 200
    (device,) = server.children("device")
    resident = int(Path(f"/proc/{device}/statm").read_text().split()[1]) * mmap.PAGESIZE
    last = time.monotonic() + 30
    while "vgg16gpu_device_memory_bytes{" not in (text := server.ask("GET", "/metrics").body.decode()):
        assert time.monotonic() < last
        time.sleep(0.1)
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert told["vgg16gpu_decode_seconds_count"] >= 1
    for name in ("queue_seconds", "device_seconds", "batch_size"):
        assert told[f'vgg16gpu_{name}_count{{device="0"}}'] >= 1
    assert 0.5 * resident < told['vgg16gpu_device_memory_bytes{device="0"}'] < 2 * resident

"""The description of the server: it is valid, its paths answer, and what it says of requests holds."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.serving.test_serve import as_bytes

VALUES = {"too few", "words", "ragged", "huge numbers", "not finite", "too large for a float"}
VALUES |= {"not base64", "no picture"}


@pytest.fixture
def told(server):
    return server.ask("GET", "/v2/openapi.json").json


def test_it_is_valid(told):
    pytest.importorskip("openapi_spec_validator", reason="openapi-spec-validator is not installed").validate(told)


def test_every_path_answers_by_its_methods_alone(server, told):
    assert {"/", "/v2", "/metrics", "/v2/health/ready", "/v2/models/digits/explain"} <= told["paths"].keys()
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            reply = server.ask(method.upper(), path, b"{}" if method == "post" else None)
            assert reply.status == (400 if "requestBody" in operation else 200), (path, reply.body)
            kinds = operation["responses"][str(reply.status)]["content"]
            assert reply.headers["content-type"].partition(";")[0] in kinds
        for method in {"get", "post"} - methods.keys():
            assert server.ask(method.upper(), path).status == 405


def test_what_it_describes_is_taken(server, told):
    """A request of each datatype, made of the description alone."""
    tensors = told["components"]["schemas"]["InferRequest"]["properties"]["inputs"]["items"]["oneOf"]
    names = [tensor["properties"]["datatype"]["const"] for tensor in tensors]
    assert names == ["FP32", "FP16", "UINT8", "BYTES"]
    picture = io.BytesIO()
    Image.new("L", (40, 30), 99).save(picture, "PNG")
    for name, tensor in zip(names, tensors, strict=True):
        count, *sides = tensor["properties"]["shape"]["prefixItems"]
        for images in (count["minimum"], count["maximum"]):
            shape = [images, *(side["const"] for side in sides)]
            raw = bytes({"FP32": 4, "FP16": 2, "UINT8": 1, "BYTES": 0}[name] * int(np.prod(shape)))
            raw = raw or as_bytes(*[picture.getvalue()] * images)
            sent = {"name": tensor["properties"]["name"]["const"], "datatype": name, "shape": shape}
            reply = server.infer({"inputs": [sent | {"parameters": {"binary_data_size": len(raw)}}]}, raw)
            assert reply.status == 200, reply.body
        reply = server.infer({"inputs": [sent | {"shape": [count["maximum"] + 1, *shape[1:]]}]}, b"")
        assert reply.status == 400

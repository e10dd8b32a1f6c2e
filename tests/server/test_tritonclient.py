"""tritonclient, unchanged, against the server."""

from __future__ import annotations

import numpy as np
import pytest

from tests.server.conftest import BATCH
from tests.support.kernel_harness import assert_same_bits
from vgg16gpu.io.shipped import digits_model


@pytest.fixture
def triton():
    """Its module for HTTP."""
    return pytest.importorskip(
        "tritonclient.http", reason="tritonclient is not installed: pip install tritonclient[http]"
    )


@pytest.fixture
def client(triton, server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=16) as found:
        yield found


def asked(triton, rows, *, binary=True):
    tensor = triton.InferInput("input", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows, binary_data=binary)
    return [tensor]


def batch_of(result):
    return result.get_response()["parameters"]["batch_size"]


def test_health_metadata_and_statistics(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.get_model_metadata("digits")["outputs"][0]["name"] == "output"
    assert client.get_server_metadata()["name"] == "vgg16gpu"
    assert client.get_inference_statistics("digits")["model_stats"][0]["name"] == "digits"


@pytest.mark.parametrize("binary", [False, True])
def test_infer(triton, client, run_at, digits, binary):
    rows = digits[:BATCH]
    wanted = [triton.InferRequestedOutput("output", binary_data=binary)]
    result = client.infer("digits", asked(triton, rows, binary=binary), outputs=wanted, request_id="a")
    assert result.get_response()["id"] == "a"
    assert_same_bits(result.as_numpy("output"), run_at(rows, batch_of(result)))


def test_pictures_and_classes(triton, client):
    picture = (digits_model().parent / "digit_sample.png").read_bytes()
    tensor = triton.InferInput("input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([picture], dtype=np.object_))
    result = client.infer("digits", [tensor], outputs=[triton.InferRequestedOutput("output", class_count=2)])
    found = result.as_numpy("output")
    assert found.shape == (1, 2)
    score, number, label = found[0, 0].decode().split(":")
    assert float(score) > 0
    assert number == label


def test_wrong_requests_are_its_exceptions(triton, client, digits):
    with pytest.raises(triton.InferenceServerException, match="this model takes"):
        client.infer("digits", asked(triton, digits[:1, :, :8]))
    with pytest.raises(triton.InferenceServerException, match="no such model"):
        client.infer("other", asked(triton, digits[:1]))

"""tritonclient, unchanged, against the server."""

from __future__ import annotations

import pytest

from tests.serving.conftest import BATCH
from tests.serving.running import stopped
from tests.support.kernel_harness import assert_same_bits


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


def test_the_configuration_says_what_metadata_say(client):
    """What perf_analyzer makes its requests by: shapes of one image, and how many images a request may have."""
    metadata, configuration = client.get_model_metadata("digits"), client.get_model_config("digits")
    assert configuration["name"] == "digits"
    assert configuration["max_batch_size"] == metadata["inputs"][0]["parameters"]["max_batch_size"] >= BATCH
    for told, configured in (("inputs", "input"), ("outputs", "output")):
        assert [(tensor["name"], f"TYPE_{tensor['datatype']}", tensor["shape"][1:]) for tensor in metadata[told]] == [
            (tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in configuration[configured]
        ]
    assert configuration["input"][0]["dims"] == [1, 32, 32]


@pytest.mark.parametrize("binary", [False, True])
def test_infer(triton, client, run_at, digits, binary):
    rows = digits[:BATCH]
    wanted = [triton.InferRequestedOutput("output", binary_data=binary)]
    result = client.infer("digits", asked(triton, rows, binary=binary), outputs=wanted, request_id="a")
    assert result.get_response()["id"] == "a"
    assert_same_bits(result.as_numpy("output"), run_at(rows, batch_of(result)))


def test_wrong_requests_are_its_exceptions(triton, client, digits):
    with pytest.raises(triton.InferenceServerException, match="this model takes"):
        client.infer("digits", asked(triton, digits[:1, :, :8]))
    with pytest.raises(triton.InferenceServerException, match="no such model"):
        client.infer("other", asked(triton, digits[:1]))


@pytest.fixture
def parts(digits):
    """Inputs of several requests, of one to three images each; no two begin with the same."""
    return [digits[first : first + 1 + first % 3] for first in range(13)]


def require_own(results, parts, run_at):
    """Each answer is that of its request, and some were computed together."""
    for number, (result, rows) in enumerate(zip(results, parts, strict=True)):
        assert result.get_response()["id"] == str(number)
        assert_same_bits(result.as_numpy("output"), run_at(rows, batch_of(result)))
    assert BATCH in map(batch_of, results)


def test_requests_under_way_at_once_get_their_own_answers(triton, client, server, run_at, parts):
    gevent = pytest.importorskip("gevent")  # what its client waits with
    (device,) = server.children("device")
    with stopped(device):
        requests = [
            client.async_infer("digits", asked(triton, rows), request_id=str(number))
            for number, rows in enumerate(parts)
        ]
        while server.waiting < sum(map(len, parts)):
            gevent.sleep(0.01)
    require_own([each.get_result() for each in requests], parts, run_at)

"""Layers beside the scores, TLS, and what keeps a server from starting."""

from __future__ import annotations

import http.client
import shutil
import ssl
import subprocess
import time

import numpy as np
import pytest
from click.testing import CliRunner

from tests.serving.running import serving
from tests.support.kernel_harness import assert_same_bits
from vgg16gpu import Engine
from vgg16gpu.cli import cli
from vgg16gpu.io.shipped import digits_model

pytestmark = pytest.mark.usefixtures("extra")

NAMES = ("features.1", "output")


@pytest.mark.slow(reason="a server of its own; outputs by name are parsed in make test")
def test_layers_are_outputs_by_the_names_that_were_asked_for(digits):
    row = digits[:1]
    with Engine(digits_model(), device="cpu", outputs=NAMES) as engine:
        wanted = dict(zip(NAMES, engine.run(row), strict=True))
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": row.reshape(-1).tolist()}
    with serving("--outputs", ",".join(NAMES), "--batch", "1", "--workers", "1", "--name", "layers") as server:
        told = server.ask("GET", "/v2/models/layers").json["outputs"]
        assert [output["name"] for output in told] == list(NAMES)
        for chosen in (NAMES[::-1], NAMES[:1]):
            asked = {"inputs": [tensor], "outputs": [{"name": name} for name in chosen]}
            found = server.infer(asked, name="layers").json["outputs"]
            assert [output["name"] for output in found] == list(chosen)
            for output in found:
                rows = np.array(output["data"], np.float32).reshape(output["shape"])
                assert_same_bits(rows, wanted[output["name"]])


@pytest.mark.slow(reason="a server of its own; certificates are checked in test_starting.py")
@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl, which makes the certificate, is not installed")
def test_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    named = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *named]
    subprocess.run(command, check=True, capture_output=True)
    with serving("--tls-cert", str(certificate), "--tls-key", str(key), "--workers", "1") as server:
        context = ssl.create_default_context(cafile=str(certificate))
        for _ in range(100):
            try:
                connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=30)
                connection.request("GET", "/v2/health/live")
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        assert connection.getresponse().read() == b'{"live": true}'
        connection.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["missing.onnx"], "missing.onnx: no such file"),
        (["digits", "--precision", "int8", "--outputs", "nothing"], "nothing"),
        (["digits", "--host", "256.0.0.1"], "--host '256.0.0.1'"),
        (["digits", "--tls-cert", "README.md"], "--tls-cert and --tls-key go together"),
        (
            ["digits", "--decode", "gpu"],
            "decode gpu: GPUs decode to RGB, and the network takes inputs of shape (1, 32, 32)",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line(options, words):
    done = CliRunner().invoke(cli, ["serve", *options, "--port", "0"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr

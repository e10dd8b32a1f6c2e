"""No request, however large or odd, has the event loop of a front end compute for long: others wait meanwhile.

CPU time of the loop's own thread is measured: on a busy machine the time of a clock would tell of others.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.serving.measured import FILE
from tests.serving.running import require_extra, serving
from tests.serving.test_serve import as_bytes, tensor

MOST = 5.0  # milliseconds
BODY = (32 << 20) - 4096  # bytes, nearly the most
BATCH = 64
PREFIX = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [64, 1, 32, 32], "data": ['


def head_of(**input_: object) -> bytes:
    return json.dumps({"inputs": [{"name": "input", "parameters": {}, **input_}]}).encode()


def bytes_of(count: int, raw: bytes) -> tuple[bytes, bytes]:
    return head_of(datatype="BYTES", shape=[count], parameters={"binary_data_size": len(raw)}), raw


def picture() -> bytes:
    written = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (300, 400, 3), np.uint8)).save(written, "JPEG")
    return written.getvalue()


def numbers(count: int, name: str, **outputs: object) -> tuple[bytes, bytes]:
    rows = np.zeros(
        (count, 1, 32, 32) if name != "UINT8" else (count, 32, 32, 1), {"FP16": "f2", "UINT8": "u1"}.get(name, "f4")
    )
    message = {"inputs": [tensor(rows, name, binary_data_size=rows.nbytes)], **outputs}
    return json.dumps(message).encode(), rows.tobytes()


def requests() -> dict[str, tuple[bytes, bytes, int]]:
    """Heads, what follows them, and the status that answers them."""
    flat = np.random.default_rng(2).standard_normal(BATCH * 1024).tolist()
    element = b"\2\0\0\0ab"
    return {
        "elements of two bytes": (*bytes_of(4, element * (BODY // len(element))), 400),
        "a picture of 32 MB that is none": (*bytes_of(1, as_bytes(bytes(BODY - 4))), 400),
        "64 pictures": (*bytes_of(BATCH, as_bytes(*[picture()] * BATCH)), 200),
        "base64": (
            head_of(datatype="BYTES", shape=[1], data=[base64.b64encode(bytes(BODY // 4 * 3)).decode()]),
            b"",
            400,
        ),
        "numbers as JSON": (head_of(datatype="FP32", shape=[64, 1, 32, 32], data=flat), b"", 200),
        "a million numbers": (PREFIX + b"0.123456789," * 999_900 + b"1]}]}", b"", 400),
        "a million lists": (PREFIX + b"[]," * 499_900 + b"[]]}]}", b"", 400),
        "a long text": (PREFIX + b'"' + b"a" * BODY + b'"]}]}', b"", 400),
        "deep lists": (PREFIX + b"[" * 900_000, b"", 400),
        "a body of blanks": (b" " * BODY, b"", 400),
        "half precision": (*numbers(BATCH, "FP16"), 200),
        "pixels": (*numbers(BATCH, "UINT8"), 200),
        "large answers": (*numbers(BATCH, "FP32", parameters={"binary_data_output": True}), 200),
        "large answers as JSON": (*numbers(8, "FP32"), 200),
        "classes": (*numbers(BATCH, "FP32", outputs=[{"name": "output", "parameters": {"classification": 10}}]), 200),
    }


@pytest.mark.alone(reason="measures the loop's CPU time under load")
@pytest.mark.timeout(600)
@pytest.mark.slow(reason="measures time")
def test_nothing_takes_the_loop_five_milliseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra()
    file = tmp_path / "times"
    file.touch()
    monkeypatch.setenv(FILE, str(file))
    options = ("--batch", str(BATCH), "--workers", "1", "--outputs", "output,features.1", "--deadline-s", "60")
    with serving(*options, command="tests.serving.measured") as server:
        skipped = len(file.read_text())  # of its start, before there are requests
        longest = {}
        for name, (head, raw, status) in requests().items():
            length = {"Inference_Header_Content_Length": str(len(head))} if raw else {}
            reply = server.ask("POST", "/v2/models/digits/infer", head + raw, **length)
            assert reply.status == status, (name, reply.body[:300])
            lines = file.read_text()[skipped:].splitlines()
            skipped += sum(len(line) + 1 for line in lines)
            longest[name] = max(((float(line.split()[0]), line) for line in lines), default=(0.0, ""))
        for path in (
            "/",
            "/metrics",
            "/v2",
            "/v2/openapi.json",
            "/v2/models/digits/stats",
            "/v2/models/digits/explain",
        ):
            assert server.ask("GET", path).status == 200
            lines = file.read_text()[skipped:].splitlines()
            skipped += sum(len(line) + 1 for line in lines)
            longest[path] = max(((float(line.split()[0]), line) for line in lines), default=(0.0, ""))
    assert {name: line for name, (taken, line) in longest.items() if taken > MOST} == {}

"""Requests to a server of the digits, byte by byte, and its answers as text."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from vgg16gpu.zoo.digits import heldout

_CHANGING: Final = ("date", "x-request-id", "server")  # headers that differ from run to run
_TIMES: Final = re.compile(r'("(?:\w+_us|ns|last_inference|\w+_seconds)": ?)[0-9.]+')
_VERSION: Final = re.compile(r'("version": ?)"\d+\.\d+\.\d+"')


def http_transcripts() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each exchange; nothing where serving/ is not installed."""
    if not all(map(find_spec, ("granian", "prometheus_client", "uvloop"))):
        return
    command = [sys.executable, "-m", "vgg16gpu", "serve", "digits", "--device", "cpu", "--port", "0", "--batch", "4"]
    command += ["--deadline-s", "300"]  # kernels may be compiled on the way, on a machine that has other work
    process = subprocess.Popen(
        [*command, "--workers", "1"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    try:
        line = ""
        while not (found := re.search(r"at http://127.0.0.1:(\d+),", line)):
            line = process.stderr.readline()
            if not line:
                raise RuntimeError("the server ended before it listened")
        for name, request in exchanges():
            yield f"http-{name}", f"{_shown(request)}\n---\n{_answer(int(found[1]), request)}"
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def exchanges() -> Iterator[tuple[str, bytes]]:
    """Yield requests: each path, an image in every form, and what is refused."""
    _, numbers, _ = heldout()
    row = numbers[:1].astype("<f4")
    tensor = {"name": "input", "shape": list(row.shape), "datatype": "FP32"}
    model = "/v2/models/digits"
    for name, path in {
        "v2": "/v2",
        "live": "/v2/health/live",
        "ready": "/v2/health/ready",
        "model": model,
        "config": f"{model}/config",
        "layers": f"{model}/explain",
        "no-path": "/v3",
        "no-model": "/v2/models/other",
        "no-version": f"{model}/versions/2",
        "no-trace": "/v2/trace/setting",
    }.items():
        yield f"get-{name}", _request("GET", path)
    as_list = json.dumps({"id": "a", "inputs": [{**tensor, "data": row.ravel().tolist()}]}).encode()
    yield "infer-list", _request("POST", f"{model}/infer", as_list)
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": row.nbytes}}]}).encode()
    lengths = {"Inference-Header-Content-Length": str(len(head))}
    yield "infer-binary", _request("POST", f"{model}/infer", head + row.tobytes(), **lengths)
    classes = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": row.nbytes}}],
            "outputs": [{"name": "output", "parameters": {"classification": 3}}],
        }
    ).encode()
    lengths = {"Inference-Header-Content-Length": str(len(classes))}
    yield "infer-classes", _request("POST", f"{model}/infer", classes + row.tobytes(), **lengths)
    explained = json.dumps({"parameters": {"class": 2}, "inputs": [{**tensor, "data": row.ravel().tolist()}]}).encode()
    yield "explain", _request("POST", f"{model}/explain", explained)
    yield "no-json", _request("POST", f"{model}/infer", b"{")
    yield "no-input", _request("POST", f"{model}/infer", b"{}")
    yield "other-shape", _request("POST", f"{model}/infer", as_list.replace(b"[1, ", b"[2, ", 1))
    yield "chunked", _request("POST", f"{model}/infer", b"", **{"Transfer-Encoding": "chunked"})
    yield "foreign-host", _request("GET", "/v2").replace(b"Host: localhost", b"Host: example.org")
    yield "method", _request("DELETE", f"{model}/infer")


def _request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    given = {"Host": "localhost", "Content-Type": "application/json", **headers}
    if body:
        given["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _answer(port: int, request: bytes) -> str:
    """Return the answer with its headers in order and without what changes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        data = bytearray()
        while piece := connection.recv(1 << 16):
            data += piece
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    status, *headers = head.decode("latin-1").split("\r\n")
    kept = sorted(line.lower() for line in headers if line.partition(":")[0].lower() not in _CHANGING)
    text = _VERSION.sub(r'\1"VERSION"', _TIMES.sub(r"\1NUMBER", _shown(body)))
    if text != _shown(body):  # then the length changes, too
        kept = [line for line in kept if "content-length" not in line]
    return "\n".join([status, *kept, "", text, ""])


def _shown(data: bytes) -> str:
    """Return bytes as text, from the first one that is not ASCII on as their number and a hash."""
    text = re.match(rb"[\t\r\n -~]*", data)
    end = text.end() if text else 0
    rest = data[end:]
    told = f"\n({len(rest)} bytes, SHA-256 {hashlib.sha256(rest).hexdigest()[:16]})" if rest else ""
    return data[:end].replace(b"\r\n", b"\n").decode() + told

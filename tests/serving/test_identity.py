"""A4: what a server serves is fixed by its digest from the start to the end."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from tests.serving.running import require_extra, serving
from tests.serving.test_faults import until
from tests.serving.test_serve import batch_of, binary_request, scores
from tests.support.kernel_harness import assert_same_bits
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.shipped import digits_model
from vgg16gpu_serving.parent.identity import Identity
from vgg16gpu_serving.parent.posts import Post

CONTENT = b"a model" * 1000
OTHER = b"another" * 1000  # of the same length


@pytest.fixture
def served(tmp_path: Path):
    """A file, and its identity."""
    path = tmp_path / "model.onnx"
    path.write_bytes(CONTENT)
    os.utime(path, (1, 1))
    found = Identity([path])
    yield path, found
    found.close()


def replaced(path: Path, content: bytes) -> None:
    """Another file takes the name, as of a program that writes whole files."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


@pytest.mark.parametrize("content", [OTHER, CONTENT + b"x", b"", CONTENT[:-1]])
@pytest.mark.parametrize("in_place", [False, True])
def test_a4_another_file_is_told_of(served, content: bytes, in_place: bool) -> None:
    path, identity = served
    path.write_bytes(content) if in_place else replaced(path, content)
    words = identity.changed()
    assert words == f"'{path}' is another file than the one that is served; put it back, or start the server again"


def test_a4_the_same_content_under_the_name_is_the_same(served) -> None:
    path, identity = served
    replaced(path, OTHER)
    assert identity.changed()
    replaced(path, CONTENT)
    for _ in range(2):
        assert identity.changed() is None
    os.utime(path)
    assert identity.changed() is None


def test_a4_the_same_content_written_in_place_is_known_by_its_digest(served) -> None:
    path, identity = served
    identity.learn()
    until(lambda: identity._files[0].digest)
    path.write_bytes(OTHER)
    assert identity.changed()
    path.write_bytes(CONTENT)
    assert identity.changed() is None


def test_a4_the_digest_of_what_was_written_meanwhile_is_not_learnt(served) -> None:
    path, identity = served
    path.write_bytes(OTHER)
    identity.learn()
    time.sleep(0.2)
    assert identity._files[0].digest is None
    assert identity.changed()


def test_a4_what_is_no_file_any_more_is_told_of(served) -> None:
    path, identity = served
    path.unlink()
    assert "cannot be read: No such file" in str(identity.changed())
    path.mkdir()
    assert "another file" in str(identity.changed())
    path.rmdir()
    os.mkfifo(path)
    assert "another file" in str(identity.changed())
    path.unlink()
    replaced(path, CONTENT)
    assert identity.changed() is None


def test_a4_external_data_belong_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(digits_model()), path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    model = Model(path)
    model.graph()
    assert model.file.paths == (path, tmp_path / "weights.bin")


def test_pauses_grow_and_start_small_again_after_a_long_life() -> None:
    now = time.monotonic()
    post = Post("x", lambda: None, lambda: None)
    pauses = []
    for _ in range(10):
        post.leave()
        pauses.append(post.due - time.monotonic())
    assert np.allclose(pauses, [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60], atol=0.2)
    ours, theirs = multiprocessing.Pipe()
    post.child, post._began = SimpleNamespace(pipe=ours), now - 100
    post.leave()
    assert post.due - time.monotonic() < 0.6
    assert ours.closed
    theirs.close()
    assert [post.is_news("a"), post.is_news("a"), post.is_news("b"), post.is_news("a")] == [True, False, True, True]


@pytest.mark.slow(reason="waits for pauses; the identity by itself is in make test")
def test_a4_a_device_process_loads_no_other_file(tmp_path: Path, run_at, digits) -> None:
    """With other weights under the name: one line, and no answer; with the file back, the answers of the start."""
    require_extra()
    path, other = tmp_path / "digits.onnx", tmp_path / "other.onnx"
    shutil.copy(digits_model(), path)
    changed = onnx.load(digits_model())
    weights = changed.graph.initializer[0]
    weights.raw_data = bytes(len(weights.raw_data))
    onnx.save(changed, other)
    request = binary_request(digits[:1], "FP32")
    with serving("--batch", "4", "--workers", "1", model=str(path)) as server:
        (device,) = server.children("device")
        shutil.copy(path, tmp_path / "first.onnx")
        other.replace(path)
        os.kill(device, signal.SIGKILL)
        until(lambda: server.ask("GET", "/v2/health/ready").status == 503)
        time.sleep(4)  # some pauses
        assert server.children("device") == []
        assert server.infer(*request).status == 503
        (tmp_path / "first.onnx").replace(path)
        server.ready()
        reply = server.infer(*request)
        assert_same_bits(scores(reply), run_at(digits[:1], batch_of(reply)))
        server.process.terminate()
        told = [line.removeprefix("vgg16gpu: ").rstrip() for line in server.process.stderr]
    assert told == [
        "device process 0 ended with code -9",
        f"device process 0 is not started again: '{path}' is another file than the one that is served; put it back, or "
        "start the server again",
    ]

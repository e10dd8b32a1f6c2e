"""The download, against a server that can be told to misbehave."""

from __future__ import annotations

import hashlib

import onnx
import pytest

from tests.support.onnx_models import torch_vgg
from tests.support.zoo_server import CONTENT, EXPECTED, serve
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.metadata import PREPROCESS_KEY, encoded
from vgg16gpu.errors import ModelError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.zoo import fetch
from vgg16gpu.zoo.fetch import VGG16_METADATA, fetch_vgg16


@pytest.fixture
def server(monkeypatch):
    with serve(monkeypatch) as running:
        yield running


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetches_and_reports_progress(server, tmp_path):
    calls = []
    url = fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], progress=lambda *c: calls.append(c), **EXPECTED)
    assert url == server.url("/good")
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT
    assert names(tmp_path) == ["v.onnx"]
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert calls == sorted(calls)


def test_another_file_is_not_overwritten(server, tmp_path):
    (tmp_path / "v.onnx").write_bytes(b"mine")
    with pytest.raises(ModelError, match=r"v\.onnx: exists and is another file; delete it or give another --output"):
        fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert (tmp_path / "v.onnx").read_bytes() == b"mine"
    assert server.requests == []


@pytest.fixture
def tagged(server):
    """A model on the server, and what to expect of it when its preprocessing is added."""
    content = torch_vgg().proto().SerializeToString()
    server.bodies["/model"] = content
    expected = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "metadata": VGG16_METADATA}
    return content, expected


def test_metadata_is_added_behind_the_verified_bytes(server, tagged, tmp_path):
    content, expected = tagged
    path = tmp_path / "v.onnx"
    fetch_vgg16(path, [server.url("/model")], **expected)
    assert path.read_bytes() == content + encoded(VGG16_METADATA)
    assert names(tmp_path) == ["v.onnx"]
    assert Model(path).metadata == {PREPROCESS_KEY: Preprocess.named("torchvision").to_json()}
    assert onnx.load(path).graph == onnx.load_from_string(content).graph
    assert fetch_vgg16(path, [server.url("/model")], **expected) is None
    assert len(server.requests) == 1


def test_a_file_without_the_metadata_is_known_and_stays(server, tagged, tmp_path):
    content, expected = tagged
    (tmp_path / "v.onnx").write_bytes(content)
    assert fetch_vgg16(tmp_path / "v.onnx", [server.url("/model")], **expected) is None
    assert (tmp_path / "v.onnx").read_bytes() == content
    assert server.requests == []


def test_a_link_stays(server, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "v.onnx").symlink_to("large/target.onnx")
    fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert (tmp_path / "v.onnx").is_symlink()
    assert names(tmp_path / "large") == ["target.onnx"]


def test_resumes_a_partial_file(server, tmp_path):
    (tmp_path / "v.onnx.part").write_bytes(CONTENT[:1_000_000])
    fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert server.requests == [("/good", "bytes=1000000-")]
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT
    assert names(tmp_path) == ["v.onnx"]


@pytest.mark.parametrize("lengths", [True, False])
def test_a_cut_connection_is_resumed_at_once(lengths, server, tmp_path):
    server.lengths = lengths
    server.cut_after = [700_000, 800_000]
    fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert server.requests == [("/good", None), ("/good", "bytes=700000-"), ("/good", "bytes=1500000-")]
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT


def test_a_connection_that_brings_nothing_is_given_up_and_the_part_kept(server, tmp_path):
    server.cut_after = [700_000, 0]
    with pytest.raises(ModelError, match=f"the connection ended after 700000 of {len(CONTENT)} bytes"):
        fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert (tmp_path / "v.onnx.part").read_bytes() == CONTENT[:700_000]
    assert not (tmp_path / "v.onnx").exists()
    fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert server.requests[-1] == ("/good", "bytes=700000-")
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT


def test_the_next_address_goes_on_where_the_first_ended(server, tmp_path):
    server.cut_after = [700_000, 0]
    server.bodies["/mirror"] = CONTENT
    url = fetch_vgg16(tmp_path / "v.onnx", [server.url("/good"), server.url("/mirror")], **EXPECTED)
    assert url == server.url("/mirror")
    assert server.requests[-1] == ("/mirror", "bytes=700000-")
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(ModelError, match="sent another file: SHA-256 [0-9a-f]{64} instead of " + EXPECTED["sha256"]):
        fetch_vgg16(tmp_path / "v.onnx", [server.url("/wrong")], **EXPECTED)
    assert names(tmp_path) == []


@pytest.mark.parametrize("damaged", [b"y" * 1000, b"y" * len(CONTENT), b"y" * (len(CONTENT) + 1)])
def test_a_damaged_part_costs_a_new_start(damaged, server, tmp_path):
    (tmp_path / "v.onnx.part").write_bytes(damaged)
    fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert server.requests[-1] == ("/good", None)
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT
    assert names(tmp_path) == ["v.onnx"]


@pytest.mark.parametrize(("path", "size"), [("/short", 43), ("/long", len(CONTENT) + 4)])
def test_another_size_is_refused_before_anything_is_written(path, size, server, tmp_path):
    (tmp_path / "v.onnx.part").write_bytes(CONTENT[:10])
    with pytest.raises(ModelError, match=f"offers {size} bytes, the file has {len(CONTENT)}"):
        fetch_vgg16(tmp_path / "v.onnx", [server.url(path)], **EXPECTED)
    assert (tmp_path / "v.onnx.part").read_bytes() == CONTENT[:10]


def test_a_longer_file_of_unknown_length_is_cut_off_and_removed(server, tmp_path):
    server.lengths = False
    with pytest.raises(ModelError):
        fetch_vgg16(tmp_path / "v.onnx", [server.url("/long")], **EXPECTED)
    assert names(tmp_path) == []


def test_an_untrue_content_range_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_content_range", lambda _: (5, len(CONTENT)))
    (tmp_path / "v.onnx.part").write_bytes(CONTENT[:10])
    with pytest.raises(ModelError, match="sent the bytes from 5 on instead of 10"):
        fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)


def test_failures_are_listed_with_their_reasons_in_one_line(server, tmp_path):
    nobody = "http://127.0.0.1:9/v.onnx"
    urls = [server.url("/none"), server.url("/short"), nobody, "file:///etc/hosts", "http://[broken/v.onnx"]
    with pytest.raises(ModelError) as caught:
        fetch_vgg16(tmp_path / "v.onnx", urls, **EXPECTED)
    message = str(caught.value)
    assert f"{urls[0]}: HTTP 404 Not Found; " in message
    assert f"{urls[1]}: offers 43 bytes" in message
    assert f"{nobody}: [Errno 111] Connection refused; " in message
    assert "file:///etc/hosts: is not an http or https address; " in message
    assert "http://[broken/v.onnx: Invalid IPv6 URL; " in message
    assert "--url" in message
    assert "\n" not in message
    assert names(tmp_path) == []


def test_an_interruption_keeps_the_part(server, tmp_path):
    def interrupt(done, _):
        if done > 500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], progress=interrupt, **EXPECTED)
    have = (tmp_path / "v.onnx.part").stat().st_size
    assert 500_000 < have < len(CONTENT)
    fetch_vgg16(tmp_path / "v.onnx", [server.url("/good")], **EXPECTED)
    assert server.requests[-1] == ("/good", f"bytes={have}-")
    assert (tmp_path / "v.onnx").read_bytes() == CONTENT


def test_where_it_cannot_be_written(server, tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        fetch_vgg16(tmp_path, [server.url("/good")], **EXPECTED)
    with pytest.raises(ModelError, match="cannot be written"):
        fetch_vgg16(tmp_path / "missing" / "v.onnx", [server.url("/good")], **EXPECTED)

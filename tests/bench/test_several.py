"""`bench --devices`: how several devices share the work, beside one of them."""

import json

import pytest
from click.testing import CliRunner

from vgg16gpu import EnginePool
from vgg16gpu.cli import cli


def bench(*arguments):
    words = ("bench", "digits", "--devices", "cpu:2", "--seconds", 0.01, "--repeats", 2, *arguments)
    return CliRunner().invoke(cli, [*map(str, words)])


def test_arrays_in_memory_and_other_bits(tmp_path, monkeypatch):
    stream = EnginePool.stream

    def other(self, arrays):
        for scores in stream(self, arrays):
            yield scores + len(self.engines)

    monkeypatch.setattr(EnginePool, "stream", other)
    path = tmp_path / "devices.json"
    result = bench("--output", path)
    assert result.exit_code == 1
    assert "fp32: 2 devices give other bits than one" in result.stderr
    assert "times one" in result.stdout
    content = json.loads(path.read_text())
    assert (content["devices"], content["batch"], len(content["failures"])) == (["cpu", "cpu"], 8, 1)
    one, two = content["streams"]
    assert (one["devices"], two["devices"], one["times_one"]) == (1, 2, 1.0)
    assert two["times_one"] == pytest.approx(two["images_per_s"] / one["images_per_s"])
    assert len(two["samples_per_s"]) == 2
    assert min(two["shares"]) > 0
    assert content["pictures"] is None
    assert content["environment"]["device"]["kind"] == "cpu"


def test_what_does_not_go_together():
    for words, said in {
        "--devices cpu:1": "there is one device",
        "--against torch": "it goes without --against",
        "--cold-start": "it goes without --cold-start",
        "--batch 1,2": "runs one batch size",
    }.items():
        result = bench(*words.split())
        assert result.exit_code == 2, words
        assert said in " ".join(result.stderr.split())

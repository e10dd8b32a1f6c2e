"""A whole benchmark: what is measured where the device resizes, and in which order."""

import json

import pytest
from click.testing import CliRunner

from tests.bench.pipeline.conftest import watched
from tests.support.small_photos import small_photos
from vgg16gpu.bench.pipeline import device_stages, session
from vgg16gpu.bench.pipeline.ceilings import ceilings
from vgg16gpu.bench.pipeline.content import content
from vgg16gpu.bench.pipeline.session import run_pipeline
from vgg16gpu.bench.pipeline.wanted import Wanted, Work
from vgg16gpu.bench.pipeline.whole_runs import WholeRuns
from vgg16gpu.cli import cli
from vgg16gpu.compiler.model import Model


@pytest.mark.slow(reason="of a measure that authors run")
def test_where_the_device_resizes(pictures, monkeypatch):
    """On the cpu device, as a GPU does it: pixels as they are count, and the kernel takes turns with the network."""
    monkeypatch.setattr(session, "resizes_on_device", lambda *_: True)
    monkeypatch.setattr(device_stages, "_PICTURES", 30)
    runs = WholeRuns("fp32", "cpu", (watched(50.0),), (), ())
    monkeypatch.setattr(session, "run_whole", lambda *_: runs)
    said = []
    work = Work.of(Wanted(pictures, Model("digits"), "cpu", repeats=1, seconds=0.01))
    findings = run_pipeline(work, said.append)
    counting = [stage.stage for stage in findings.stages if stage.counts]
    assert counting == ["reading", "decoding", "uploading", "resizing", "ranking", "writing", "computing"]
    assert len(findings.verdicts) == 1
    places = [ceiling.stages for ceiling in ceilings(findings.stages, "fp32", "cpu", "cpu")]
    assert ("decoding", "resizing", "computing") in places
    # Processes end before the device is this process's own.
    assert said.index("decoding, a process a core") < said.index("fp32: building the engine") < said.index("reading")
    json.dumps(content(work, findings))


def test_every_precision_has_its_runs_and_its_verdict(pictures, monkeypatch):
    asked = []

    def run_whole(_, precision, *__):
        asked.append(precision)
        return WholeRuns(precision, "cpu", (watched(50.0 * len(asked)),), (), ())

    monkeypatch.setattr(session, "run_whole", run_whole)
    work = Work.of(Wanted(pictures, Model("digits"), "cpu", ("fp32", "bf16"), repeats=1, seconds=0.01))
    findings = run_pipeline(work, lambda _: None)
    assert asked == ["fp32", "bf16"]
    assert [stage.precision for stage in findings.stages if stage.stage == "computing"] == ["fp32", "bf16"]
    assert [stage.stage for stage in findings.stages].count("reading") == 1
    first, second = findings.verdicts
    assert (first.precision, second.precision) == ("fp32", "bf16")
    assert second.share == pytest.approx(100 / second.ceiling.pictures_per_s)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    folder, path = small_photos(tmp_path / "pictures", 80), tmp_path / "pipeline.json"
    words = ["--pipeline", folder, "--batch", 8, "--repeats", 1, "--seconds", 0.1, "--output", path]
    result = CliRunner().invoke(cli, ["bench", "digits", "--device", "cuda", *map(str, words)])
    assert result.exit_code == 0, result.stderr
    record = json.loads(path.read_text())
    assert {"decoding", "resizing"} <= {stage["stage"] for stage in record["stages"] if stage["counts"]}
    assert record["runs"][0]["rows_per_s"] > 0
    assert record["verdicts"][0]["cpu"] is None

"""bench/pipeline/gpu_decoding.py, by a stand-in for nvJPEG on the cpu device: what is measured, and of which files."""

import json

import pytest

from tests.bench.pipeline.conftest import watched
from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary
from tests.support.picture_files import jpeg
from vgg16gpu import Engine
from vgg16gpu.bench.pipeline import device_stages, gpu_decoding, session
from vgg16gpu.bench.pipeline.ceilings import ceilings
from vgg16gpu.bench.pipeline.content import command, content, way
from vgg16gpu.bench.pipeline.gpu_decoding import measure_gpu_decoding
from vgg16gpu.bench.pipeline.session import run_pipeline
from vgg16gpu.bench.pipeline.stage import Place
from vgg16gpu.bench.pipeline.wanted import Wanted, Work
from vgg16gpu.bench.pipeline.whole_runs import WholeRuns
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg
from vgg16gpu.errors import DeviceError
from vgg16gpu.zoo.generate import make_vgg

COUNT, PICTURES = 12, 40
MODEL = {"variant": "vgg11", "size": 32, "width": 8, "hidden": 32, "classes": 20}


@pytest.fixture
def colours(tmp_path):
    """A folder of photographs of several samplings, and a network that takes RGB."""
    folder, model = tmp_path / "photographs", tmp_path / "narrow.onnx"
    folder.mkdir()
    for i in range(COUNT):
        (folder / f"{i:02}.jpg").write_bytes(jpeg(40, 48 + i, seed=i, subsampling=i % 3))
    make_vgg(model, **MODEL)
    wanted = Wanted(folder, Model(model), "cpu", batch=4, repeats=2, seconds=0.01, decode=("cpu", "gpu"))
    return Work.of(wanted)


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """Of the cpu device, from now on; few pictures are enough."""
    library = FakeLibrary()
    monkeypatch.setattr(gpu_decoding, "open_codec", lambda _: NvJpeg(library, FakeForeign()))
    monkeypatch.setattr(gpu_decoding, "_PICTURES", PICTURES)
    monkeypatch.setattr(device_stages, "_PICTURES", PICTURES)
    return library


def test_each_stage_of_decoding_on_the_device_by_itself(colours, library):
    said = []
    with Engine(colours.wanted.model, device="cpu", batch=4) as engine:
        memory = dict(engine.device._heap._sizes)
        reading, decoding, resizing = measure_gpu_decoding(colours, engine, said.append)
        assert engine.device._heap._sizes == memory
    assert said == ["reading into slots", "decoding on the GPU", "colours and resizing"]
    assert (reading.stage, reading.place, reading.pictures) == ("reading into slots", Place.FILES, COUNT)
    assert (decoding.stage, decoding.place) == ("decoding on the GPU", Place.DECODER)
    assert (resizing.stage, resizing.place) == ("colours, resizing", Place.DEVICE)
    assert {stage.decode for stage in (reading, decoding, resizing)} == {"gpu"}
    assert all(stage.counts and len(stage.seconds) == len(stage.cpu_seconds) == 2 for stage in (decoding, resizing))
    assert decoding.pictures >= PICTURES
    # All that it says, a first round before each of two repeats, one round for resizing, and the decoders' trials.
    rounds, rest = divmod(decoding.pictures, COUNT - 1)  # the first picture has a slot to itself
    assert rest == 0
    assert sum(library.calls) == (2 * (rounds + 1) + 1) * (COUNT - 1) + 3
    assert library.open == 0


def test_files_that_are_refused_are_no_rate(colours, library):
    library.refuses = {path.read_bytes() for path in colours.wanted.folder.iterdir()}.__contains__
    with (
        Engine(colours.wanted.model, device="cpu", batch=4) as engine,
        pytest.raises(DeviceError, match="refuses 55 of 55 files"),
    ):
        list(measure_gpu_decoding(colours, engine, lambda _: None))


def test_both_decoders_have_runs_and_a_verdict_by_their_own_stages(colours, monkeypatch):
    asked = []

    def run_whole(_, precision, decode, *__):
        asked.append((precision, decode))
        return WholeRuns(precision, decode, (watched(50.0),), (), ())

    monkeypatch.setattr(session, "run_whole", run_whole)
    monkeypatch.setattr(session, "resizes_on_device", lambda *_: True)
    findings = run_pipeline(colours, lambda _: None)
    assert asked == [("fp32", "cpu"), ("fp32", "gpu")]
    assert [stage.stage for stage in findings.stages].count("computing") == 1
    assert [verdict.decode for verdict in findings.verdicts] == ["cpu", "gpu"]
    by_cpu, by_gpu = (ceilings(findings.stages, "fp32", decode, "cpu") for decode in ("cpu", "gpu"))
    assert ("decoding", "resizing", "computing") in [ceiling.stages for ceiling in by_cpu]
    assert ("colours, resizing", "computing") in [ceiling.stages for ceiling in by_gpu]
    told = json.loads(json.dumps(content(colours, findings)))
    assert [way(run) for run in told["runs"]] == ["fp32", "fp32, decoded by the GPU"]
    assert [command(run) for run in told["runs"]] == ["vgg16gpu infer", "vgg16gpu infer --decode gpu"]
    assert {stage["stage"] for stage in told["stages"] if stage.get("decode") == "gpu"} == {
        "reading into slots",
        "decoding on the GPU",
        "colours, resizing",
    }


def test_where_the_gpu_alone_is_asked_for_nothing_is_decoded_by_the_cpu(colours, monkeypatch):
    monkeypatch.setattr(session, "run_whole", lambda *_: WholeRuns("fp32", "gpu", (watched(50.0),), (), ()))
    monkeypatch.setattr(session, "measure_processes", None)
    work = Work.of(Wanted(colours.wanted.folder, colours.wanted.model, "cpu", repeats=1, seconds=0.01, decode=("gpu",)))
    findings = run_pipeline(work, lambda _: None)
    assert "cpu" not in {stage.decode for stage in findings.stages}
    assert len(findings.verdicts) == 1


def test_an_older_record_is_of_the_cpu():
    assert way({"precision": "fp16"}) == "fp16"
    assert command({"precision": "fp16"}) == "vgg16gpu infer"

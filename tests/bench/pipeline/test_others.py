"""Other frameworks on the same folder: what is asked, what is compared, and why some are not there."""

import importlib.util
from pathlib import Path

import pytest

from tests.bench.pipeline.conftest import COUNT, watched
from tests.support.torch_here import torch_module, torch_with_cuda
from vgg16gpu.bench.peers import folder
from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.folder import (
    LOADER,
    WAYS,
    FolderAnswer,
    FolderSetting,
    check_folder_peer,
    run_folder_peer,
)
from vgg16gpu.bench.peers.process import PeerFailureError
from vgg16gpu.bench.pipeline.others import Others, measure_others
from vgg16gpu.bench.pipeline.whole_runs import WholeRuns
from vgg16gpu.io.preprocessing import Preprocess

UNIT = Preprocess.named("unit", 1)


def setting(*files, way=LOADER, precision="fp16"):
    return FolderSetting(way, "digits.onnx", precision, 0, (1, 32, 32), UNIT.fields(), files, 2)


def ours(best=(), choice="cuda: a card"):
    return WholeRuns("fp16", "cpu", (watched(device_choice=choice),), tuple(best), ())


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


@pytest.fixture
def instead_of_torch(monkeypatch):
    monkeypatch.setattr(folder, "_MODULE", "tests.support.folder_peer")


def test_a_setting_goes_there_and_back():
    sent = setting("a.jpg", "with\nline.jpg", "\udcff.jpg")
    assert FolderSetting.from_json(sent.to_json()) == sent
    assert sent.fitting == UNIT


def test_why_torch_is_not_there(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchvision" else name)
    with pytest.raises(PeerError, match=r"^torchvision is not installed$"):
        check_folder_peer("cuda", "fp16")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PeerError, match=r"^torch and torchvision are not installed$"):
        check_folder_peer("cuda", "fp16")


@pytest.mark.usefixtures("installed")
def test_where_torch_does_not_run():
    check_folder_peer("cuda", "fp16")
    with pytest.raises(PeerError, match="this device is a CPU"):
        check_folder_peer("cpu", "fp16")
    with pytest.raises(PeerError, match="torch has no int8"):
        check_folder_peer("cuda", "int8")


@pytest.mark.usefixtures("instead_of_torch")
def test_a_process_answers():
    found = run_folder_peer(setting("a.jpg", "b.jpg"))
    assert (found.best, found.pictures_per_s) == ((7, 7), 4.0)
    assert found.whole_s > 0


@pytest.mark.usefixtures("instead_of_torch")
def test_a_process_refuses_or_fails():
    with pytest.raises(PeerError, match="not today"):
        run_folder_peer(setting("refuses.jpg"))
    with pytest.raises(PeerFailureError, match="exit code 1: the driver is tired") as failed:
        run_folder_peer(setting("fails.jpg"))
    assert failed.value.output == ("asked for torch, DataLoader", "the driver is tired")


@pytest.mark.usefixtures("installed")
def test_every_way_so_often_and_what_is_the_same(work):
    asked, others = [], Others([], [])

    def run(sent):
        asked.append(sent)
        return FolderAnswer(COUNT / (100 * len(asked)), (7,) * COUNT, 10.0 * len(asked))

    measure_others(work, ours([7] * 5 + [8] * 15), 3, others, lambda _: None, run)
    assert [each.way for each in asked] == [way for way in WAYS for _ in range(work.wanted.repeats)]
    assert {(each.files, each.workers, each.shape, each.precision) for each in asked} == {
        (work.files, 3, (1, 32, 32), "fp16")
    }
    fields = others.found[0].fields()
    assert (fields["name"], fields["batch"], fields["same_best"]) == (LOADER, 128, 5)
    assert fields["pictures_per_s"] == pytest.approx(150)
    assert fields["samples_per_s"] == pytest.approx([100, 200])
    assert (fields["whole_s"], fields["pictures"]) == (15.0, COUNT)
    assert others.absent == []


@pytest.mark.usefixtures("installed")
def test_who_fails_is_named_and_the_next_goes_on(work):
    others = Others([], [])

    def run(sent):
        if sent.way == LOADER:
            raise PeerFailureError("it died", ("last words",))
        raise PeerError("no nvJPEG here")

    measure_others(work, ours(), 3, others, lambda _: None, run)
    assert [(each.name, each.reason, each.output) for each in others.absent] == [
        (WAYS[0], "it died", ("last words",)),
        (WAYS[1], "no nvJPEG here", ()),
    ]
    assert {each.precision for each in others.absent} == {"fp16"}


def test_torch_without_a_card_refuses(pictures):
    if torch_module().cuda.is_available():
        pytest.skip("torch has a card here")
    pytest.importorskip("torchvision")
    with pytest.raises(PeerError, match="does not see the GPU"):
        run_folder_peer(setting(*map(str, sorted(pictures.iterdir()))))


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_torch_on_a_card(way, work, pictures):
    torch_with_cuda()
    pytest.importorskip("torchvision")
    files = tuple(map(str, sorted(Path(pictures).iterdir())))
    path, fields = str(work.wanted.model.path), work.preprocess.fields()
    found = run_folder_peer(FolderSetting(way, path, "fp32", 0, work.shape, fields, files, 2))
    assert len(found.best) == COUNT
    assert found.seconds < found.whole_s

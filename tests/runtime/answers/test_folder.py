"""runtime/answers/folder.py: who loads the files, threads or processes; the answers are the same."""

import threading

import numpy as np
import pytest
from PIL import Image

import vgg16gpu
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.pictures.loading.processes import ProcessLoader
from vgg16gpu.runtime.answers import classify as classify_module
from vgg16gpu.runtime.answers import folder as folder_module
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import first_open

SPEC = InputSpec((3, 32, 32), preprocess=Preprocess.named("torchvision"))


@pytest.fixture
def folder(tmp_path):
    chance = np.random.default_rng(3)
    for i in range(50):
        pixels = chance.integers(0, 256, (*chance.integers(20, 70, 2), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i:02}.{'jpg' if i % 4 else 'png'}")
    (tmp_path / "17.jpg").write_bytes(b"\xff\xd8\xff nothing")
    return tmp_path


@pytest.fixture
def few_are_many(monkeypatch):
    monkeypatch.setattr(folder_module, "MANY", 20)
    monkeypatch.setattr(folder_module, "default_threads", lambda **_: 6)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(
    ("options", "threads", "by_processes"),
    [
        ({"for_gpu": True}, None, True),
        ({"for_gpu": True, "devices": 2}, None, True),
        ({"for_gpu": False}, None, False),
        ({"for_gpu": True}, 4, False),
    ],
)
def test_many_pictures_for_a_gpu_are_loaded_by_processes(folder, options, threads, by_processes):
    with FilePipeline(list_files([folder]), SPEC, threads, **options) as files:
        assert isinstance(files.loader, ProcessLoader) is by_processes
        assert files.loader.has_row()


@pytest.mark.usefixtures("few_are_many")
def test_what_processes_cannot_load_is_loaded_by_threads(folder):
    np.save(folder / "numbers.npy", np.zeros((2, 3, 32, 32), np.float32))
    given = [folder, folder / "numbers.npy"]
    for listing, spec in ((list_files(given), SPEC), (list_files([folder]), InputSpec((7,)))):
        with FilePipeline(listing, spec, for_gpu=True) as files:
            assert not isinstance(files.loader, ProcessLoader)


@pytest.mark.usefixtures("few_are_many")
def test_answers_are_the_same_whoever_loads(folder, monkeypatch):
    found = {}
    for by_processes in (False, True):
        monkeypatch.setattr(classify_module, "expects_gpu", lambda _, found=by_processes: found)
        answers = vgg16gpu.classify(folder, "digits", device="cpu", batch=4)
        found[by_processes] = [(each.name, each.error, each.scores.tobytes()) for each in answers]
    assert len(found[True]) == 50
    assert found[True] == found[False]
    assert sum(bool(error) for _, error, _ in found[True]) == 1


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(
    ("struck", "error", "told"),
    [
        ("_start_child", KeyboardInterrupt, KeyboardInterrupt),
        ("_start_thread", KeyboardInterrupt, KeyboardInterrupt),
        ("_start_child", OSError, InputError),
    ],
)
def test_what_has_started_ends_where_the_start_fails(folder, monkeypatch, struck, error, told):
    started, before, usual = [], threading.active_count(), getattr(ProcessLoader, struck)

    def striking(self, *args):
        if len(started) == 1:
            raise error
        started.append(self)
        return usual(self, *args)

    monkeypatch.setattr(ProcessLoader, struck, striking)
    with pytest.raises(told):
        FilePipeline(list_files([folder]), SPEC, for_gpu=True)
    assert threading.active_count() == before
    assert all(child.poll() is not None for child in started[0]._children)


@pytest.mark.parametrize("nothing", [[], (), iter(())])
def test_no_files_at_all_are_refused_and_not_waited_for(nothing):
    with pytest.raises(InputError, match=r"there are no inputs; name files, or folders of them, at least one"):
        next(vgg16gpu.classify(nothing, "digits", device="cpu"))


def test_a_pool_of_no_files_is_refused_too():
    with vgg16gpu.EnginePool("digits", devices="cpu:2") as pool:
        with pytest.raises(InputError, match="there are no inputs"):
            next(pool.classify([]))
        with pytest.raises(InputError, match="paths has 3, and classify reads files"):
            next(pool.classify(3))  # type: ignore[arg-type]


def test_a_batch_of_zero_is_refused_and_not_a_default(folder):
    with pytest.raises(InputError, match="batch 0: give one size"):
        next(vgg16gpu.classify(folder, "digits", device="cpu", batch=0))


def test_rows_of_numbers_that_are_done_end_with_their_file(folder):
    np.save(folder / "00.npy", np.zeros((2, 3, 32, 32), np.float32))
    numbers, *others = map(str, (folder / "00.npy", folder / "01.jpg", folder / "02.jpg"))
    rows = [f"{numbers}[0]", f"{numbers}[1]"]
    listing = list_files([numbers, *others])
    assert first_open(rows[:1], listing) == ((0, 1), rows[:1])
    assert first_open([*rows, others[0]], listing) == ((2, 0), [*rows, others[0]])
    assert first_open([*rows, *others, "more"], listing) == ((3, 0), [*rows, *others])

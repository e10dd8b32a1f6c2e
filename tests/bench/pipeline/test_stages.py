"""Each stage alone on the cpu device: it does what a whole run does, on all pictures that it says."""

import numpy as np
import pytest

from tests.bench.pipeline.conftest import COUNT
from vgg16gpu import Engine
from vgg16gpu.bench.pipeline import answer_stages, device_stages
from vgg16gpu.bench.pipeline.answer_stages import measure_answers
from vgg16gpu.bench.pipeline.device_stages import (
    first_images,
    measure_computing,
    measure_resizing,
    measure_uploading,
)
from vgg16gpu.bench.pipeline.loading import (
    filled_slots,
    loader_into,
    measure_loading,
    memory_nbytes,
    run_through,
    thread_counts,
)
from vgg16gpu.bench.pipeline.processes import measure_processes
from vgg16gpu.bench.pipeline.stage import Place, Samples
from vgg16gpu.bench.pipeline.wanted import Wanted, Work
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.images import load_image
from vgg16gpu.runtime.answers.fitting import Fitter
from vgg16gpu.runtime.answers.folder import default_threads, fit_for, slot_nbytes


@pytest.fixture(scope="module")
def engine():
    with Engine("digits", device="cpu", batch=4) as opened:
        yield opened


@pytest.fixture(scope="module")
def memory(work):
    return np.zeros(memory_nbytes(work, 2), np.uint8)


def silent(_):
    pass


@pytest.mark.parametrize(
    ("cores", "own", "counts"),
    [
        (1, 1, [1]),
        (2, 2, [1, 2]),
        (16, 14, [1, 2, 4, 8, 10, 12, 14, 16]),
        (9, 7, [1, 2, 4, 7, 8]),
    ],
)
def test_threads_up_to_the_cores_and_those_of_a_run(cores, own, counts):
    assert thread_counts(cores, own) == counts


@pytest.mark.parametrize("on_device", [False, True])
def test_loading_has_a_number_for_each_count_and_form(work, memory, on_device):
    found = list(measure_loading(work, 2, memory, counts=(on_device,), say=silent))
    reading, *decoding = found
    assert (reading.stage, reading.place, reading.pictures) == ("reading", Place.FILES, COUNT)
    own = min(default_threads(), COUNT)
    assert {(each.stage, each.threads) for each in decoding} == {
        (name, threads) for name in ("decoding", "decoding, resized") for threads in thread_counts(2, own)
    }
    assert {each.pictures for each in decoding if each.threads == 1} == {COUNT // 2}
    assert {each.pictures for each in decoding if each.threads == 2} == {COUNT}
    assert [each.stage for each in decoding if each.counts] == ["decoding" if on_device else "decoding, resized"]
    assert all(len(each.seconds) == len(each.cpu_seconds) == 2 for each in found)


@pytest.mark.parametrize("as_they_are", [False, True])
def test_a_loader_alone_decodes_every_picture(work, memory, as_they_are):
    loader = loader_into(memory, work.listing, work.spec, 2, as_they_are=as_they_are)
    run_through(loader)
    assert loader.decoded == COUNT
    slots = filled_slots(work, memory, 2, as_they_are=as_they_are)
    rows = [row for slot in slots for row in slot.rows]
    assert {(row.height, row.width) for row in rows} == {(24, 32) if as_they_are else (0, 0)}
    assert len(slots[0].rows) > 1  # not the first picture, which is handed over by itself


def test_processes_decode_the_same(work):
    found = measure_processes(work, 2, as_they_are=True)
    assert (found.stage, found.place, found.threads) == ("decoding, without a lock", Place.CORES, 2)
    assert (found.pictures, found.counts) == (COUNT, False)
    assert len(found.seconds) == 2
    assert all(seconds > 0 for seconds in (*found.seconds, *found.cpu_seconds))


def test_uploading_moves_whole_slots(work, memory, engine):
    slots = filled_slots(work, memory, 2, as_they_are=True)
    before = engine.device.counters.copies_in
    found = measure_uploading(engine.device, slots, 2)
    assert (found.stage, found.place, found.counts) == ("uploading", Place.BUS, True)
    assert found.pictures >= 1024
    assert found.pictures % sum(len(slot.rows) for slot in slots) == 0
    rounds = found.pictures // sum(len(slot.rows) for slot in slots)
    assert engine.device.counters.copies_in - before == 3 * rounds * len(slots)  # once before the two repeats


def test_resizing_launches_nothing_but_the_kernel(work, memory, engine, monkeypatch):
    monkeypatch.setattr(device_stages, "_PICTURES", 30)
    slots = filled_slots(work, memory, 2, as_they_are=True)
    found = measure_resizing(engine.device, slots, fit_for(work.spec), 2)
    assert (found.stage, found.place, len(found.seconds)) == ("resizing", Place.DEVICE, 2)
    assert found.pictures >= 30


def test_a_slot_is_resized_again_to_the_same_images(work, memory, engine):
    device = engine.device
    (slot, *_) = filled_slots(work, memory, 1, as_they_are=True)
    fitter = Fitter(device, fit_for(work.spec), slot_nbytes(work.spec))
    address = fitter.begin(slot)
    device.synchronize()
    images = np.zeros((len(slot.rows), 32, 32, 1), np.uint8)
    device.zero(address, images.nbytes)
    assert fitter.again() == address
    device.copy_out(images, address)
    fitter.end()
    device.synchronize()
    wanted = [load_image(row.name, 1, 32, 32, work.preprocess) for row in slot.rows]
    np.testing.assert_array_equal(images, wanted)
    fitter.close()


def test_computing_is_of_whole_batches(work, engine):
    images = first_images(work, 4)
    assert (images.shape, images.dtype) == ((4, 32, 32, 1), np.uint8)
    found = measure_computing(engine, images, 0.01, 2)
    assert (found.stage, found.place, found.precision) == ("computing", Place.DEVICE, "fp32")
    assert found.pictures >= 3 * 4
    assert found.pictures % 4 == 0


def test_as_many_runs_as_fit_into_the_seconds(work, engine, monkeypatch):
    """Also where the first trial was disturbed: of 0.01 s a run, 2 s are 200 runs."""
    seen, disturbed = [], [0.3]

    def timed(repeats, run):
        run()
        seconds = 0.01 * seen[-1] + (disturbed.pop() if disturbed else 0.0)
        return Samples((seconds,) * repeats, (seconds,) * repeats)

    monkeypatch.setattr(device_stages, "timed", timed)
    monkeypatch.setattr(device_stages, "stream_of", lambda *arguments: seen.append(arguments[-1]))
    found = measure_computing(engine, first_images(work, 4), 2.0, 1)
    assert found.pictures == 4 * seen[-1]
    assert seen[-1] == pytest.approx(200, abs=2)


def test_few_pictures_are_taken_again(work):
    images = first_images(work, COUNT + 3)
    np.testing.assert_array_equal(images[COUNT:], images[:3])
    assert not np.array_equal(images[0], images[1])


def test_answers_have_a_row_for_each_picture(work, engine, tmp_path, monkeypatch):
    rows = []
    monkeypatch.setattr(answer_stages, "_write", lambda _, answers: rows.append([n for a in answers for n in a.names]))
    ranking, writing = measure_answers(work, engine, first_images(work, 4), tmp_path)
    assert [ranking.stage, writing.stage] == ["ranking", "writing"]
    assert {ranking.place, writing.place} == {Place.WRITER}
    assert {ranking.pictures, writing.pictures} == {COUNT}
    assert rows == [list(work.files)] * 2
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_pictures_cannot_be_read(tmp_path, memory):
    (tmp_path / "a.jpg").write_text("no picture")
    broken = Work.of(Wanted(tmp_path, Model("digits"), "cpu"))
    with pytest.raises(InputError, match="no picture can be read"):
        first_images(broken, 1)
    with pytest.raises(InputError, match="no picture can be read"):
        filled_slots(broken, memory, 1, as_they_are=True)

"""runtime/answers: files through slots, frames and threads give the bits of one picture after the other."""

import itertools
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from tests.support.late_device import LateDevice
from vgg16gpu import Engine, Model
from vgg16gpu.devices import Opened
from vgg16gpu.errors import InputError, KernelError
from vgg16gpu.io.scores import softmax, top_classes
from vgg16gpu.pictures import slots
from vgg16gpu.pictures.inputs import InputSpec, spec_of
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.runtime.answers import feed as feed_module
from vgg16gpu.runtime.answers import folder as folder_module
from vgg16gpu.runtime.answers.folder import FilePipeline, default_batch
from vgg16gpu.runtime.answers.rows import Ranking

from .conftest import SIDE


def spec_for(engine):
    preprocess = engine.model.preprocess(engine.graph, engine.program.input.shape)
    return spec_of(engine.graph.input, engine.program.input.shape[1:], preprocess)


@contextmanager
def answering(engine, paths, *, threads=3, first=(0, 0), top=3, resize_on_device=None, pins_first=False):
    with FilePipeline(list_files(paths), spec_for(engine), threads, first) as folder:
        if not pins_first:
            folder.require_one()
        with folder.answers(engine, Ranking(top), resize_on_device=resize_on_device) as stream:
            yield stream


def rows(stream):
    """(name, error, scores, best, probabilities) of every answer."""
    found = []
    for answers in stream:
        columns = answers.names, answers.errors, answers.scores, answers.best, answers.probabilities
        found += list(zip(*columns, strict=True))
    return found


def check(found, wanted):
    assert [row[0] for row in found] == [name for name, _ in wanted]
    for (name, error, scores, best, probabilities), (_, expected) in zip(found, wanted, strict=True):
        if expected is None:
            assert name in error
            assert np.isnan(scores).all()
            assert (best == -1).all()
            assert np.isnan(probabilities).all()
        else:
            assert error == ""
            assert scores.tobytes() == expected.tobytes()
            assert best.tolist() == top_classes(expected, 3).tolist()
            np.testing.assert_allclose(probabilities, softmax(expected)[best], rtol=1e-12)


@pytest.mark.parametrize(("mebibytes", "ready"), [(256, 59), (0, 0)])
def test_pictures_are_decoded_before_there_is_an_engine(narrow_model, pictures, wanted, monkeypatch, mebibytes, ready):
    """As many as there is memory for: slots of one row here, else three. A broken file shares one with the next."""
    monkeypatch.setattr(folder_module, "EARLY_NBYTES", mebibytes << 20)
    monkeypatch.setattr(folder_module, "SPARE_SLOTS", 1)
    monkeypatch.setattr(slots, "ROWS", 1)
    with (
        Engine(narrow_model, device="cpu", batch=4) as engine,
        FilePipeline(list_files([pictures]), spec_for(engine), 2) as folder,
    ):
        until = time.monotonic() + 20
        while folder.loader._queue.qsize() < max(ready, 2) and time.monotonic() < until:
            time.sleep(0.01)
        assert folder.loader._queue.qsize() >= max(ready, 1)
        if not ready:
            assert folder.loader._queue.qsize() <= 3
        with folder.answers(engine, Ranking(3)) as stream:
            check(rows(stream), wanted)


@pytest.mark.parametrize(("batch", "threads"), [(1, 5), (64, 1)])
def test_answers_are_those_of_one_picture_after_the_other(narrow_model, pictures, wanted, batch, threads):
    with Engine(narrow_model, device="cpu", batch=batch) as engine:
        before = threading.active_count()
        pinned = len(engine.device._pinned)
        with answering(engine, [pictures], threads=threads) as stream:
            check(rows(stream), wanted)
        assert len(engine.device._pinned) == pinned  # all is given back
        assert stream.batches == -(-59 // batch)
        assert threading.active_count() == before


@pytest.mark.parametrize(("batch", "seed"), [(4, 0), (32, 2)])  # a slot a batch; many slots a batch
@pytest.mark.parametrize("resize_on_device", [False, True])
def test_nothing_is_read_before_it_is_there_or_written_while_it_is_read(
    narrow_model, pictures, wanted, batch, seed, resize_on_device, monkeypatch
):
    monkeypatch.setattr(slots, "ROWS", 5)
    device = LateDevice(seed)
    with closing(device), Engine(narrow_model, device=Opened(device, "late"), batch=batch) as engine:
        paths = [pictures] * 3  # so that slots and frames are used again
        with answering(engine, paths, threads=2, resize_on_device=resize_on_device) as stream:
            check(rows(stream), wanted * 3)


def test_the_device_really_resizes(narrow_model, pictures, wanted, monkeypatch):
    counted = []
    begin = feed_module.BatchAssembler._begin

    def counting(self, slot):
        counted.append(sum(row.height > 0 for row in slot.rows))
        return begin(self, slot)

    monkeypatch.setattr(feed_module.BatchAssembler, "_begin", counting)
    with (
        Engine(narrow_model, device="cpu", batch=8) as engine,
        answering(engine, [pictures] * 8, threads=1, resize_on_device=True) as stream,
    ):
        check(rows(stream), wanted * 8)
    assert sum(counted) > 100
    pytest.importorskip("simplejpeg")


def numbers_among(pictures, folder, shape):
    """Random floats, or bytes where channels are last; five pictures, the file of the array among and behind them."""
    chance = np.random.default_rng(3)
    is_pixels = shape[-1] == 3
    array = chance.integers(0, 256, shape, dtype=np.uint8) if is_pixels else chance.standard_normal(shape, np.float32)
    np.save(folder / "n.npy", array)
    some = sorted(pictures.iterdir())[:5]
    paths = [some[0], folder / "n.npy", *some[1:], folder / "n.npy"]
    return array, paths


@pytest.mark.parametrize("shape", [(4, 3, SIDE, SIDE), (4, SIDE, SIDE, 3)], ids=["floats", "bytes"])
def test_numbers_and_pictures_change_places(narrow_model, pictures, wanted, tmp_path, shape):
    array, paths = numbers_among(pictures, tmp_path, shape)
    with Engine(narrow_model, device="cpu", batch=4) as engine:
        numbers = [(f"{tmp_path}/n.npy[{i}]", scores) for i, scores in enumerate(engine.run(array))]
        with answering(engine, paths) as stream:
            check(rows(stream), [wanted[0], *numbers, *wanted[1:5], *numbers])
        assert stream.element_types == {"uint8"} if shape[-1] == 3 else {"uint8", "float32"}


def test_leaving_early_ends_all_threads_and_the_engine_serves_on(narrow_model, pictures, wanted):
    with Engine(narrow_model, device="cpu", batch=2) as engine:
        before = threading.active_count()
        for count in (0, 1, 3):
            with answering(engine, [pictures] * 4) as stream:
                for _ in itertools.islice(stream, count):
                    pass
            assert threading.active_count() == before
        with answering(engine, [pictures]) as stream:
            check(rows(stream), wanted)


def test_what_fails_on_the_device_comes_out(narrow_model, pictures, monkeypatch):
    def broken(*_):
        raise KernelError("the launch failed")

    with Engine(narrow_model, device="cpu", batch=2) as engine:
        monkeypatch.setattr("vgg16gpu.runtime.streaming.StagingBuffers.launch", broken)
        with answering(engine, [pictures]) as stream, pytest.raises(KernelError, match="the launch failed"):
            rows(stream)


def test_values_that_are_not_finite_cost_their_own_row(narrow_model, tmp_path):
    numbers = np.random.default_rng(0).standard_normal((5, 3, SIDE, SIDE), np.float32)
    numbers[1, 0, 0, 0] = np.inf
    np.save(tmp_path / "n.npy", numbers)
    with Engine(narrow_model, device="cpu", batch=4) as engine, answering(engine, [tmp_path / "n.npy"]) as stream:
        found = rows(stream)
    assert [bool(row[1]) for row in found] == [False, True, False, False, False]
    assert "infinite" in found[1][1]


def test_images_that_gathered_on_the_device_come_back_for_a_second_pass(narrow_model):
    numbers = np.random.default_rng(0).standard_normal((6, 3, SIDE, SIDE), np.float32)
    with Engine(narrow_model, device="cpu", batch=4) as engine:
        frames = engine.executor.frames(4, "float32", 2)
        frame = frames.take()
        buffer = engine.device.pinned(numbers[:4].nbytes)
        buffer[:] = numbers[:4].reshape(-1).view(np.uint8)
        frames.upload(frame, buffer)
        frames.launch(frame, 4)
        results = frames.receive(frame, 4, 4)
        assert results.outputs[0].tobytes() == engine.run(numbers[:4]).tobytes()
        again = frames.images(frame, 4, np.array([2, 0]))
        assert again.tobytes() == numbers[[2, 0]].tobytes()
        frames.close()


@pytest.mark.parametrize(
    ("count", "kind", "expected"),
    [(1, "cuda", 1), (5, "cuda", 8), (128, "cuda", 128), (10**6, "cuda", 128), (5, "cpu", 1), (16, "cpu", 8)],
)
def test_the_batch_size_goes_by_the_number_of_files(narrow_model, count, kind, expected):
    assert default_batch(count, Model(narrow_model).graph(), (3, SIDE, SIDE), kind) == expected


def test_large_pictures_come_in_small_batches(narrow_model):
    features = Model(narrow_model).graph(outputs=["relu1_1"])
    assert default_batch(10**6, features, (3, 448, 448), "cuda") == 32
    assert default_batch(10**6, features, (3, 8000, 8000), "cpu") == 1


def test_no_input_at_all_that_can_be_read(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_text("none")
    refused = pytest.raises(InputError, match=r"a\.jpg.*\(1 other inputs cannot be read either\)")
    with FilePipeline(list_files([tmp_path]), InputSpec((3, 8, 8)), 2) as folder, refused:
        folder.require_one()

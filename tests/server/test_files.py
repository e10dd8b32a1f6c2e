"""Encoded pictures that the device decodes: from a front end's slots to answers, by a stand-in for nvJPEG."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary, pixels_of
from tests.support.kernel_harness import assert_same_bits
from tests.support.late_device import LateDevice
from tests.support.picture_files import jpeg
from vgg16gpu import Engine
from vgg16gpu.devices import Opened
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.images import fit
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.jpeg import baseline_shape
from vgg16gpu.server.device.files import FileLane
from vgg16gpu.server.device.loop import DeviceLoop
from vgg16gpu.server.device.process import describe
from vgg16gpu.server.pictures import DeviceFiles
from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Bounds, Served
from vgg16gpu.server.slots import File, SlotLayout, SlotMemory, file_in, put_file, slot_memory
from vgg16gpu.server.wire import MAX_NBYTES, Answer, Asked, Kind
from vgg16gpu.zoo.generate import make_vgg

SIDE, LARGEST = 48, 8
PREPROCESS = Preprocess.named("torchvision")
ROOM_NBYTES = 200_000
SIZES = [(60, 90), (48, 48), (200, 31), (7, 5), (128, 130), (33, 100), (150, 150)]
PHOTOS = [jpeg(*size, seed=i, subsampling=2 * (i % 2)) for i, size in enumerate(SIZES)]
BROKEN = jpeg(70, 80, seed=99)  # for the device and for the CPU


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """A decoder that refuses `BROKEN`, of which the CPU makes nothing either."""
    fitted, decode_into = Decoder.fitted, Decoder.decode_into

    def refused(self: Decoder, data: bytes, file: str) -> Any:
        if data == BROKEN:
            raise InputError(f"'{file}' is broken")
        return fitted(self, data, file)

    monkeypatch.setattr(Decoder, "fitted", refused)
    monkeypatch.setattr(Decoder, "decode_into", lambda self, data, out: data != BROKEN and decode_into(self, data, out))
    return FakeLibrary(refuses=lambda data: data == BROKEN)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=SIDE, width=8, hidden=16, classes=12)
    return path


@contextmanager
def built(model: Path, device: Any = "cpu", batch: Any = (1, 4, LARGEST)) -> Iterator[Engine]:
    with Engine(model, device=device, batch=batch, mean=PREPROCESS.unit_mean, std=PREPROCESS.unit_std) as engine:
        yield engine


def lane_of(engine: Engine, lane: Any, library: FakeLibrary, room_nbytes: int = ROOM_NBYTES) -> FileLane:
    spec = InputSpec((3, SIDE, SIDE), preprocess=PREPROCESS)
    return FileLane(engine, lane, spec, NvJpeg(library, FakeForeign()), LARGEST, room_nbytes)


def file_of(data: bytes) -> File:
    shape = baseline_shape(data)
    assert shape
    return File(np.frombuffer(data, np.uint8), *shape)


def slots_of(*pictures: bytes) -> list[Any]:
    slots = [np.full(4 * 3 * SIDE * SIDE, 0xEE, np.uint8) for _ in pictures]
    for slot, data in zip(slots, pictures, strict=True):
        put_file(slot, file_of(data))
    return slots


def expected(engine: Engine, pictures: list[bytes]) -> Any:
    """The scores of the pixels of the stand-in, which are not libjpeg's."""
    rows = [np.asarray(fit(Image.fromarray(pixels_of(data)), SIDE, SIDE, PREPROCESS, "x")) for data in pictures]
    return engine.run(np.stack(rows))


@contextmanager
def answering(engine: Engine, library: FakeLibrary, **options: Any) -> Iterator[tuple[FileLane, Any]]:
    with (
        engine.lane("uint8", (SIDE, SIDE, 3), LARGEST, is_direct=True) as lane,
        lane_of(engine, lane, library, **options) as files,
    ):
        yield files, lane


def names(count: int) -> list[str]:
    return [f"picture {i}" for i in range(count)]


@pytest.mark.parametrize("room_nbytes", [100_000, 300_000, 1 << 22])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_files_become_the_images_of_a_batch(model: Path, count: int, room_nbytes: int) -> None:
    """Whether there is room for all of them at once or not."""
    with built(model) as engine:
        memory = dict(engine.device._heap._sizes)
        right = expected(engine, PHOTOS[:count])
        library = FakeLibrary()
        with answering(engine, library, room_nbytes=room_nbytes) as (files, lane):
            files.warm_up((1, 4, LARGEST))
            for _ in range(3):
                sent, problems = files.send(slots_of(*PHOTOS[:count]), names(count), 4 if count < 5 else LARGEST)
                assert not problems
                assert_same_bits(lane.joined([lane.receive(sent)]), right)
        assert library.open == 0
        assert {*memory.items()} <= {*engine.device._heap._sizes.items()}


def test_one_that_is_no_picture_costs_its_own_answer(model: Path, library: FakeLibrary) -> None:
    with built(model) as engine, answering(engine, library) as (files, lane):
        pictures = [PHOTOS[0], BROKEN, PHOTOS[2]]
        sent, problems = files.send(slots_of(*pictures), ["picture 0", "picture 7", "picture 0"], 4)
        assert problems == {1: "'picture 7' is broken"}
        found = lane.joined([lane.receive(sent)])
        assert_same_bits(found[[0, 2]], expected(engine, [PHOTOS[0], PHOTOS[2]]))
        assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_no_room_is_decoded_into_while_it_is_read(model: Path, seed: int) -> None:
    """On a device whose work is late, two batches under way."""
    device = LateDevice(seed)
    with (
        closing(device),
        built(model, Opened(device, "late"), batch=4) as engine,
        answering(engine, FakeLibrary(), room_nbytes=100_000) as (files, lane),
    ):
        parts = [PHOTOS[i : i + 4] for i in (0, 3, 1, 2, 0)]
        right = [expected(engine, part) for part in parts]
        sent = [files.send(slots_of(*part), names(4), 4)[0] for part in parts[:2]]
        for i, wanted in enumerate(right):
            assert_same_bits(lane.joined([lane.receive(sent[i])]), wanted)
            if i + 2 < len(parts):
                sent.append(files.send(slots_of(*parts[i + 2]), names(4), 4)[0])


BOUNDS = Bounds(1 << 20, 1 << 22, 30_000, 64, 8, 10.0, 10.0)


@pytest.fixture
def served(model: Path) -> Served:
    with built(model) as engine:
        description = describe(engine, None, ROOM_NBYTES)
    return Served("narrow", description, PREPROCESS, (), BOUNDS, (), None)


def test_what_front_ends_leave_to_the_device(served: Served) -> None:
    files = DeviceFiles(served)
    found = files.of(PHOTOS[:3])
    assert found
    assert [(file.height, file.width) for file in found] == SIZES[:3]
    row = np.zeros(SlotLayout.of(served.description).input, np.uint8)
    put_file(row, found[2])
    assert file_in(row).data.tobytes() == PHOTOS[2]
    assert file_in(row)[1:] == found[2][1:]
    png = Path(__file__).parents[2] / "vgg16gpu/data/digit_sample.png"
    assert files.of([PHOTOS[0], png.read_bytes()]) is None
    assert files.of([b"", b"\xff\xd8"]) is None
    assert files.of([PHOTOS[0] + bytes(row.nbytes)]) is None  # longer than a slot
    with pytest.raises(RefusedError, match=r"'picture 1' has 200x151 pixels, at most 30,000 are taken") as refused:
        files.of([PHOTOS[0], jpeg(151, 200)])
    assert refused.value.status == 413
    less = replace(served, description=replace(served.description, room_nbytes=10_000))
    assert DeviceFiles(less).of(PHOTOS[:1]) is None
    assert DeviceFiles(less).of(PHOTOS[1:2])


class FrontEnd:
    """One connection to a device loop, and its slots."""

    def __init__(self, path: Path, layout: SlotLayout) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))
        descriptor = slot_memory(layout, 16)
        self.memory = SlotMemory(descriptor, layout)
        socket.send_fds(self.socket, [Asked(Kind.HELLO, 0).packed()], [descriptor])
        os.close(descriptor)
        assert self.answers(1) == {0: Answer(0)}

    def ask(self, number: int, slots: tuple[int, ...], kind: Kind = Kind.FILES) -> None:
        self.socket.send(Asked(kind, number, 0.0, 1e12, slots).packed())

    def answers(self, count: int) -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        while len(found) < count:
            found |= {answer.number: answer for answer in Answer.unpacked(self.socket.recv(MAX_NBYTES))}
        return found


def test_a_loop_answers_requests_of_files_beside_others(model: Path, tmp_path: Path, library: FakeLibrary) -> None:
    """Of one with a broken picture all is refused, and nobody else's."""
    path = tmp_path / "device"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, built(model) as engine:
        listener.bind(str(path))
        listener.listen(4)
        ours, theirs = multiprocessing.Pipe()
        description = describe(engine, None, ROOM_NBYTES)
        loop = DeviceLoop(engine, description, 0.0, lambda: None, lambda lane: lane_of(engine, lane, library))
        loop.warm_up()
        thread = threading.Thread(target=loop.serve, args=(listener, theirs))
        thread.start()
        front = FrontEnd(path, SlotLayout.of(description))
        memory = front.memory
        for slot, data in enumerate([PHOTOS[0], PHOTOS[1], PHOTOS[2], BROKEN, PHOTOS[3]]):
            put_file(memory.input(slot, memory.layout.input), file_of(data))
        pixels = np.full((SIDE, SIDE, 3), 77, np.uint8)
        memory.input(5, pixels.size).reshape(pixels.shape)[...] = pixels
        front.ask(1, (0, 1))
        front.ask(2, (2, 3))
        front.ask(3, (5,), Kind.PIXELS)
        front.ask(4, (4,))
        answers = front.answers(4)
        front.socket.close()
        ours.close()
        thread.join()
        loop.close()
        theirs.close()
        assert library.open == 0
        assert {number: answer.status for number, answer in answers.items()} == {1: 200, 2: 400, 3: 200, 4: 200}
        assert answers[2].text == "'picture 1' is broken"
        right = expected(engine, [PHOTOS[0], PHOTOS[1], PHOTOS[3]])
        for slot, wanted in zip((0, 1, 4), right, strict=True):
            (scores,) = memory.outputs(slot)
            assert_same_bits(scores, wanted)
        (scores,) = memory.outputs(5)
        assert_same_bits(scores, engine.run(pixels[None])[0])

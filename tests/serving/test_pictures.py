"""Pictures that the device resizes, and may decode, by a stand-in for nvJPEG: from a front end's slots to answers."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serving.running import require_extra
from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary, pixels_of
from tests.support.kernel_harness import assert_same_bits
from tests.support.late_device import LateDevice
from tests.support.later import later
from tests.support.libjpeg_colours import planes_of, rgb
from tests.support.picture_files import jpeg
from vgg16gpu import Engine
from vgg16gpu.devices import Opened
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.images import decode, fit, fitted
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.jpeg import baseline_shape
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_serving.device.loop import DeviceLoop
from vgg16gpu_serving.device.pictures import PictureLane
from vgg16gpu_serving.device.process import describe
from vgg16gpu_serving.front_end.pictures import DevicePictures, check_costs
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Bounds, Served
from vgg16gpu_serving.slots import (
    Lease,
    Picture,
    SlotLayout,
    SlotMemory,
    SlotPool,
    picture_in,
    put_picture,
    slot_memory,
)
from vgg16gpu_serving.wire import MAX_NBYTES, UNDECODED, Answer, Asked, Kind
from vgg16gpu_serving.workers import CancelToken

SIDE, LARGEST, ROW_NBYTES = 48, 8, 1 << 20
PREPROCESS = Preprocess.named("torchvision")
ROOM_NBYTES = 1 << 20
SIZES = [(60, 90), (48, 48), (200, 31), (7, 5), (128, 130), (33, 100), (150, 150)]
PHOTOS = [jpeg(*size, seed=i, subsampling=2 * (i % 2)) for i, size in enumerate(SIZES)]
BROKEN = jpeg(70, 80, seed=99)  # for the device


@pytest.fixture
def library() -> FakeLibrary:
    """A decoder that refuses `BROKEN`."""
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


def lane_of(engine: Engine, lane: Any, library: FakeLibrary | None, room_nbytes: int = ROOM_NBYTES) -> PictureLane:
    spec = InputSpec((3, SIDE, SIDE), preprocess=PREPROCESS)
    codec = NvJpeg(library, FakeForeign()) if library else None
    return PictureLane(engine, lane, spec, codec, LARGEST, room_nbytes)


def file_of(data: bytes) -> Picture:
    shape = baseline_shape(data)
    assert shape
    return Picture(np.frombuffer(data, np.uint8), *shape)


def slots_of(*pictures: bytes) -> list[Any]:
    slots = [np.full(4 * 3 * SIDE * SIDE, 0xEE, np.uint8) for _ in pictures]
    for slot, data in zip(slots, pictures, strict=True):
        put_picture(slot, file_of(data))
    return slots


def expected(engine: Engine, pictures: list[bytes]) -> Any:
    """The scores of the pixels of the stand-in, which are not libjpeg's."""
    rows = [np.asarray(fit(Image.fromarray(pixels_of(data)), SIDE, SIDE, PREPROCESS, "x")) for data in pictures]
    return engine.run(np.stack(rows))


@contextmanager
def answering(engine: Engine, library: FakeLibrary | None, **options: Any) -> Iterator[tuple[PictureLane, Any]]:
    with (
        engine.lane("uint8", (SIDE, SIDE, 3), LARGEST, is_direct=True) as lane,
        lane_of(engine, lane, library, **options) as files,
    ):
        yield files, lane


def check_two_under_way(pictures: PictureLane, lane: Any, slots: list[list[Any]], right: list[Any]) -> None:
    """Batches of four, one after the other."""
    sent = [pictures.send(each, 4)[0] for each in slots[:2]]
    for i, wanted in enumerate(right):
        assert_same_bits(lane.joined([lane.receive(sent[i])]), wanted)
        if i + 2 < len(slots):
            sent.append(pictures.send(slots[i + 2], 4)[0])


def pixels_in_slots(*pictures: bytes) -> list[Any]:
    """Decoded here, every third one fitted as well."""
    slots = [np.full(ROW_NBYTES, 0xEE, np.uint8) for _ in pictures]
    for number, (slot, data) in enumerate(zip(slots, pictures, strict=True)):
        if number % 3 == 2:
            put_picture(slot, Picture(fitted(data, "x", 3, SIDE, SIDE, PREPROCESS).reshape(-1)))
        else:
            pixels = decode(data, "x", 3)
            put_picture(slot, Picture(pixels.reshape(-1), *pixels.shape[:2]))
    return slots


@pytest.mark.parametrize(("room_nbytes", "has_decoder"), [(100_000, True), (1 << 22, False)])
def test_pixels_become_the_images_of_a_batch(model: Path, room_nbytes: int, has_decoder: bool) -> None:
    """With the bits of who fits them by Pillow, whether files are decoded beside or not."""
    right = np.stack([fitted(data, "x", 3, SIDE, SIDE, PREPROCESS) for data in PHOTOS])
    library = FakeLibrary() if has_decoder else None
    with built(model) as engine, answering(engine, library, room_nbytes=room_nbytes) as (pictures, lane):
        pictures.warm_up((1, 4, LARGEST))
        slots = pixels_in_slots(*PHOTOS)
        sent, files, refused = pictures.send(slots, LARGEST)
        assert (files, refused) == (0, frozenset())
        assert_same_bits(lane.joined([lane.receive(sent)]), engine.run(right))
        if library:
            mixed = [*slots_of(PHOTOS[0]), *slots[1:]]
            sent, files, refused = pictures.send(mixed, LARGEST)
            assert (files, refused) == (1, frozenset())
            found = lane.joined([lane.receive(sent)])
            assert_same_bits(found[0], expected(engine, PHOTOS[:1])[0])
            assert_same_bits(found[1:], engine.run(right)[1:])


@pytest.mark.parametrize("seed", [0, *later("more of the same", 1, 2)])
def test_no_pixels_are_overwritten_while_they_are_read(model: Path, seed: int) -> None:
    """On a device whose work is late, two batches under way."""
    device = LateDevice(seed)
    with (
        closing(device),
        built(model, Opened(device, "late"), batch=4) as engine,
        answering(engine, None, room_nbytes=100_000) as (pictures, lane),
    ):
        parts = [PHOTOS[i : i + 4] for i in (0, 3, 1, 2, 0)]
        slots = [pixels_in_slots(*part) for part in parts]
        right = [
            engine.run(np.stack([fitted(each, "x", 3, SIDE, SIDE, PREPROCESS) for each in part])) for part in parts
        ]
        check_two_under_way(pictures, lane, slots, right)


@pytest.mark.parametrize(("room_nbytes", "count"), [(100_000, 7), (1 << 22, 1)])
def test_files_become_the_images_of_a_batch(model: Path, count: int, room_nbytes: int) -> None:
    """Whether there is room for all of them at once or not."""
    with built(model) as engine:
        memory = dict(engine.device._heap._sizes)
        right = expected(engine, PHOTOS[:count])
        library = FakeLibrary()
        with answering(engine, library, room_nbytes=room_nbytes) as (files, lane):
            files.warm_up((1, 4, LARGEST))
            for _ in range(3):
                sent, found, refused = files.send(slots_of(*PHOTOS[:count]), 4 if count < 5 else LARGEST)
                assert (found, refused) == (count, frozenset())
                assert_same_bits(lane.joined([lane.receive(sent)]), right)
        assert library.open == 0
        assert {*memory.items()} <= {*engine.device._heap._sizes.items()}


def test_nothing_of_a_picture_stays_on_the_device(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that writes nothing of a damaged one has not the one before it in its place."""
    with built(model) as engine, answering(engine, FakeLibrary()) as (files, lane):
        for _ in range(2):
            lane.receive(files.send(slots_of(PHOTOS[0]), 1)[0])
        monkeypatch.setattr(FakeLibrary, "_write", lambda *_: None)
        found = lane.joined([lane.receive(files.send(slots_of(PHOTOS[0]), 1)[0])])
        sampling = file_of(PHOTOS[0]).sampling
        y, cb, cr = map(np.zeros_like, planes_of(PHOTOS[0], sampling))
        nothing = Image.fromarray(rgb((y, cb, cr), sampling))
        pixels = np.asarray(fit(nothing, SIDE, SIDE, PREPROCESS, "x"))
        assert_same_bits(found, engine.run(pixels[None]))


@pytest.mark.parametrize("seed", [0, *later("more of the same", 1, 2)])
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
        check_two_under_way(files, lane, [slots_of(*part) for part in parts], right)


DEADLINE = time.monotonic() + 1e6
BOUNDS = Bounds(1 << 20, 1 << 22, 30_000, 120_000, 64, 8, 10.0)


@pytest.fixture
def served(model: Path) -> Served:
    with built(model) as engine:
        description = describe(engine, None, ROOM_NBYTES, decodes=True)
    return Served("narrow", description, PREPROCESS, (), BOUNDS, (), None)


def put(served: Served, pictures: list[bytes], *, as_files: bool = True) -> list[Picture]:
    """What lies in the slots for them then."""
    nbytes = SlotLayout.of(served.description).input
    rows = [np.full(nbytes, 0xEE, np.uint8) for _ in pictures]
    device = DevicePictures(served)
    plans = device.plan(pictures, rows, as_files=as_files)
    check_costs([plan.cost for plan in plans], served.bounds)
    has_files = device.put(plans, rows, CancelToken(math.inf))
    found = [picture_in(row) for row in rows]
    assert has_files == any(picture.sampling for picture in found)
    return found


def test_what_front_ends_leave_to_the_device(served: Served) -> None:
    assert SlotLayout.of(served.description).input == ROW_NBYTES
    for data, picture, size in zip(PHOTOS[:3], put(served, PHOTOS[:3]), SIZES, strict=False):
        assert picture.data.tobytes() == data
        assert picture[1:] == file_of(data)[1:]
        assert picture[1:3] == size
    png = (Path(__file__).parents[2] / "vgg16gpu/data/digit_sample.png").read_bytes()
    file, ready = put(replace(served, bounds=replace(BOUNDS, pixels=256 * 256)), [PHOTOS[0], png])
    assert file.sampling
    assert ready[1:] == (0, 0, 0)
    assert_same_bits(ready.data, fitted(png, "x", 3, SIDE, SIDE, PREPROCESS).reshape(-1))
    with pytest.raises(RefusedError, match=r"'picture 1' has 200x151 pixels, at most 30,000 are taken") as refused:
        put(served, [PHOTOS[0], jpeg(151, 200)])
    assert refused.value.status == 413
    with pytest.raises(RefusedError, match="'picture 1' is not a readable image") as refused:
        put(served, [PHOTOS[0], b"\xff\xd8"])
    assert refused.value.status == 400
    less = replace(served, description=replace(served.description, room_nbytes=8 * 17_000))
    assert [picture.sampling > 0 for picture in put(less, PHOTOS[:2])] == [False, True]


def test_what_front_ends_decode_for_a_device_that_resizes(served: Served) -> None:
    """JPEG files to pixels in the slots; what has no room there is fitted, too."""
    for data, picture, size in zip(PHOTOS, put(served, PHOTOS, as_files=False), SIZES, strict=True):
        assert picture[1:] == (*size, 0)
        assert np.array_equal(picture.data, decode(data, "x", 3).reshape(-1))
    bounds = replace(BOUNDS, pixels=1 << 20, request_pixels=1 << 20)
    large = jpeg(600, 600, seed=3)
    (picture,) = put(
        replace(served, bounds=bounds, description=replace(served.description, room_nbytes=1 << 26)), [large]
    )
    assert (picture.height, picture.width) == (600, 600)
    (picture,) = put(replace(served, bounds=bounds), [large], as_files=False)
    assert picture[1:] == (0, 0, 0)
    assert_same_bits(picture.data, fitted(large, "x", 3, SIDE, SIDE, PREPROCESS).reshape(-1))
    with pytest.raises(RefusedError, match=r"'picture 0' has 200x151 pixels") as refused:
        put(served, [jpeg(151, 200)], as_files=False)
    assert refused.value.status == 413


def test_files_that_parsers_see_differently_are_decoded_by_front_ends(served: Served) -> None:
    scan = PHOTOS[0].index(b"\xff\xda")
    frame = PHOTOS[0].index(b"\xff\xc0")
    again = PHOTOS[0][:-2] + PHOTOS[0][frame : frame + 19] + PHOTOS[0][scan:]  # another frame behind the scan
    assert baseline_shape(again) == baseline_shape(PHOTOS[0])
    lines = PHOTOS[0][:-2] + b"\xff\xdc\0\4\x7f\xff\xff\xd9"  # another height there
    for data in (again, lines, PHOTOS[0] + bytes(ROW_NBYTES)):
        with suppress(RefusedError):  # damaged for the CPU, too
            (picture,) = put(served, [data])
            assert not picture.sampling


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

    def ask(self, number: int, slots: tuple[int, ...], kind: Kind = Kind.PICTURES) -> None:
        self.socket.send(Asked(kind, number, 0.0, 1e12, slots).packed())

    def answers(self, count: int) -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        while len(found) < count:
            found |= {answer.number: answer for answer in Answer.unpacked(self.socket.recv(MAX_NBYTES))}
        return found


def test_a_loop_answers_requests_of_files_beside_others(model: Path, tmp_path: Path, library: FakeLibrary) -> None:
    """Of one with a picture that is refused the front end may decode all; nobody else notices."""
    path = tmp_path / "device"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, built(model) as engine:
        listener.bind(str(path))
        listener.listen(4)
        ours, theirs = multiprocessing.Pipe()
        description = describe(engine, None, ROOM_NBYTES, decodes=True)
        loop = DeviceLoop(engine, description, 0.0, lambda: None, lambda lane: lane_of(engine, lane, library))
        loop.warm_up()
        thread = threading.Thread(target=loop.serve, args=(listener, theirs))
        thread.start()
        front = FrontEnd(path, SlotLayout.of(description))
        memory = front.memory
        for slot, data in enumerate([PHOTOS[0], PHOTOS[1], PHOTOS[2], BROKEN, PHOTOS[3]]):
            put_picture(memory.input(slot, memory.layout.input), file_of(data))
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
        assert {number: answer.status for number, answer in answers.items()} == {1: 200, 2: UNDECODED, 3: 200, 4: 200}
        told = loop._statistics.told()
        assert (told["file_count"], told["refused_file_count"]) == (5, 1)
        right = expected(engine, [PHOTOS[0], PHOTOS[1], PHOTOS[3]])
        for slot, wanted in zip((0, 1, 4), right, strict=True):
            (scores,) = memory.outputs(slot)
            assert_same_bits(scores, wanted)
        (scores,) = memory.outputs(5)
        assert_same_bits(scores, engine.run(pixels[None])[0])


class Links:
    """A device that refuses files, and computes pixels; the kinds that it was asked for."""

    is_ready = True

    def __init__(self, engine: Engine, memory: SlotMemory, pool: SlotPool, *, refuses: bool) -> None:
        self.engine, self.memory, self.pool, self.refuses = engine, memory, pool, refuses
        self.asked: list[Kind] = []

    async def ask(self, kind: Kind, lease: Lease, deadline: float) -> Answer:
        assert deadline == DEADLINE
        self.asked.append(kind)
        assert kind == Kind.PICTURES
        found = [picture_in(self.memory.input(slot, self.memory.layout.input)) for slot in lease.slots]
        if self.refuses and found[0].sampling:
            self.pool.give_back(lease)
            raise RefusedError(UNDECODED, "")
        for slot, picture in zip(lease.slots, found, strict=True):
            if picture.sampling:
                assert picture.data.tobytes() in PHOTOS
                self.memory.outputs(slot)[0][:] = 7
            else:
                pixels = Image.fromarray(picture.data.reshape(picture.height, picture.width, 3))
                self.memory.outputs(slot)[0][:] = self.engine.run(fit(pixels, SIDE, SIDE, PREPROCESS, "x")[None])[0]
        return Answer(1, 200, len(lease.slots))


@pytest.mark.parametrize("refuses", [False, True])
def test_a_front_end_decodes_what_the_device_refuses(model: Path, served: Served, refuses: bool) -> None:
    require_extra()
    from vgg16gpu_serving.front_end.app import App, Call

    layout = SlotLayout.of(served.description)
    descriptor = slot_memory(layout, 4)
    memory, pool = SlotMemory(descriptor, layout), SlotPool(4)
    os.close(descriptor)
    raw = b"".join(len(data).to_bytes(4, "little") + data for data in PHOTOS[:2])
    asked = {"name": "input", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [asked]}).encode()
    headers = {"inference-header-content-length": str(len(head))}

    async def read() -> bytes:
        return head + raw

    with built(model) as engine:
        links: Any = Links(engine, memory, pool, refuses=refuses)
        metrics: Any = SimpleNamespace(answered=lambda *_: None, decoded=lambda *_: None)
        explanations: Any = None  # nobody asks
        app = App(served, memory, pool, links, metrics, explanations, lambda: False)
        reply = asyncio.run(app.handle(Call("POST", "/v2/models/narrow/infer", headers.get, read, DEADLINE)))
        assert reply.status == 200, reply.body
        assert links.asked == [Kind.PICTURES, Kind.PICTURES][: 1 + refuses]
        assert pool.used == 0
        (output,) = json.loads(reply.body)["outputs"]
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        pixels = [fitted(data, "x", 3, SIDE, SIDE, PREPROCESS) for data in PHOTOS[:2]]
        assert_same_bits(found, engine.run(np.stack(pixels)) if refuses else np.full((2, 12), 7, np.float32))

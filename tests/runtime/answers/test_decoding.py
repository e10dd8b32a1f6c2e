"""runtime/answers/decoding.py: files decoded on the device, by a stand-in for nvJPEG on the cpu device."""

import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary, pixels_of
from tests.support.late_device import LateDevice
from tests.support.picture_files import jpeg, pixels
from vgg16gpu import Engine, classify
from vgg16gpu.devices import Opened, open_codec
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg, NvJpegDecoder, is_installed
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.images import fit, load_image
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.runtime.answers import decoding
from vgg16gpu.runtime.answers.codec_choice import codec_for, decodes_on_device
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Ranking

from .conftest import SIDE
from .test_stream import check, rows, spec_for


@pytest.fixture(scope="module")
def faded(narrow_model, pictures, wanted):
    """(name, scores or None) of every file, with the pixels of the stand-in where it takes the file."""
    found = []
    with Engine(narrow_model, device="cpu") as engine:
        decoder, preprocess = Decoder(spec_for(engine)), spec_for(engine).preprocess
        for (name, scores), path in zip(wanted, sorted(pictures.iterdir()), strict=True):
            data = path.read_bytes()
            if scores is not None and decoder.file_shape(data):
                pixels = np.asarray(fit(Image.fromarray(pixels_of(data)), SIDE, SIDE, preprocess, name))
                found.append((name, engine.run(pixels[np.newaxis])[0]))
            else:
                found.append((name, scores))
    changed = sum(a is not None and a.tobytes() != b.tobytes() for (_, a), (_, b) in zip(found, wanted, strict=True))
    assert 40 <= changed < 50  # all JPEG files but the broken one, no PNG
    return found


@contextmanager
def answering(engine, paths, codec, *, threads=3, first=(0, 0)):
    listing = list_files(paths)
    with FilePipeline(listing, spec_for(engine), threads, first, decodes_on_device=True) as folder:
        folder.require_one()
        with folder.answers(engine, Ranking(3), codec=codec) as stream:
            yield stream


def codec_of(library):
    return NvJpeg(library, FakeForeign())


@pytest.mark.parametrize(("batch", "threads"), [(1, 5), (64, 1)])
def test_answers_are_those_of_the_device_s_pixels_in_the_order_of_files(narrow_model, pictures, faded, batch, threads):
    codec = codec_of(library := FakeLibrary())
    with Engine(narrow_model, device="cpu", batch=batch) as engine:
        before, memory = threading.active_count(), dict(engine.device._heap._sizes)
        with answering(engine, [pictures], codec, threads=threads) as stream:
            check(rows(stream), faded)
        assert threading.active_count() == before
        assert stream.decoded.by == codec.name
        assert (stream.decoded.refused, stream.decoded.failed) == (0, 0)
        assert stream.decoded.rate > 0
        assert library.open == 0
        assert engine.device._heap._sizes == memory  # all is given back


def test_where_the_planes_are_libjpeg_s_the_answers_are_the_cpu_s_to_the_bit(narrow_model, tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.jpg").write_bytes(jpeg(1 + 5 * i, 200 - 5 * i, seed=i, subsampling=2 * (i % 2)))
    answers = {}
    with Engine(narrow_model, device="cpu", batch=8) as engine:
        for name, codec in (("cpu", None), ("gpu", codec_of(FakeLibrary(shift=0)))):
            with answering(engine, [tmp_path], codec) as stream:
                answers[name] = rows(stream)
                assert stream.decoded.refused == (0 if codec else stream.decoded.count)
    assert len(answers["cpu"]) == 40
    for by_cpu, by_gpu in zip(answers["cpu"], answers["gpu"], strict=True):
        assert by_cpu[:2] == by_gpu[:2]
        assert by_cpu[2].tobytes() == by_gpu[2].tobytes()


@pytest.mark.parametrize(("batch", "seed"), [(4, 0), (32, 2)])
def test_no_room_is_decoded_into_while_it_is_read(narrow_model, pictures, faded, batch, seed, monkeypatch):
    monkeypatch.setattr(decoding, "ROWS", 5)
    device = LateDevice(seed)
    with (
        closing(device),
        Engine(narrow_model, device=Opened(device, "late"), batch=batch) as engine,
        answering(engine, [pictures] * 3, codec_of(FakeLibrary()), threads=2) as stream,
    ):
        check(rows(stream), faded * 3)


def test_several_decoders_work_side_by_side_in_batches_of_a_slot(narrow_model, pictures, faded, monkeypatch):
    monkeypatch.setattr(decoding, "ROWS", 8)
    monkeypatch.setattr(decoding, "DECODERS", 2)
    library = FakeLibrary(seconds=1e-3)
    with (
        Engine(narrow_model, device="cpu", batch=8) as engine,
        answering(engine, [pictures] * 2, codec_of(library), threads=2) as stream,
    ):
        check(rows(stream), faded * 2)
    assert 5 < max(library.calls) <= 8  # beside PNG
    assert 1 < library.most_at_once <= decoding.DECODERS


def test_where_nothing_decodes_after_all_the_cpu_does(narrow_model, pictures, wanted):
    with Engine(narrow_model, device="cpu", batch=8) as engine, answering(engine, [pictures], None) as stream:
        check(rows(stream), wanted)
        assert stream.decoded.by == "the CPU"
        assert stream.decoded.refused == stream.decoded.count > 40


def test_what_only_pillow_decodes_comes_as_the_network_takes_it(narrow_model, pictures, wanted, monkeypatch):
    monkeypatch.setattr(Decoder, "decode_into", lambda *_: False)
    with Engine(narrow_model, device="cpu", batch=8) as engine, answering(engine, [pictures], None) as stream:
        check(rows(stream), wanted)


def test_a_file_that_nobody_decodes_costs_its_own_row(narrow_model, pictures, faded, monkeypatch):
    names = [name for name, _ in faded]
    lost = next(name for name in names if "17.jpg" in name)
    data = Path(lost).read_bytes()
    fitted = Decoder.fitted

    def broken(self, found, file):
        if file == lost:
            raise InputError(f"'{file}' is broken")
        return fitted(self, found, file)

    monkeypatch.setattr(Decoder, "fitted", broken)
    monkeypatch.setattr(Decoder, "decode_into", lambda *_: False)
    library = FakeLibrary(refuses=lambda file: file == data)
    with Engine(narrow_model, device="cpu", batch=8) as engine:
        with answering(engine, [pictures], codec_of(library)) as stream:
            check(rows(stream), [(name, None if name == lost else scores) for name, scores in faded])
        assert stream.decoded.failed == 1
    only = FakeLibrary(refuses=lambda _: True)  # a slot without a single row
    monkeypatch.setattr(NvJpeg, "_tried", lambda self, way: NvJpegDecoder(self._library, self._foreign, way))
    with Engine(narrow_model, device="cpu") as engine, answering(engine, [lost], codec_of(only)) as stream:
        check(rows(stream), [(lost, None)])


def test_what_breaks_on_the_device_comes_out(narrow_model, pictures, monkeypatch):
    def broken(*_):
        raise KernelError("the card has gone")

    codec = codec_of(FakeLibrary())
    monkeypatch.setattr(FakeForeign, "finish", broken)
    with Engine(narrow_model, device="cpu", batch=2) as engine:
        before = threading.active_count()
        with answering(engine, [pictures], codec) as stream, pytest.raises(KernelError, match="the card has gone"):
            rows(stream)
        assert threading.active_count() == before


def test_leaving_early_ends_all_threads_and_the_engine_serves_on(narrow_model, pictures, faded):
    codec = codec_of(FakeLibrary())
    with Engine(narrow_model, device="cpu", batch=2) as engine:
        before = threading.active_count()
        for count in (0, 3):
            with answering(engine, [pictures] * 10, codec) as stream:
                for _, _ in zip(range(count), stream, strict=False):
                    pass
            assert threading.active_count() == before
        with answering(engine, [pictures], codec) as stream:
            check(rows(stream), faded)


def test_memory_is_bounded_and_what_finds_no_room_is_decoded_by_the_cpu(narrow_model, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "ROOM_NBYTES", room := 100_000)
    monkeypatch.setattr(decoding, "FILES_NBYTES", 20_000)
    chance = np.random.default_rng(0)
    sizes = [(150, 200), (300, 300), (100, 120), (40, 800), (16, 16)] * 10  # (300, 300) and (40, 800): 270,000; 96,000
    for i, size in enumerate(sizes):
        coarse = chance.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(tmp_path / f"{i:02}.jpg")
    taken = []
    library = FakeLibrary(refuses=lambda data: taken.append(len(pixels_of(data))))
    with Engine(narrow_model, device="cpu", batch=8) as engine:
        before = dict(engine.device._heap._sizes)
        allocate, found = engine.device.allocate, []
        monkeypatch.setattr(engine.device, "allocate", lambda nbytes: found.append(nbytes) or allocate(nbytes))
        with answering(engine, [tmp_path], codec_of(library)) as stream:
            answers = rows(stream)
        assert [row[1] for row in answers] == [""] * len(sizes)
        assert found.count(room) == decoding.DECODERS + decoding.SPARE_ROOMS
        assert engine.device._heap._sizes == before
        assert taken.count(300) == 0
        for i in (1, 6):
            pixels = load_image(tmp_path / f"{i:02}.jpg", 3, SIDE, SIDE)
            assert answers[i][2].tobytes() == engine.run(pixels[np.newaxis])[0].tobytes()


def with_identities(data, identities):
    """A JPEG file without JFIF whose components are called so."""
    data = data[:2] + data[data.index(b"\xff\xdb") :]
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    changed = bytearray(data)
    for number, identity in enumerate(identities):
        changed[frame + 10 + 3 * number] = changed[scan + 5 + 2 * number] = identity
    return bytes(changed)


def test_what_decoders_of_gpus_do_not_all_know_is_the_cpu_s():
    turned = Image.Exif()
    turned[0x0112] = 6
    taken = Decoder(InputSpec((3, 8, 8))).file_shape
    for number, sampling in enumerate((0x11, 0x21, 0x22)):
        assert taken(jpeg(30, 40, subsampling=number)) == (30, 40, sampling)
    assert taken(with_identities(jpeg(30, 40), (1, 2, 3))) == (30, 40, 0x22)
    assert taken(with_identities(jpeg(30, 40), b"RGB")) is None
    for options in ({"progressive": True}, {"exif": turned}, {"channels": 1}):
        assert taken(jpeg(30, 40, **options)) is None
    simplejpeg = pytest.importorskip("simplejpeg")
    for sampling in ("440", "411"):
        assert taken(simplejpeg.encode_jpeg(pixels(32, 48), colorsubsampling=sampling)) is None
    assert taken(simplejpeg.encode_jpeg(pixels(32, 48), colorsubsampling="420")) == (32, 48, 0x22)


@pytest.mark.gpu
@pytest.mark.skipif(not is_installed(), reason="nvJPEG is not installed")
def test_on_a_card_two_runs_are_equal_and_where_hardware_decodes_they_equal_the_cpu_s(
    narrow_model, pictures, tmp_path, gpu
):
    is_exact = open_codec(gpu).name.endswith("hardware")
    for i in range(150):
        (tmp_path / f"{i:03}.jpg").write_bytes(jpeg(60 + i, 40 + 3 * i, seed=i, quality=90, subsampling=i % 3))
    found = {
        run: list(classify([tmp_path, pictures], narrow_model, device="cuda", decode=run[:3]))
        for run in ("cpu", "gpu", "gpu again")
    }
    for by_cpu, once, again in zip(*found.values(), strict=True):
        assert by_cpu.name == once.name == again.name
        assert by_cpu.error == once.error == again.error
        if not once.error:
            assert once.scores.tobytes() == again.scores.tobytes()
            bound = 0.0 if is_exact else 0.1 * np.abs(by_cpu.scores).max()
            assert np.abs(once.scores - by_cpu.scores).max() <= bound


def test_who_decodes(narrow_model, monkeypatch):
    with Engine(narrow_model, device="cpu") as engine:
        spec = spec_for(engine)
    gray = InputSpec((1, 8, 8), preprocess=spec.preprocess)
    monkeypatch.setattr("vgg16gpu.devices.cuda.nvjpeg.is_installed", lambda: True)
    assert not decodes_on_device("cpu", "cuda", spec)
    assert not decodes_on_device("auto", "cuda", spec)
    assert decodes_on_device("gpu", "auto", spec)
    with pytest.raises(DeviceError, match=r"^decode gpu: .* the device is the CPU"):
        decodes_on_device("gpu", "cpu", spec)
    for given in (gray, replace(gray, shape=(4, 8, 8)), replace(gray, shape=(10,))):
        with pytest.raises(InputError, match=r"^decode gpu: GPUs decode to RGB, .*; give --decode cpu"):
            decodes_on_device("gpu", "cuda", given)
    with pytest.raises(InputError, match="decode 'tpu' is not one of auto, cpu, gpu"):
        decodes_on_device("tpu", "cuda", spec)
    monkeypatch.setattr("vgg16gpu.pictures.choices.AUTO", "gpu")  # what one line would change
    assert [decodes_on_device("auto", *given) for given in (("cuda", spec), ("cpu", spec), ("cuda", gray))] == [
        True,
        False,
        False,
    ]
    monkeypatch.setattr("vgg16gpu.devices.cuda.nvjpeg.is_installed", lambda: False)
    with pytest.raises(DeviceError, match=r"^decode gpu: nvJPEG.* is not installed: python -m pip install"):
        decodes_on_device("gpu", "cuda", spec)
    with Engine(narrow_model, device="cpu") as engine:
        with pytest.raises(DeviceError, match=r"^decode gpu: pictures are decoded by NVIDIA GPUs alone"):
            codec_for(engine.device, "gpu")
        assert codec_for(engine.device, "auto") is None

"""devices/cuda/nvjpeg.py: which backend is taken, what is refused; with the library itself where there is a card."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary, aligned_bytes, faded_planes
from tests.support.libjpeg_colours import laid_out, planes_in, planes_of, rgb
from vgg16gpu.devices import codec_problem, open_codec, open_device
from vgg16gpu.devices.cuda import nvjpeg
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg, NvJpegDecoder, load_nvjpeg
from vgg16gpu.devices.cuda.probe import Driver
from vgg16gpu.devices.picture_decoder import Place
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.ycbcr import planes_nbytes

SAMPLINGS = (0x11, 0x21, 0x22)  # as Pillow's subsampling 0, 1, 2


def jpeg(height=48, width=64, seed=0, sampling=0x22, **options):
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    file, picture = io.BytesIO(), Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    picture.save(file, "JPEG", subsampling=SAMPLINGS.index(sampling), **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def room(height, width, sampling=0x22):
    planes = aligned_bytes(planes_nbytes(height, width, sampling))
    planes[:] = 99
    return planes, Place(planes.ctypes.data, height, width, sampling)


def test_the_first_backend_that_works_is_taken_and_named():
    assert NvJpeg(FakeLibrary(), FakeForeign()).name == "nvJPEG 0.0.1, hardware"
    library = FakeLibrary(works=("CUDA",))
    codec = NvJpeg(library, FakeForeign())
    assert codec.name == "nvJPEG 0.0.1, CUDA"
    held = library.open
    assert held > 0  # what was tried is kept: making it takes most of a second
    first = codec.decoder()
    assert library.open == held
    second = codec.decoder()
    assert library.open > held
    codec.close()  # of what nobody took; both were taken
    second.close()
    assert library.open == held
    first.close()
    assert library.open == 0


def test_a_decoder_that_nobody_takes_is_given_back():
    library = FakeLibrary()
    codec = NvJpeg(library, FakeForeign())
    assert library.open > 0
    codec.close()
    codec.close()
    assert library.open == 0


@pytest.mark.parametrize(
    ("library", "problem"),
    [
        (FakeLibrary(works=()), "nvjpegCreateEx returns 9"),
        (FakeLibrary(refuses=lambda _: True), "it refuses a JPEG file of the usual kind"),
        (FakeLibrary(wrong_pixels=True), r"its luminance is \d+\.\d of 255 from libjpeg's in the mean"),
    ],
)
def test_where_no_backend_works_every_reason_is_told(library, problem):
    with pytest.raises(DeviceError, match=f"decodes nothing on this GPU .hardware: .*{problem}.*; CUDA: .*{problem}"):
        NvJpeg(library, FakeForeign())
    assert library.open == 0


def test_planes_come_to_their_places_a_call_for_each_sampling_and_are_waited_for_once():
    library, foreign = FakeLibrary(), FakeForeign()
    decoder = NvJpeg(library, foreign).decoder()
    kinds = [(48, 64, 0x22), (20, 31, 0x11), (33, 5, 0x21), (1, 1, 0x22), (17, 40, 0x11)]
    files = [jpeg(height, width, i, sampling) for i, (height, width, sampling) in enumerate(kinds)]
    rooms = [room(*kind) for kind in kinds]
    before = len(foreign.finished)
    library.calls.clear()
    library.samplings.clear()
    assert decoder.decode(files, [place for _, place in rooms]) == [True] * 5
    assert (library.calls, library.samplings) == ([2, 2, 1], [{0x22}, {0x11}, {0x21}])
    for file, (found, _), (_, _, sampling) in zip(files, rooms, kinds, strict=True):
        np.testing.assert_array_equal(found, laid_out(faded_planes(file.tobytes()), sampling))
    assert len(foreign.finished) == before + 1
    decoder.close()
    decoder.close()
    assert library.open == 0


def test_a_file_that_is_refused_takes_those_of_its_sampling_with_it_and_is_no_trouble_alone():
    decoder = NvJpeg(FakeLibrary(), FakeForeign()).decoder()
    files = [jpeg(seed=1), np.frombuffer(b"no picture", np.uint8), jpeg(seed=3, sampling=0x11), jpeg(seed=2)]
    rooms = [room(48, 64), room(48, 64), room(48, 64, 0x11), room(48, 64)]
    places = [place for _, place in rooms]
    assert decoder.decode(files, places) == [False, False, True, False]
    assert [decoder.decode([file], [place]) for file, place in zip(files, places, strict=True)] == [
        [True],
        [False],
        [True],
        [True],
    ]


@pytest.mark.parametrize(("cuda", "packages"), [((12, 8), "nvidia-nvjpeg-cu12"), ((13, 1), "nvidia-nvjpeg")])
def test_what_to_install_goes_by_the_driver(cuda, packages, monkeypatch):
    monkeypatch.setattr(nvjpeg, "probe_driver", lambda: Driver(cuda, Path(), ()))
    monkeypatch.setattr(nvjpeg, "_found", lambda: (None, ""))
    wanted = f"is not installed: python -m pip install {packages}"
    assert codec_problem("cuda").endswith(wanted)
    with pytest.raises(DeviceError) as error:
        load_nvjpeg()
    assert str(error.value).endswith(wanted)


def test_a_cpu_decodes_nothing():
    assert "the device is the CPU" in codec_problem("cpu")
    device, _ = open_device("cpu")
    with pytest.raises(DeviceError, match="decoded by NVIDIA GPUs alone"):
        open_codec(device)
    device.close()


@pytest.fixture
def codec(gpu):
    if not nvjpeg.is_installed():
        pytest.skip("nvJPEG is not installed")
    return open_codec(gpu)


@pytest.mark.gpu
@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("way", nvjpeg.WAYS, ids=lambda way: way.name)
def test_on_a_card(gpu, way):
    try:
        decoder = NvJpegDecoder(load_nvjpeg(), gpu.foreign, way)
    except DeviceError as error:
        pytest.skip(f"this card has no such backend: {error}")
    chance = np.random.default_rng(0)
    for count in (1, 3, 70):
        kinds = [(*map(int, chance.integers(16, 500, 2)), SAMPLINGS[i % 3]) for i in range(count)]
        files = [jpeg(*kind[:2], i, kind[2], quality=92) for i, kind in enumerate(kinds)]
        starts = np.cumsum([0, *(planes_nbytes(*kind) for kind in kinds)])
        address = gpu.allocate(int(starts[-1]))
        places = [Place(address + int(start), *kind) for start, kind in zip(starts, kinds, strict=False)]
        assert decoder.decode(files, places) == [True] * count
        found, again = np.empty(starts[-1], np.uint8), np.empty(starts[-1], np.uint8)
        gpu.copy_out(found, address)
        gpu.synchronize()
        for file, start, kind in zip(files, starts, kinds, strict=False):
            mine = planes_in(found[start:], *kind)
            with Image.open(io.BytesIO(file.tobytes())) as picture:
                difference = np.abs(rgb(mine, kind[2]).astype(int) - np.asarray(picture))
            assert difference.max() == 0 if way.name == "hardware" else difference.mean() < 1
            if kind[2] != 0x21:
                wanted = planes_of(file.tobytes(), kind[2])
                assert max(np.abs(a.astype(int) - b).max() for a, b in zip(mine, wanted, strict=True)) <= 1
        for file, place in zip(files, places, strict=True):  # alone: the same bits
            assert decoder.decode([file], [place]) == [True]
        gpu.copy_out(again, address)
        gpu.synchronize()
        for start, kind in zip(starts, kinds, strict=False):
            for a, b in zip(planes_in(found[start:], *kind), planes_in(again[start:], *kind), strict=True):
                np.testing.assert_array_equal(a, b)
        gpu.free(address)
    decoder.close()


@pytest.mark.gpu
def test_damaged_files_on_a_card(gpu, codec):
    decoder = codec.decoder()
    whole = jpeg(300, 400, quality=92)
    damaged = whole.copy()
    damaged[len(damaged) // 2 : len(damaged) // 2 + 200] = np.random.default_rng(0).integers(0, 255, 200)
    nbytes = planes_nbytes(300, 400, 0x22)
    address = gpu.allocate(4 * nbytes)
    places = [Place(address + i * nbytes, 300, 400, 0x22) for i in range(4)]
    try:
        decoder.decode([whole, damaged, whole[: len(whole) // 2], whole], places)  # whatever it says of these
    except KernelError as error:
        pytest.fail(f"a damaged file broke the card: {error}")
    assert decoder.decode([whole], places[:1]) == [True]
    decoder.close()
    gpu.free(address)


@pytest.mark.gpu
def test_further_streams_on_a_card(gpu):
    streams = {gpu.foreign.open_stream() for _ in range(3)}
    assert len(streams | {gpu.foreign.stream}) == 4
    for stream in streams:
        gpu.foreign.finish(stream)

"""devices/cuda/nvimgcodec.py: which backend is taken, what is refused; with the library itself where that is there."""

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.support.fake_nvimgcodec import SHIFT, FakeDecoder, FakeForeign, FakeModule, pixels_of
from vgg16gpu.devices import codec_problem, open_codec, open_device
from vgg16gpu.devices.cuda import nvimgcodec
from vgg16gpu.devices.cuda.nvimgcodec import NvImageCodec, load_nvimgcodec
from vgg16gpu.devices.cuda.probe import Driver
from vgg16gpu.devices.picture_decoder import Place
from vgg16gpu.errors import DeviceError, KernelError


def jpeg(height=48, width=64, seed=0, **options):
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def room(*shape):
    pixels = np.zeros(shape, np.uint8)
    return pixels, Place(pixels.ctypes.data, *shape[:2])


def test_the_first_backend_that_works_is_taken_and_named(monkeypatch):
    monkeypatch.setattr(nvimgcodec, "_nvjpeg_version", lambda: "1.2.3")
    assert NvImageCodec(FakeModule(), FakeForeign()).name == "nvImageCodec 0.0.1, nvJPEG 1.2.3, hardware"
    module = FakeModule(works=("hybrid",))
    assert NvImageCodec(module, FakeForeign()).name.endswith(", CUDA")
    assert module.open == 0  # what was tried is given back


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (FakeModule(works=()), "Could not create decoder"),
        (FakeModule(refuses=lambda _: True), "it refuses a JPEG file of the usual kind"),
        (FakeModule(wrong_pixels=True), r"its pixels are \d+\.\d of 255 from libjpeg's in the mean"),
    ],
)
def test_where_no_backend_works_every_reason_is_told(module, problem):
    with pytest.raises(DeviceError, match=f"decodes nothing on this GPU .hardware: .*{problem}.*; CUDA: .*{problem}"):
        NvImageCodec(module, FakeForeign())
    assert module.open == 0


def test_colours_are_interpolated_as_libjpeg_does(monkeypatch):
    given = []
    module = FakeModule()
    monkeypatch.setattr(module, "Decoder", lambda **options: given.append(options) or FakeDecoder(module))
    NvImageCodec(module, FakeForeign())
    assert [options["options"] for options in given] == [":fancy_upsampling=1"]
    assert [options["backends"] for options in given] == [["hardware"]]  # and no other beside it


def test_files_come_to_their_places_and_are_waited_for():
    foreign = FakeForeign()
    decoder = NvImageCodec(FakeModule(), foreign).decoder()
    files = [jpeg(seed=1), jpeg(20, 31, seed=2)]
    rooms = [room(48, 64, 3), room(20, 31, 3)]
    before = len(foreign.finished)
    assert decoder.decode(files, [place for _, place in rooms]) == [True, True]
    for file, (pixels, _) in zip(files, rooms, strict=True):
        assert (pixels == pixels_of(file)).all()
    assert len(foreign.finished) == before + 1
    decoder.close()
    decoder.close()


def test_what_is_no_picture_of_that_size_is_refused_and_its_neighbours_are_not():
    decoder = NvImageCodec(FakeModule(), FakeForeign()).decoder()
    files = [jpeg(seed=1), np.frombuffer(b"no picture", np.uint8), jpeg(49, 64), jpeg(seed=2)]
    rooms = [room(48, 64, 3) for _ in files]
    assert decoder.decode(files, [place for _, place in rooms]) == [True, False, False, True]
    assert [pixels.any() for pixels, _ in rooms] == [True, False, False, True]
    assert decoder.decode(files[1:2], [rooms[1][1]]) == [False]


def test_a_call_that_fails_refuses_all_of_it():
    module = FakeModule()
    decoder = NvImageCodec(module, FakeForeign()).decoder()
    module.raises = RuntimeError("Existing buffer is too small to fit new image")
    assert decoder.decode([jpeg()] * 3, [room(48, 64, 3)[1]] * 3) == [False] * 3


@pytest.mark.parametrize(("cuda", "packages"), [((12, 8), "cu12 nvidia-nvjpeg-cu12"), ((13, 1), "cu13 nvidia-nvjpeg")])
def test_what_to_install_goes_by_the_driver(cuda, packages, monkeypatch):
    monkeypatch.setattr(nvimgcodec, "probe_driver", lambda: Driver(cuda, Path(), ()))
    monkeypatch.setattr(nvimgcodec, "is_installed", lambda: False)
    wanted = f"is not installed: python -m pip install nvidia-nvimgcodec-{packages}"
    assert codec_problem("cuda").endswith(wanted)
    with pytest.raises(DeviceError) as error:
        load_nvimgcodec()
    assert str(error.value).endswith(wanted)


def test_a_cpu_decodes_nothing():
    assert "the device is the CPU" in codec_problem("cpu")
    device, _ = open_device("cpu")
    with pytest.raises(DeviceError, match="decoded by NVIDIA GPUs alone"):
        open_codec(device)
    device.close()


class HostModule:
    """The library itself, decoding on the processor to the host: what there is of it without a card."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)

    def Decoder(self, *, backends, device_id, **options):  # noqa: N802
        assert len(backends) == 1
        assert device_id == 0
        kind = self._module.Backend(self._module.BackendKind.CPU_ONLY)
        decoder = self._module.Decoder(device_id=self._module.NVIMGCODEC_DEVICE_CPU_ONLY, backends=[kind], **options)

        def decode(sources, *, cuda_stream, **others):
            assert cuda_stream > 1000
            return decoder.decode(sources, **others)

        return SimpleNamespace(decode=decode, __exit__=decoder.__exit__)

    def as_images(self, sources, *, cuda_stream):
        assert cuda_stream > 1000
        return self._module.as_images([_on_host(source) for source in sources])


def _on_host(source):
    class Array:
        __array_interface__ = source.__cuda_array_interface__

    return Array()


@pytest.fixture(scope="module")
def library():
    if not nvimgcodec.is_installed():
        pytest.skip("nvImageCodec is not installed")
    return load_nvimgcodec()


def test_the_library_itself_takes_our_calls(library):
    codec = NvImageCodec(HostModule(library), FakeForeign())
    decoder = codec.decoder()
    files = [jpeg(seed=1), jpeg(20, 31, seed=2), np.frombuffer(b"no picture", np.uint8), jpeg(47, 64)]
    rooms = [room(48, 64, 3), room(20, 31, 3), room(48, 64, 3), room(48, 64, 3)]
    assert decoder.decode(files, [place for _, place in rooms]) == [True, True, False, False]
    for file, (pixels, _) in list(zip(files, rooms, strict=True))[:2]:
        assert np.abs(pixels.astype(int) - pixels_of(file) + SHIFT).mean() < 2
    assert not rooms[3][0].any()
    decoder.close()


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
def test_on_a_card(gpu):
    codec = open_codec(gpu)
    decoder = codec.decoder()
    chance = np.random.default_rng(0)
    for count in (1, 3, 70):
        files = [jpeg(*chance.integers(16, 500, 2), seed=i, subsampling=i % 3, quality=92) for i in range(count)]
        wanted = [np.asarray(Image.open(io.BytesIO(file.tobytes()))) for file in files]
        starts = np.cumsum([0, *(pixels.nbytes for pixels in wanted)])
        address = gpu.allocate(int(starts[-1]))
        places = [Place(address + int(start), *p.shape[:2]) for start, p in zip(starts, wanted, strict=False)]
        assert decoder.decode(files, places) == [True] * count
        found, again = np.empty(starts[-1], np.uint8), np.empty(starts[-1], np.uint8)
        gpu.copy_out(found, address)
        gpu.synchronize()
        for start, pixels in zip(starts, wanted, strict=False):
            difference = np.abs(found[start : start + pixels.nbytes].astype(int) - pixels.reshape(-1))
            assert difference.mean() < 2
        for file, place in zip(files, places, strict=True):  # alone: the same bits
            assert decoder.decode([file], [place]) == [True]
        gpu.copy_out(again, address)
        gpu.synchronize()
        assert (again == found).all()
        gpu.free(address)
    decoder.close()


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
def test_damaged_files_on_a_card(gpu):
    decoder = open_codec(gpu).decoder()
    whole = jpeg(300, 400, quality=92)
    damaged = whole.copy()
    damaged[len(damaged) // 2 : len(damaged) // 2 + 200] = np.random.default_rng(0).integers(0, 255, 200)
    address = gpu.allocate(4 * 300 * 400 * 3)
    places = [Place(address + i * 300 * 400 * 3, 300, 400) for i in range(4)]
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


@pytest.mark.skipif(not nvimgcodec.is_installed(), reason="nvImageCodec is not installed")
def test_loading_it_says_nothing_on_stderr():
    script = "from vgg16gpu.devices.cuda.nvimgcodec import load_nvimgcodec; load_nvimgcodec().Backend()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""

"""nvImageCodec without a GPU: what vgg16gpu.devices.cuda.nvimgcodec calls of it, decoding by Pillow to the host.

Its pixels are a little brighter than libjpeg's (`SHIFT`), so that one sees who has decoded a file.
"""

import ctypes
import io
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
from PIL import Image

SHIFT = 3  # of 255


def pixels_of(data):
    """(h, w, 3) of a JPEG file, as it is decoded here."""
    with Image.open(io.BytesIO(bytes(data)), formats=["JPEG"]) as picture:
        return np.minimum(np.array(picture.convert("RGB")), 255 - SHIFT) + SHIFT


class FakeForeign:
    """A card that is the host."""

    ordinal = 0

    def __init__(self):
        self.streams = 0
        self.finished = []

    def current(self):
        return nullcontext()

    def open_stream(self):
        self.streams += 1
        return 1000 + self.streams

    def finish(self, stream):
        assert stream > 1000
        self.finished.append(stream)

    def memory(self, nbytes):
        held = np.zeros(nbytes, np.uint8)

        def read(target):
            target.reshape(-1)[:] = held

        return SimpleNamespace(address=held.ctypes.data, read=read)


class FakeModule:
    """The module nvidia.nvimgcodec.

    works: kinds of backends that there are. refuses(data), spoils(data): which files have no picture, and which make
    the whole batch fail. wrong_pixels: what comes out is another picture. calls: the number of files of each.
    """

    __version__ = "0.0.1"
    BackendKind = SimpleNamespace(HW_GPU_ONLY="hardware", HYBRID_CPU_GPU="hybrid")
    ColorSpec = SimpleNamespace(SRGB="srgb")

    def __init__(self, works=("hardware", "hybrid"), refuses=None, spoils=None, *, wrong_pixels=False):
        self.works, self.wrong_pixels = works, wrong_pixels
        self.refuses = refuses or (lambda _: False)
        self.spoils = spoils or (lambda _: False)
        self.raises = None
        self.calls, self.open, self.at_once, self.most_at_once = [], 0, 0, 0
        self.lock = threading.Lock()

    @staticmethod
    def Backend(kind):  # noqa: N802
        return kind

    @staticmethod
    def DecodeParams(*, apply_exif_orientation, color_spec, allow_any_depth):  # noqa: N802
        assert (apply_exif_orientation, color_spec, allow_any_depth) == (False, "srgb", False)
        return "params"

    def Decoder(self, *, device_id, max_num_cpu_threads, backends, options):  # noqa: N802
        assert device_id == 0
        assert options.startswith(":fancy_upsampling=")
        assert max_num_cpu_threads > 0
        if backends[0] not in self.works:
            raise RuntimeError("Internal error - Could not create decoder. Code: 8")
        self.open += 1
        return FakeDecoder(self)

    @staticmethod
    def CodeStream(array):  # noqa: N802
        assert array.dtype == np.uint8
        try:
            with Image.open(io.BytesIO(array.tobytes())) as picture:
                width, height = picture.size
        except OSError as error:
            raise RuntimeError("Failed to get image info") from error
        return SimpleNamespace(data=array, height=height, width=width)

    @staticmethod
    def as_images(sources, *, cuda_stream):
        assert cuda_stream > 1000
        return [SimpleNamespace(**source.__cuda_array_interface__) for source in sources]


class FakeDecoder:
    def __init__(self, module):
        self.module = module

    def __exit__(self, *_):
        self.module.open -= 1

    def decode(self, sources, *, images, params, cuda_stream):
        module = self.module
        assert (params, cuda_stream > 1000, len(sources)) == ("params", True, len(images))
        if module.raises:
            raise module.raises
        with module.lock:
            module.calls.append(len(sources))
            module.at_once += 1
            module.most_at_once = max(module.most_at_once, module.at_once)
        try:
            if any(module.spoils(bytes(source.data)) for source in sources):
                return [None] * len(sources)
            return [self._decoded(source, image) for source, image in zip(sources, images, strict=True)]
        finally:
            with module.lock:
                module.at_once -= 1

    def _decoded(self, source, image):
        if self.module.refuses(bytes(source.data)):
            return None
        pixels = np.ascontiguousarray(pixels_of(source.data))
        if self.module.wrong_pixels:
            pixels = 255 - pixels
        assert (pixels.shape, image.typestr, image.strides) == (image.shape, "|u1", None)
        ctypes.memmove(image.data[0], pixels.ctypes.data, pixels.nbytes)
        return image

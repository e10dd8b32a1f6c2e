"""runtime/answers/fitting.py: pictures that came as they are beside those that the device has decoded."""

from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from tests.support.libjpeg_colours import laid_out, planes_of, rgb
from tests.support.picture_files import jpeg
from vgg16gpu.devices import open_device
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.images import fit
from vgg16gpu.pictures.slots import Room, Row, Slot
from vgg16gpu.runtime.answers.fitting import Fitter, fit_of

SIDE = 32
PREPROCESS = Preprocess.named("torchvision")
ROOM_NBYTES = 60_000


@pytest.fixture
def device(monkeypatch):
    """The cpu device, whose memory holds ones: as a count of pictures, far too many."""
    opened = open_device("cpu").device
    allocate = opened.allocate

    def filled(nbytes):
        address = allocate(nbytes)
        opened.copy_in(address, np.ones(nbytes, np.uint8))
        return address

    monkeypatch.setattr(opened, "allocate", filled)
    with closing(opened):
        yield opened


def fitted(pixels):
    return np.asarray(fit(Image.fromarray(pixels), SIDE, SIDE, PREPROCESS, "a picture"))


def images_of(device, fitter, slot):
    images = np.empty((len(slot.rows), SIDE, SIDE, 3), np.uint8)
    device.copy_out(images, fitter.begin(slot))
    fitter.end()
    device.synchronize()
    return images


def test_slots_with_and_without_room_take_turns(device):
    """RGB, in the slot or in its room, stays as it is; planes become RGB; tables of older slots are forgotten."""
    fitter = Fitter(device, fit_of(PREPROCESS, (SIDE, SIDE)), 40_000, 4, ROOM_NBYTES)
    file = jpeg(61, 50, seed=1, subsampling=2)
    planes, pixels = planes_of(file, 0x22), np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)
    plain = Slot(
        np.zeros(40_000, np.uint8), is_pinned=False, rows=[Row(0, 0, "a", 160, 40, 70)], used=160 + pixels.size
    )
    plain.buffer[160 : 160 + pixels.size] = pixels.ravel()
    room = device.allocate(ROOM_NBYTES)
    addresses = [room + 160, room + 20_000]
    rows = [Row(0, 0, "b", 0, 61, 50, 1, 0x22), Row(1, 0, "c", 0, 40, 70)]
    decoded = Slot(
        np.zeros(8, np.uint8), is_pinned=False, rows=rows, room=Room(room, lambda: None), addresses=addresses
    )
    device.copy_in(addresses[0], laid_out(planes, 0x22))
    device.copy_in(addresses[1], np.ascontiguousarray(pixels).reshape(-1))
    for _ in range(4):  # more often than there are pools
        np.testing.assert_array_equal(images_of(device, fitter, plain), [fitted(pixels)])
        wanted = [fitted(rgb(planes, 0x22)), fitted(pixels)]
        np.testing.assert_array_equal(images_of(device, fitter, decoded), wanted)
    fitter.close()
    device.free(room)

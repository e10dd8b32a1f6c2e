"""IDX files: what is read, and what is said of files that are something else."""

import gzip
import struct

import numpy as np
import pytest

from vgg16gpu.errors import InputError
from vgg16gpu_lab.lenet.data import from_idx
from vgg16gpu_lab.lenet.idx import read_idx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
LABELS = np.array([0, 9, 3, 1, 2], np.uint8)
SPELLINGS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array, kind=8):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return head + array.tobytes()


def written(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


def test_arrays_come_back(tmp_path):
    for array, pack in ((IMAGES, bytes), (IMAGES, gzip.compress), (LABELS, bytes), (IMAGES[:0], bytes)):
        got = read_idx(written(tmp_path, pack(idx(array))), array.ndim)
        assert got.dtype == np.uint8
        assert np.array_equal(got, array)


WRONG = (
    (b"", "is no IDX file.*nothing"),
    (b"\x89PNG\r\n", "is no IDX file.*89 50 4e 47"),
    (b"\0\0", "is no IDX file"),
    (b"\0\0\x08\0", "is no IDX file"),
    (idx(IMAGES, kind=0x0D), "type 0x0d"),
    (idx(LABELS), "has 1 dimensions.*swapped"),
    (idx(IMAGES)[:10], "ends within its header"),
    (idx(IMAGES)[:-1], "ends after 59 of 60 bytes"),
    (idx(IMAGES) + b"\0", "more than the 60 bytes"),
    (b"\0\0\x08\x03" + b"\xff" * 12, "4294967295x4294967295x4294967295.*at most"),
    (b"\0\0\x08\x03" + struct.pack(">3I", 60000, 128, 128) + b"abc", "ends after 3 of"),
    (gzip.compress(idx(IMAGES))[:-9], "damaged gzip"),
    (gzip.compress(idx(IMAGES))[:-8] + bytes(8), "damaged gzip"),
    (b"\x1f\x8b\x08" + b"\xff" * 20, "damaged gzip"),
)


def test_what_is_wrong_is_named(tmp_path):
    for data, message in WRONG:
        with pytest.raises(InputError, match=message) as caught:
            read_idx(written(tmp_path, data), 3)
        assert str(tmp_path / "file") in str(caught.value)
        assert "\n" not in str(caught.value)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_idx(path, 3)


def folder_of(tmp_path, *, images=IMAGES, labels=LABELS):
    for name in SPELLINGS:
        (tmp_path / name).write_bytes(idx(images if "images" in name else labels))
    return tmp_path


def test_a_folder_is_a_dataset_framed_in_black(tmp_path):
    data = from_idx(folder_of(tmp_path), 12)
    assert data.training.shape == data.heldout.shape == (5, 12, 12, 1)
    assert np.array_equal(data.training[:, 4:8, 4:7, 0], IMAGES)
    assert data.training.sum() == IMAGES.sum()
    assert np.array_equal(data.heldout_labels, LABELS)
    x = data.normalised(data.training)
    assert x.shape == (5, 1, 12, 12)
    assert abs(x.mean()) < 1e-3
    assert abs(x.std() - 1) < 1e-3
    for path in list(tmp_path.iterdir()):  # names with dots are found, too
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(from_idx(tmp_path).training) == 5


def test_folders_that_do_not_fit(tmp_path):
    with pytest.raises(InputError, match=r"has no train-images-idx3-ubyte.*four files"):
        from_idx(tmp_path)
    folder_of(tmp_path)
    with pytest.raises(InputError, match="4x3 do not fit into 3x3"):
        from_idx(tmp_path, 3)
    folder_of(tmp_path, labels=LABELS[:4])
    with pytest.raises(InputError, match="train has 5 images and 4 labels"):
        from_idx(tmp_path)
    folder_of(tmp_path, labels=LABELS + 1)
    with pytest.raises(InputError, match="label 10"):
        from_idx(tmp_path)
    folder_of(tmp_path, images=IMAGES[:0], labels=LABELS[:0])
    with pytest.raises(InputError, match="0 images"):
        from_idx(tmp_path)

"""pictures/inputs.py: every accepted form, and one line for everything else."""

import io
import os
import sys

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.images import load_image
from vgg16gpu.pictures.inputs import InputSpec, batched, listed, samples
from vgg16gpu.pictures.reading import read_inputs

SHAPE = (3, 4, 5)
SPEC = InputSpec(SHAPE, open_size=True, nonfinite_advice="give --some-option")
RNG = np.random.default_rng(3)
FLOATS = RNG.standard_normal((2, *SHAPE)).astype(np.float32)
PIXELS = RNG.integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)


def read(*paths, spec=SPEC):
    return list(read_inputs(paths, spec))


def text_of(array):
    return " ".join(f"{v:.9g}" for v in array.ravel())


def refusal(path, spec=SPEC):
    with pytest.raises(InputError) as caught:
        read(path, spec=spec)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    return message


def test_standard_input(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(text_of(FLOATS[0]).encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    (item,) = read("-")
    assert item.name == "standard input"
    np.testing.assert_array_equal(item.array, FLOATS[0])


@pytest.mark.parametrize("content", [b"", b" \n", None])
def test_empty_or_closed_standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", None if content is None else io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(InputError, match="'standard input' is empty"):
        read("-")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_npy_floats_are_channels_first(tmp_path, dtype):
    np.save(tmp_path / "a.npy", FLOATS.astype(dtype))
    items = read(tmp_path / "a.npy")
    assert [item.array.dtype for item in items] == [np.float32] * 2
    np.testing.assert_array_equal(items[1].array, FLOATS.astype(dtype)[1].astype(np.float32))


def test_pixels_are_rgb_and_get_the_order_of_the_network(tmp_path):
    np.save(tmp_path / "a.npy", PIXELS)
    np.savez(tmp_path / "a.npz", PIXELS)
    spec = InputSpec(SHAPE, preprocess=Preprocess.named("keras"))
    for name in ("a.npy", "a.npz"):
        for item, pixels in zip(read(tmp_path / name, spec=spec), PIXELS, strict=True):
            np.testing.assert_array_equal(item.array, pixels[..., ::-1])
    np.save(tmp_path / "a.npy", np.ones((1, *SHAPE), np.float32) * np.arange(3)[:, None, None])
    (item,) = read(tmp_path / "a.npy", spec=spec)  # numbers are as they are
    assert item.array[:, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("names", "level"), [((".a", ".b"), "INFO"), ((".a", "notes.txt"), "WARNING"), ((), None)])
def test_what_folders_hold_besides_is_logged(tmp_path, caplog, names, level):
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    for name in names:
        (tmp_path / name).write_text("hello")
    caplog.set_level("INFO", "vgg16gpu")
    assert listed([tmp_path]).files == (str(tmp_path / "a.png"),)
    assert [record.levelname for record in caplog.records] == ([level] if level else [])
    assert all("2 files left out: " in record.message for record in caplog.records)


def test_a_picture_is_one_whatever_its_ending(tmp_path):
    for name in ("a.txt", "b.npy", "c.npz", "d", "e.bin"):
        Image.fromarray(PIXELS[0]).save(tmp_path / name, "PNG")
        (item,) = read(tmp_path / name)
        np.testing.assert_array_equal(item.array, load_image(tmp_path / name, *SHAPE))


@pytest.mark.parametrize("name", ["a.txt", "a.npy", "a.npz"])
def test_nobody_waits_for_a_pipe(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}' is a pipe"):
        next(samples(str(tmp_path / name), SPEC))
    assert "is a pipe" in refusal(tmp_path / name)


def test_vector_models(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((7, 6), np.float32))
    assert len(read(tmp_path / "a.npy", spec=InputSpec((6,)))) == 7
    (tmp_path / "a.txt").write_text("1 2 3 4 5 6")
    assert read(tmp_path / "a.txt", spec=InputSpec((6,)))[0].array.shape == (6,)
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    refusal(tmp_path / "a.png", spec=InputSpec((6,)))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 5), np.float32), ["rank 2", "(3, 4, 5)"]),
        (np.zeros((1, 1, 3, 4, 5), np.float32), ["rank 5"]),
        (np.zeros((2, 4, 5, 3), np.float32), ["transpose", "0, 3, 1, 2"]),
        (np.zeros((3, 4, 5), np.uint8), ["uint8", "(4, 5, 3)", "transpose"]),
        (np.zeros((3, 9, 9), np.float32), ["(3, 9, 9)", "--size 9"]),
        (np.zeros((0, 3, 4, 5), np.float32), ["(0, 3, 4, 5)", "holds no inputs"]),
        (np.zeros((3, 4, 5), np.int64), ["int64", "uint8"]),
        (np.zeros((3, 4, 5), complex), ["complex128"]),
        (np.full((3, 4, 5), 1e300), ["too large for float32"]),
    ],
)
def test_wrong_arrays(tmp_path, array, words):
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x=array)
    for path in (tmp_path / "a.npy", tmp_path / "a.npz"):
        message = refusal(path)
        assert all(word in message for word in words), message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_is_refused_unless_allowed(tmp_path, value):
    bad = FLOATS[0].copy()
    bad[2, 1, 0] = value
    np.save(tmp_path / "a.npy", bad)
    (tmp_path / "a.txt").write_text(text_of(bad))
    for name in ("a.npy", "a.txt"):
        message = refusal(tmp_path / name)
        assert "[2, 1, 0]" in message
        assert "give --some-option" in message
        assert "--allow-nonfinite" not in message
        (item,) = read(tmp_path / name, spec=InputSpec(SHAPE, allow_nonfinite=True))
        np.testing.assert_array_equal(item.array, bad)


def test_batches_hold_one_type(tmp_path):
    np.save(tmp_path / "a.npy", np.concatenate([FLOATS, FLOATS])[:3])
    np.save(tmp_path / "b.npy", PIXELS)
    sizes = [len(batch) for batch in batched(read_inputs([tmp_path / "a.npy", tmp_path / "b.npy"], SPEC), 2)]
    assert sizes == [2, 1, 2]

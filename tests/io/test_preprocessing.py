"""preprocessing.py: presets against the formulas that their libraries publish, the line for people, JSON, refusals."""

import json

import numpy as np
import pytest

from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import default_mean, default_std, normalise
from vgg16gpu.io.preprocessing import PRESETS, Origin, Preprocess, default_preprocess, resize_target

BYTES = np.arange(256)


def torchvision(x):
    """ToTensor and Normalize, with torchvision's VGG16_Weights.IMAGENET1K_V1."""
    return (x / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])


def caffe(x):
    """keras.applications.imagenet_utils.preprocess_input, mode "caffe": RGB to BGR, zero-centred, not scaled."""
    return x[..., ::-1] - np.array([103.939, 116.779, 123.68])


def tf(x):
    """The same, mode "tf"."""
    return x / 127.5 - 1


FORMULAS = {
    "torchvision": torchvision,
    "keras": caffe,
    "caffe": caffe,
    "unit": lambda x: x / 255,
    "symmetric": tf,
    "tf": tf,
    "raw": lambda x: x,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_what_the_device_computes_is_the_published_formula(name):
    """byte * scale + shift in one rounding, as kernels/layout/preprocess.cu does, for every byte in every channel."""
    preset = Preprocess.named(name)
    x = np.stack([BYTES, BYTES[::-1], np.roll(BYTES, 7)], axis=-1).astype(np.float64)[None]  # (1, 256, 3)
    exact = FORMULAS[name](x)
    as_network = x[..., ::-1] if preset.channel_order == "bgr" else x
    scale, shift = Normalisation(preset.unit_mean, preset.unit_std).scale_and_shift
    computed = (as_network * scale.astype(np.float64) + shift.astype(np.float64)).astype(np.float32)
    # Half a unit in the last place for the scale, the shift and the result, of what each is at most.
    bound = np.finfo(np.float32).eps / 2 * (255 * scale + np.abs(shift) + np.abs(exact))
    assert (np.abs(computed - exact) <= bound).all()
    host = normalise(as_network.astype(np.uint8), preset.unit_mean, preset.unit_std)
    np.testing.assert_allclose(np.moveaxis(host, 0, -1), exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())


def test_torchvision_is_bit_for_bit_what_it_was():
    preset = default_preprocess(3)
    assert (preset.unit_mean, preset.unit_std) == (default_mean(3), default_std(3))
    assert preset == Preprocess.named("torchvision") == Preprocess((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for channels in (1, 2, 4):
        preset = default_preprocess(channels)
        assert (preset.unit_mean, preset.unit_std) == (default_mean(channels), default_std(channels))
        assert preset.fit == "stretch"


def test_sides_before_the_crop():
    assert [resize_target((size, size)) for size in (224, 244, 32)] == [(256, 256), (279, 279), (37, 37)]


# ---- The line

FILE, USER = Origin("file"), Origin("user", options=("--preprocess keras", "--fit crop"))
SILENT = Origin("assumed", "the file says nothing")


@pytest.mark.parametrize(
    ("preprocess", "size", "line"),
    [
        (
            Preprocess.named("torchvision").with_origin(SILENT),
            (224, 224),
            "pictures: shorter side to 256, bilinear, centre crop 224x224, RGB, (x/255 - mean)/std with ImageNet's "
            "numbers; assumed: the file says nothing (see --preprocess)",
        ),
        (
            Preprocess.named("keras").with_origin(FILE),
            (224, 320),
            "pictures: stretched to 224x320, nearest, BGR, x - (103.939, 116.779, 123.68); from the file's metadata",
        ),
        (
            Preprocess.named("torchvision").in_order("bgr").with_origin(USER),
            (32, 64),
            "pictures: to cover 37x73, bilinear, centre crop 32x64, BGR, (x/255 - mean)/std with ImageNet's numbers; "
            "by --preprocess keras, --fit crop",
        ),
        (
            Preprocess.named("unit", 1).with_origin(Origin("file", options=("--mean",))),
            (32, 32),
            "pictures: stretched to 32x32, bilinear, grey, x/255 from 0 to 1; by --mean; the rest from the file's "
            "metadata",
        ),
        (
            Preprocess.named("symmetric"),
            (8, 8),
            "pictures: stretched to 8x8, bilinear, RGB, (x/255 - 0.5)/0.5; as given",
        ),
        (
            Preprocess((0.0,) * 4, (0.5, 0.5, 0.5, 0.25), 255, fit="stretch"),
            (8, 8),
            "pictures: stretched to 8x8, bilinear, 4 channels, x/(0.5, 0.5, 0.5, 0.25); as given",
        ),
    ],
)
def test_the_line_for_people(preprocess, size, line):
    assert preprocess.line(*size) == line


# ---- To and from JSON, and what is refused


@pytest.mark.parametrize("name", PRESETS)
def test_json_brings_it_back(name):
    preset = Preprocess.named(name).with_origin(SILENT)
    back = Preprocess.from_json(preset.to_json())
    assert back == preset
    assert back.to_json() == preset.to_json()
    assert back.origin == Origin("user")


GOOD = Preprocess.named("torchvision").fields()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [1, 2]}, "mean has 2 values, std 3: give one for each channel"),
        ({"mean": "0.5"}, "mean is '0.5'; expected a list of finite numbers"),
        ({"mean": []}, r"mean is \[\]; expected a list of finite numbers"),
        ({"mean": 0.5}, "mean is 0.5; expected a list"),
        ({"mean": [True, 0, 0]}, "mean is .*; expected a list"),
        ({"mean": [10**400, 0, 0]}, "mean is .*; expected a list of finite numbers"),
        ({"std": [1, 1, 10**5000]}, "std is .*; expected a list of finite numbers"),
        ({"std": [1, 1, float("inf")]}, "std is .*inf.*; expected a list of finite"),
        ({"std": [1, 0, 1]}, "std 1, 0, 1: each must be above zero"),
        ({"pixel_range": 256}, "pixel_range is 256; accepted: 1, 255"),
        ({"pixel_range": True}, "pixel_range is True; accepted: 1, 255"),
        ({"channel_order": "RGB"}, "channel_order is 'RGB'; accepted: rgb, bgr"),
        ({"channel_order": []}, r"channel_order is \[\]; accepted"),
        ({"fit": "squash"}, "fit is 'squash'; accepted: crop, stretch"),
        ({"interpolation": "lanczos"}, "interpolation is 'lanczos'; accepted: nearest, bilinear, bicubic"),
        ({"mean": [0], "std": [1], "channel_order": "bgr"}, "channel_order 'bgr' is of 3 channels, .* are of 1"),
        ({"crop": 0.9}, "preprocessing has crop; known are mean, std, pixel_range"),
    ],
)
def test_wrong_fields_are_named(change, message):
    with pytest.raises(InputError, match=message):
        Preprocess.from_fields({**GOOD, **change})


def test_what_is_no_object_or_lacks_a_field():
    with pytest.raises(InputError, match="preprocessing lacks fit, interpolation"):
        Preprocess.from_fields({key: GOOD[key] for key in GOOD if key not in ("fit", "interpolation")})
    with pytest.raises(InputError, match="preprocessing is 'keras'; expected an object"):
        Preprocess.from_json(json.dumps("keras"))
    with pytest.raises(InputError, match="preprocessing is not JSON: "):
        Preprocess.from_json("{")


def test_presets_that_do_not_exist_or_do_not_fit():
    with pytest.raises(InputError, match="'imagenet' is not known; accepted: torchvision, keras, caffe, unit"):
        Preprocess.named("imagenet")
    for name in ("torchvision", "keras"):
        with pytest.raises(InputError, match="3 colours, the model takes 1 channel; take one of unit, symmetric, tf,"):
            Preprocess.named(name, 1)
    assert Preprocess.named("symmetric", 5).mean == (0.5,) * 5

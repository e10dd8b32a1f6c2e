"""pictures/images.py: the documented preprocessing, and what Pillow leaves to the caller."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.images import load_image, resized_shape


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def saved(tmp_path, array, name="a.png", **options):
    path = tmp_path / name
    Image.fromarray(array).save(path, **options)
    return path


@pytest.mark.parametrize(
    ("height", "width", "size", "expected"),
    [
        # torchvision.transforms.v2.functional.resize(size=256, 279) on Pillow images
        (480, 640, 224, (256, 341)),
        (640, 480, 224, (341, 256)),
        (500, 333, 224, (384, 256)),
        (224, 224, 224, (256, 256)),
        (480, 640, 244, (279, 372)),
    ],
)
def test_resized_shape_is_torchvisions(height, width, size, expected):
    assert resized_shape(height, width, (size, size)) == expected


def test_rgb_is_resized_and_cropped_at_the_centre(tmp_path):
    array = picture(300, 400)
    pixels = load_image(saved(tmp_path, array), 3, 224, 224)
    assert pixels.shape == (224, 224, 3)
    assert pixels.dtype == np.uint8
    resized = np.asarray(Image.fromarray(array).resize((341, 256), Image.Resampling.BILINEAR))
    left = round((341 - 224) / 2)
    np.testing.assert_array_equal(pixels, resized[16:240, left : left + 224])


def test_an_image_of_the_resize_size_is_only_cropped(tmp_path):
    array = picture(256, 256)
    np.testing.assert_array_equal(load_image(saved(tmp_path, array), 3, 224, 224), array[16:240, 16:240])


def test_oblong_input(tmp_path):
    assert load_image(saved(tmp_path, picture(50, 90)), 3, 32, 64).shape == (32, 64, 3)
    assert load_image(saved(tmp_path, picture(90, 50)), 3, 32, 64).shape == (32, 64, 3)


def test_grey_models_see_the_whole_picture(tmp_path):
    array = picture(8, 8)
    pixels = load_image(saved(tmp_path, array), 1, 8, 8)
    np.testing.assert_array_equal(pixels[:, :, 0], np.asarray(Image.fromarray(array).convert("L")))
    assert load_image(saved(tmp_path, picture(30, 40)), 1, 8, 8).shape == (8, 8, 1)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(24, 40), (90, 17)])
@pytest.mark.parametrize("channels", [1, 3])
def test_stretched_as_pillow_does(tmp_path, interpolation, size, channels):
    """Also as Keras' load_img(path, target_size=size, interpolation=interpolation)."""
    preprocess = Preprocess((0,) * channels, (1,) * channels, fit="stretch", interpolation=interpolation)
    path = saved(tmp_path, picture(60, 50))
    pixels = load_image(path, channels, *size, preprocess)
    image = Image.open(path).convert("RGB" if channels == 3 else "L")
    expected = image.resize(size[::-1], Image.Resampling[interpolation.upper()])
    np.testing.assert_array_equal(pixels, np.asarray(expected).reshape(*size, channels))


@pytest.mark.parametrize("interpolation", ["nearest", "bicubic"])
def test_cropped_after_another_interpolation(tmp_path, interpolation):
    array = picture(300, 400)
    preprocess = Preprocess((0,) * 3, (1,) * 3, interpolation=interpolation)
    resized = Image.fromarray(array).resize((341, 256), Image.Resampling[interpolation.upper()])
    left = round((341 - 224) / 2)
    expected = np.asarray(resized)[16:240, left : left + 224]
    np.testing.assert_array_equal(load_image(saved(tmp_path, array), 3, 224, 224, preprocess), expected)


def test_grey_pictures_can_be_cropped_too(tmp_path):
    array = picture(16, 32)[:, :, 0]
    pixels = load_image(saved(tmp_path, array), 1, 14, 14, Preprocess((0,), (1,)))
    np.testing.assert_array_equal(pixels[:, :, 0], array[1:15, 9:23])


def test_blue_comes_first_where_the_network_wants_it(tmp_path):
    path = saved(tmp_path, picture(20, 30))
    rgb, bgr = (load_image(path, 3, 16, 16, Preprocess.named("unit").in_order(order)) for order in ("rgb", "bgr"))
    np.testing.assert_array_equal(bgr, rgb[:, :, ::-1])
    assert bgr.flags.c_contiguous


def test_strips_can_be_stretched(tmp_path):
    assert load_image(saved(tmp_path, picture(400, 3)), 3, 8, 8, Preprocess.named("unit")).shape == (8, 8, 3)


def test_exif_orientation_is_applied(tmp_path):
    array = np.zeros((256, 256, 3), np.uint8)
    array[:128] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    pixels = load_image(saved(tmp_path, array, exif=exif), 3, 224, 224)
    assert pixels[0].max() == 0
    assert pixels[-1].min() == 255


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_other_modes_become_rgb_without_warnings(tmp_path, mode):
    path = tmp_path / ("a.png" if mode != "CMYK" else "a.jpg")
    Image.fromarray(picture(40, 40)).convert(mode).save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_image(path, 3, 32, 32).shape == (32, 32, 3)


def test_palette_with_transparency(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(picture(256, 256)).convert("P").save(path, transparency=bytes([0, 128] * 8))
    opaque = np.asarray(Image.open(path).convert("RGBA"))[16:240, 16:240, :3]
    np.testing.assert_array_equal(load_image(path, 3, 224, 224), opaque)


def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path):
    grey = np.linspace(0, 65535, 256 * 256).astype(np.uint16).reshape(256, 256)
    pixels = load_image(saved(tmp_path, grey), 3, 224, 224)
    np.testing.assert_array_equal(pixels[:, :, 1], np.round(grey[16:240, 16:240] / 257))


def test_broken_images_are_named(tmp_path):
    whole = io.BytesIO()
    Image.fromarray(picture(64, 64)).save(whole, "PNG")
    contents = {
        "text.png": b"not an image",
        "empty.png": b"",
        "short.png": whole.getvalue()[:900],
        "header.png": whole.getvalue()[:20],
        "flipped.png": whole.getvalue()[:60] + b"\xff\xff\xff" + whole.getvalue()[63:],
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            load_image(path, 3, 32, 32)


def test_sizes_beyond_what_pillow_makes_are_refused_before_decoding(tmp_path):
    (tmp_path / "a.png").write_bytes(b"never decoded")
    for channels in (1, 3):
        with pytest.raises(InputError, match=r"a\.png.*65535x65535.*smaller --size"):
            load_image(tmp_path / "a.png", channels, 65535, 65535)
    # The crop would fit, what it is cut from would not; and Pillow only warns of this one.
    with pytest.raises(InputError, match=r"strip\.png.*smaller --size"):
        load_image(saved(tmp_path, picture(900, 10), "strip.png"), 3, 2048, 2048)


def test_errors_of_resizing_and_cropping_are_named_too(tmp_path, monkeypatch):
    path = saved(tmp_path, picture(20, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 450)  # the file passes, the crop of 32 x 32 does not
    with pytest.raises(InputError, match=r"a\.png.*decompression bomb"):
        load_image(path, 3, 32, 32)


def test_wrong_channels_strips_and_bombs_are_refused(tmp_path, monkeypatch):
    path = saved(tmp_path, picture(20, 20))
    with pytest.raises(InputError, match="4 channels"):
        load_image(path, 4, 32, 32)
    with pytest.raises(InputError, match="3x400 pixels"):
        load_image(saved(tmp_path, picture(400, 3), "strip.png"), 3, 32, 32)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"a\.png.*decompression bomb"):
        load_image(path, 3, 32, 32)

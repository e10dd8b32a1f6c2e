"""pictures/images.py: the documented preprocessing, and what Pillow leaves to the caller."""

import io
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from tests.support.picture_files import every_kind
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess, resized_shape
from vgg16gpu.pictures.images import check_fit, decode, decode_by_pillow, fit, load_image


def picture(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


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


def test_blue_comes_first_where_the_network_wants_it(tmp_path):
    path = saved(tmp_path, picture(20, 30))
    rgb, bgr = (load_image(path, 3, 16, 16, Preprocess.named("unit").in_order(order)) for order in ("rgb", "bgr"))
    np.testing.assert_array_equal(bgr, rgb[:, :, ::-1])
    assert bgr.flags.c_contiguous


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


def test_sizes_beyond_what_pillow_makes_are_refused_before_decoding(tmp_path):
    (tmp_path / "a.png").write_bytes(b"never decoded")
    for channels in (1, 3):
        with pytest.raises(InputError, match=r"a\.png.*65535x65535.*smaller --size"):
            load_image(tmp_path / "a.png", channels, 65535, 65535)
    # The crop would fit, what it is cut from would not; and Pillow only warns of this one.
    with pytest.raises(InputError, match=r"strip\.png.*smaller --size"):
        load_image(saved(tmp_path, picture(900, 10), "strip.png"), 3, 2048, 2048)


def test_wrong_channels_strips_and_bombs_are_refused(tmp_path, monkeypatch):
    path = saved(tmp_path, picture(20, 20))
    with pytest.raises(InputError, match="4 channels"):
        load_image(path, 4, 32, 32)
    with pytest.raises(InputError, match="3x400 pixels"):
        load_image(saved(tmp_path, picture(400, 3), "strip.png"), 3, 32, 32)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"a\.png.*decompression bomb"):
        load_image(path, 3, 32, 32)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(every_kind()))
def test_every_kind_is_what_pillow_opens(name, channels):
    """Upright, 8 bits a channel, without transparency, the first frame: also where no ending says so."""
    data = every_kind()[name]
    found = decode(data, name, channels)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    with Image.open(io.BytesIO(data)) as file:
        if name.startswith("deep"):
            expected = np.round(np.asarray(file, np.float64) / 257)[:, :, np.newaxis].repeat(channels, 2)
        else:
            upright = file.transpose(Image.Transpose.ROTATE_270) if name == "turned.jpg" else file
            upright = upright.convert("RGBA") if "transparency" in upright.info else upright
            expected = np.asarray(upright.convert("RGB" if channels == 3 else "L")).reshape(*found.shape)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(decode_by_pillow(data, name, channels), expected)


def test_pictures_that_pillow_warns_of_are_read_in_silence(monkeypatch):
    """And filters of warnings, which all threads share, are not touched."""
    filters = list(warnings.filters)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24 * 32 - 1)
    for name, data in every_kind().items():
        if ".tif" not in name:  # these warn once more, where nobody can keep them from it
            assert decode(data, name, 3).shape[2] == 3
    assert warnings.filters == filters
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode(every_kind()["colour.png"], "a.png", 3).shape == (24, 32, 3)


def test_warnings_as_errors_are_told_of():
    """Where a user wants that: Pillow warns of damaged metadata."""
    turned = every_kind()["turned.jpg"]
    place = turned.index(b"\x12\x01\x03\0\1\0\0\0")
    damaged = turned[: place + 4] + b"\xff\xff\0\0" + turned[place + 8 :]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"'a\.jpg' is not a readable image: .*; convert it"):
            decode(damaged, "a.jpg", 3)
        warnings.simplefilter("ignore")
        assert decode(damaged, "a.jpg", 3).shape == (24, 32, 3)


@pytest.mark.parametrize(
    "content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"P6 1 1 255\nabc", b"P1\n1 1\n0"]
)
def test_formats_that_are_no_photographs_are_not_tried(content):
    """Pillow would run a program for the first."""
    with pytest.raises(
        InputError, match=r"'a\.png' is not a readable image: its content is none of JPEG, .*AVIF; conv"
    ):
        decode(content, "a.png", 3)


def test_reasons_are_for_people():
    for content, reason in {
        b"": "it is empty",
        b"GIF89a": "its header is damaged or cut short",
        every_kind()["colour.png"][:20]: "Truncated File Read",
        every_kind()["colour.jpg"][:-20]: r"image file is truncated \(\d+ bytes not processed\)",
    }.items():
        with pytest.raises(InputError, match=f"^'a' is not a readable image: {reason}; convert it to .png or .jpg$"):
            decode(content, "a", 3)


def test_a_pillow_without_avif_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.AvifImagePlugin", None)
    with pytest.raises(InputError, match=r"'a' is not a readable image: .*AvifImagePlugin"):
        decode(b"\0\0\0\x1cftypavif\0\0\0\0avif", "a", 3)


def test_want_of_memory_is_told_of(monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "resize", fail)
    with pytest.raises(InputError, match="'a' is not a readable image: it needs more memory than there is"):
        fit(Image.new("RGB", (9, 9)), 4, 4, Preprocess.named("unit"), "a")


def test_what_cannot_be_fitted_is_known_from_its_size():
    crop, stretch = Preprocess.named("torchvision"), Preprocess.named("unit")
    check_fit(100, 1, (8, 8), crop, "a")
    check_fit(101, 1, (8, 8), stretch, "a")
    for height, width in ((101, 1), (1, 101)):
        with pytest.raises(InputError, match=f"'a' is {width}x{height} pixels, a strip"):
            check_fit(height, width, (8, 8), crop, "a")
    with pytest.raises(InputError, match=r"'a' would have to be resized to \d+x\d+ pixels .* smaller --size"):
        check_fit(90, 1, (2048, 2048), crop, "a")


def test_want_of_memory_for_the_pixels_is_told_of(monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(np, "empty", fail)
    monkeypatch.setattr(Image.core, "new", fail)
    with pytest.raises(InputError, match="'a' is not a readable image: it needs more memory than there is"):
        decode(every_kind()["colour.jpg"], "a", 3)

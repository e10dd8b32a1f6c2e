"""--preprocess and its parts: what arrives in a network that answers with averages of channels, and what is told."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper
from PIL import Image

from tests.support.onnx_models import Model
from vgg16gpu.cli import cli
from vgg16gpu.cli.common.preprocess_options import PixelOptions, chosen
from vgg16gpu.compiler.onnx.metadata import MEAN_KEY, PREPROCESS_KEY, STD_KEY
from vgg16gpu.compiler.quantization.scale_file import read_preprocess, scales_path
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Origin, Preprocess, default_preprocess
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import digit_sample, heldout

SIZE = 14  # 16 before the crop
LEFT, RIGHT = np.array([10.0, 100.0, 200.0]), np.array([250.0, 30.0, 60.0])
ASSUMED = "assumed: the file says nothing (see --preprocess)"


def averages(path, *, metadata=None, keras=False, first=()):
    """A network of three scores: the average of each channel of its left half. `first`: operators before it."""
    model = Model(("n", SIZE, SIZE, 3) if keras else ("n", 3, SIZE, SIZE))
    x = model.node("Transpose", ["input"], "turned", perm=[0, 3, 1, 2]) if keras else "input"
    for index, (operator, value) in enumerate(first):
        constant = model.constant(f"c{index}", np.asarray(value, np.float32).reshape(-1, 1, 1))
        x = model.node(operator, [x, constant], f"first{index}")
    names = [model.constant(f"s{i}", np.array([value])) for i, value in enumerate((0, SIZE // 2, 3))]
    half = model.node("Slice", [x, *names], "half")
    model.node("Flatten", [model.node("GlobalAveragePool", [half], "average")], "y")
    proto = model.proto()
    helper.set_model_props(proto, metadata or {})
    onnx.save(proto, path)
    return path


def wide(path, pixels=4 * SIZE):
    """A picture four times as wide as high, each half of one colour."""
    array = np.empty((SIZE, pixels, 3), np.uint8)
    array[:, : pixels // 2], array[:, pixels // 2 :] = LEFT, RIGHT
    Image.fromarray(array).save(path)
    return path


def run(command, *arguments):
    return CliRunner().invoke(cli, [command, *map(str, arguments), "--device", "cpu"])


def report(command, *arguments):
    result = run(command, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(command, *arguments):
    result = run(command, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def arrived(model, picture, tmp_path, *options):
    """What the left half of the network's input is on average, and the line that tells why."""
    done = report("infer", picture, "--model", model, "--output", tmp_path / "scores.npy", *options)["preprocess"]
    return np.load(tmp_path / "scores.npy")[0], done


MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CAFFE = np.array([103.939, 116.779, 123.68])


def test_every_preset_arrives_from_pictures_and_from_pixels(tmp_path):
    model = averages(tmp_path / "m.onnx")
    Image.fromarray(np.full((20, 30, 3), LEFT, np.uint8)).save(tmp_path / "flat.png")
    np.save(tmp_path / "pixels.npy", np.full((SIZE, SIZE, 3), LEFT, np.uint8))
    for name, file, expected in (
        ("torchvision", "flat.png", (LEFT / 255 - MEAN) / STD),
        ("keras", "flat.png", LEFT[::-1] - CAFFE),
        ("caffe", "pixels.npy", LEFT[::-1] - CAFFE),
        ("unit", "flat.png", LEFT / 255),
        ("symmetric", "flat.png", LEFT / 127.5 - 1),
        ("tf", "pixels.npy", LEFT / 127.5 - 1),
        ("raw", "pixels.npy", LEFT),
    ):
        found, done = arrived(model, tmp_path / file, tmp_path, "--preprocess", name)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
        assert (done["origin"], done["options"]) == ("user", [f"--preprocess {name}"])
        assert done["line"].startswith("pictures: " if file == "flat.png" else "pixels: ")
        assert done["line"].endswith(f"; by --preprocess {name}")


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_fit_and_interpolation_arrive(tmp_path, fit, interpolation):
    model, picture = averages(tmp_path / "m.onnx"), wide(tmp_path / "wide.png")
    options = ("--preprocess", "raw", "--fit", fit, "--interpolation", interpolation)
    found, done = arrived(model, picture, tmp_path, *options)
    image = Image.open(picture)
    if fit == "stretch":
        image = image.resize((SIZE, SIZE), Image.Resampling[interpolation.upper()])
    else:
        image = image.resize((64, 16), Image.Resampling[interpolation.upper()]).crop((25, 1, 25 + SIZE, 1 + SIZE))
    np.testing.assert_allclose(found, np.asarray(image, np.float64)[:, : SIZE // 2].mean((0, 1)), rtol=1e-5)
    assert (done["fit"], done["interpolation"]) == (fit, interpolation)
    assert interpolation in done["line"]


def test_a_keras_style_network_is_right_with_unit_and_the_assumption_is_told(tmp_path):
    model, picture = averages(tmp_path / "m.onnx", keras=True), wide(tmp_path / "wide.png")
    stretched = Image.open(picture).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    expected = np.asarray(stretched, np.float64)[:, : SIZE // 2].mean((0, 1)) / 255
    found, done = arrived(model, picture, tmp_path)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert done["origin"] == "assumed"
    assert done["reason"] == "the file has its channels last, as Keras has them"
    by_parts = ("--preprocess", "torchvision", "--mean", "0 0 0", "--std", "1 1 1", "--fit", "stretch")
    for options in (("--preprocess", "unit"), by_parts):
        found, done = arrived(model, picture, tmp_path, *options)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert done["origin"] == "user"


# ---- What is told, in each command, by origin


def told(stdout):
    lines = [line for line in stdout.splitlines() if line.startswith(("Pictures: ", "Pixels: "))]
    assert len(lines) <= 1
    return lines[0] if lines else ""


SAYS = {PREPROCESS_KEY: Preprocess.named("symmetric").to_json()}


@pytest.mark.parametrize(
    ("metadata", "options", "ending"),
    [
        (None, (), f"RGB, (x/255 - mean)/std with ImageNet's numbers; {ASSUMED}"),
        (
            SAYS,
            ("--fit", "crop", "--mean", "0.25 0.25 0.25"),
            "RGB, (x/255 - 0.25)/0.5; by --mean, --fit crop; the rest from the file's metadata",
        ),
    ],
)
def test_every_command_tells_in_one_line(tmp_path, metadata, options, ending):
    model = averages(tmp_path / "m.onnx", metadata=metadata)
    folder = tmp_path / "images" / "0"
    folder.mkdir(parents=True)
    picture = wide(folder / "a.png")
    (tmp_path / "labels.txt").write_text("zero\none\ntwo\n")
    labels = ("--labels", tmp_path / "labels.txt")
    shown = run("infer", picture, "--model", model, *options, *labels)
    assert shown.exit_code == 0, shown.output
    assert told(shown.stdout).startswith("Pictures: ")
    assert told(shown.stdout).endswith(ending)
    checked = run("testbench", "--model", model, "--images", folder.parent, *options, *labels)
    assert checked.exit_code == 0, checked.output
    assert told(checked.stdout) == told(shown.stdout)
    line = report("testbench", "--model", model, "--images", folder.parent, *options, *labels)["preprocess"]["line"]
    assert told(shown.stdout) == "P" + line[1:]
    if not options:
        assert told(run("info", model).stdout) == told(shown.stdout)
        assert report("info", model)["preprocess"]["line"] == line


# ---- calibrate


@pytest.fixture
def digits(tmp_path):
    model = shutil.copy(digits_model(), tmp_path / "net.onnx")
    (tmp_path / "images").mkdir()
    for index, image in enumerate(heldout()[0][:4]):
        Image.fromarray(image[:, :, 0]).save(tmp_path / "images" / f"{index}.png")
    return model


def test_calibrate_writes_it_beside_the_scales_and_infer_warns_of_another(digits, tmp_path):
    calibrated = report("calibrate", digits, "--images", tmp_path / "images")
    assert calibrated["preprocess"]["line"].endswith("(x/255 - 0.305)/0.324; from the file's metadata")
    assert read_preprocess(digits) == Preprocess((0.305,), (0.324,), fit="stretch")
    image = next((tmp_path / "images").iterdir())
    arguments = ("infer", image, "--model", digits, "--precision", "int8")
    assert report(*arguments)["preprocess"]["warning"] is None
    warned = run(*arguments, "--preprocess", "unit")
    assert warned.exit_code == 0
    assert warned.stderr == (
        "vgg16gpu: warning: the model asks for other pictures: stretched to 32x32, bilinear, grey, "
        "(x/255 - 0.305)/0.324; from the file's metadata; without --preprocess unit that is done; "
        f"{scales_path(digits)} was calibrated on other pictures: stretched to 32x32, bilinear, "
        "grey, (x/255 - 0.305)/0.324; run `calibrate` again with what is done now\n"
    )
    assert report(*arguments, "--preprocess", "unit")["preprocess"]["warning"] in warned.stderr
    fp32 = run("infer", image, "--model", digits, "--preprocess", "unit").stderr  # has no scales
    assert fp32 == warned.stderr.partition("; " + str(scales_path(digits)))[0] + "\n"


def test_words_that_contradict_the_file_are_warned_of(tmp_path):
    """Metadata in full; first layers in their numbers alone, as they know of no crop; a mere guess in nothing."""
    picture = wide(tmp_path / "p.png")
    told = averages(tmp_path / "told.onnx", metadata={PREPROCESS_KEY: Preprocess.named("unit").to_json()})
    divides = averages(tmp_path / "divides.onnx", first=[("Div", [255.0] * 3)])
    silent = averages(tmp_path / "silent.onnx", keras=True)

    def warned(model, *options):
        return run("infer", picture, "--model", model, *options).stderr

    assert warned(told, "--fit", "crop") == (
        "vgg16gpu: warning: the model asks for other pictures: stretched to 14x14, bilinear, RGB, x/255 from 0 to 1; "
        "from the file's metadata; without --fit crop that is done\n"
    )
    assert "first layers divide by 255" in warned(divides, "--preprocess", "unit")
    for model, *options in (
        (told,),
        (told, "--preprocess", "unit"),
        (divides, "--preprocess", "raw", "--fit", "crop"),
        (silent, "--preprocess", "torchvision"),
    ):
        assert warned(model, *options) == ""


# ---- Wrong values


def test_wrong_options_are_refused_in_one_line():
    for words, message in {
        "--preprocess imagenet": "'imagenet' is not one of",
        "--preprocess keras": "'keras' is of 3 colours, the model takes 1 channel; take one of unit",
        "--fit squash": "'squash' is not one of",
        "--interpolation lanczos": "'lanczos' is not one of",
        "--channel-order bgr": "--channel-order is of 3 channels, the model takes 1; leave it out",
        "--mean 0.1,0.2,0.3": "--mean has 3 values, the model takes 1 channels",
        "--std 0": "--std 0.0: each must be above zero",
    }.items():
        assert message in refusal("infer", digit_sample(), "--model", "digits", *words.split())


def test_models_of_rows_take_no_pictures(tmp_path):
    model = Model(("n", 6))
    model.gemm("input", "y", 6, 4)
    path = model.save(tmp_path / "rows.onnx")
    np.save(tmp_path / "rows.npy", np.ones((2, 6), np.float32))
    assert report("infer", tmp_path / "rows.npy", "--model", path)["preprocess"] is None
    line = refusal("infer", tmp_path / "rows.npy", "--model", path, "--preprocess", "unit")
    assert "rows.onnx: takes rows of 6 numbers, no pictures; leave --preprocess unit out" in line


def test_wrong_metadata_is_refused_in_one_line(tmp_path):
    wrong = "its metadata 'vgg16gpu.%s' is "
    for key, text, message in (
        (PREPROCESS_KEY, "keras", wrong % "preprocess" + "wrong: preprocessing is not JSON"),
        (PREPROCESS_KEY, '{"mean": [0]}', "preprocessing lacks std, pixel_range"),
        (PREPROCESS_KEY, Preprocess.named("unit", 1).to_json(), "it is of 1 channels, the model takes 3; correct it"),
        (MEAN_KEY, "[0.5]", wrong % "mean" + "wrong: mean has 1 values, std 3"),
        (MEAN_KEY, "0.5", wrong % "mean" + "'0.5', expected a JSON list"),
        (STD_KEY, "[0, 1, 1]", wrong % "std" + "wrong: std 0, 1, 1: each must be above zero"),
    ):
        model = averages(tmp_path / "m.onnx", metadata={key: text})
        line = refusal("infer", wide(tmp_path / "wide.png"), "--model", model)
        assert "m.onnx: " in line
        assert message in line


# ---- Parts of a preprocessing


def parts(base, **options):
    return chosen(PixelOptions(**options), base.channels, lambda: base)


def test_mean_and_std_are_of_0_to_1_whatever_the_range():
    keras = Preprocess.named("keras")
    found = parts(keras, mean=(0.4, 0.5, 0.6))
    assert found.mean == (102, 127.5, 153)
    assert (found.pixel_range, found.std, found.channel_order) == (255, (1, 1, 1), "bgr")
    both = parts(keras, mean=(0.1, 0.2, 0.3), std=(0.7, 0.7, 0.7))
    assert (both.unit_mean, both.unit_std, both.pixel_range) == ((0.1, 0.2, 0.3), (0.7, 0.7, 0.7), 1)  # unrounded
    assert both.channel_order == "bgr"


def test_numbers_of_the_user_are_rgb_where_bgr_was_but_assumed():
    assumed = Preprocess.named("keras").with_origin(Origin("assumed", "why"))
    found = parts(assumed, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert found == Preprocess((0,) * 3, (1,) * 3, fit="stretch", interpolation="nearest")
    assert parts(assumed, mean=(0.0,) * 3, std=(1.0,) * 3, channel_order="bgr").channel_order == "bgr"


def test_who_says_so_is_kept_in_its_parts():
    origin = parts(default_preprocess(3).with_origin(Origin("file")), fit="stretch", mean=(0, 0, 0)).origin
    assert (origin.kind, origin.options) == ("file", ("--mean", "--fit stretch"))
    with pytest.raises(InputError, match="--std has 2 values, the model takes 3 channels"):
        parts(default_preprocess(3), std=(1, 1))

"""`calibrate` end to end, and calibration.py behind it."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support import reference
from tests.support.onnx_models import Model
from vgg16gpu.cli import cli
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.compiler.quantization.scale_file import read_scales, scales_path
from vgg16gpu.compiler.quantization.scheme import quantised_inputs
from vgg16gpu.errors import InputError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.runtime.calibration import calibrate
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.digits import heldout
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture
def model(tmp_path):
    return shutil.copy(digits_model(), tmp_path / "net.onnx")


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for index, image in enumerate(heldout()[0][:9]):
        Image.fromarray(image[:, :, 0]).save(folder / f"{index}.png")
    return folder


def run(*args):
    return CliRunner().invoke(cli, ["calibrate", *map(str, args), "--device", "cpu"])


def run_json(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*args):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_images_become_scales_beside_the_model(model, images):
    report = run_json(model, "--images", images)
    graph = OnnxModel(model).graph()
    scales = read_scales(model, graph)
    assert report["path"] == str(scales_path(model))
    assert report["images"] == 9
    assert [value["name"] for value in report["values"]] == list(quantised_inputs(graph))
    values = reference.evaluate(graph, heldout()[1][:9])
    for value in report["values"]:
        name, scale = value["name"], scales[value["name"]]
        assert value["step"] == scale.step
        assert value["largest"] == pytest.approx(np.abs(values[name]).max(), rel=1e-5)
        assert 0.5 * value["largest"] < value["range"] <= value["largest"] * (1 + 1e-6)
        assert value["clipped"] == pytest.approx(
            (np.abs(values[name]) > value["range"] + scale.step / 2).mean(), abs=1e-4
        )


def rounding(path, zero):
    """A file that rounds its input by itself."""
    model = Model((1, 1, 32, 32))
    operands = [model.constant("step", np.float32(0.03)), model.constant("zero", np.int8(zero))]
    x = model.node("QuantizeLinear", ["input", *operands], "q")
    model.conv(model.node("DequantizeLinear", [x, *operands], "d"), "y", 1, 4)
    return model.save(path)


def test_a_file_with_scales_of_its_own_takes_no_others(tmp_path, images):
    path = rounding(tmp_path / "m.onnx", 0)
    result = run(path, "--images", images)
    assert result.exit_code == 2
    for word in ("m.onnx: has scales of its own (QuantizeLinear)", "--precision int8", "the float32 model"):
        assert word in result.stderr
    assert not scales_path(path).exists()


def test_limit_takes_images_from_the_whole_folder(model, images, tmp_path):
    report = run_json(model, "--images", images, "--limit", 3)
    assert report["images"] == 3
    assert report["images_sha256"] == hashlib.sha256(heldout()[0][[0, 3, 6]].tobytes()).hexdigest()
    np.save(tmp_path / "nine.npy", heldout()[0][:9])
    assert run_json(model, "--images", tmp_path / "nine.npy", "--limit", 4)["images"] == 4


def test_bad_input_is_refused_and_leaves_no_file(model, images, tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_text("no picture")
    assert "--images" in refused(model)
    assert "has no images" in refused(model, "--images", tmp_path / "none")
    assert "not a readable image" in refused(model, "--images", tmp_path / "broken")
    assert "does not exist" in refused(model, "--images", tmp_path / "nowhere")
    assert "missing.onnx" in refused(tmp_path / "missing.onnx", "--images", images)
    scales_path(model).mkdir()
    assert "is a folder" in refused(model, "--images", images)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken",
        "images",
        "net.onnx",
        "net.onnx.int8.json",
        "none",
    ]


def test_no_images_and_values_that_overflow(model):
    from vgg16gpu.pictures.inputs import NamedInput

    with Engine(model, device="cpu", keep_values=True) as engine:
        with pytest.raises(InputError, match="no images"):
            calibrate(engine, [])
        huge = NamedInput("huge", np.full((1, 32, 32), 3e38, np.float32))
        with pytest.raises(InputError, match="becomes NaN or infinite"):
            calibrate(engine, [huge])


def test_an_engine_that_does_not_store_what_is_read_is_refused(model, monkeypatch):
    """As kernels do that take the input from where the host left it."""
    from vgg16gpu.pictures.inputs import NamedInput

    with Engine(model, device="cpu", keep_values=True) as engine:
        kept = engine.kept_values
        name = engine.graph.input.name
        monkeypatch.setattr(engine, "kept_values", lambda: [found for found in kept() if found[0][-1] != name])
        with pytest.raises(InputError, match=f"does not store {name}; build it with kernels='ffma'"):
            calibrate(engine, [NamedInput("one", heldout()[1][0])])


@pytest.mark.gpu
def test_scales_do_not_depend_on_the_device(gpu, tmp_path):
    """Nor on its kernels: those of a Hopper GPU take the input of this net as it comes."""
    net, images = tmp_path / "vgg.onnx", tmp_path / "images"
    make_vgg(net, size=32, hidden=64, classes=10)
    images.mkdir()
    for index, pixels in enumerate(structured_images(3, 32, seed=1)):
        Image.fromarray(pixels).save(images / f"{index}.png")
    found = []
    for name in ("cpu", gpu.facts.kind):
        outcome = CliRunner().invoke(cli, ["calibrate", str(net), "--images", str(images), "--device", name])
        assert outcome.exit_code == 0, outcome.output
        found.append({name: scale.step for name, scale in read_scales(net, OnnxModel(net).graph()).items()})
    assert found[0] == pytest.approx(found[1], rel=0.05)
    assert found[0]["input"] > 1.5 / 127  # pixels of an image, normalised, reach beyond 1


def test_scales_may_be_given_to_the_engine(model, images):
    from vgg16gpu.pictures.inputs import NamedInput

    _, x, _ = heldout()
    with Engine(model, device="cpu", keep_values=True) as engine:
        found = calibrate(engine, [NamedInput(str(i), image) for i, image in enumerate(x[:5])])
    with Engine(model, device="cpu", precision="int8", scales=found.scales) as engine:
        given = engine.run(x[:1])
    assert run(model, "--images", images).exit_code == 0  # others, beside the model
    with Engine(model, device="cpu", precision="int8", scales=found.scales) as engine:
        assert np.array_equal(engine.run(x[:1]), given)
    with Engine(model, device="cpu", precision="int8") as engine:
        assert not np.array_equal(engine.run(x[:1]), given)
    name = next(iter(found.scales))
    short = {key: scale for key, scale in found.scales.items() if key != name}
    with pytest.raises(InputError, match=f"scales: none for {name}"):
        Engine(model, device="cpu", precision="int8", scales=short)

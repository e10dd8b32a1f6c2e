"""Keras' models: an input (N, H, W, C) that is transposed at once. Images fit them as they fit any other model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tests.support.foreign_arrays import Placed, opened
from tests.support.onnx_models import Model, onnxruntime_values, random_input
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.cli import cli
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Conv, Gemm, Identity, Reshape, Transpose
from vgg16gpu.compiler.graph.passes import channels_first_input
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.devices import open_device
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.reading import read_inputs

HEIGHT, WIDTH, CLASSES = 32, 24, 12
MAPS = Transpose("x", "t", ("t",), (0, 3, 1, 2))


def keras(shape: Any = ("n", HEIGHT, WIDTH, 3), *, pixels: bool = False, early: bool = False) -> Model:
    """A small net; `pixels`: the input is read as it is, too. `early`: an Identity comes before the Transpose."""
    model = Model(shape)
    x = model.node("Identity", ["input"], "same") if early else "input"
    x = model.node("Transpose", [x], "nchw", perm=[0, 3, 1, 2])
    for index, (channels, filters) in enumerate([(3, 8), (8, 16)]):
        x = model.node("Relu", [model.conv(x, f"conv{index}", channels, filters)], f"relu{index}")
        x = model.node("MaxPool", [x], f"pool{index}", kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Flatten", [model.node("GlobalAveragePool", [x], "mean")], "flat")
    x = model.node("MatMul", [x, model.weight("kernel", 16, CLASSES)], "product")
    x = model.node("Add", [x, model.weight("bias", CLASSES)], "y")
    if pixels:
        total = model.node("AveragePool", ["input"], "p", kernel_shape=[32, 24], strides=[32, 24])
        model.node("Add", [x, model.node("Reshape", [total, model.constant("rows", np.array([-1, 1]))], "q")], "z")
    return model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keras().save(tmp_path_factory.mktemp("models") / "keras.onnx")


def pixels(count: int) -> Any:
    return np.random.default_rng(5).integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)


def numbers_of(x: Any) -> Any:
    """Pixels as the model file takes them, of which it says nothing but that its channels are last."""
    return (x / 255).astype(np.float32)


def expected(path: Path, x: Any) -> Any:
    return onnxruntime_values(path, x)["y"]


# ---- The pass


def test_the_transpose_goes_into_the_input() -> None:
    graph = Graph(GraphInput("x", (None, 8, None, 3)), (MAPS, Identity("t", "y", ("y",))), ("y",))
    found = channels_first_input(graph)
    assert found.input == GraphInput("x", (None, 3, 8, None), channels_last=True)
    assert [(type(op), op.x, op.y) for op in found.ops] == [(Identity, "x", "y")]
    assert channels_first_input(found) is found


@pytest.mark.parametrize(
    "other", [Transpose("x", "y", ("y",), (0, 1, 3, 2)), Reshape("x", "y", ("y",), (0, -1)), Identity("x", "y", ("y",))]
)
def test_an_input_that_is_read_otherwise_stays(other: Any) -> None:
    graph = Graph(GraphInput("x", (2, 8, 8, 3)), (MAPS, other), ("t", "y"))
    assert channels_first_input(graph) is graph


# ---- The engine


@pytest.mark.parametrize("early", [False, True])
def test_numbers_are_as_in_the_file_and_bytes_are_pixels(tmp_path: Path, early: bool) -> None:
    path = keras(early=early).save(tmp_path / "m.onnx")
    x, images = random_input((3, HEIGHT, WIDTH, 3)), pixels(3)
    with Engine(path, device="cpu", batch=(1, 2)) as engine:
        assert [type(op) for op in engine.graph.ops[:2]] == [Conv, Conv]
        assert score_error(engine.run(x), expected(path, x)).max() < 1e-5
        assert score_error(engine.run(images), expected(path, numbers_of(images))).max() < 1e-5
        labels = [step.label for step in engine.program.all_steps()]
    assert "transpose" not in labels


def test_streams_and_pinned_memory(path: Path) -> None:
    x, images = random_input((5, HEIGHT, WIDTH, 3)), pixels(2)
    with Engine(path, device="cpu", batch=(1, 2)) as engine:
        whole = engine.run(x)
        first, second, third = engine.stream([x[:2], images, x[2:]], batch=2)
        np.testing.assert_array_equal(np.concatenate([first, third]), whole)
        np.testing.assert_array_equal(second, engine.run(images))
        memory = engine.input()
        assert memory.shape == (2, HEIGHT, WIDTH, 3)
        memory[:] = x[:2]
        np.testing.assert_array_equal(engine.run(memory), whole[:2])
        assert engine.input("uint8").shape == (2, HEIGHT, WIDTH, 3)


def test_other_arrays_are_refused(path: Path) -> None:
    words = rf"takes float32 \(N, {HEIGHT}, {WIDTH}, 3\) or uint8 \(N, {HEIGHT}, {WIDTH}, 3\)"
    with Engine(path, device="cpu") as engine:
        for kind in (np.float32, np.uint8):
            with pytest.raises(InputError, match=words):
                engine.run(np.zeros((1, 3, HEIGHT, WIDTH), kind))


def test_arrays_on_the_device_are_taken_as_on_the_host(path: Path) -> None:
    x = random_input((3, HEIGHT, WIDTH, 3))
    device, _ = open_device("cpu")
    with opened(path, device, batch=2) as engine:
        np.testing.assert_array_equal(engine.run(Placed(engine.device, x)).numpy(), engine.run(x))
    device.close()


def test_taps(path: Path) -> None:
    x = random_input((1, HEIGHT, WIDTH, 3))
    with Engine(path, device="cpu", outputs=["nchw", "pool0"]) as engine:
        turned, pool = engine.run(x)
    np.testing.assert_array_equal(turned, np.moveaxis(x, -1, 1))
    np.testing.assert_allclose(pool, onnxruntime_values(path, x, ["pool0"])["pool0"], rtol=1e-4, atol=1e-5)


# ---- Open sizes


@pytest.mark.parametrize("dims", [("n", "h", "w", 3), (None, None, None, 3), (1, None, None, None)])
@pytest.mark.parametrize("size", [None, 32, (HEIGHT, WIDTH)])
def test_open_sizes(tmp_path: Path, dims: Any, size: Any) -> None:
    path = keras(dims).save(tmp_path / "m.onnx")
    height, width = (224, 224) if size is None else size if isinstance(size, tuple) else (size, size)
    assert resolve_input_shape(OnnxModel(path).graph(), 1, size) == (1, 3, height, width)
    if size is not None:
        x = random_input((1, height, width, 3))
        with Engine(path, device="cpu", size=size) as engine:
            assert score_error(engine.run(x), expected(path, x)).max() < 1e-5


# ---- Files and commands


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments), "--device", "cpu", "--json"])


def report(*arguments: object) -> dict[str, Any]:
    result = call(*arguments)
    assert result.exit_code in (0, 1), result.output
    return dict(json.loads(result.stdout))


def test_files_of_numbers_are_as_in_the_model(tmp_path: Path) -> None:
    spec = InputSpec((3, HEIGHT, WIDTH), channels_last=True)
    x = random_input((HEIGHT, WIDTH, 3))
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.txt", x.ravel(), fmt="%.9g")
    for item in read_inputs([tmp_path / "x.npy", tmp_path / "x.txt"], spec):
        np.testing.assert_array_equal(item.array, x)
    np.save(tmp_path / "x.npy", np.moveaxis(x, -1, 0))
    with pytest.raises(InputError, match=rf"\({HEIGHT}, {WIDTH}, 3\).*transpose it \(batch axes 0, 2, 3, 1\)"):
        list(read_inputs([tmp_path / "x.npy"], spec))
    np.save(tmp_path / "x.npy", x.astype(np.int32))
    with pytest.raises(InputError, match="numbers, channels last"):
        list(read_inputs([tmp_path / "x.npy"], spec))
    (tmp_path / "x.txt").write_text("1 " * 8 * 8 * 3)
    with pytest.raises(InputError, match=rf"2304 \({HEIGHT}x{WIDTH}x3\).*1 of 8x8x3"):
        list(read_inputs([tmp_path / "x.txt"], spec))


def test_infer_takes_images_and_arrays(tmp_path: Path, path: Path) -> None:
    image = pixels(1)[0]
    np.save(tmp_path / "pixels.npy", image)
    np.save(tmp_path / "numbers.npy", (image / 255).astype(np.float32))
    Image.fromarray(image).save(tmp_path / "picture.png")
    names = ("pixels.npy", "numbers.npy", "picture.png")
    arguments = ("--model", path, "--output", tmp_path / "scores.npy")
    done = report("infer", *(tmp_path / name for name in names), *arguments)["preprocess"]
    assert done["line"].startswith("pictures: stretched to 32x24, bilinear, RGB, x/255 from 0 to 1; assumed: ")
    scores = expected(path, (image[None] / 255).astype(np.float32))
    assert score_error(np.load(tmp_path / "scores.npy"), np.repeat(scores, 3, axis=0)).max() < 1e-5


def test_int8_from_calibration_to_testbench(tmp_path: Path) -> None:
    path = keras().save(tmp_path / "m.onnx")
    for index, image in enumerate(pixels(6)):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    calibrated = report("calibrate", path, "--images", tmp_path)
    assert calibrated["values"][0]["name"] == "input"
    graph = OnnxModel(path).graph()
    assert len(calibrated["values"]) == sum(isinstance(op, Conv | Gemm) for op in graph.ops)
    checked = report("testbench", "--model", path, "--precision", "int8")
    assert checked["inputs_passed"] == 10
    with Engine(path, device="cpu", precision="int8") as engine:
        assert {engine.plan.families[op.y] for op in engine.graph.ops if isinstance(op, Conv)} == {"mma"}


def test_testbench_compares_scores_and_layers(tmp_path: Path, path: Path) -> None:
    found = report("testbench", "--model", path, "--layers", "--save", tmp_path)
    assert found["inputs_passed"] == 10
    assert found["worst_error"] < 1e-5
    assert all(step["passed"] for step in found["steps"])
    again = ("--inputs", tmp_path / "input.txt", "--references", tmp_path / "output.txt")
    assert report("testbench", "--model", path, *again)["inputs_passed"] == 10
    (tmp_path / "images" / "3").mkdir(parents=True)
    Image.fromarray(pixels(1)[0]).save(tmp_path / "images" / "3" / "a.png")
    assert report("testbench", "--model", path, "--images", tmp_path / "images")["inputs_passed"] == 1


def test_info_names_the_layout(path: Path) -> None:
    found = report("info", path)
    shape = [1, HEIGHT, WIDTH, 3]
    assert found["input"] == {"name": "input", "declared": [None, *shape[1:]], "shape": shape, "layout": "NHWC"}
    assert found["layers"][0]["op"] == "Transpose"
    assert "transpose" not in [step["step"] for step in found["steps"]]
    stages = {stage["pass"]: stage for stage in report("info", path, "--graph")["passes"]}
    assert [row["op"] for row in stages["channels_first_input"]["dropped"]] == ["Transpose"]
    text = CliRunner().invoke(cli, ["info", str(path), "--device", "cpu"]).stdout
    assert f"Input: input 1x{HEIGHT}x{WIDTH}x3 NHWC (declared ?x{HEIGHT}x{WIDTH}x3)" in text

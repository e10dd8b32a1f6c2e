"""`infer` end to end: the shipped net on a real digit, every input form, every output form."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from PIL import Image

from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.cli import cli
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.zoo.digits import digit_sample, heldout

CLASSES = 40


def run(*args, **options):
    result = CliRunner().invoke(cli, ["infer", *map(str, args), "--device", "cpu"], **options)
    assert result.exit_code == 0, result.output
    return result


def run_json(*args, **options):
    return json.loads(run(*args, "--json", **options).stdout)


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(8).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def expected(narrow, pixels):
    return Oracle(narrow).scores(normalise(pixels, IMAGENET_MEAN, IMAGENET_STD))


def test_a_real_digit(tmp_path):
    images, _, labels = heldout()
    Image.fromarray(images[0, :, :, 0]).save(tmp_path / "digit.png")
    report = run_json(digit_sample(), tmp_path / "digit.png", "--model", "digits")
    tops = [item["top"][0] for item in report["inputs"]]
    assert tops[1]["index"] == labels[0]
    assert tops[0]["label"] == str(tops[0]["index"])
    assert all(top["probability"] > 0.5 for top in tops)


def test_every_input_form_gives_the_same_scores(narrow, pixels, expected, tmp_path):
    numbers = normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)
    np.save(tmp_path / "floats.npy", numbers)
    np.save(tmp_path / "bytes.npy", pixels)
    np.savez(tmp_path / "a.npz", first=numbers[:2], rest=numbers[2:])
    text = "\n".join(f"{value:.9g}" for value in numbers.ravel())
    (tmp_path / "a.txt").write_text(text)
    for name in ("floats.npy", "bytes.npy", "a.npz", "a.txt"):
        out = tmp_path / "scores.npy"
        run(tmp_path / name, "--model", narrow, "--output", out)
        np.testing.assert_allclose(np.load(out), expected, atol=1e-5 * np.abs(expected).max())
    report = run_json("-", "--model", narrow, input=text)
    assert [item["top"][0]["index"] for item in report["inputs"]] == expected.argmax(axis=1).tolist()
    assert report["inputs"][4]["name"] == "standard input[4]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """More than a handful of images, two of them broken."""
    path = tmp_path_factory.mktemp("folder")
    for index in range(12):
        array = np.random.default_rng(index).integers(0, 256, (37, 37, 3), dtype=np.uint8)
        Image.fromarray(array).save(path / f"{index:02}.png")
    (path / "03x.jpg").write_text("no image")
    (path / "99.png").write_bytes((path / "00.png").read_bytes()[:200])
    return path


@pytest.mark.first_case(reason="tests/pictures has workers and batches")
@pytest.mark.parametrize(("workers", "batch"), [(1, 5), (None, 1), (0, 5)])
def test_a_folder_with_broken_images(narrow, folder, tmp_path, workers, batch):
    options = [] if workers is None else ["--workers", workers]
    arguments = ["infer", folder, "--model", narrow, "--device", "cpu", "--batch", batch, "--json", *options]
    result = CliRunner().invoke(cli, [*map(str, arguments), "--output", str(tmp_path / "scores.npz")])
    assert result.exit_code == 1  # the others have answers
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    for line, name in zip(lines, ("03x.jpg", "99.png"), strict=True):
        assert line.startswith(f"vgg16gpu: '{folder / name}' is not a readable image")
    report = json.loads(result.stdout)
    assert (report["kernels"], report["arithmetic"]) == ("auto", "ffma")
    assert [image["name"] for image in report["unreadable"]] == [str(folder / "03x.jpg"), str(folder / "99.png")]
    names = [str(folder / f"{index:02}.png") for index in range(12)]
    assert [item["name"] for item in report["inputs"]] == names
    crops = np.stack([np.asarray(Image.open(name))[2:34, 2:34] for name in names])
    expected = Oracle(narrow).scores(normalise(crops, IMAGENET_MEAN, IMAGENET_STD))
    with np.load(tmp_path / "scores.npz") as archive:
        assert archive["names"].tolist() == sorted([*names, str(folder / "03x.jpg"), str(folder / "99.png")])
        is_read = np.isin(archive["names"], names)
        assert np.isnan(archive["scores"][~is_read]).all()
        np.testing.assert_allclose(archive["scores"][is_read], expected, atol=1e-5 * np.abs(expected).max())
    rates = report["rates"]
    assert rates["decode_threads"] == 1 or workers != 1
    assert rates["decode_images_per_s"] > 0
    assert rates["engine_images_per_s"] == pytest.approx(batch / report["timings"]["steady_run_s"])


def test_nonfinite_inputs_run_when_allowed(narrow, pixels, tmp_path):
    numbers = normalise(pixels[:2], IMAGENET_MEAN, IMAGENET_STD)
    numbers[0, 0, 0, 0] = np.nan
    np.save(tmp_path / "a.npy", numbers)
    report = run_json(tmp_path / "a.npy", "--model", narrow, "--allow-nonfinite", "--batch", 2)
    bad, good = report["inputs"]
    assert (bad["top"], bad["problem"]) == ([], "scores are NaN")
    assert good["top"][0]["score"] is not None
    assert good["problem"] == ""
    shown = run(tmp_path / "a.npy", "--model", narrow, "--allow-nonfinite").stdout
    assert "scores are NaN" in shown
    assert "nan" not in shown


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_gives_no_numbers_gives_no_answer(narrow, pixels, tmp_path, value):
    model = onnx.load(narrow)
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "classifier.6.bias")
    numbers = np.array(numpy_helper.to_array(bias))
    numbers[3] = value
    bias.CopyFrom(numpy_helper.from_array(numbers, bias.name))
    onnx.save(model, tmp_path / "broken.onnx")
    np.save(tmp_path / "a.npy", pixels[:2])
    arguments = ["infer", str(tmp_path / "a.npy"), "--model", str(tmp_path / "broken.onnx"), "--device", "cpu"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2  # none of the inputs has an answer
    assert f"scores are {'NaN' if np.isnan(value) else 'infinite'}" in result.stdout
    assert "class 0" not in result.stdout
    assert "2 of 2 inputs have no answer" in result.stderr
    assert result.stderr.count("\n") == 1


def test_some_inputs_without_an_answer_are_1(tmp_path):
    """A net whose scores are sums of large weights: large rows overflow, small ones do not."""
    weight = np.full((2, 3), 3e38, np.float32)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    rows, scores = (helper.make_tensor_value_info(name, 1, [None, side]) for name, side in (("x", 3), ("y", 2)))
    graph = helper.make_graph([node], "rows", [rows], [scores], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "rows.onnx")
    np.save(tmp_path / "x.npy", np.float32([[0, 0, 0], [2, 2, 2], [0.1, 0, 0]]))
    arguments = ["infer", tmp_path / "x.npy", "--model", tmp_path / "rows.onnx", "--device", "cpu", "--json"]
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 1, result.output
    assert [bool(item["problem"]) for item in json.loads(result.stdout)["inputs"]] == [False, True, False]
    assert "1 of 3 inputs have no answer" in result.stderr
    assert run(*arguments[1:4], "--allow-nonfinite").exit_code == 0


def test_other_outputs_are_computed_when_they_are_named(narrow, pixels, tmp_path):
    np.save(tmp_path / "a.npy", pixels[:2])
    options = ("--model", narrow, "--output", tmp_path / "s.npz", "--outputs")
    report = run_json(tmp_path / "a.npy", *options, "classifier.3,relu1_1")
    numbers = normalise(pixels[:2], IMAGENET_MEAN, IMAGENET_STD)
    names = report["outputs"]
    assert len(names) == 2
    oracle = Oracle(narrow, names)
    with np.load(tmp_path / "s.npz") as archive:
        for name, key in zip(names, ("scores", f"scores:{names[1]}"), strict=True):
            wanted = np.concatenate([oracle.values(x[None], names)[name] for x in numbers])
            np.testing.assert_allclose(archive[key], wanted, atol=1e-5 * np.abs(wanted).max())
    assert archive_shapes(tmp_path / "s.npz") == {"scores": (2, 32), f"scores:{names[1]}": (2, 8, 32, 32)}
    assert [item["top"] for item in report["inputs"]] == [[], []]  # features are no classes
    for name in ("relu1_1", "classifier.3"):
        assert "no classes to rank" in run(tmp_path / "a.npy", "--model", narrow, "--outputs", name).stdout
    assert run_json(tmp_path / "a.npy", "--model", narrow, "--outputs", "output,relu1_1")["inputs"][0]["top"]


def archive_shapes(path):
    with np.load(path) as archive:
        return {name: archive[name].shape for name in archive.files if name != "names"}


def test_the_first_of_several_outputs_is_shown_and_all_are_written(narrow, pixels, expected, tmp_path):
    model = onnx.load(narrow)
    model.graph.output.append(onnx.ValueInfoProto(name="/classifier/classifier.4/Relu_output_0"))
    onnx.save(model, tmp_path / "two.onnx")
    np.save(tmp_path / "a.npy", pixels)
    shown = run(tmp_path / "a.npy", "--model", tmp_path / "two.onnx", "--output", tmp_path / "all.npz", "--batch", 2)
    assert "shown is 'output', the first of 2" in shown.stdout
    assert "all.npz" in shown.stdout
    with np.load(tmp_path / "all.npz") as archive:
        np.testing.assert_allclose(archive["scores"], expected, atol=1e-5 * np.abs(expected).max())
        assert archive["scores:/classifier/classifier.4/Relu_output_0"].shape == (5, 32)
    one = run(tmp_path / "a.npy", "--model", tmp_path / "two.onnx", "--output", tmp_path / "one.npy").stdout
    assert "this file the first alone" in one
    assert np.load(tmp_path / "one.npy").shape == (5, CLASSES)

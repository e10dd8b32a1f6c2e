"""The generated VGGs: what torch would write, the same bytes everywhere, and answers that differ between pictures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support.exported_files import FOLDER
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.compiler.onnx.metadata import NOTE_KEY, PREPROCESS_KEY, RANDOM_NOTE
from vgg16gpu.compiler.vgg.architecture import CONVOLUTIONS
from vgg16gpu.errors import ModelError
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.synthetic import CALIBRATION_SEED, TESTBENCH_SEED, structured_images
from vgg16gpu.zoo import center_scores, generate
from vgg16gpu.zoo.generate import make_vgg

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "testbench" / "models.json").read_text())
NARROW = {"width": 8, "hidden": 128, "classes": 50}


def pictures(count: int, size: int, seed: int) -> np.ndarray:
    return normalise(structured_images(count, size, seed), IMAGENET_MEAN, IMAGENET_STD)


def answers(path: Path, x: np.ndarray) -> np.ndarray:
    return open_session(path).run(None, {"input": x})[0]


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


@pytest.mark.parametrize(("name", "batch_norm"), [("torch-legacy.onnx", False), ("torch-legacy-norm.onnx", True)])
def test_structure_is_what_torch_exports(name, batch_norm, tmp_path):
    make_vgg(tmp_path / "net.onnx", variant="vgg11", batch_norm=batch_norm, size=64, width=2, hidden=16, classes=10)
    ours, torchs = onnx.load(tmp_path / "net.onnx"), onnx.load(FOLDER / name)
    for made, exported in zip(ours.graph.node, torchs.graph.node, strict=True):
        assert (made.op_type, made.name, made.input, made.output) == (
            *(exported.op_type, exported.name, exported.input, exported.output),
        )
        assert sorted(made.attribute, key=str) == sorted(exported.attribute, key=str)
    ends = [[*model.graph.input, *model.graph.output] for model in (ours, torchs)]
    assert ends[0] == ends[1]
    weights = [[(tensor.name, tensor.dims) for tensor in model.graph.initializer] for model in (ours, torchs)]
    assert weights[0] == weights[1]
    assert (ours.ir_version, ours.opset_import[0].version) == (8, 17)


@pytest.mark.parametrize("variant", CONVOLUTIONS)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_every_variant_is_valid_and_runs(variant, batch_norm, tmp_path):
    path = tmp_path / "net.onnx"
    make_vgg(path, variant=variant, batch_norm=batch_norm, size=32, **NARROW)
    onnx.checker.check_model(path, full_check=True)
    assert answers(path, pictures(3, 32, 5)).shape == (3, 50)
    assert sum(node.op_type == "Conv" for node in onnx.load(path).graph.node) == int(variant[3:]) - 3


@pytest.mark.parametrize(
    ("size", "features", "window"),
    [
        (32, 1, 1),
        (244, 49, 1),
        pytest.param(448, 49, 2, marks=pytest.mark.slow(reason="test_pools_of_the_calibration has its pool")),
    ],
)
def test_any_input_size(size, features, window, tmp_path):
    path = tmp_path / "net.onnx"
    make_vgg(path, variant="vgg11", size=size, width=2, hidden=16, classes=10)
    assert tensors(path)["classifier.0.weight"].shape == (16, 16 * features)
    average = next(node for node in onnx.load(path).graph.node if node.op_type == "AveragePool")
    assert helper.get_attribute_value(average.attribute[0]) == [window, window]
    # The mean answer is zero only if the generator's own forward pass is right, pools included.
    scores = answers(path, pictures(8, size, CALIBRATION_SEED))
    assert np.abs(scores.mean(axis=0)).max() < 1e-3 * np.abs(scores).max()


def test_checksum_does_not_depend_on_the_blas(tmp_path):
    code = (
        "import sys; from vgg16gpu.zoo.generate import make_vgg;"
        "print(make_vgg(sys.argv[1], size=32, width=8, hidden=128, classes=50))"
    )
    other = {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Prescott", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(tmp_path / "net.onnx")]
    done = subprocess.run(command, env={**os.environ, **other}, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == make_vgg(tmp_path / "here.onnx", size=32, **NARROW)


def test_seed_changes_the_weights_and_nothing_else(tmp_path):
    first = make_vgg(tmp_path / "a.onnx", size=32, **NARROW)
    second = make_vgg(tmp_path / "b.onnx", size=32, seed=1, **NARROW)
    assert first != second
    assert onnx.load(tmp_path / "a.onnx").graph.node == onnx.load(tmp_path / "b.onnx").graph.node


def test_pictures_get_different_answers(tmp_path):
    path = tmp_path / "net.onnx"
    make_vgg(path, size=64, batch_norm=True, width=16, hidden=128, classes=500)
    scores = answers(path, pictures(10, 64, TESTBENCH_SEED))
    assert len(set(scores.argmax(axis=1))) >= 5
    calibration = answers(path, pictures(8, 64, CALIBRATION_SEED))
    assert np.abs(calibration.mean(axis=0)).max() < 1e-3 * np.abs(calibration).max()


def test_weights_have_hes_variance_and_biases_are_not_zero(tmp_path):
    path = tmp_path / "net.onnx"
    make_vgg(path, variant="vgg11", size=32, width=32, hidden=256, classes=50)
    for name, array in tensors(path).items():
        if name == "classifier.6.bias":
            assert np.all(array)
        elif name.endswith("bias"):
            assert np.count_nonzero(array) > 0.98 * array.size, name
            assert array.std() == pytest.approx(0.125, rel=0.5), name
        elif array.size > 10_000:
            fan_in = array[0].size
            assert array.std() == pytest.approx(np.sqrt(2 / fan_in), rel=0.03), name
            assert abs(array.mean()) < 4 * array.std() / np.sqrt(array.size), name


@pytest.mark.slow(reason="138 million weights; narrow nets have recorded checksums, too")
@pytest.mark.parametrize(("name", "size"), [("vgg16-seed0", 224), ("vgg16-244-seed0", 244)])
def test_the_real_vgg16(name, size, tmp_path):
    """Recorded checksum, under 1 GB of memory, at least six different answers to the testbench's ten pictures."""
    path = tmp_path / "net.onnx"
    # ru_maxrss would count this process too: a child inherits it. VmHWM starts anew.
    code = (
        "import re, sys; from pathlib import Path; from vgg16gpu.zoo.generate import make_vgg;"
        f"digest = make_vgg(sys.argv[1], size={size});"
        "print(digest, re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(path)]
    digest, kilobytes = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.split()
    assert digest == RECORDED[name]
    assert int(kilobytes) * 1024 < 1e9
    assert sum(array.size for array in tensors(path).values()) == 138_357_544
    assert len(set(answers(path, pictures(10, size, TESTBENCH_SEED)).argmax(axis=1))) >= 6


class _Stop(BaseException):
    """As Ctrl-C would."""


@pytest.mark.parametrize("error", [_Stop, KeyboardInterrupt])
def test_an_interrupted_write_leaves_nothing_and_spares_the_old_file(error, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")

    def interrupt(done, total):
        if done > total // 2:
            assert len(list(tmp_path.iterdir())) == 2  # the temporary file is in the same folder
            raise error

    with pytest.raises(error):
        make_vgg(path, size=32, progress=interrupt, **NARROW)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_weights_that_no_onnx_file_can_hold_lie_beside_it(tmp_path, monkeypatch):
    """The same tensors, read by this package and by onnx; nothing of two files is left where one cannot be written."""
    make_vgg(tmp_path / "one.onnx", size=32, **NARROW)
    monkeypatch.setattr(generate, "LARGEST_FILE", 1000)
    digest = make_vgg(tmp_path / "two.onnx", size=32, **NARROW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.onnx", "two.onnx", "two.onnx.data"]
    onnx.checker.check_model(tmp_path / "two.onnx")
    one, two = tensors(tmp_path / "one.onnx"), tensors(tmp_path / "two.onnx")
    assert list(one) == list(two)
    file = open_onnx(tmp_path / "two.onnx")
    for tensor in file.model.graph.initializer:
        np.testing.assert_array_equal(file.array(tensor), one[tensor.name])
        np.testing.assert_array_equal(two[tensor.name], one[tensor.name])
    assert file.digest() == digest
    x = pictures(2, 32, TESTBENCH_SEED)
    np.testing.assert_array_equal(answers(tmp_path / "two.onnx", x), answers(tmp_path / "one.onnx", x))
    (tmp_path / "no.onnx.data").mkdir()
    with pytest.raises(ModelError, match="is a folder"):
        make_vgg(tmp_path / "no.onnx", size=32, **NARROW)
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.parametrize("name", ["a:b.onnx", "x\\y.onnx", "\udcff.onnx", "new\nline.onnx"])
def test_a_name_by_which_the_weights_would_not_be_found_is_refused_at_once(name, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "LARGEST_FILE", 1000)
    with pytest.raises(ModelError, match="choose one of printable characters without ':'"):
        make_vgg(tmp_path / name, size=32, **NARROW)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["net.onnx", "net.onnx.data"])
def test_links_are_refused_where_there_are_two_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "LARGEST_FILE", 1000)
    (tmp_path / name).symlink_to("elsewhere")
    with pytest.raises(ModelError, match=rf"{name}: is a link, but a model"):
        make_vgg(tmp_path / "net.onnx", size=32, **NARROW)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_older_model_never_meets_new_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "LARGEST_FILE", 1000)
    path = tmp_path / "net.onnx"
    make_vgg(path, size=32, **NARROW)
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.name == path.name:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ModelError, match="No space left"):
        make_vgg(path, size=32, seed=1, **NARROW)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    file = open_onnx(path)
    with pytest.raises(ModelError, match=r"external data 'net.onnx.data' is missing"):
        file.array(file.model.graph.initializer[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "vgg17"}, "there is no variant 'vgg17'; choose one of vgg11, vgg13, vgg16, vgg19"),
        ({"size": 31}, "input size 31 is not possible; take 32 to 1024 pixels"),
        ({"size": 1025}, "input size 1025"),
        ({"batch": 0}, "batch is 0"),
        ({"classes": -1}, "classes is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"size": 1000, "width": 256, "hidden": 8}, "would take 1968128 inputs"),
    ],
)
@pytest.mark.every_case
def test_what_cannot_be_built(options, message, tmp_path):
    with pytest.raises(ModelError) as caught:
        make_vgg(tmp_path / "net.onnx", **options)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_where_it_cannot_be_written(tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        make_vgg(tmp_path, size=32, **NARROW)
    with pytest.raises(ModelError, match=r"cannot be written \(No such file or directory\)"):
        make_vgg(tmp_path / "missing" / "net.onnx", size=32, **NARROW)


def test_the_file_says_that_its_weights_are_random_and_how_it_is_fed(tmp_path):
    make_vgg(tmp_path / "net.onnx", size=32, **NARROW)
    preprocess = Preprocess.named("torchvision").to_json()
    assert Model(tmp_path / "net.onnx").metadata == {NOTE_KEY: RANDOM_NOTE, PREPROCESS_KEY: preprocess}


def test_pools_of_the_calibration():
    x = np.arange(2 * 5 * 4, dtype=np.float64).reshape(2, 5, 4)
    assert center_scores.max_pool(x).tolist() == [[[5, 7], [13, 15]], [[25, 27], [33, 35]]]
    even = x[:, :4]
    averages = even.reshape(2, 2, 2, 2, 2).mean(axis=(2, 4))
    assert np.abs(center_scores.average_pool(even, 2) - averages).max() < 1e-3

"""Stored references: what the three files hold, that onnxruntime computes it, and that a damaged file is told."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from testbench import make_references
from vgg16gpu.checks import references
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.checks.references import StoredReferences, find_stored
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.errors import InputError
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.io.synthetic import TESTBENCH_SEED, structured_images
from vgg16gpu.zoo.digits import heldout
from vgg16gpu.zoo.generate import make_vgg

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "testbench" / "references"
DIGITS = FOLDER / "digits.npz"
ON_ANY_CPU = 1e-5  # onnxruntime on another CPU adds in another order; digits, whose sums are short, differ less
SIZES = {"vgg16-224-seed0": 224, "vgg16-244-seed0": 244}


@pytest.mark.parametrize("name", SIZES)
def test_ten_inputs_of_vgg16(name):
    stored, size = StoredReferences.read(FOLDER / f"{name}.npz"), SIZES[name]
    digests = json.loads((ROOT / "testbench" / "models.json").read_text())
    assert stored.model_sha256 == digests[name.replace("-224", "")]
    assert stored.scores.shape == (10, 1000)
    assert len(set(stored.scores.argmax(axis=1).tolist())) >= 6
    pictures = structured_images(10, size, TESTBENCH_SEED)
    np.testing.assert_array_equal(stored.pictures, pictures)
    np.testing.assert_array_equal(stored.normalised(), normalise(pictures, IMAGENET_MEAN, IMAGENET_STD))
    assert "--seed 0" in stored.model
    assert "seed 2" in stored.inputs
    assert stored.provider == "CPUExecutionProvider"


def test_digits_are_all_that_the_net_never_saw():
    stored = StoredReferences.read(DIGITS)
    pictures, numbers, labels = heldout()
    np.testing.assert_array_equal(stored.pictures, pictures)
    np.testing.assert_array_equal(stored.normalised(), numbers)
    assert (stored.scores.argmax(axis=1) == labels).mean() > 0.99
    assert stored.scores[:10].argmax(axis=1).tolist() == labels[:10].tolist() == [2, 0, 4, 9, 4, 1, 2, 4, 6, 7]


def test_onnxruntime_computes_the_digits_scores():
    stored, computed = StoredReferences.read(DIGITS), make_references.digits_references()
    assert score_error(computed.scores, stored.scores).max() <= 1e-6
    assert make_references.differences(stored, computed) == []


@pytest.mark.slow(reason="makes VGG16s of 553 MB; digits stand for it")
@pytest.mark.parametrize("name", SIZES)
def test_onnxruntime_computes_the_scores_of_vgg16(name):
    stored, computed = StoredReferences.read(FOLDER / f"{name}.npz"), make_references.MAKERS[name]()
    assert score_error(computed.scores, stored.scores).max() <= ON_ANY_CPU
    assert make_references.differences(stored, computed) == []


def test_plain_numpy_reads_them_as_the_page_says():
    """Without the package: the code of the page prints what its comment says."""
    code = (FOLDER / "README.md").read_text().split("```python\n")[1].split("```")[0]
    promised = code.split("# [")[1].split("]")[0]
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"[{promised}]\n"
    kept = {}
    exec(code.replace("testbench/references", str(FOLDER)).rsplit("\n", 2)[0], kept)
    np.testing.assert_array_equal(kept["x"], heldout()[1])


# Making and checking


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=64, width=8, hidden=32, classes=40)
    return path


@pytest.fixture(scope="module")
def computed(model):
    pictures = structured_images(10, 64, TESTBENCH_SEED)
    return make_references.ask_onnxruntime(model, "narrow", pictures, "ten", (IMAGENET_MEAN, IMAGENET_STD))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of all references is this one."""
    monkeypatch.setattr(references, "_FOLDERS", (tmp_path,))
    return tmp_path


def test_what_is_written_is_read_and_has_the_same_bytes_again(computed, tmp_path):
    computed.write(tmp_path / "a.npz")
    computed.write(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = StoredReferences.read(tmp_path / "a.npz")
    assert make_references.differences(again, computed) == []
    assert again.onnxruntime == computed.onnxruntime
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


# Finding


def test_a_model_is_found_by_its_digest_alone(model, computed, folder, tmp_path):
    shape = (3, 64, 64)
    assert find_stored(open_onnx(model), shape, 40) is None
    computed.write(folder / "narrow.npz")
    assert find_stored(open_onnx(model), shape, 40).path == folder / "narrow.npz"
    renamed = tmp_path / "renamed.onnx"
    content = bytearray(model.read_bytes())
    renamed.write_bytes(content)
    assert find_stored(open_onnx(renamed), shape, 40) is not None
    content[-2000] ^= 1  # a bit of the last weights: another model of the same length
    renamed.write_bytes(content)
    assert find_stored(open_onnx(renamed), shape, 40) is None


def test_only_models_of_a_known_length_are_hashed(computed, folder, monkeypatch):
    computed.write(folder / "narrow.npz")
    file = open_onnx(digits_model())
    monkeypatch.setattr(type(file), "digest", lambda _: pytest.fail("hashed"))
    assert find_stored(file, (1, 32, 32), 10) is None


def test_arrays_of_another_shape_are_told_and_left_out(model, computed, folder, caplog):
    computed.write(folder / "narrow.npz")
    assert find_stored(open_onnx(model), (3, 64, 64), 41) is None
    (record,) = caplog.records
    assert str(folder / "narrow.npz") in record.getMessage()
    assert "scores of 40 classes" in record.getMessage()


def damaged_fields(computed):
    """What may be wrong with the fields, and a word about it."""
    plain = {name: value for name, value in vars(computed).items() if name != "path"}
    nan = plain["scores"].copy()
    nan[0, 0] = np.nan
    return {
        "no scores": ({name: value for name, value in plain.items() if name != "scores"}, "'scores' is missing"),
        "float64": ({**plain, "scores": plain["scores"].astype(np.float64)}, "'scores' is float64 of rank 2"),
        "nan": ({**plain, "scores": nan}, "NaN"),
        "nine rows": ({**plain, "scores": plain["scores"][1:]}, "there are 10 pictures, and scores of shape (9, 40)"),
        "no pictures": ({**plain, "pictures": plain["pictures"][:0], "scores": plain["scores"][:0]}, "0 pictures"),
        "grey": ({**plain, "pictures": plain["pictures"][..., :1]}, "3 means and 3 stds for 1 channels"),
        "zero": ({**plain, "std": plain["std"] * 0}, "a std is 0"),
        "digest": ({**plain, "model_sha256": "b127"}, "'b127', 64 hexadecimal digits are needed"),
        "number": ({**plain, "provider": 7}, "'provider' is not a text"),
        "objects": ({**plain, "mean": np.array([None] * 3)}, "cannot be read"),
    }


@pytest.mark.every_case
@pytest.mark.parametrize("fault", list(damaged_fields(StoredReferences.read(DIGITS))))
def test_wrong_fields_are_named(computed, model, folder, caplog, fault):
    fields, words = damaged_fields(computed)[fault]
    np.savez_compressed(folder / "narrow.npz", **fields)
    check_told(model, folder, caplog, words)


@pytest.mark.parametrize("fault", ["empty", "truncated", "flipped", "text", "array", "folder"])
def test_damaged_files_are_named(computed, model, folder, caplog, fault):
    path = folder / "narrow.npz"
    computed.write(path)
    content = bytearray(path.read_bytes())
    if fault == "folder":
        path.unlink()
        path.mkdir()
    elif fault == "array":
        with path.open("wb") as stream:
            np.save(stream, computed.scores)
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
        cut = content[:middle]
        path.write_bytes({"empty": b"", "truncated": cut, "flipped": flipped, "text": b"1 2 3"}[fault])
    check_told(model, folder, caplog, "cannot be read")


def check_told(model, folder, caplog, words):
    """`read` raises one line with the file's name; `find_stored` logs it and finds nothing."""
    path = folder / "narrow.npz"
    with pytest.raises(InputError) as caught:
        StoredReferences.read(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert find_stored(open_onnx(model), (3, 64, 64), 40) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(path) in record.getMessage()


def test_every_flipped_byte_is_noticed_or_changes_nothing(tmp_path):
    """A checksum guards each field: what is read is what was written, or an error."""
    whole = StoredReferences.read(DIGITS)
    content = DIGITS.read_bytes()
    path = tmp_path / "digits.npz"
    for place in range(0, len(content), len(content) // 41):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            read = StoredReferences.read(path)
        except InputError:
            continue
        assert make_references.differences(whole, read) == []
        np.testing.assert_array_equal(read.scores, whole.scores)

"""onnx_file: zero-copy views, external data, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Model, torch_vgg
from onnx_models import random_input as numbers

from vgg16gpu.errors import ModelError
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.loader import load
from vgg16gpu.onnx_file import LARGE, OnnxFile, open_onnx
from vgg16gpu.simplify import simplify

LARGE_COUNT = LARGE // 4 + 1  # floats in the smallest tensor that stays in the mapping


def with_tensor(path: Path, tensor: TensorProto) -> OnnxFile:
    model = Model((1, 2))
    model.node("Relu", ["input"], "y")
    model.weights.append(tensor)
    return open_onnx(model.save(path))


def read(file: OnnxFile, index: int = 0) -> np.ndarray[Any, Any]:
    return file.array(file.model.graph.initializer[index])


def owner(array: np.ndarray[Any, Any]) -> object:
    """What really holds the memory of an array."""
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


@pytest.mark.parametrize("count", [0, 1, LARGE_COUNT - 1, LARGE_COUNT, 5000])
@pytest.mark.parametrize("spelling", ["raw", "typed"])
def test_tensors_keep_their_values(tmp_path: Path, count: int, spelling: str) -> None:
    values = numbers((count,))
    typed = helper.make_tensor("w", TensorProto.FLOAT, [count], values)
    file = with_tensor(tmp_path / "m.onnx", numpy_helper.from_array(values, "w") if spelling == "raw" else typed)
    array = read(file)
    np.testing.assert_array_equal(array, values)
    assert not array.flags.writeable
    assert isinstance(owner(array), memoryview) == (count >= LARGE_COUNT)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int32, np.uint8, np.int8, np.bool_])
def test_element_types(tmp_path: Path, dtype: type) -> None:
    values: np.ndarray[Any, Any] = np.arange(1000).reshape(10, 100).astype(dtype)
    array = read(with_tensor(tmp_path / "m.onnx", numpy_helper.from_array(values, "w")))
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, values)


def test_a_large_tensor_in_a_constant_node_stays_in_the_file(tmp_path: Path) -> None:
    values = numbers((3, LARGE_COUNT))
    model = Model((1, 2))
    model.node("Constant", [], "w", value=numpy_helper.from_array(values))
    file = open_onnx(model.save(tmp_path / "m.onnx"))
    array = file.array(file.model.graph.node[0].attribute[0].t)
    np.testing.assert_array_equal(array, values)
    assert isinstance(owner(array), memoryview)


def test_the_parsed_message_is_small(tmp_path: Path) -> None:
    file = with_tensor(tmp_path / "m.onnx", numpy_helper.from_array(numbers((1 << 20,)), "w"))
    assert file.path.stat().st_size > 4 << 20
    assert file.model.ByteSize() < 1000


# External data


def external(folder: Path, count: int = 1000, **entries: str) -> Path:
    """A model with one external tensor; `entries` replace what its record says."""
    values = numbers((count,))
    (folder / "weights.bin").write_bytes(b"?" * 12 + values.tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[count], data_location=TensorProto.EXTERNAL)
    record = {"location": "weights.bin", "offset": "12", "length": str(values.nbytes), **entries}
    for key, value in record.items():
        tensor.external_data.add(key=key, value=value)
    model = Model((1, 2))
    model.node("Relu", ["input"], "y")
    model.weights.append(tensor)
    return model.save(folder / "m.onnx")


def test_external_data_is_mapped(tmp_path: Path) -> None:
    array = read(open_onnx(external(tmp_path)))
    np.testing.assert_array_equal(array, numbers((1000,)))
    assert not array.flags.writeable
    assert isinstance(owner(array), memoryview)


def test_external_and_internal_mix(tmp_path: Path) -> None:
    path = torch_vgg().save(tmp_path / "inside.onnx")
    mixed = tmp_path / "mixed.onnx"
    onnx.save(onnx.load(path), mixed, save_as_external_data=True, location="mixed.onnx.data", size_threshold=LARGE)
    located = [tensor.data_location for tensor in onnx.load(mixed, load_external_data=False).graph.initializer]
    assert set(located) == {TensorProto.DEFAULT, TensorProto.EXTERNAL}
    inside, outside = open_onnx(path), open_onnx(mixed)
    for index in range(len(located)):
        np.testing.assert_array_equal(read(inside, index), read(outside, index))


def test_external_data_in_a_subfolder_and_through_a_link_inside(tmp_path: Path) -> None:
    external(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "weights.bin").rename(tmp_path / "sub" / "real.bin")
    (tmp_path / "link.bin").symlink_to("sub/real.bin")
    for location in ("sub/real.bin", "link.bin"):
        path = external(tmp_path, location=location)
        np.testing.assert_array_equal(read(open_onnx(path)), numbers((1000,)))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "/etc/passwd"}, "only files in the model's own folder"),
        ({"location": "../weights.bin"}, "only files in the model's own folder"),
        ({"location": "a/../weights.bin"}, "only files in the model's own folder"),
        ({"location": "C:\\weights.bin"}, "only files in the model's own folder"),
        ({"location": "..\\weights.bin"}, "only files in the model's own folder"),
        ({"location": ""}, "only files in the model's own folder"),
        ({"location": "."}, "only files in the model's own folder"),
        ({"location": "a\0b"}, "only files in the model's own folder"),
        ({"location": "loop.bin"}, "is a link that leaves the model's folder"),
        ({"location": "absent.bin"}, "external data 'absent.bin' is missing; put that file beside the model"),
        ({"location": "outside.bin"}, "is a link that leaves the model's folder"),
        ({"location": "pointer.bin"}, "git lfs pull"),
        ({"location": "empty.bin"}, "is empty"),
        ({"offset": "16"}, "needs bytes 16 to 4016 in 'weights.bin', which has 4012; the file is truncated"),
        ({"offset": "-4"}, "needs bytes -4"),
        ({"offset": "x"}, "offset or length is not a number"),
        ({"offset": "9" * 30}, "the file is truncated"),
        ({"length": "3996"}, "needs 4000 bytes, the file gives it 3996"),
    ],
)
def test_external_data_that_is_refused(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(5000))
    (folder / "outside.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "loop.bin").symlink_to("loop.bin")
    (folder / "pointer.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    (folder / "empty.bin").touch()
    with pytest.raises(ModelError) as caught:
        read(open_onnx(external(folder, **entries)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# Files that are not models


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; copy or download it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a git-LFS pointer"),
        (b"hello, this is text, not a model", "is not an ONNX model"),
        (b"PK\x03\x04" + bytes(100), "is not an ONNX model"),
        (b"\x08\x08", "is truncated or damaged after 2 bytes"),
        (b"\x08" + b"\xff" * 20, "is truncated or damaged"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        open_onnx(path)


def test_folder_missing_file_and_pipe(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder; name the \.onnx file in it"):
        open_onnx(tmp_path)
    with pytest.raises(ModelError, match=r"no such file; .* model make"):
        open_onnx(tmp_path / "absent.onnx")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="is not a regular file"):
        open_onnx(tmp_path / "pipe")


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = torch_vgg().save(tmp_path / "m.onnx")
    monkeypatch.setattr(Path, "open", refuse)  # root reads every file, so its mode proves nothing
    with pytest.raises(ModelError, match=r"cannot be read .*Permission denied.*; check the path and its permissions"):
        open_onnx(path)


def test_a_path_that_the_system_refuses() -> None:
    with pytest.raises(ModelError, match=r"cannot be read|no such file"):
        open_onnx("a" * 5000)
    with pytest.raises(ModelError, match=r"cannot be read|no such file"):
        open_onnx("a\0b")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[1]), "element type BFLOAT16; export .* float32"),
        (TensorProto(name="w", data_type=999, dims=[1]), "element type 999"),
        (TensorProto(name="w", data_type=1, dims=[-2]), "negative dimension"),
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(8)), "does not hold its .* values"),
        (TensorProto(name="w", data_type=1, dims=[300], raw_data=bytes(1000)), "needs 1200 bytes, .* gives it 1000"),
        (TensorProto(name="w", data_type=1, dims=[1 << 40] * 3, raw_data=bytes(1000)), "gives it 1000"),
    ],
)
def test_broken_tensors(tmp_path: Path, tensor: TensorProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(with_tensor(tmp_path / "m.onnx", tensor))


def damage_model(path: Path) -> bytes:
    model = torch_vgg((3, "M"), size=4, norm=True)
    return model.save(path).read_bytes()


def survive(path: Path, content: bytes) -> None:
    """Any bytes give a graph or a ModelError, nothing else."""
    path.write_bytes(content)
    with contextlib.suppress(ModelError):
        resolve_input_shape(simplify(load(path)), 1)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    content = damage_model(path)
    for size in range(1, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match="truncated"):
            load(path)


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    content = damage_model(path)
    source = random.Random(0)
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(source.choice([1, 1, 4])):
            damaged[source.randrange(len(damaged))] = source.choice([0, 0x7F, 0x80, 0xFF, source.randrange(256)])
        survive(path, bytes(damaged))

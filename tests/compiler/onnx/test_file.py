"""onnx_file: zero-copy views, external data, and files that are not what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import Model, torch_vgg
from tests.support.onnx_models import random_input as numbers
from vgg16gpu.compiler.onnx import wire
from vgg16gpu.compiler.onnx.file import OnnxFile, open_onnx, parse_onnx
from vgg16gpu.compiler.onnx.wire import (
    BYTES_PER_BYTE,
    BYTES_PER_FIELD,
    LARGE,
    LARGE_CODED,
    encode_varint,
)
from vgg16gpu.errors import ModelError

LARGE_COUNT = LARGE // 4 + 1  # floats in the smallest tensor that stays in the mapping


def with_tensor(path: Path, tensor: TensorProto) -> OnnxFile:
    model = Model((1, 2))
    model.node("Relu", ["input"], "y")
    model.weights.append(tensor)
    return open_onnx(model.save(path))


def read(file: OnnxFile) -> np.ndarray[Any, Any]:
    return file.array(file.model.graph.initializer[0])


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


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.int8, np.bool_, np.int64])
@pytest.mark.parametrize("count", [5, LARGE_CODED + 3])
def test_integer_fields_keep_their_values(tmp_path: Path, dtype: type, count: int) -> None:
    """float16 weights spelled as int32_data, as converters write them, and whole numbers, negative ones too."""
    values: np.ndarray[Any, Any] = (np.arange(count) * 37 % 251 - 100).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor = TensorProto(name="w", data_type=kind, dims=[count])
    if dtype == np.int64:
        tensor.int64_data.extend(values.tolist())
    else:
        tensor.int32_data.extend((values.view(np.uint16) if dtype == np.float16 else values.astype(np.int32)).tolist())
    file = with_tensor(tmp_path / "m.onnx", tensor)
    assert file.model.ByteSize() < 1 << 20
    array = read(file)
    assert array.dtype == dtype
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, values)


def test_large_integer_fields_that_are_broken(tmp_path: Path) -> None:
    count = LARGE_CODED + 1
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[count], int32_data=[1] * count)
    tensor.int32_data[count // 2] = 300
    with pytest.raises(ModelError, match="values from 1 to 300, int8 takes -128 to 127"):
        read(with_tensor(tmp_path / "m.onnx", tensor))
    tensor.dims[0] = 1 << 62
    with pytest.raises(ModelError, match=rf"does not hold its \(4611686018427387904,\) values but {count}"):
        read(with_tensor(tmp_path / "m.onnx", tensor))
    endless = b"\xff" * count + b"\1"
    body = tensor_bytes(1, encode_varint(5 << 3 | 2) + encode_varint(len(endless)) + endless)
    with pytest.raises(ModelError, match="tensor 'w' is damaged"):
        read(parse_onnx(model_bytes(body)))


def tensor_bytes(count: int, body: bytes) -> bytes:
    return TensorProto(name="w", data_type=TensorProto.INT32, dims=[count]).SerializeToString() + body


def field(number: int, body: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(body)) + body


def model_bytes(tensor: bytes) -> bytes:
    return b"\x08\x08" + field(7, field(5, tensor))


# Models in memory


def test_external_data_of_a_model_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = external(tmp_path).read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"external data at 'weights\.bin'; say in which folder"):
        read(parse_onnx(data))
    np.testing.assert_array_equal(read(parse_onnx(data, tmp_path)), numbers((1000,)))


def test_external_data_stays_where_it_was_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    external(tmp_path)
    monkeypatch.chdir(tmp_path)
    file = open_onnx("m.onnx")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(read(file), numbers((1000,)))


def test_files_that_become_shorter_are_noticed(tmp_path: Path) -> None:
    file = open_onnx(external(tmp_path))
    read(file)
    os.truncate(tmp_path / "weights.bin", 100)
    with pytest.raises(ModelError, match="tensor 'w' is in a file that has become shorter; load the model again"):
        read(file)
    file = with_tensor(tmp_path / "inside.onnx", numpy_helper.from_array(numbers((9000,)), "w"))
    os.truncate(tmp_path / "inside.onnx", 100)
    with pytest.raises(ModelError, match="has become shorter"):
        read(file)


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
        ({"location": "loop.bin"}, "cannot be read (Too many levels of symbolic links)"),
        ({"location": "absent.bin"}, "external data 'absent.bin' is missing; put that file beside the model"),
        ({"location": "outside.bin"}, "is a link that leaves the model's folder"),
        ({"location": "pointer.bin"}, "git lfs pull"),
        ({"location": "empty.bin"}, "is empty"),
        ({"offset": "16"}, "needs bytes 16 to 4016 in 'weights.bin', which has 4012; the file is truncated"),
        ({"offset": "-4"}, "needs bytes -4"),
        ({"offset": "x"}, "offset or length is not a number"),
        ({"offset": "9" * 30}, "the file is truncated"),
        ({"length": "3996"}, "needs 4000 bytes, the file gives it 3996"),
        ({"length": "-1"}, "needs 4000 bytes, the file gives it -1"),
        ({"offset": "1_2"}, "offset or length is not a number"),
        ({"offset": "9" * 5000}, "offset or length is not a number"),
        ({"location": "x" * 3000}, f"external data '{'x' * 500} ... {'x' * 500}' cannot be read (File name too long)"),
        ({"location": "weights.bin/x"}, "external data 'weights.bin/x' cannot be read (Not a directory)"),
        ({"location": "sub"}, "external data 'sub' cannot be read"),
        ({"location": "pipe"}, "external data 'pipe' is not a regular file"),
        ({"location": "zero.bin"}, "is a link that leaves the model's folder"),
        ({"location": "two\nlines"}, r"external data 'two\nlines' is missing"),
    ],
)
@pytest.mark.every_case
def test_external_data_that_is_refused(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(5000))
    (folder / "outside.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "loop.bin").symlink_to("loop.bin")
    (folder / "pointer.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    (folder / "empty.bin").touch()
    (folder / "sub").mkdir()
    (folder / "zero.bin").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
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
@pytest.mark.every_case
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
    monkeypatch.setattr(os, "open", refuse)  # root reads every file, so its mode proves nothing
    with pytest.raises(ModelError, match=r"cannot be read .*Permission denied.*; check the path and its permissions"):
        open_onnx(path)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[1]), "element type BFLOAT16; export .* float32"),
        (TensorProto(name="w", data_type=999, dims=[1]), "element type 999"),
        (TensorProto(name="w", data_type=1, dims=[-2]), "negative dimension"),
        (
            TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(8)),
            r"shape \(3,\) needs 12 bytes, .* gives it 8",
        ),
        (TensorProto(name="w", data_type=1, dims=[300], raw_data=bytes(1000)), "needs 1200 bytes, .* gives it 1000"),
        (TensorProto(name="w", data_type=1, dims=[1 << 40] * 3, raw_data=bytes(1000)), "gives it 1000"),
        (TensorProto(name="w", data_type=1, dims=[1 << 62]), "does not hold its .* values but 0"),
        (TensorProto(name="w", data_type=1, dims=[0, 1 << 62]), "the file is broken"),
        (TensorProto(name="w", data_type=1, dims=[1] * 33, float_data=[1]), "has 33 dimensions, at most 32"),
        (TensorProto(name="w", data_type=1, dims=[1], raw_data=bytes(4), float_data=[1]), "in raw_data and float_data"),
        (TensorProto(name="w", data_type=1, dims=[1], int64_data=[1]), "in int64_data, where float_data is needed"),
        (
            TensorProto(name="w", data_type=7, dims=[1], string_data=[b"3"]),
            "in string_data, where int64_data is needed",
        ),
        (TensorProto(name="w", data_type=8, dims=[1], string_data=[b"3"]), "has element type STRING"),
        (TensorProto(name="w", data_type=2, dims=[1], int32_data=[-1]), "values from -1 to -1, uint8 takes 0 to 255"),
        (TensorProto(name="w", data_type=1, dims=[2], float_data=[1]), r"does not hold its \(2,\) values but 1"),
        (
            TensorProto(name="w", data_type=1, dims=[1], data_location=1, raw_data=bytes(4)),
            "raw_data and external data",
        ),
        (TensorProto(name="w\n", data_type=1, dims=[1]), r"holds the name 'w\\n' with control characters"),
        (TensorProto(name="w" * 5000, data_type=1, dims=[1]), "holds a name of 5000 characters, at most 4096"),
    ],
)
@pytest.mark.every_case
def test_broken_tensors(tmp_path: Path, tensor: TensorProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(with_tensor(tmp_path / "m.onnx", tensor))


def test_bodies_that_are_given_twice() -> None:
    body = TensorProto(name="w", data_type=1, dims=[100], raw_data=bytes(400)).SerializeToString()
    again = TensorProto(raw_data=bytes(400)).SerializeToString()
    with pytest.raises(ModelError, match="says twice where its values are"):
        read(parse_onnx(model_bytes(body + again)))


# The bounds on memory

CHILD = """
import os, resource, sys
from vgg16gpu.errors import ModelError
from vgg16gpu.compiler.onnx import wire
from vgg16gpu.compiler.onnx.file import open_onnx
for path, bound in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    if os.fork():  # none has what another has freed
        os.wait()
        continue
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + os.stat(path).st_size + bound,) * 2)
    print(len(open_onnx(path).model.graph.node), flush=True)
    os._exit(0)
"""
BOUNDED = (  # content of the graph, number of fields
    (b"\x0a\x00" * 50_000, 50_000),  # empty nodes
    (field(1, b"\x2a\x00" * 50_000), 50_001),  # empty attributes
    (field(5, field(1, b"\1" * 4_000_000)), 2),  # dimensions
    (field(10, "\U0001f600".encode() * 1_000_000), 1),  # a description
    (field(5, field(9, bytes(50_000_000))), 2),  # a large weight
)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Processes that have no more memory than is promised read each file."""
    arguments = []
    for number, (content, fields) in enumerate(BOUNDED):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(b"\x08\x08" + field(7, content))
        structure = len(content) if len(content) < 50_000_000 else 200
        arguments += [str(path), str(BYTES_PER_BYTE * structure + BYTES_PER_FIELD * (fields + 2) + (1 << 20))]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert not done.stderr
    assert done.stdout.split() == ["50000", "1", "0", "0", "0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x0a\x00" * 1001, "has more than 1000 fields"),
        (field(10, bytes(1 << 20)), "has more than 1 MiB beside its tensors"),
        (field(999, bytes(1 << 20)), "has more than 1 MiB beside its tensors"),
        (field(10, b"\xff"), "holds text that is not UTF-8"),
        (b"\x52\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "is truncated or damaged"),  # a length of 2^70
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\1", "is truncated or damaged"),  # a field number of 2^61
    ],
)
@pytest.mark.every_case
def test_files_beyond_the_bounds(monkeypatch: pytest.MonkeyPatch, content: bytes, message: str) -> None:
    monkeypatch.setattr(wire, "MAX_FIELDS", 1000)
    monkeypatch.setattr(wire, "MAX_STRUCTURE", 1 << 20)
    with pytest.raises(ModelError, match=message):
        parse_onnx(b"\x08\x08" + field(7, content))

"""Weights of VGGs as numpy arrays and .safetensors files, in an environment that needs no torch."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.weight_files import safetensors, state_of, timms
from vgg16gpu.cli import cli
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.free_size import _are_equal
from vgg16gpu.compiler.vgg.architecture import VARIANTS
from vgg16gpu.compiler.vgg.source import checkpoints
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.generate import make_vgg

Arrays = dict[str, Any]


def made(folder: Path, arch: str) -> Path:
    path = folder / f"{arch}.onnx"
    batch_norm = arch.endswith("_bn")
    make_vgg(path, variant=arch.removesuffix("_bn"), batch_norm=batch_norm, width=2, hidden=8, classes=5)
    return path


@pytest.fixture(scope="module")
def vgg16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("weights"), "vgg16")


@pytest.fixture(scope="module")
def state(vgg16: Path) -> Arrays:
    return state_of(vgg16)


def are_equal(a: Graph, b: Graph) -> bool:
    return bool(_are_equal((a.input, a.ops, a.outputs, a.constants), (b.input, b.ops, b.outputs, b.constants)))


@pytest.mark.parametrize("arch", VARIANTS)
def test_a_state_dict_is_recognised_and_gives_the_graph_of_the_file(arch: str, tmp_path: Path) -> None:
    path = made(tmp_path, arch)
    state = state_of(path)
    for source, name in ((state, None), (timms(state), None), (state, arch)):
        model = Model.from_torch(source, name)
        assert are_equal(model.graph(), Model(path).graph())
    inner = ("conv2_1", "relu3_1", "features.0")
    assert are_equal(Model(state).graph(outputs=inner), Model(path).graph(outputs=inner))


def test_files_and_arrays_are_one_model_with_one_digest(state: Arrays, vgg16: Path, tmp_path: Path) -> None:
    sources: list[Any] = [state, timms(state), {"epoch": 3, "state_dict": state}]
    sources += [{f"module.{name}": value for name, value in state.items()}]
    sources += [{name.replace("features.", "features.module."): value for name, value in state.items()}]
    sources += [state | {"features.1.num_batches_tracked": np.array(3)}]
    for index, (form, padding) in enumerate(((state, 0), (state, 3), (timms(state), 0))):  # 3: values are unaligned
        path = tmp_path / f"{index}.safetensors"
        path.write_bytes(safetensors(form, padding))
        sources += [path, str(path)]
    digests = {Model(source).file.digest() for source in sources}
    assert len(digests) == 1
    assert Model(path).path == path
    assert Model(path).file.paths == (path,)
    whole = Model(bytes(Model(state).file.content))  # as a process of another device is given it
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    scores = []
    for source in (vgg16, path, whole):
        with Engine(source, device="cpu", batch=1) as engine:
            scores.append(engine.run(x))
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    other = state | {"classifier.6.bias": state["classifier.6.bias"] + 1}
    assert Model(other).file.digest() not in digests


def test_float32_is_not_copied_and_other_types_are_rounded(state: Arrays, tmp_path: Path) -> None:
    file = Model(state).file
    for tensor in file.model.graph.initializer:
        assert np.shares_memory(file.array(tensor), state[tensor.name])
        assert not file.array(tensor).flags.writeable
    bits = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in state.items()}
    brain = {name: (array.astype(np.uint32) << 16).view(np.float32) for name, array in bits.items()}
    doubles = {name: array.astype(np.float64) * (1 + 1e-12) for name, array in state.items()}
    halves = {name: array.astype(np.float16) for name, array in state.items()}
    big = {name: array.astype(">f4") for name, array in state.items()}
    for given, exact in ((bits, brain), (doubles, state), (halves, halves)):
        path = tmp_path / "typed.safetensors"
        path.write_bytes(safetensors(given))
        expected = Model({name: array.astype(np.float32) for name, array in exact.items()}).file.digest()
        assert Model(path).file.digest() == expected
        path.unlink()
    for given, exact in ((doubles, state), (halves, halves), (big, state)):
        expected = Model({name: array.astype(np.float32) for name, array in exact.items()}).file.digest()
        assert Model(given).file.digest() == expected


def test_features_alone_take_any_size(state: Arrays, vgg16: Path) -> None:
    alone = {name: value for name, value in state.items() if name.startswith("features.")}
    bare = {name.removeprefix("features."): value for name, value in alone.items()}
    x = np.random.default_rng(0).standard_normal((1, 3, 40, 57)).astype(np.float32)
    with Engine(vgg16, device="cpu", batch=1, outputs=["features.30"]) as engine:
        expected = engine.run(x)
    for source in (alone, bare):
        with Engine(source, device="cpu", batch=1) as engine:
            np.testing.assert_array_equal(engine.run(x), expected)
    assert expected.shape == (1, 16, 1, 1)


def without(state: Mapping[str, Any], *names: str) -> Arrays:
    return {name: value for name, value in state.items() if name not in names}


def test_what_does_not_fit_is_named(state: Arrays) -> None:
    floats = np.zeros((2, 2), np.float32)
    alexnet = {"features.0.weight": np.zeros((64, 3, 11, 11), np.float32), "features.0.bias": np.zeros(64, np.float32)}
    cases: list[tuple[Any, str | None, str]] = [
        (without(state, "features.28.bias"), None, "not the weights of vgg16: missing: features.28.bias; accepted:"),
        (
            without(state, *list(state)[-5:]),
            None,
            "missing: classifier.0.bias, classifier.3.weight, classifier.3.bias and",
        ),
        (state | {"extra.weight": floats}, None, "not the weights of vgg16: not known: extra.weight; accepted"),
        (
            state | {"features.5.weight": floats},
            None,
            r"of another shape: features.5.weight \(2, 2\), expected \(4, 2, 3, 3\)",
        ),
        (state, "vgg19", "not the weights of vgg19: missing: features.16.weight"),
        (state, "vgg16_bn", "not the weights of vgg16_bn: missing: features.1.weight"),
        (state, "resnet50", "arch is 'resnet50'; choose one of vgg11, vgg11_bn"),
        ({}, None, "not the weights of a VGG: found no tensors; accepted: .* torch.onnx.export"),
        ({"layer1.0.conv1.weight": floats}, None, "not the weights of a VGG: found layer1.0.conv1.weight"),
        ({1: floats}, None, "the state dict has the key 1"),
        (alexnet, None, "not the weights of vgg11"),
        (state | {"features.0.bias": np.zeros(2, np.int8)}, None, "tensor 'features.0.bias' is ndarray of int8"),
        (state | {"module.features.0.bias": floats}, None, "has 'features.0.bias' twice"),
        (state | {"features.0.weight": np.float32(3)}, None, "not the weights of a VGG"),
        (state | {"features.0.weight": np.zeros((0, 3, 3, 3), np.float32)}, None, "width is 0"),
    ]
    for source, arch, message in cases:
        with pytest.raises(ModelError, match=message) as caught:
            Model.from_torch(source, arch)
        assert "\n" not in str(caught.value)
    for source in (5, None, [state], "net.onnx", b"abc"):
        with pytest.raises(InputError, match=r"the weights are .*; give a module of torch, a state dict"):
            Model.from_torch(source)  # type: ignore[arg-type]


HEADERS = (
    ("no JSON", b"{nothing"),
    ("deep", b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"),
    ("no object", b"[]"),
    ("no entry", b'{"a":1}'),
    ("another key", b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"b":1}}'),
    ("negative", b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'),
    ("true", b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}'),
    ("huge", b'{"a":{"dtype":"F32","shape":[4611686018427387903,4611686018427387903],"data_offsets":[0,4]}}'),
    ("past the end", b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    ("backwards", b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[4,0]}}'),
    ("type", b'{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}'),
    ("type is a list", b'{"a":{"dtype":[],"shape":[1],"data_offsets":[0,4]}}'),
    ("three offsets", b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}'),
    ("a hole", b'{"a":{"dtype":"I8","shape":[3],"data_offsets":[1,4]}}'),
    ("unread bytes", b'{"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}'),
    (
        "overlap",
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}',
    ),
)


@pytest.mark.parametrize("header", [header for _, header in HEADERS], ids=[name for name, _ in HEADERS])
def test_hostile_headers_are_refused(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    with pytest.raises(ModelError, match=r"net.safetensors: is not a .safetensors file, or damaged: .*again$"):
        Model(path)


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    for data, message in (
        (b"", "is empty"),
        (b"abc", "its header would have"),
        (b"\xff" * 80, "its header would have 18,446,744,073,709,551,615 bytes, the file has 80"),
        (b"version https://git-lfs.github.com/spec/v1", "git-LFS pointer"),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=message):
            Model(path)
    path.unlink()
    with pytest.raises(ModelError, match=r"net\.safetensors: no such file"):
        Model(path)
    path.mkdir()
    with pytest.raises(ModelError, match="is a folder"):
        Model(path)


def test_mutated_files_load_or_give_one_line(state: Arrays, tmp_path: Path) -> None:
    """Damage headers by numbers: nothing but a model or a ModelError comes of them."""
    random, path = Random(51), tmp_path / "net.safetensors"
    alone = {name: value for name, value in state.items() if name.startswith("features.")}
    sound = safetensors(alone)
    end = 8 + int.from_bytes(sound[:8], "little")
    words = [
        b"-",
        b"1e9",
        b"null",
        b'""',
        b"[",
        b"}",
        b"9" * 30,
        b"0.5",
        b"\xff",
        b"\\ud800",
        b"F16",
        b"NaN",
        b"{}",
        b"",
    ]
    messages = []
    for _ in range(400):
        header = bytearray(sound[8:end])
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.randrange(len(header))
            header[at : at + random.randrange(12)] = random.choice(words)
        length = len(header) + random.choice((0,) * 9 + (1, -1, 1 << 40))
        path.write_bytes(max(length, 0).to_bytes(8, "little") + header + sound[end:])
        try:
            Model(path).graph()
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 360
    assert not [message for message in messages if "\n" in message or not message.isprintable()]
    path.write_bytes(sound)
    Model(path).graph()


def test_a_pth_file_without_torch_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "net.pth"
    path.write_bytes(b"PK")
    with pytest.raises(
        ModelError, match=r"net\.pth: a \.pth file is read by torch, which is not installed: pip install"
    ):
        Model(path)


def test_names_of_torchvision_are_looked_up_where_torch_hub_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.chdir(tmp_path)
    for variables, folder in (
        ({"TORCH_HOME": "a", "XDG_CACHE_HOME": "b"}, "a"),
        ({"XDG_CACHE_HOME": str(tmp_path)}, f"{tmp_path}/torch"),
        ({"HOME": str(tmp_path)}, f"{tmp_path}/.cache/torch"),
    ):
        for name in ("TORCH_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert checkpoints() == Path(folder) / "hub" / "checkpoints"
    get = r"get it: python -c \"import torchvision; torchvision.models.vgg19_bn\(weights='IMAGENET1K_V1'\)\""
    missing = rf"torchvision/vgg19_bn: .*/checkpoints/vgg19_bn-c79401a0.pth does not exist; {get}"
    with pytest.raises(ModelError, match=missing):
        Model("torchvision/vgg19_bn")
    for name in ("torchvision/resnet18", "torchvision/"):
        with pytest.raises(ModelError, match="there is no such model; choose one of torchvision/vgg11, "):
            Model(name)
    result = CliRunner().invoke(cli, ["info", "torchvision/vgg19_bn"])
    assert result.exit_code == 2
    assert "does not exist; get it: python -c" in " ".join(result.output.split())


def test_commands_take_a_safetensors_file(state: Arrays, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(safetensors(state))
    told = CliRunner().invoke(cli, ["info", str(path), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["model"] == str(path)
    nodes = CliRunner().invoke(cli, ["info", str(path), "--attributes", "--json"])
    assert nodes.exit_code == 0, nodes.output
    written = CliRunner().invoke(cli, ["model", "weights", str(path), "--output", str(tmp_path / "weights")])
    assert written.exit_code == 0, written.output
    np.testing.assert_array_equal(np.load(tmp_path / "weights" / "features.0.weight.npy"), state["features.0.weight"])
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    checked = CliRunner().invoke(cli, ["testbench", str(path), "--inputs", str(tmp_path / "x.npy"), "--device", "cpu"])
    assert checked.exit_code == 0, checked.output


def test_models_can_be_pickled(vgg16: Path, state: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(safetensors(state))
    monkeypatch.chdir(tmp_path)
    models = [Model(source) for source in (vgg16, vgg16.read_bytes(), state, path.name, "digits")]
    written = [pickle.dumps(model) for model in models]
    assert [len(data) < 1024 for data in written] == [True, False, False, True, True]
    monkeypatch.chdir(tmp_path.parent)
    for model, data in zip(models, written, strict=True):
        found = pickle.loads(data)
        assert found.file.digest() == model.file.digest()
        assert found.metadata == model.metadata
        assert found.is_on_disk == model.is_on_disk
        assert are_equal(found.graph(), model.graph())
        assert are_equal(copy.copy(found).graph(), model.graph())
    path.unlink()
    with pytest.raises(ModelError, match=rf"^{path}: no such file, from which a pickled model is read; bring "):
        pickle.loads(written[3])

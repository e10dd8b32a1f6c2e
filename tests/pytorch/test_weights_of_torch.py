"""torchvision's VGGs, their state dicts and files as models: the bits of the exported file, and torch's own values."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.weight_files import safetensors, timms
from vgg16gpu.cli import cli
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.free_size import _are_equal
from vgg16gpu.compiler.vgg.architecture import VARIANTS
from vgg16gpu.compiler.vgg.provenance import _BIASES, _FILTER, provenance
from vgg16gpu.compiler.vgg.source import FILES
from vgg16gpu.errors import ModelError
from vgg16gpu.io.synthetic import write_sample_text
from vgg16gpu.runtime.answers.classify import classify
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.plans.loss_engine import LossEngine

NARROWER = 16  # times narrower than torchvision's
LETTERS = {"vgg11": "A", "vgg13": "B", "vgg16": "D", "vgg19": "E"}


@pytest.fixture(scope="session")
def vgg(torch: Any) -> Any:
    del torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchvision").models.vgg


@pytest.fixture(scope="session")
def narrow(torch: Any, vgg: Any) -> Callable[..., Any]:
    """Make nets of torchvision's class with a sixteenth of the channels, random weights and statistics."""
    nn = torch.nn

    def made(arch: str, classes: int = 10) -> Any:
        config = [v if v == "M" else v // NARROWER for v in vgg.cfgs[LETTERS[arch.removesuffix("_bn")]]]
        torch.manual_seed(0)
        net = vgg.VGG(vgg.make_layers(config, arch.endswith("_bn")), init_weights=False)
        inputs, hidden = 512 // NARROWER * 49, 24
        net.classifier = nn.Sequential(
            *(nn.Linear(inputs, hidden), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(True), nn.Dropout(), nn.Linear(hidden, classes)),
        )
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.running_var):
                    nn.init.uniform_(tensor, 0.7, 1.4)
                for tensor in (module.bias, module.running_mean):
                    nn.init.uniform_(tensor, -0.2, 0.2)
        return net.eval()

    return made


def exported(torch: Any, net: Any, size: int = 224, *, keeps_norms: bool = True) -> bytes:
    """Return the ONNX file that torch's exporter writes of a net for any number of images."""
    stream = io.BytesIO()
    mode = torch.onnx.TrainingMode.PRESERVE if keeps_norms else torch.onnx.TrainingMode.EVAL
    names = {"input_names": ["input"], "output_names": ["output"], "dynamic_axes": {"input": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, torch.zeros(1, 3, size, size), stream, dynamo=False, training=mode, **names)
    return stream.getvalue()


def images(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def run(model: Any, x: Any, *outputs: str) -> Any:
    with Engine(model, device="cpu", batch=len(x), outputs=outputs or None) as engine:
        return engine.run(x)


def by_torch(torch: Any, net: Any, x: Any) -> Any:
    with torch.no_grad():
        return copy.deepcopy(net).double()(torch.from_numpy(x.astype(np.float64))).numpy()


def far(found: Any, exact: Any) -> float:
    return float(np.abs(found - exact).max() / np.abs(exact).max())


def are_equal(a: Graph, b: Graph) -> bool:
    return bool(_are_equal((a.input, a.ops, a.outputs, a.constants), (b.input, b.ops, b.outputs, b.constants)))


@pytest.mark.parametrize("arch", VARIANTS)
def test_the_graph_is_that_of_the_exported_file(torch: Any, narrow: Any, arch: str) -> None:
    net = narrow(arch)
    model, file = Model(net), Model(exported(torch, net))
    assert are_equal(model.graph(), file.graph())
    layers = ("conv2_1", "relu3_1", "features.4", "conv5_1")[: 4 if arch != "vgg11_bn" else 2]
    layers = layers if arch != "vgg11" else layers[:2]
    assert are_equal(model.graph(outputs=layers), file.graph(outputs=layers))
    assert model.graph(outputs=layers).input.is_free


@pytest.mark.parametrize("arch", ["vgg16", "vgg11_bn"])
def test_scores_and_features_have_the_bits_of_the_exported_file(torch: Any, narrow: Any, arch: str) -> None:
    net, x, y = narrow(arch), images(2, 3, 224, 224), images(1, 3, 45, 70)
    model, file = Model(net), exported(torch, net)
    scores = run(model, x)
    np.testing.assert_array_equal(scores, run(file, x))
    assert far(scores, by_torch(torch, net, x)) < 1e-5
    assert far(run(exported(torch, net, keeps_norms=False), x), scores) < 1e-5
    layers = ("relu1_1", "conv3_1", "pool4", "conv5_2")
    for ours, theirs in zip(run(model, y, *layers), run(file, y, *layers), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_features_alone_or_their_first_layers_take_any_size(torch: Any, vgg: Any, narrow: Any) -> None:
    torch.manual_seed(1)
    whole = vgg.vgg16(weights=None, init_weights=False).features.eval()  # of torchvision's own width
    x = images(1, 3, 40, 33)
    found = run(whole, x)
    np.testing.assert_array_equal(found, run(exported(torch, whole, 64), x, "pool5"))
    assert far(found, by_torch(torch, whole, x)) < 1e-5
    features = narrow("vgg13_bn").features
    for depth in (1, 2, 3, 9, 34, 35):
        assert far(run(features[:depth], x), by_torch(torch, features[:depth], x)) < 1e-5
    model = Model(features[:9])
    assert run(model, x, "features.5").shape == (1, 4, 40, 33)
    with pytest.raises(ModelError, match="has no value 'relu5_1'"):
        model.graph(outputs=["relu5_1"])


def test_every_form_of_the_weights_is_one_model(torch: Any, narrow: Any, tmp_path: Path) -> None:
    net = narrow("vgg11_bn")
    state, digest = net.state_dict(), Model(net).file.digest()
    arrays = {name: value.numpy() for name, value in state.items()}
    paths = [tmp_path / name for name in ("zip.pth", "legacy.pt", "nested.pth", "own.safetensors", "timms.safetensors")]
    torch.save(state, paths[0])
    torch.save(state, paths[1], _use_new_zipfile_serialization=False)
    torch.save({"epoch": 1, "state_dict": torch.nn.DataParallel(net).state_dict()}, paths[2])
    paths[3].write_bytes(safetensors(arrays))
    paths[4].write_bytes(safetensors(timms(arrays)))
    channels_last = copy.deepcopy(net).to(memory_format=torch.channels_last)
    in_training = copy.deepcopy(net).train().requires_grad_(requires_grad=False)
    forms = [state, arrays, timms(state), torch.nn.DataParallel(net), torch.compile(net), channels_last, in_training]
    for source in (*forms, *paths, net.double()):
        assert Model(source).file.digest() == digest, source
        assert Model.from_torch(source, "vgg11_bn").file.digest() == digest
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in state.items()}
    floats = {name: value.float() for name, value in half.items()}
    assert Model(half).file.digest() == Model(floats).file.digest() != digest


def test_weights_on_the_host_are_not_copied(narrow: Any) -> None:
    net = narrow("vgg11")
    file = Model(net).file
    for tensor in file.model.graph.initializer:
        assert np.shares_memory(file.array(tensor), net.get_parameter(tensor.name).detach().numpy())


def test_losses_and_features_take_them(torch: Any, narrow: Any) -> None:
    from vgg16gpu.pytorch import Features, PerceptualLoss

    net, layers = narrow("vgg16"), {"relu1_2": 1.0, "relu2_2": 0.5}
    x, y = images(1, 3, 40, 33), images(2, 3, 40, 33)[1:]
    with LossEngine(exported(torch, net), layers, device="cpu") as engine:
        expected = engine.value(x, engine.targets(y))
    for source in (net, net.features, net.features[:16], net.state_dict()):
        loss = PerceptualLoss(source, layers, reduction="none")
        assert loss(torch.from_numpy(x), torch.from_numpy(y)).numpy() == expected
        loss.close()
        features = Features(source, ["relu2_2"])
        np.testing.assert_array_equal(features(torch.from_numpy(x))[0].numpy(), run(net, x, "relu2_2"))
        features.close()


def test_the_name_of_torchvision_finds_torch_hubs_file(
    torch: Any, vgg: Any, narrow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published = {arch: getattr(vgg, f"VGG{arch[3:].upper()}_Weights").IMAGENET1K_V1.url for arch in VARIANTS}
    assert {arch: url.rpartition("/")[2] for arch, url in published.items()} == FILES
    path = Path(torch.hub.get_dir()) / "checkpoints" / FILES["vgg16"]
    assert path.is_relative_to(tmp_path)
    path.parent.mkdir(parents=True)
    net = narrow("vgg16", 1000)
    torch.save(net.state_dict(), path)
    model = Model("torchvision/vgg16")
    assert model.path == path
    assert model.file.digest() == Model(net).file.digest()
    found = model.preprocess(model.graph(), (1, 3, 224, 224))
    assert (found.mean, found.std, found.origin.kind) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "file")
    write_sample_text(tmp_path / "x.txt", 224)
    (answer,) = classify(tmp_path / "x.txt", "torchvision/vgg16", device="cpu", top=1)
    assert not answer.error
    assert answer.top[0].label == model.labels(1000)[answer.top[0].index]
    told = CliRunner().invoke(
        cli, ["infer", str(tmp_path / "x.txt"), "--model", "torchvision/vgg16", "--device", "cpu"]
    )
    assert told.exit_code == 0, told.output
    assert answer.top[0].label in told.stdout


def changed(net: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a net with a change."""
    net = copy.deepcopy(net)
    change(net)
    return net


def test_modules_that_compute_something_else_are_refused(torch: Any, vgg: Any, narrow: Any) -> None:
    nn, net = torch.nn, narrow("vgg16")

    class Other(vgg.VGG):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x / 255)

    timms_net = type("VGG", (nn.Linear,), {"__module__": "timm.models.vgg", "forward": lambda _, x: x})(3, 4)

    def put(index: int, layer: Any) -> Callable[[Any], None]:
        def change(net: Any) -> None:
            net.features[index] = layer

        return change

    def own_class(net: Any) -> None:
        net.__class__ = Other

    def own_forward(net: Any) -> None:
        net.forward = lambda x: x

    cases: list[tuple[Any, str | None, str]] = [
        (
            changed(net, put(4, nn.AvgPool2d(2))),
            None,
            r"its features.4 is AvgPool2d\(.*vgg16 has MaxPool2d\(2, 2\) there",
        ),
        (changed(net, put(4, nn.MaxPool2d(3, 2))), None, r"its features.4 is MaxPool2d\(kernel_size=3, stride=2"),
        (changed(net, put(1, nn.LeakyReLU())), None, r"its features.1 is LeakyReLU\(.* has ReLU\(\) there"),
        (
            changed(net, put(0, nn.Conv2d(3, 4, 3))),
            None,
            r"features.0 is Conv2d\(3, 4.* has Conv2d\(kernel_size=3, pad",
        ),
        (changed(net, put(0, nn.Conv2d(3, 4, 3, padding=1, bias=False))), None, "missing: features.0.bias; accepted"),
        (
            changed(net, lambda net: net.features.append(nn.ReLU())),
            None,
            r"its features.31 is ReLU\(\), vgg16 has no layer",
        ),
        (changed(net, lambda net: setattr(net, "features", net.features[:-1])), None, "its features.30 is not there"),
        (
            changed(net, lambda net: setattr(net, "avgpool", nn.Identity())),
            None,
            r"its avgpool is Identity\(\), expected",
        ),
        (
            changed(net, lambda net: net.classifier.__setitem__(6, nn.Identity())),
            None,
            r"its classifier.6 is Identity\(\), expected Linear; give its .features",
        ),
        (changed(net, lambda net: net.classifier.append(nn.Softmax(1))), None, "its classifier has 1 layers more"),
        (changed(net, own_class), None, "Other, or has a forward of its own; accepted: .* torch.onnx.export"),
        (changed(net, own_forward), None, "or has a forward of its own"),
        (net.features[5:], None, "its layers are called 5, 6, 7"),
        (nn.Sequential(), None, "its layers are called nothing"),
        (nn.Sequential(nn.Identity(), net), None, r"its features.0 is Identity\(\)"),
        (nn.Sequential(net), None, "its features.0 is VGG, vgg11 has Conv2d"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), None, "ParametrizedConv2d, or has a forward"),
        (timms_net, None, r"the module is timm.models.vgg.VGG; give its state_dict\(\)"),
        (nn.Linear(3, 4), None, r"the module is torch\.nn\.modules\.linear\.Linear, or has a forward"),
        (net, "vgg19", r"its features.16 is MaxPool2d.* vgg19 has Conv2d"),
        (net, "vgg16_bn", r"its features.1 is ReLU.* vgg16_bn has BatchNorm2d\(eps=1e-05\)"),
        (net, "vgg", "arch is 'vgg'; choose one of vgg11"),
        (changed(net, lambda net: net.to("meta")), None, r"tensor 'features.0.weight' is torch.float32, .* on meta"),
        ({"features.0.weight": torch.zeros(4, 3, 3, 3, dtype=torch.int8)}, None, "not the weights of vgg11: missing"),
        (
            net.state_dict() | {"features.0.bias": torch.zeros(4, dtype=torch.int8)},
            None,
            "'features.0.bias' is torch.int8",
        ),
    ]
    for source, arch, message in cases:
        with pytest.raises(ModelError, match=message) as caught:
            Model.from_torch(source, arch)
        assert "\n" not in str(caught.value)


def test_pth_files_that_hold_something_else_are_refused(torch: Any, narrow: Any, tmp_path: Path) -> None:
    path, net = tmp_path / "net.pth", narrow("vgg16")
    for saved, message in (
        (net, r"net.pth: torch cannot read it as weights alone \(.*write it with torch.save\(net.state_dict"),
        ([1, 2], r"net.pth: it holds \[1, 2\]; write it with"),
        ({"lr": 0.1}, "net.pth: these are not the weights of a VGG: found no tensors"),
    ):
        torch.save(saved, path)
        with pytest.raises(ModelError, match=message) as caught:
            Model(path)
        assert "\n" not in str(caught.value)
    torch.save(net.state_dict(), path)
    sound = path.read_bytes()
    for data in (b"PK\x03\x04", b"\x80\x02.", b"abc", sound[:1000], sound[: len(sound) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"net\.pth: ") as caught:
            Model(path)
        assert "\n" not in str(caught.value)


def test_modules_are_known_by_the_published_numbers_of_conv1_1(torch: Any) -> None:
    nn = torch.nn
    layers = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
    assert provenance(Model(layers)).kind == "unknown"
    with torch.no_grad():
        layers[0].weight[0] = torch.tensor(_FILTER)
        layers[0].bias[:] = torch.tensor(_BIASES)
    assert provenance(Model(layers)).kind == "torchvision"
    assert provenance(Model(layers.double())).kind == "torchvision"
    assert provenance(Model(layers.bfloat16())).kind == "unknown"

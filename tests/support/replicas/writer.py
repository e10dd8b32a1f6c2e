"""VGGs layer by layer, in the words of each exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import helper

from tests.support.onnx_models import Model
from tests.support.replicas.base import CLASSES, HIDDEN, SIZE, VGG16, norm_weights, weight


@dataclass(frozen=True)
class Style:
    """How an exporter calls things and which attributes it writes, by operator ("Relu@classifier" where it matters).

    Fields of names: op, room (features or classifier), index (torchvision's), block and layer (from 1), number (of its
    kind in the room, from 0), fc (the same from 6), suffix ("" and "_1", "_2", ... over both rooms), count (nodes).
    """

    nodes: Mapping[str, str]
    values: Mapping[str, str]
    weights: Mapping[str, Sequence[str]]
    attributes: Mapping[str, Mapping[str, Any]]


@dataclass
class Writer:
    """A model in the making, layer by layer, in one style."""

    model: Model
    style: Style
    room: str = "features"
    index: int = 0
    block: int = 1
    layer: int = 1
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, op: str, *inputs: str, weights: Sequence[str] = (), extra: Sequence[str] = (), **more: Any) -> str:
        """One node; returns its value. `extra` are names of further outputs."""
        count = self.counts[op]
        fields = {
            "op": op,
            **self._place(op),
            "suffix": f"_{count}" if count else "",
            "count": self.counts["all"],
        }
        self.counts.update([op, f"{op}@{self.room}", "all"])
        node = self._named(self.style.nodes, op).format(**fields)
        value = self._named(self.style.values, op).format(node=node, **fields)
        attributes = {**self._found(self.style.attributes, op, {}), **more}
        outputs = [value, *(name.format(value=value) for name in extra)]
        self.model.nodes.append(helper.make_node(op, [*inputs, *weights], outputs, node, **attributes))
        return value

    def weighted(self, op: str, x: str, *shapes: Sequence[int], **more: Any) -> str:
        """A node with weights of these shapes, none of them small or all alike."""
        names = [name.format(**self._place(op)) for name in self._found(self.style.weights, op, ())]
        if op == "BatchNormalization":
            return self.add(op, x, weights=norm_weights(self.model, *names, channels=shapes[0][0]), **more)
        pairs = zip(names, shapes, strict=True)
        return self.add(op, x, weights=[weight(self.model, name, *shape) for name, shape in pairs], **more)

    def _place(self, op: str) -> dict[str, Any]:
        number = self.counts[f"{op}@{self.room}"]
        place = {name: getattr(self, name) for name in ("room", "index", "block", "layer")}
        return {**place, "number": number, "fc": 6 + number}

    def _named(self, names: Mapping[str, str], op: str) -> str:
        return str(self._found(names, op, names[""]))

    def _found(self, table: Mapping[str, Any], op: str, default: Any) -> Any:
        return table.get(f"{op}@{self.room}", table.get(op, default))

    def features(self, x: str, layers: Sequence[int | str] = VGG16, norm: bool = False) -> tuple[str, int]:
        """The convolutional part; returns its value and how many features an image of SIZE then has."""
        channels = 3
        for layer in layers:
            if isinstance(layer, str):
                x = self.add("MaxPool", x)
                self.index, self.block, self.layer = self.index + 1, self.block + 1, 1
                continue
            x = self.weighted("Conv", x, (layer, channels, 3, 3), (layer,))
            self.index += 1
            if norm:
                x = self.weighted("BatchNormalization", x, *[(layer,)] * 4)
                self.index += 1
            x, channels = self.add("Relu", x), layer
            self.index, self.layer = self.index + 1, self.layer + 1
        self.room, self.index = "classifier", 0
        return x, channels * (SIZE >> layers.count("M")) ** 2

    def classifier(self, x: str, features: int, *before: str, dropout: Callable[[str], str] | None = None) -> str:
        """Three fully connected layers; `before` are operators in front of each, `dropout` adds what follows a ReLU."""
        for inputs, outputs in ((features, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)):
            for op in before:
                x = self.add(op, x)
            x = self.weighted("Gemm", x, (outputs, inputs), (outputs,))
            if self.index < 6:
                self.index += 1
                x = self.add("Relu", x)
                self.index += 1
                x = dropout(x) if dropout else x
                self.index += 1
        return x


SQUARE = {"dilations": [1, 1], "group": 1, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}


HALVES = {"kernel_shape": [2, 2], "pads": [0, 0, 0, 0], "strides": [2, 2]}


NORM_PARTS = ("weight", "bias", "running_mean", "running_var")


TORCH_WEIGHTS = {
    "": (),
    "Conv": ("{room}.{index}.weight", "{room}.{index}.bias"),
    "Gemm": ("{room}.{index}.weight", "{room}.{index}.bias"),
    "BatchNormalization": tuple(f"{{room}}.{{index}}.{part}" for part in NORM_PARTS),
}


def legacy_style(opset: int) -> Style:
    """torch.onnx.export(dynamo=False), torch 2."""
    pool = HALVES if opset < 10 else {"ceil_mode": 0, "dilations": [1, 1], **HALVES}
    norm = {"epsilon": 1e-5, "momentum": 0.9, **({"training_mode": 0} if opset >= 14 else {})}
    return Style(
        {"": "/{room}/{room}.{index}/{op}", "AveragePool": "/avgpool/AveragePool", "Flatten": "/Flatten"},
        {"": "{node}_output_0"},
        TORCH_WEIGHTS,
        {
            "Conv": SQUARE,
            "MaxPool": pool,
            "AveragePool": {"kernel_shape": [1, 1], "strides": [1, 1]},
            "Flatten": {"axis": 1},
            "Gemm": {"alpha": 1.0, "beta": 1.0, "transB": 1},
            "BatchNormalization": norm,
        },
    )


# torch 1.x before it knew names: nodes are numbered, values are numbers.
OLD_STYLE = Style({"": "{op}_{count}"}, {"": "{count}0"}, TORCH_WEIGHTS, legacy_style(9).attributes)


DYNAMO_STYLE = Style(
    {
        "": "node_{op}{suffix}",
        "Conv": "node_conv2d{suffix}",
        "Relu": "node_relu{suffix}",
        "MaxPool": "node_max_pool2d{suffix}",
        "AveragePool": "node_avg_pool2d",
        "Reshape": "node_view",
        "Gemm": "node_linear{suffix}",
        "Identity": "node_clone{suffix}",
        "Cast": "node__to_copy{suffix}",
        "BatchNormalization": "node__native_batch_norm_legit_no_training{suffix}__0",
        "Dropout": "node_native_dropout{suffix}__1",
    },
    {
        "": "val_{count}",
        "Conv": "conv2d{suffix}",
        "Relu": "relu{suffix}",
        "MaxPool": "max_pool2d{suffix}",
        "AveragePool": "avg_pool2d",
        "Reshape": "view",
        "Gemm": "linear{suffix}",
        "Identity": "clone{suffix}",
        "Cast": "_to_copy{suffix}",
    },
    TORCH_WEIGHTS,
    {
        "Conv": {**SQUARE, "auto_pad": "NOTSET"},
        "MaxPool": {**HALVES, "storage_order": 0, "dilations": [1, 1], "ceil_mode": 0, "auto_pad": "NOTSET"},
        "AveragePool": {
            "count_include_pad": 1,
            "ceil_mode": 0,
            "pads": [0, 0, 0, 0],
            "auto_pad": "NOTSET",
            "strides": [1, 1],
            "kernel_shape": [1, 1],
        },
        "Reshape": {"allowzero": 1},
        "Gemm": {"beta": 1.0, "transB": 1, "alpha": 1.0, "transA": 0},
        "BatchNormalization": {"momentum": 0.9, "epsilon": 1e-5},
    },
)


MXNET_STYLE = Style(
    {
        "": "vgg0_{op}{number}_fwd",
        "Conv": "vgg0_conv{number}_fwd",
        "BatchNormalization": "vgg0_batchnorm{number}_fwd",
        "Relu": "vgg0_relu{number}_fwd",
        "Relu@classifier": "vgg0_dense{number}_relu_fwd",
        "MaxPool": "vgg0_pool{number}_fwd",
        "Flatten": "flatten_6{number}",
        "Gemm": "vgg0_dense{number}_fwd",
        "Dropout": "vgg0_dropout{number}_fwd",
    },
    {"": "{node}"},
    {
        "Conv": ("vgg0_conv{number}_weight", "vgg0_conv{number}_bias"),
        "BatchNormalization": tuple(
            f"vgg0_batchnorm{{number}}_{part}" for part in ("gamma", "beta", "running_mean", "running_var")
        ),
        "Gemm": ("vgg0_dense{number}_weight", "vgg0_dense{number}_bias"),
    },
    {
        "Conv": SQUARE,
        "BatchNormalization": {"epsilon": 1e-5, "momentum": 0.9, "spatial": 0},
        "MaxPool": HALVES,
        "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1},
        "Dropout": {"ratio": 0.5},
    },
)


CAFFE2_STYLE = Style(
    {"": ""},
    {
        "": "{op}_{count}",
        "Conv": "conv{block}_{layer}_1",
        "Relu": "conv{block}_{layer}_2",
        "MaxPool": "pool{block}_1",
        "Gemm": "fc{fc}_1",
        "Relu@classifier": "fc{fc}_2",
        "Dropout": "fc{fc}_3",
        "Softmax": "prob_1",
    },
    {"Conv": ("conv{block}_{layer}_w_0", "conv{block}_{layer}_b_0"), "Gemm": ("fc{fc}_w_0", "fc{fc}_b_0")},
    {
        "Conv": {"strides": [1, 1], "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
        "MaxPool": HALVES,
        "Gemm": {"transB": 1},
        "Dropout": {"ratio": 0.5},
    },
)

"""The VGG family as a list of layers, with the names that torch's exporter gives them.

Source: K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014), tables 1
and 2; layer names and numbering as in torchvision's `vgg.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from onnx import GraphProto, NodeProto, TensorProto, helper

from vgg16gpu.errors import ModelError

Kind: TypeAlias = Literal["Conv", "BatchNormalization", "Relu", "MaxPool", "AveragePool", "Flatten", "Gemm"]

CONVOLUTIONS: Final = {  # in each of the five blocks; a pool ends each block
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
SMALLEST_SIZE, LARGEST_SIZE = 32, 1024  # pixels; five pools leave at least one
LARGEST_FEATURES = 2**20  # inputs of the first Gemm; the exact calibration holds up to here

VARIANTS: Final = tuple(f"{name}{ending}" for name in CONVOLUTIONS for ending in ("", "_bn"))

EPSILON: Final = 1e-5  # of a BatchNormalization

_BLOCK_WIDTHS = (1, 2, 4, 8, 8)
_POOLED_SIDE = 7  # what torchvision's adaptive pool makes of any map
_CHANNELS = 3
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


class VggLayer(NamedTuple):
    """One node. `name` is the torch module's; `shape` the weight's, (channels,) for a BatchNormalization, else empty.

    `window` is the side of a pool's window, which is also its stride.
    """

    kind: Kind
    name: str
    shape: tuple[int, ...] = ()
    window: int = 0

    @property
    def parameters(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(tensor name, shape) in the order of torch's state dict."""
        if not self.shape:
            return ()
        if self.kind == "BatchNormalization":
            return tuple((f"{self.name}.{part}", self.shape) for part in _BATCH_NORM)
        return (f"{self.name}.weight", self.shape), (f"{self.name}.bias", self.shape[:1])

    @property
    def path(self) -> str:
        """The node's scope in torch: /features/features.0 for features.0."""
        scope = self.name.partition(".")
        return f"/{scope[0]}/{self.name}" if scope[1] else f"/{self.name}".rstrip("/")


@dataclass(frozen=True)
class Vgg:
    """Which net: see `make_vgg`. Raises ModelError for what cannot be built.

    depth: how many layers of `features` there are, without a classifier, for images of any size; None: the whole net.
    """

    variant: str = "vgg16"
    size: int = 224
    batch_norm: bool = False
    batch: int | None = None
    width: int = 64
    hidden: int = 4096
    classes: int = 1000
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.variant not in CONVOLUTIONS:
            raise ModelError(f"there is no variant '{self.variant}'; choose one of {', '.join(CONVOLUTIONS)}")
        if not SMALLEST_SIZE <= self.size <= LARGEST_SIZE:
            raise ModelError(f"input size {self.size} is not possible; take {SMALLEST_SIZE} to {LARGEST_SIZE} pixels")
        for name in ("batch", "width", "hidden", "classes", "depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ModelError(f"{name} is {value}; it must be at least 1")
        if self.features > LARGEST_FEATURES:
            raise ModelError(
                f"the first fully connected layer would take {self.features} inputs, at most {LARGEST_FEATURES} are "
                "supported; choose a smaller input size"
            )

    @classmethod
    def named(cls, arch: str, **options: Any) -> Self:
        """Return the net of one of `VARIANTS`, with other fields of the class as `options`."""
        return cls(arch.removesuffix("_bn"), batch_norm=arch.endswith("_bn"), **options)

    @property
    def name(self) -> str:
        """vgg16, vgg16_bn-244, ...: variant, and the size where it is not 224."""
        size = "" if self.size == 224 else f"-{self.size}"
        return f"{self.variant}{'_bn' if self.batch_norm else ''}{size}"

    @property
    def map_side(self) -> int:
        """Side of the map after the last max-pool."""
        return self.size >> len(_BLOCK_WIDTHS)

    @property
    def average_window(self) -> int:
        """Window of the average pool: torch exports its adaptive pool to 7x7 so where the map is a multiple of 7."""
        return max(self.map_side // _POOLED_SIDE, 1) if self.map_side % _POOLED_SIDE == 0 else 1

    @property
    def features(self) -> int:
        """Inputs of the first Gemm."""
        return self.width * _BLOCK_WIDTHS[-1] * (self.map_side // self.average_window) ** 2

    @property
    def input_shape(self) -> tuple[int | str, ...]:
        """As ONNX declares it; 'batch' stands for any number of images, 'height' and 'width' for any size."""
        sides = (self.size, self.size) if self.depth is None else ("height", "width")
        return self.batch or "batch", _CHANNELS, *sides

    @property
    def output_shape(self) -> tuple[int | str | None, ...]:
        """As ONNX declares it; None is open."""
        if self.depth is None:
            return self.batch or "batch", self.classes
        channels = [layer.shape[0] for layer in self.layers if layer.kind == "Conv"]
        return self.batch or "batch", channels[-1], None, None

    @property
    def layers(self) -> tuple[VggLayer, ...]:
        """All nodes in order."""
        return (*self.convolutional, *(self._fully_connected() if self.depth is None else ()))

    @property
    def convolutional(self) -> tuple[VggLayer, ...]:
        """The layers of `features`, in order."""
        layers: list[VggLayer] = []

        def add(kind: Kind, shape: tuple[int, ...] = (), window: int = 0) -> None:
            layers.append(VggLayer(kind, f"features.{len(layers)}", shape, window))

        channels = _CHANNELS
        for count, factor in zip(CONVOLUTIONS[self.variant], _BLOCK_WIDTHS, strict=True):
            for _ in range(count):
                add("Conv", (factor * self.width, channels, 3, 3))
                channels = factor * self.width
                if self.batch_norm:
                    add("BatchNormalization", (channels,))
                add("Relu")
            add("MaxPool", window=2)
        return tuple(layers[: self.depth])

    def _fully_connected(self) -> tuple[VggLayer, ...]:
        return (
            VggLayer("AveragePool", "avgpool", window=self.average_window),
            VggLayer("Flatten", ""),
            VggLayer("Gemm", "classifier.0", (self.hidden, self.features)),
            VggLayer("Relu", "classifier.1"),
            VggLayer("Gemm", "classifier.3", (self.hidden, self.hidden)),  # 2 and 5 are Dropout: gone in an export
            VggLayer("Relu", "classifier.4"),
            VggLayer("Gemm", "classifier.6", (self.classes, self.hidden)),
        )

    def graph(self) -> GraphProto:
        """Return the ONNX graph as torch's exporter writes it, without the initializers."""
        value, nodes = "input", []
        for layer in self.layers:
            output = f"{layer.path}/{layer.kind}_output_0"
            nodes.append(_node(layer, value, output))
            value = output
        nodes[-1].output[0] = "output"
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, self.input_shape)]
        outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, self.output_shape)]
        return helper.make_graph(nodes, "main_graph", inputs, outputs)

    def multiply_adds(self) -> int:
        """Return the multiply-adds of the convolutions for one image."""
        total, side = 0, self.size
        for layer in self.layers:
            if layer.kind == "Conv":
                total += math.prod(layer.shape) * side * side
            elif layer.kind == "MaxPool":
                side //= 2
        return total


def _node(layer: VggLayer, source: str, output: str) -> NodeProto:
    inputs = [source, *(name for name, _ in layer.parameters)]
    name = f"{layer.path}/{layer.kind}"
    node = helper.make_node(layer.kind, inputs, [output], name)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in _attributes(layer).items())
    return node


def _attributes(layer: VggLayer) -> dict[str, int | float | list[int]]:
    match layer.kind:
        case "Conv":
            return {"dilations": [1, 1], "group": 1, "kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
        case "BatchNormalization":
            return {"epsilon": EPSILON, "momentum": 0.9, "training_mode": 0}
        case "MaxPool":
            sides = [layer.window] * 2
            return {"ceil_mode": 0, "dilations": [1, 1], "kernel_shape": sides, "pads": [0] * 4, "strides": sides}
        case "AveragePool":
            return {"kernel_shape": [layer.window] * 2, "strides": [layer.window] * 2}
        case "Flatten":
            return {"axis": 1}
        case "Gemm":
            return {"alpha": 1.0, "beta": 1.0, "transB": 1}
        case _:
            return {}

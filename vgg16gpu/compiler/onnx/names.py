"""Which ONNX value people mean when they name a layer: `relu3_3`, `features.22`, `/features/features.22/Relu`.

A name is looked up as, in this order:

1. an ONNX value;
2. a node, which means its first output;
3. a module of the torch model that the file was exported from, as exporters note it down, or, in a file without such
   notes, torchvision's `features.N`, `avgpool` and `classifier.N`, counted along the graph;
4. a layer of the VGG papers, counted along the graph: conv3_3 (with its bias, before the ReLU), bn3_3, relu3_3, pool3,
   fc6, relu6, drop6, prob.

A module that runs in place is still its own layer: `features.21` is what the convolution computes, `features.22` what
the ReLU behind it does.

Sources: K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014), and the
Caffe models that they published; torchvision's `vgg.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Final, TypeAlias

from onnx import GraphProto, NodeProto

from vgg16gpu.compiler.onnx.initializers import initializer_names, initializers
from vgg16gpu.io.shown import printable

Lookup: TypeAlias = Callable[[str], list[str]]

_BLOCKS: Final = 5
_KERNELS: Final = ((3, 3), (1, 1))  # of a VGG's convolutions
_LONGEST_NAME, _MOST_NAMES = 200, 20_000  # that near matches are sought in: a search takes well below a second
_LONGEST_PATH, _DEEPEST_PATH = 1000, 40  # of modules that are looked at, in characters and modules
_MOST_LISTED: Final = 8
_COUNTED_NAME: Final = re.compile(
    r"(conv|bn|relu)\d_\d|(pool|fc|relu|drop)\d|prob|(features|classifier)\.\d+|avgpool", re.ASCII
)
_NUMBERED: Final = re.compile(r"(.*)\.(\d{1,6})", re.ASCII | re.DOTALL)
_SCOPES: Final = "pkg.torch.onnx.name_scopes"  # torch's dynamo exporter: "['', 'features', 'features.0', 'conv2d']"
_BESIDE: Final = ("Shape", "Size")  # of an activation they tell the shape alone
_MOVES: Final = ("Flatten", "Pad", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_KEEPS: Final = ("Cast", "DequantizeLinear", "Dropout", "Identity", "QuantizeLinear")
_NORMALISES: Final = ("Add", "Div", "Mul", "Sub")  # pixels, before the first layer
_AVERAGES: Final = ("AveragePool", "GlobalAveragePool", "ReduceMean")
_CONNECTS: Final = ("Conv", "Gemm", "MatMul")  # a Conv behind the features: fully convolutional forms


class TapError(LookupError):
    """A name means no value of the model, or several; the message says what is near."""


def resolve(graph: GraphProto, names: Sequence[str]) -> tuple[str, ...]:
    """Return the value that each name means, in order.

    Raises TapError for a name that the model does not have, for one that fits several values, and for two names that
    mean the same.
    """
    taps = _Taps(graph)
    meant: dict[str, str] = {}
    for name in names:
        value = taps.value(name)
        if value in meant:
            what = "is asked for twice" if meant[value] == name else f"and '{meant[value]}' are one value, '{value}'"
            raise TapError(f"output '{name}' {what}; name each one once")
        meant[value] = name
    return tuple(meant)


def names_of_layers(graph: GraphProto) -> Mapping[str, str]:
    """Return the usual names of values that are layers: relu3_3, else the module. `resolve` takes these names."""
    taps = _Taps(graph)
    modules = ((path, [node.output[0]]) for path, node in taps.modules.nodes.items())
    found: dict[str, str] = {}
    for name, values in (*taps.counted.items(), *modules):
        with suppress(TapError):
            if values[0] not in found and taps.value(name) == values[0]:
                found[values[0]] = name
    return found


class _Taps:
    """The names of one model."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        given = initializer_names(graph) | {value.name for value in graph.input}
        self._values = given.union(*(node.output for node in graph.node)) - {""}

    def value(self, name: str) -> str:
        """Return the one value that `name` means. Raises TapError."""
        if name in self._values:
            return name
        layer = _layer(name)
        searches: tuple[tuple[Lookup, str], ...] = (
            (self._of_node, name),
            (self.modules.values, layer),
            (lambda counted: self.counted.get(counted, []), layer),
        )
        for search, wanted in searches:
            if found := search(wanted):
                return _only(name, found)
        raise self._unknown(name, layer)

    def _of_node(self, name: str) -> list[str]:
        return [node.output[0] for node in self._graph.node if name and node.name == name and any(node.output[:1])]

    @cached_property
    def _computed(self) -> list[NodeProto]:
        """The nodes between the input and the scores; not those that handle shapes or weights."""
        known = {value.name for value in self._graph.input} - initializer_names(self._graph)
        nodes = []
        for node in self._graph.node:
            if node.op_type not in _BESIDE and any(node.output[:1]) and not known.isdisjoint(node.input):
                known.add(node.output[0])
                nodes.append(node)
        return nodes

    @cached_property
    def modules(self) -> _Modules:
        """The modules of the torch model."""
        return _Modules.of(self._computed)

    @cached_property
    def counted(self) -> Mapping[str, list[str]]:
        """The values of layers that are counted. Where the file itself has such modules, it knows their numbers."""
        weights = {name: tuple(tensor.dims) for name, tensor in initializers(self._graph)}
        count = _Count(weights)
        inputs = [value.name for value in self._graph.input if value.name not in weights]
        places = dict.fromkeys(inputs, _Place())
        computed = {*inputs, *(node.output[0] for node in self._computed)}
        for node in self._computed:
            operands = [name for name in node.input if name in computed]
            place = places.get(operands[0]) if len(operands) == 1 else None
            if place and (place := count.step(node, place)):
                places[node.output[0]] = place
        heads = {layer: layer.partition(".")[0] for layer in count.found}
        noted = {head for head in set(heads.values()) if self.modules.paths(head)}
        return {layer: values for layer, values in count.found.items() if heads[layer] not in noted}

    def _unknown(self, name: str, layer: str) -> TapError:
        reason = f"has no value '{printable(name)}'"
        if _COUNTED_NAME.fullmatch(layer) and not (self.counted or self.modules.nodes):
            reason += ", and its layers cannot be counted: it does not begin as a VGG, with a chain of 3x3 convolutions"
        nodes = self._graph.node
        values = (value for node in nodes for value in node.output)
        known = (*self.counted, *self.modules.nodes, *(node.name for node in nodes), *values)
        if close := _near(name, dict.fromkeys(known)):
            return TapError(f"{reason}; did you mean {_quoted(close)}")
        layers = [layer for layer in self.counted if "." not in layer]
        also = f", its layers '{layers[0]}' to '{layers[-1]}'" if layers else ""
        return TapError(f"{reason}; its outputs are {_quoted([value.name for value in self._graph.output])}{also}")


@dataclass(frozen=True, eq=False)
class _Modules:
    """Modules of the torch (or Keras) model, by their dotted path: the last node of each."""

    nodes: Mapping[str, NodeProto]

    @classmethod
    def of(cls, nodes: Iterable[NodeProto]) -> _Modules:
        last: dict[str, NodeProto] = {}
        for node in nodes:
            path = _module(node)
            while path:
                last[path] = node
                path = path.rpartition(".")[0]
        return cls(last)

    def paths(self, layer: str) -> list[str]:
        """Return the paths of the modules with this name, at any depth."""
        if layer in self.nodes:
            return [layer]
        return [path for path in self.nodes if path.endswith(f".{layer}")] if layer else []

    def values(self, layer: str) -> list[str]:
        """Return the values of modules with this name. Raises TapError for one that is not in the file any more."""
        if not (paths := self.paths(layer)):
            node = self._before_one_left_out(layer)
            return [node.output[0]] if node else []
        for path in paths:
            gap = self._beside(path, 2) and not self._beside(path, 1)
            if gap and self.nodes[path].op_type == "Conv" and f"{path}.weight" not in self.nodes[path].input:
                folded = self._path_beside(path, 1)
                raise TapError(
                    f"layer '{path}' is no value of the file: the exporter folded '{folded}', its normalisation, "
                    f"into it; ask for '{folded}', or export without folding"
                )
            if _is_folded(self.nodes[path]) and _module(self.nodes[path]) == path:
                raise TapError(
                    f"layer '{path}' is no value of the file: the exporter folded its normalisation into it; ask for "
                    f"what comes of both, '{printable(self.nodes[path].output[0])}', or export without folding"
                )
        return [self.nodes[path].output[0] for path in paths]

    def _before_one_left_out(self, layer: str) -> NodeProto | None:
        """Return the node that also stands for the layer behind it: a normalisation folded into it, or a Dropout."""
        before, after = self._beside(layer, -1), self._beside(layer, 1)
        if not before or not after or f"{layer}.weight" in after.input:
            return None
        normalised = before.op_type == "Conv" and after.op_type == "Relu"
        dropout = before.op_type == "Relu" and after.op_type in ("Gemm", "MatMul")
        return before if normalised or dropout else None

    def _beside(self, path: str, distance: int) -> NodeProto | None:
        """Return the last node of the module `distance` places further in the same Sequential."""
        paths = self.paths(self._path_beside(path, distance))
        return self.nodes[paths[0]] if len(paths) == 1 else None

    def _path_beside(self, path: str, distance: int) -> str:
        match = _NUMBERED.fullmatch(path)
        return f"{match[1]}.{int(match[2]) + distance}" if match else ""


@dataclass(frozen=True)
class _Place:
    """How far along a VGG a value is."""

    kind: str = ""  # of the last layer: "", conv, bn, relu, pool, avgpool, fc, prob
    value: str = ""  # what that layer computes
    names: tuple[str, ...] = ()  # of that layer
    block: int = 1
    convolution: int = 0  # in the block, the last one
    position: int = 0  # of the next layer in torchvision's `features`
    connected: int = 0  # fully connected layers so far
    takes_bias: bool = False  # an Add may still bring the bias of the last layer
    dequantised: str = ""  # the last layer's value, once more, behind quantisation


@dataclass(eq=False)
class _Count:
    """Counts the layers of a VGG from one value to the next."""

    weights: Mapping[str, tuple[int, ...]]
    _found: dict[str, list[str]] = field(default_factory=dict)
    _wrong: set[str] = field(default_factory=set)  # Sequentials that the weights' names number in another way

    @property
    def found(self) -> Mapping[str, list[str]]:
        """The values that each name means."""
        return {name: found for name, found in self._found.items() if name.partition(".")[0] not in self._wrong}

    def step(self, node: NodeProto, place: _Place) -> _Place | None:
        """Return the place of the node's first output, from its operand's; None if a VGG has no such layer there."""
        y = node.output[0]
        in_features = place.kind in ("conv", "bn", "relu")
        if place.dequantised and node.op_type in (*_AVERAGES, *_CONNECTS, "MaxPool"):
            # Quantisation to unsigned numbers cuts at zero, so quantisers leave the ReLU before it out.
            place = self._relu(place, place.dequantised)
        match op := node.op_type:
            case "Conv" if place.block <= _BLOCKS and place.kind not in ("avgpool", "fc"):
                return self._conv(node, place, y)
            case _ if op in _CONNECTS and place.kind:
                return self._connected(node, place, y)
            case "BatchNormalization" if place.kind == "conv":
                return self._feature(place, "bn", y)
            case "Relu" if place.kind in ("conv", "bn", "fc"):
                return self._relu(place, y)
            case "MaxPool" | "AveragePool" if in_features and _halves(node):
                pooled = self._add(place, y, "pool", f"pool{place.block}", f"features.{place.position}")
                return replace(pooled, block=place.block + 1, convolution=0, position=place.position + 1)
            case _ if op in _AVERAGES and (in_features or place.kind == "pool"):
                return self._add(place, y, "avgpool", "avgpool")
            case "Softmax" if place.kind == "fc":
                return self._add(place, y, "prob", "prob")
            case "Add" if place.takes_bias:
                return self._biased(place, y)
        return _unchanged(node, place)

    def _conv(self, node: NodeProto, place: _Place, y: str) -> _Place | None:
        kernel = tuple(_attribute(node, "kernel_shape") or self.weights.get(_weight(node), ())[2:])
        strides = tuple(_attribute(node, "strides") or (1, 1))
        if (kernel and kernel not in _KERNELS) or strides != (1, 1):
            return None
        self._compare(node, "features", place.position)
        place = replace(place, convolution=place.convolution + 1)
        return replace(self._feature(place, "conv", y), takes_bias=not any(node.input[2:]))

    def _connected(self, node: NodeProto, place: _Place, y: str) -> _Place:
        position = 3 * place.connected  # Linear, ReLU, Dropout
        self._compare(node, "classifier", position)
        place = replace(place, connected=place.connected + 1)
        place = self._add(place, y, "fc", f"fc{_BLOCKS + place.connected}", f"classifier.{position}")
        return replace(place, takes_bias=not any(node.input[2:]))

    def _relu(self, place: _Place, y: str) -> _Place:
        if place.kind != "fc":
            return self._feature(place, "relu", y)
        number, position = _BLOCKS + place.connected, 3 * place.connected
        # Dropout, in the file or not, is the same value.
        names = (f"relu{number}", f"classifier.{position - 2}", f"drop{number}", f"classifier.{position - 1}")
        return self._add(place, y, "relu", *names)

    def _feature(self, place: _Place, kind: str, y: str) -> _Place:
        name = f"{kind}{place.block}_{place.convolution}"
        return replace(self._add(place, y, kind, name, f"features.{place.position}"), position=place.position + 1)

    def _add(self, place: _Place, y: str, kind: str, *names: str) -> _Place:
        for name in names:
            self._found.setdefault(name, []).append(y)
        return replace(place, kind=kind, value=y, names=names, takes_bias=False, dequantised="")

    def _biased(self, place: _Place, y: str) -> _Place:
        for name in place.names:
            self._found[name] = [y if value == place.value else value for value in self._found[name]]
        return replace(place, value=y, takes_bias=False)

    def _compare(self, node: NodeProto, sequential: str, position: int) -> None:
        """Note if the file says that this layer's place in a Sequential is another one."""
        match = re.search(rf"(?:^|\.){sequential}\.(\d+)\.weight$", _weight(node), re.ASCII)
        if match and match[1] != str(position):
            self._wrong.add(sequential)


def _unchanged(node: NodeProto, place: _Place) -> _Place | None:
    """Return the place behind a node that is not a layer; None behind one that a VGG does not have."""
    if node.op_type == "DequantizeLinear" and place.kind in ("conv", "bn", "fc"):
        return replace(place, dequantised=node.output[0])
    passes = node.op_type in (*_MOVES, *_KEEPS) or (not place.kind and node.op_type in _NORMALISES)
    return place if passes else None


def _halves(node: NodeProto) -> bool:
    two = (2, 2)
    return (tuple(_attribute(node, "kernel_shape") or ()), tuple(_attribute(node, "strides") or ())) == (two, two)


def _weight(node: NodeProto) -> str:
    """Return the name of a node's second operand; "" if there is none."""
    return node.input[1] if len(node.input) > 1 else ""


def _attribute(node: NodeProto, name: str) -> Sequence[int] | None:
    """Return an attribute that is a list of integers; None if it is absent."""
    return next((attribute.ints for attribute in node.attribute if attribute.name == name), None)


def _layer(name: str) -> str:
    """Strip the prefix of a wrapper; map a node or value of torch's exporter to the module that it belongs to."""
    if name.startswith("/") and _is_path(name):
        name = _dotted(name.split("/")[1:-1])
    while name.startswith("module."):  # torch.nn.DataParallel
        name = name.removeprefix("module.")
    return name


def _is_folded(node: NodeProto) -> bool:
    """Return whether torch's legacy exporter has put a normalisation into a Conv, whose weight then has a new name."""
    return node.op_type == "Conv" and node.input[1:2] != [] and node.input[1].startswith("onnx::Conv_")


def _module(node: NodeProto) -> str:
    """Return the dotted path of the module that a node belongs to; empty for none."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            scopes = re.findall(r"'([^']*)'", entry.value)
            return scopes[-2] if len(scopes) > 1 and _is_path(scopes[-2]) else ""
    return _dotted(node.name.strip("/").split("/")[:-1]) if _is_path(node.name) else ""


def _is_path(name: str) -> bool:
    return len(name) <= _LONGEST_PATH and name.count("/") + name.count(".") <= _DEEPEST_PATH


def _dotted(scopes: Sequence[str]) -> str:
    """Join scopes of a node's name to a path: features, features.22 -> features.22; layer1, layer1.0, conv1."""
    path, previous = "", ""
    for scope in scopes:
        inner = scope.removeprefix(f"{previous}.") if previous else scope
        path = f"{path}.{inner}" if path else inner
        previous = scope
    return path


def _only(name: str, found: Sequence[str]) -> str:
    values = list(dict.fromkeys(found))
    if len(values) > 1:
        raise TapError(f"'{name}' fits several values; ask for one of {_quoted(values)}")
    return values[0]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:_MOST_LISTED]) + " ..." * (len(names) > _MOST_LISTED)


def _near(name: str, known: Iterable[str]) -> list[str]:
    import difflib  # noqa: PLC0415 - of errors alone

    short = (other for other in known if 0 < len(other) <= _LONGEST_NAME)
    return difflib.get_close_matches(name[:_LONGEST_NAME], list(islice(short, _MOST_NAMES)), n=3, cutoff=0.5)

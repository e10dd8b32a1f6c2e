"""What a replica is, and how it becomes a file and answers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from tests.support.onnx_models import Model, random_input
from vgg16gpu.checks.onnxruntime_session import open_session

Array = npt.NDArray[Any]


Dims = Sequence[int | str | None]


FLOAT, HALF, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE


INT32, INT64 = TensorProto.INT32, TensorProto.INT64


EXPORT = r"export|convert|rewrite"  # what a remedy says to do


STAYS_INSIDE = 256  # bytes; torch's dynamo exporter writes larger tensors to a file beside the model


# VGG16 with a sixteenth of the filters; 64 pixels leave maps of 2x2, so that the order of the flattened values counts.
VGG16 = (4, 4, "M", 8, 8, "M", 16, 16, 16, "M", 32, 32, 32, "M", 32, 32, 32, "M")


VGG19 = (4, 4, "M", 8, 8, "M", 16, 16, 16, 16, "M", 32, 32, 32, 32, "M", 32, 32, 32, 32, "M")


SHORT = (4, "M", 8, "M")  # where the convolutions are not the point


SIZE, HIDDEN, CLASSES = 64, 16, 10


MAP = ("n", 4, 9, 9)


@dataclass(frozen=True)
class Replica:
    """A model that is accepted.

    `judge` turns it into one that says the same in the words of plain float32, where onnxruntime has other ideas of it,
    and `drift` is how far the scores of the two may be apart. `size`: of images, where the model leaves it open.
    `whole`: rows of its input are no images that could be run one by one; so it takes a session, not an engine.
    """

    build: Callable[[], ModelProto]
    judge: Callable[[ModelProto], ModelProto] | None = None
    drift: float = 0.0
    size: int | None = None
    external: bool = False
    whole: bool = False
    runs: bool = True  # in onnxruntime as it is
    seed: int = 1

    def write(self, folder: Path) -> Path:
        """The file."""
        return write_external(self.build(), folder) if self.external else write(self.build(), folder)

    @property
    def dims(self) -> list[int]:
        """The declared shape of its data, 0 for what it leaves open."""
        graph = self.build().graph
        known = {tensor.name for tensor in graph.initializer}
        data = next(value for value in graph.input if value.name not in known)
        return [dim.dim_value for dim in data.type.tensor_type.shape.dim]

    @property
    def batches(self) -> tuple[int, ...]:
        """What its batch may be: what the file says, or 1 and 2."""
        fixed = self.dims[0]
        return (fixed,) if fixed else (1, 2)

    def input(self, batch: int) -> Array:
        """Standard normal numbers, exact in float16, in the shape that the model declares."""
        shape = [batch, *(dim or self.size for dim in self.dims[1:])]
        return random_input(shape, self.seed).astype(np.float16).astype(np.float32)


@dataclass(frozen=True)
class Refused:
    """A model that is refused: every node that `offends` is named with its operator and opset, no other one is, and
    all of `words`, regular expressions, are found in the message.

    `also`: operators that may be named as well. `valid`: onnx.checker accepts it.
    """

    build: Callable[[], ModelProto]
    offends: Callable[[NodeProto], bool]
    words: tuple[str, ...] = (EXPORT,)
    also: tuple[str, ...] = ()
    valid: bool = True


@dataclass(frozen=True)
class Broken:
    """A file that cannot be read: `write` puts it into a folder; all of `words`, regular expressions, are said."""

    write: Callable[[Path], Path]
    words: tuple[str, ...]


def finish(
    model: Model,
    outputs: Mapping[str, Dims] | str | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    weights_as_inputs: bool = False,
    producer: tuple[str, str] = ("", ""),
    domains: Mapping[str, int] | None = None,
    functions: Iterable[FunctionProto] = (),
    output_type: int = FLOAT,
) -> ModelProto:
    """The model. Shapes of outputs are inferred where they are not given; weights precede the data among the inputs."""
    names = outputs or model.nodes[-1].output[0]
    shapes = names if isinstance(names, Mapping) else dict.fromkeys(names.split())
    inputs = [helper.make_tensor_value_info(model.input_name, model.input_type, model.input_shape)]
    if weights_as_inputs:
        inputs[:0] = [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in model.weights]
    results = [helper.make_tensor_value_info(name, output_type, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(model.nodes, "main_graph", inputs, results, model.weights)
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    proto = helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=ir,
        producer_name=producer[0],
        producer_version=producer[1],
        functions=functions,
    )
    if None in shapes.values():
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.output
        del proto.graph.output[:]
        proto.graph.output.extend(inferred)
    return proto


def write(proto: ModelProto, folder: Path) -> Path:
    """As one file."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def write_external(proto: ModelProto, folder: Path, location: str = "model.onnx.data") -> Path:
    """As torch's dynamo exporter does: large tensors end to end in a file beside the model, small ones inside."""
    data = bytearray()
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > STAYS_INSIDE:
            set_external_data(tensor, location, len(data), len(tensor.raw_data))
            data += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    (folder / location).write_bytes(data)
    return write(proto, folder)


def answers(model: ModelProto | Path, x: Array, optimised: bool = False) -> list[Array]:
    """onnxruntime's outputs, as float32."""
    source = model if isinstance(model, Path) else model.SerializeToString()
    session = open_session(source, threads=1, optimise=optimised, quiet=True)
    (source_input,) = session.get_inputs()
    x = x.astype({"tensor(float16)": np.float16, "tensor(double)": np.float64}.get(source_input.type, np.float32))
    return [np.asarray(y, np.float32) for y in session.run(None, {source_input.name: x})]


def tensors(proto: ModelProto) -> list[TensorProto]:
    """Every tensor of a model: initializers and attributes."""
    attributes = [attribute for node in proto.graph.node for attribute in node.attribute]
    return [*proto.graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]


def retyped(proto: ModelProto, old: int, new: int) -> ModelProto:
    """The model with another type of floating-point numbers throughout, casts included."""
    proto = copy.deepcopy(proto)
    for tensor in tensors(proto):
        if tensor.data_type == old:
            values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(new))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        if value.type.tensor_type.elem_type == old:
            value.type.tensor_type.elem_type = new
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == old:
                attribute.i = new
    return proto


def in_float32(proto: ModelProto) -> ModelProto:
    """What a float16 model says, computed in float32."""
    return retyped(proto, HALF, FLOAT)


def edited(build: Callable[[], ModelProto], edit: Callable[[ModelProto], object]) -> Callable[[], ModelProto]:
    """A builder of what `edit` makes of a model in place."""

    def made() -> ModelProto:
        proto = build()
        edit(proto)
        return proto

    return made


def set_integer(node: NodeProto, name: str, value: int) -> None:
    """Change an attribute that the node has."""
    for attribute in node.attribute:
        if attribute.name == name:
            attribute.i = value


def weight(model: Model, name: str, *shape: int, sums: int = 1) -> str:
    """An initializer under which what tells images apart lives through many layers. A sum runs along axis `sums`."""
    if len(shape) == 1:
        return model.weight(name, *shape, low=-0.2, high=0.2)
    values = model.random.uniform(-1, 1, shape) * (6 / math.prod(shape[sums:] if sums else shape[:1])) ** 0.5
    return model.constant(name, values.astype(np.float32))


def norm_weights(model: Model, *names: str, channels: int) -> list[str]:
    """Scale, shift, mean and variance of a normalisation, far from the identity."""
    bounds = ((0.5, 1.5), (-0.2, 0.2), (-0.2, 0.2), (0.5, 2.0))
    return [model.weight(name, channels, low=a, high=b) for name, (a, b) in zip(names, bounds, strict=True)]

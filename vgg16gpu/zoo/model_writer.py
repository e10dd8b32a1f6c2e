"""Write ONNX models whose weights are the same bytes everywhere, from streams of integers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, OperatorSetIdProto, TensorProto

from vgg16gpu.compiler.onnx.file import IR_VERSION, OPSET
from vgg16gpu.compiler.onnx.metadata import encoded
from vgg16gpu.compiler.onnx.wire import encode_varint

Integers: TypeAlias = npt.NDArray[np.int32]

LIMIT: Final = 2 * 0xFFFF  # |integer| <= LIMIT
SIGMA: Final = math.sqrt((2**32 - 1) / 3)  # standard deviation of the integers

_PARTS = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)
_CHUNK = 1 << 16  # words at a time: they stay in the cache


class IntegerStream:
    """A stream of integers in [-LIMIT, LIMIT], nearly normal, mean 0, standard deviation SIGMA."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def integers(self, shape: tuple[int, ...]) -> Integers:
        """Draw the next integers of the stream, in row-major order."""
        out = np.empty(math.prod(shape), np.int32)
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            words = self._bits.random_raw(part.size)
            pairs = (words & _PARTS) + (words >> np.uint64(16) & _PARTS)
            part[:] = ((pairs & _LOW) + (pairs >> np.uint64(32))).astype(np.int32) - LIMIT
        return out.reshape(shape)


def he_scale(fan_in: int) -> np.float32:
    """Return the factor from integers to weights of variance 2 / fan_in (He et al. 2015)."""
    return np.float32(math.sqrt(2 / fan_in) / SIGMA)


def scaled(integers: Integers, scale: np.float32) -> npt.NDArray[np.float32]:
    """Return the product as float32; the integers are exact in float32."""
    return integers.astype(np.float32) * scale


_GRAPH, _OPSET_IMPORT = 7, 8  # fields of ModelProto
_INITIALIZER, _RAW_DATA = 5, 9  # of GraphProto, of TensorProto


class ModelWriter:
    """`begin` and `values` for every tensor in the order of `tensors`, then `finish`.

    graph: nodes, inputs and outputs; tensors: name -> shape; metadata: ONNX metadata_props. data_name: of the file
    beside it that has the values, if they are not in the file itself.
    """

    def __init__(
        self,
        graph: GraphProto,
        tensors: Mapping[str, tuple[int, ...]],
        metadata: Mapping[str, str],
        data_name: str = "",
    ) -> None:
        nodes = GraphProto(node=graph.node, name=graph.name).SerializeToString()
        ends = GraphProto(input=graph.input, output=graph.output).SerializeToString()
        values_nbytes = 4 * sum(map(math.prod, tensors.values()))
        self._headers = _outside(tensors, data_name) if data_name else _inside(tensors)
        self._is_outside = bool(data_name)
        data_nbytes = sum(map(len, self._headers.values())) + (0 if data_name else values_nbytes)
        model = ModelProto(ir_version=IR_VERSION, producer_name="vgg16gpu").SerializeToString()
        self._head = model + _prefix(_GRAPH, len(nodes) + data_nbytes + len(ends)) + nodes
        self._tail = ends + _embedded(_OPSET_IMPORT, OperatorSetIdProto(version=OPSET).SerializeToString())
        self._tail += encoded(metadata)
        self.nbytes = len(self._head) + data_nbytes + len(self._tail)
        self._sha256 = hashlib.sha256()
        self._stream: BinaryIO | None = None

    def open(self, stream: BinaryIO, data: BinaryIO | None = None) -> None:
        """Write everything before the first tensor; with external data the whole file, as values go to `data`."""
        self._stream = stream
        self._write(self._head)
        if self._is_outside:
            self._write(b"".join(self._headers.values()) + self._tail)
            stream.flush()  # a full disk is told before the values are made
            self._stream = data

    def begin(self, name: str) -> None:
        """Start the tensor of that name."""
        if not self._is_outside:
            self._write(self._headers[name])

    def values(self, array: npt.NDArray[np.float32]) -> None:
        """Write the next values of the tensor begun last."""
        self._write(np.ascontiguousarray(array, "<f4").data.cast("B"))

    def finish(self) -> str:
        """Write everything after the last tensor; the SHA-256 of the file, then its external data."""
        if not self._is_outside:
            self._write(self._tail)
        return self._sha256.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        if self._stream is None:
            raise RuntimeError("open() comes first")
        self._stream.write(data)
        self._sha256.update(data)


def _inside(tensors: Mapping[str, tuple[int, ...]]) -> dict[str, bytes]:
    """Return each initializer up to its bytes, which follow it."""
    headers = {}
    for name, shape in tensors.items():
        raw = 4 * math.prod(shape)
        tensor = _declared(name, shape).SerializeToString() + _prefix(_RAW_DATA, raw)
        headers[name] = _prefix(_INITIALIZER, len(tensor) + raw) + tensor
    return headers


def _outside(tensors: Mapping[str, tuple[int, ...]], location: str) -> dict[str, bytes]:
    """Return each initializer, its bytes in another file, in sequence without gaps."""
    headers, offset = {}, 0
    for name, shape in tensors.items():
        tensor = _declared(name, shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = 4 * math.prod(shape)
        for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        headers[name] = _embedded(_INITIALIZER, tensor.SerializeToString())
        offset += length
    return headers


def _declared(name: str, shape: tuple[int, ...]) -> TensorProto:
    return TensorProto(dims=shape, data_type=TensorProto.FLOAT, name=name)


def _embedded(field: int, body: bytes) -> bytes:
    return _prefix(field, len(body)) + body


def _prefix(field: int, length: int) -> bytes:
    """Return key and length of a length-delimited field."""
    return encode_varint(field << 3 | 2) + encode_varint(length)

"""Local functions of a model, written out at their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import onnx
import onnx.inliner
from onnx import FunctionProto, NodeProto

from vgg16gpu.compiler.onnx.file import OnnxFile

MAX_DEPTH: Final = 32  # functions called inside each other
MAX_NODES: Final = 20_000  # when all are written out
MAX_BYTES: Final = 64 << 20  # of these nodes

_Key: TypeAlias = tuple[str, str, str]  # domain, name, overload


class _Size(NamedTuple):
    """What nodes come to, all calls written out; `depth` of calls inside each other."""

    nodes: int = 0
    bytes: int = 0
    depth: int = 0

    def plus(self, other: _Size) -> _Size:
        return _Size(self.nodes + other.nodes, self.bytes + other.bytes, max(self.depth, other.depth))


def inline_functions(file: OnnxFile) -> OnnxFile:
    """Return the model with its local functions written out.

    Raises ModelError when they call themselves, are nested too deep, or come to too many nodes or bytes.
    """
    model = file.model
    functions = {_key(item.domain, item.name, item.overload): item for item in model.functions}
    size = _Expansion(file, functions).measure(model.graph.node)
    if size.nodes > MAX_NODES or size.bytes > MAX_BYTES:
        raise file.error(
            f"has {size.nodes} nodes of {size.bytes} bytes once its functions are written out, "
            f"at most {MAX_NODES} of {MAX_BYTES} bytes are supported; export it without functions"
        )
    try:
        return replace(file, model=onnx.inliner.inline_local_functions(model))
    except Exception as error:  # a C++ library; it says with what
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise file.error(f"its functions cannot be written out ({reason}); export it without functions") from error


def _key(domain: str, name: str, overload: str) -> _Key:
    return "" if domain == "ai.onnx" else domain, name, overload


class _Expansion:
    """Measures nodes without writing anything out."""

    def __init__(self, file: OnnxFile, functions: Mapping[_Key, FunctionProto]) -> None:
        self._file, self._functions = file, functions
        self._calls: dict[_Key, _Size] = {}

    def measure(self, nodes: Iterable[NodeProto], depth: int = 0) -> _Size:
        """Return the nodes and bytes of these nodes once written out, `depth` calls down."""
        total = _Size()
        for node in nodes:
            key = _key(node.domain, node.op_type, node.overload)
            is_call = key in self._functions
            total = total.plus(self._call(key, depth + 1) if is_call else _Size(1, node.ByteSize()))
            for attribute in node.attribute:
                for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                    total = total.plus(self.measure(graph.node, depth))
        return total

    def _call(self, key: _Key, depth: int) -> _Size:
        if depth <= MAX_DEPTH and key not in self._calls:
            body = self.measure(self._functions[key].node, depth)
            self._calls[key] = body._replace(depth=body.depth + 1)
        if depth > MAX_DEPTH or depth + self._calls[key].depth - 1 > MAX_DEPTH:
            raise self._file.error(
                f"its function '{key[1]}' calls itself or is nested more than {MAX_DEPTH} deep; "
                "export it without functions"
            )
        return self._calls[key]

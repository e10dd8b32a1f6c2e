"""`info --attributes`: the nodes of a file with their attributes, operands and initializers, as Netron shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from vgg16gpu.cli.common.show import add_row, console, fitting, heading, megabytes, table
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.listing import ListedNode, Operand, TensorType, list_nodes
from vgg16gpu.io.shown import printable

_COLUMNS: Final = ("#", "what", "name", "value")
_MOST_SHOWN: Final = 32  # items of a list; the JSON form has all


def describe_nodes(path: Path) -> dict[str, Any]:
    """Return the file's versions and nodes as plain data. Raises ModelError unless it is an ONNX file."""
    file = Model(path).file
    model = file.model
    return {
        "model": str(path),
        "file_nbytes": file.path.stat().st_size,
        "ir_version": model.ir_version,
        "opsets": {item.domain: item.version for item in model.opset_import},
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "nodes": [_described(node) for node in list_nodes(file)],
    }


def print_nodes(report: Mapping[str, Any]) -> None:
    """Print a table of all nodes: an attribute, an input, an initializer or an output a line."""
    screen = console()
    heading(screen, f"{report['model']} ({megabytes(report['file_nbytes'])})")
    opsets = ", ".join(f"{domain or 'ONNX'} {version}" for domain, version in report["opsets"].items())
    by = f", written by {report['producer']}" if report["producer"] else ""
    screen.print(printable(f"{len(report['nodes'])} nodes, opset {opsets}{by}"), markup=False)
    screen.print("An attribute that is not there has ONNX's default.")
    screen.print(fitting(screen, partial(_table, report["nodes"]), ("what",)))


def _described(node: ListedNode) -> dict[str, Any]:
    return {
        "op": node.op,
        "name": node.name,
        "attributes": dict(node.attributes),
        "inputs": [_operand(operand) for operand in node.inputs],
        "outputs": [{"role": operand.role, "name": operand.name} for operand in node.outputs],
    }


def _operand(operand: Operand) -> dict[str, Any]:
    kind = operand.initializer
    return {"role": operand.role, "name": operand.name, "initializer": None if kind is None else _type(kind)}


def _type(kind: TensorType) -> dict[str, Any]:
    return {"type": kind.element, "shape": list(kind.shape)}


def _table(nodes: Sequence[Mapping[str, Any]], omitted: Sequence[str]) -> Table:
    shown = table([name for name in _COLUMNS if name not in omitted], right=["#"])
    for column in shown.columns[:-1]:
        column.no_wrap = True  # a long name of a value breaks, nothing else
    for index, node in enumerate(nodes, start=1):
        lines = list(_lines(node))
        title = _cells(omitted, str(index), "node", node["op"], node["name"])
        add_row(shown, *title, style="bold", end_section=not lines)
        for line in lines:
            add_row(shown, *_cells(omitted, "", *line), end_section=line is lines[-1])
    return shown


def _cells(omitted: Sequence[str], *cells: str) -> list[str]:
    return [cell for name, cell in zip(_COLUMNS, cells, strict=True) if name not in omitted]


def _lines(node: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (what, name, value) of all that belongs to a node."""
    for name, value in node["attributes"].items():
        yield "attribute", name, _value(value)
    for operand in node["inputs"]:
        if kind := operand["initializer"]:
            described = TensorType(kind["type"], tuple(kind["shape"]))
            yield "initializer", operand["role"], f"{operand['name']} {described}"
        elif operand["name"]:
            yield "input", operand["role"], operand["name"]
    for operand in node["outputs"]:
        if operand["name"]:
            yield "output", operand["role"], operand["name"]


def _value(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    more = f" and {len(value) - _MOST_SHOWN:,} more" if len(value) > _MOST_SHOWN else ""
    return ", ".join(map(str, value[:_MOST_SHOWN])) + more

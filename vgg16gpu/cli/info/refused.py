"""What `info` says of a model that is refused: which nodes, why, and what to do about each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu.cli.common.show import add_row, console, heading, megabytes, table
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import printable

_NODE: Final = re.compile(r"(\S+) '(.*)' \(opset (\w+)\): (.*); (.*)", re.DOTALL)
_SUPPORTED: Final = "; supported operators: "


@dataclass(frozen=True)
class UnsupportedNode:
    """One node that is not supported."""

    node: str
    op: str
    opset: str
    reason: str
    remedy: str


def refused_nodes(error: ModelError, path: Path) -> list[UnsupportedNode]:
    """Return the nodes that a loader's error lists; none if it is about something else than nodes."""
    text = str(error).removeprefix(f"{printable(str(path))}: ").partition(_SUPPORTED)[0]
    first, *more = re.split(r"\n  (?=\S+ ')", text)
    lines = more or [first]
    matches = [match for line in lines if (match := _NODE.fullmatch(line))]
    if len(matches) < len(lines):
        return []
    return [UnsupportedNode(match[2], match[1], match[3], match[4], match[5]) for match in matches]


def describe_refusal(error: ModelError, path: Path, nodes: list[UnsupportedNode]) -> dict[str, Any]:
    """Return the same as plain data."""
    supported = str(error).partition(_SUPPORTED)[2]
    return {
        "model": str(path),
        "file_nbytes": path.stat().st_size,
        "refused": [vars(node) for node in nodes],
        "supported_operators": supported.split(", ") if supported else [],
    }


def print_refusal(report: dict[str, Any]) -> None:
    """Print a table of the nodes, and every remedy once."""
    screen, nodes = console(), report["refused"]
    heading(screen, f"{report['model']} ({megabytes(report['file_nbytes'])}) is refused")
    what = "1 node is" if len(nodes) == 1 else f"{len(nodes)} nodes are"
    screen.print(f"{what} not supported:")
    rows = table(["op", "node", "opset", "reason", "remedy"], right=["opset"])
    for node in nodes:
        add_row(rows, *(node[column] for column in ("op", "node", "opset", "reason", "remedy")))
    screen.print(rows)
    heading(screen, "What to do")
    remedies = [node["remedy"] for node in nodes]
    for remedy in dict.fromkeys(remedies):
        count = remedies.count(remedy)
        screen.print(f"- {remedy} ({count} {'node' if count == 1 else 'nodes'})", markup=False)
    if report["supported_operators"]:
        screen.print(f"Supported operators: {', '.join(report['supported_operators'])}", markup=False)

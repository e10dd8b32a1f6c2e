"""`info --graph`: the ops of a model as loaded, and what each simplify pass makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from vgg16gpu.cli.common.show import add_row, heading, table
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Op, Shape
from vgg16gpu.compiler.graph.passes import IMAGE_PASSES


def stages(graph: Graph, shape: Shape) -> list[dict[str, Any]]:
    """Return the loaded graph, then each pass with the ops that it made or changed, as plain data.

    `shape`: as in the file. `was`: the ops that a changed one replaces. `dropped`: ops of which nothing is left.
    """
    loaded = [_described(op, infer_shapes(graph, shape)) for op in graph.ops]
    found = [_stage("load", "The model as in the file.", graph, loaded, [])]
    for step in IMAGE_PASSES:
        before, graph = graph, step(graph, frozenset())
        if graph.input.channels_last and not before.input.channels_last:
            shape = shape[0], shape[-1], *shape[1:-1]
        shapes = infer_shapes(graph, shape)
        sources = _sources(before, graph)
        changed = [
            {**_described(op, shapes), "was": [_brief(source) for source in sources[op.y]]}
            for op in graph.ops
            if not (len(sources[op.y]) == 1 and _same(op, sources[op.y][0]))
        ]
        kept = {source.y for found in sources.values() for source in found}
        dropped = [_brief(op) for op in before.ops if op.y not in kept]
        found.append(_stage(step.__name__, (step.__doc__ or "").partition("\n")[0], graph, changed, dropped))
    return found


def print_stages(screen: Console, found: Sequence[dict[str, Any]]) -> None:
    """Print a table of the loaded ops, and one for each pass that changed any."""
    loaded, *passes = found
    heading(screen, f"Graph as loaded: {_counts(loaded)}")
    screen.print(_op_table(loaded["ops"]))
    for before, stage in zip(found, passes, strict=False):
        if not _changed(before, stage):
            heading(screen, f"{stage['pass']}: nothing to do")
            continue
        heading(screen, f"{stage['pass']}: {_counts(before)} -> {_counts(stage)}; {len(stage['ops'])} changed")
        screen.print(stage["what"], markup=False)
        if stage["ops"] or stage["dropped"]:
            screen.print(_change_table(stage))
    heading(screen, f"Graph to be planned: {_counts(found[-1])}, from {_counts(loaded)}")


def _stage(
    name: str, what: str, graph: Graph, ops: Sequence[dict[str, Any]], dropped: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    counts = {"op_count": len(graph.ops), "constant_count": len(graph.constants)}
    return {"pass": name, "what": what, **counts, "ops": list(ops), "dropped": list(dropped)}


def _changed(before: Mapping[str, Any], stage: Mapping[str, Any]) -> bool:
    return bool(stage["ops"] or stage["dropped"] or stage["constant_count"] != before["constant_count"])


def _sources(before: Graph, after: Graph) -> dict[str, list[Op]]:
    """Return for each op of `after`, by its value, the ops of `before` that computed what it computes."""
    makers = {name: index for index, op in enumerate(before.ops) for name in op.names}
    found = {op.y: sorted({makers[name] for name in op.names if name in makers}) for op in after.ops}
    return {y: [before.ops[index] for index in indices] for y, indices in found.items()}


def _same(first: Op, second: Op) -> bool:
    """Return whether two ops are equal; arrays are when they are the same object."""
    if type(first) is not type(second):
        return False
    fields = ((vars(first)[name], vars(second)[name]) for name in vars(first))
    return all(
        a is b or (not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray) and a == b) for a, b in fields
    )


def _described(op: Op, shapes: Mapping[str, Shape]) -> dict[str, Any]:
    return {**_brief(op), "shape": list(shapes[op.y])}


def _brief(op: Op) -> dict[str, Any]:
    return {"op": _kind(op), "value": op.y, "reads": list(op.operands)}


def _kind(op: Op) -> str:
    """Return an op's type, its function if it has several, and what is fused into it: Arithmetic (add, relu)."""
    fields = {name: value for name, value in vars(op).items() if name not in ("x", "y")}
    notes = [value if isinstance(value, str) else name for name, value in fields.items() if _is_note(value)]
    return f"{type(op).__name__} ({', '.join(notes)})" if notes else type(op).__name__


def _is_note(value: object) -> bool:
    return value is True or (isinstance(value, str) and bool(value))


def _counts(stage: Mapping[str, Any]) -> str:
    constants = stage["constant_count"]
    return f"{stage['op_count']} ops" + (f" and {constants} constants" if constants else "")


def _op_table(ops: Sequence[Mapping[str, Any]]) -> Table:
    result = table(["#", "op", "value", "reads", "shape"], right=["#"])
    for index, row in enumerate(ops, start=1):
        add_row(result, index, row["op"], row["value"], "\n".join(row["reads"]), _times(row["shape"]))
    return result


def _change_table(stage: Mapping[str, Any]) -> Table:
    result = table(["op", "value", "reads", "shape", "was", "of"])
    for row in stage["ops"]:
        now = [row["op"], row["value"], "\n".join(row["reads"]), _times(row["shape"])]
        for source in row["was"] or [{"op": "new", "value": ""}]:
            add_row(result, *now, source["op"], source["value"])
            now = [""] * len(now)
    for row in stage["dropped"]:
        add_row(result, "dropped", "", "", "", row["op"], row["value"])
    return result


def _times(sides: Sequence[int]) -> str:
    return "x".join(map(str, sides))

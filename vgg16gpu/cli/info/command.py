"""`info`: what a model is, what it costs, and what an engine would do with it. Nothing is compiled or allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.model_notes import model_notes
from vgg16gpu.cli.common.options import (
    batches_option,
    device_option,
    find_model,
    json_option,
    kernels_option,
    model_argument,
    outputs_option,
    precision_option,
    size_option,
)
from vgg16gpu.cli.common.preprocess_options import PixelOptions
from vgg16gpu.cli.common.show import add_row, console, heading, megabytes, print_json, sentence, table
from vgg16gpu.cli.info.attributes import describe_nodes, print_nodes
from vgg16gpu.cli.info.graph import print_stages, stages
from vgg16gpu.cli.info.refused import describe_refusal, print_refusal, refused_nodes
from vgg16gpu.compiler.compile import EngineOptions, compile_model, sampler
from vgg16gpu.compiler.graph.costs import OpCost, op_costs
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.input_size import resolve_input_shape, size_note
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.facts import device_facts
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import CompiledModel, KernelLaunch
from vgg16gpu.program.types import DeviceFacts, TensorDesc
from vgg16gpu.runtime.plans.gradients import gradient_plan
from vgg16gpu.runtime.plans.sizes import added_weights_nbytes

_NODES_HELP = (
    "Show the nodes of the file as they stand there: kernel_shape, pads, strides and all other attributes, inputs, "
    "initializers and their shapes. Of any ONNX file; no plan."
)


_GRADIENT_HELP = "Also the memory that the gradient to the input takes, as Engine(gradient=True) computes it."


@click.command("info")
@model_argument()
@device_option
@precision_option
@kernels_option
@batches_option("one engine of all; steps and cost are those of the largest")
@size_option
@outputs_option
@click.option("--graph", "shows_graph", is_flag=True, help="Show what each simplify pass changes, and no plan.")
@click.option("--attributes", "shows_nodes", is_flag=True, help=_NODES_HELP)
@click.option("--gradient", "with_gradient", is_flag=True, help=_GRADIENT_HELP)
@json_option
@click.pass_context
def info_command(
    ctx: click.Context,
    *,
    model: str | None,
    device: str,
    precision: str,
    kernels: str,
    batches: tuple[int, ...],
    size: tuple[int, int] | None,
    outputs: tuple[str, ...] | None,
    shows_graph: bool,
    shows_nodes: bool,
    with_gradient: bool,
    as_json: bool,
) -> None:
    """Describe MODEL: layers, shapes, parameters, FLOP, the plan, and the device memory it would take. Needs no GPU.

    The plan says what is computed on which kernels, and stored as what: F32, F16, BF16, integers of 8 bits (U8, S8), or
    F16_PAIR, two float16 numbers whose sum is as exact as fp32 needs. `--device cuda` without a GPU plans for an H200.

    Of a model that is not supported it lists every node in the way, why, and what to do about it; the exit code is 1.
    """
    if shows_graph and shows_nodes:
        raise click.UsageError("--graph and --attributes are two views; give one")
    path = find_model(model)
    if shows_nodes:
        described = describe_nodes(path)
        print_json(described) if as_json else print_nodes(described)
        return
    opened = Model(path)
    try:
        graph = opened.loaded(outputs)
    except ModelError as error:
        if nodes := refused_nodes(error, path):
            refusal = describe_refusal(error, path, nodes)
            print_json(refusal) if as_json else print_refusal(refusal)
            ctx.exit(EXIT_CHECK_FAILED)
        raise
    options = EngineOptions(size=size, outputs=outputs, precision=precision, kernels=kernels)
    fused = options.graph(opened)
    batches = tuple(sorted(batches or (fused.input.shape[0] or 1,)))
    options = replace(options, batch=batches)
    given = resolve_input_shape(fused, batches[-1], size)
    shape = fused.input.in_file(given)
    summary = _summary(opened, graph, shape, fused, given)
    if shows_graph:
        steps = summary | {"passes": stages(graph, shape)}
        print_json(steps) if as_json else _print_graph(steps)
        return
    facts = device_facts(device)
    plan = compile_model(opened, options, facts)
    report = summary | describe(options, op_costs(graph, shape), plan, facts)
    report["gradient"] = _gradient(opened, options, fused, given, facts, plan) if with_gradient else None
    print_json(report) if as_json else _print(report)


def describe(options: EngineOptions, rows: Sequence[OpCost], plan: CompiledModel, facts: DeviceFacts) -> dict[str, Any]:
    """Return the costs of a run of the largest batch, and of an engine, as plain data: bytes and FLOP."""
    program = plan.programs[-1]
    return {
        "flop": sum(row.flop for row in rows),
        "layers": [vars(row) for row in rows],
        "device": facts.name,
        "batches": [each.batch for each in plan.programs],
        "precision": options.precision,
        "kernels": options.kernels,
        "steps": [_step(step) for step in program.all_steps()],
        "values": [_value(value, plan.families.get(value.name, "")) for value in program.values],
        "memory": _memory(plan),
        "second_pass": _second_pass(plan),
    }


def _gradient(
    model: Model, options: EngineOptions, fused: Graph, given: Shape, facts: DeviceFacts, beside: CompiledModel
) -> dict[str, Any]:
    """Return the costs of `Engine.vjp` for a batch of this shape, beside the engine's own. ModelError in int8."""
    samples = sampler(model, options, fused)
    plan = gradient_plan(fused, given, facts, options.precision, options.kernels, samples)
    steps = plan.programs[-1].all_steps()
    weights = added_weights_nbytes(plan, beside)
    memory = _memory(plan) | {
        "weights_nbytes": weights,
        "shared_weights_nbytes": plan.weights.weights_nbytes - weights,
        "device_nbytes": weights + plan.activations_nbytes,
    }
    return {"flop": sum(step.flop for step in steps), "steps": len(steps), "memory": memory}


def _memory(plan: CompiledModel) -> dict[str, int]:
    return {
        "weights_nbytes": plan.weights.weights_nbytes,
        "activations_nbytes": plan.activations_nbytes,
        "device_nbytes": plan.device_nbytes,
        "staging_nbytes": plan.weights.staging_nbytes,
    }


def _summary(model: Model, graph: Graph, shape: Shape, fused: Graph, given: Shape) -> dict[str, Any]:
    """Return the file's own facts; `refused` is for readers of any model's JSON. `fused`, `given`: simplified."""
    shapes = infer_shapes(graph, shape)
    layout = ("NHWC" if fused.input.channels_last else "NCHW") if len(shape) == 4 else "NF"
    notes = model_notes(model, fused, given, PixelOptions(), None)
    return {
        "model": str(model.path),
        "file_nbytes": model.path.stat().st_size,
        "refused": [],
        "note": notes.note,
        "preprocess": notes.preprocess and notes.preprocess.report(*given[2:], pictures=given[1] in (1, 3)),
        "input": {
            "name": graph.input.name,
            "declared": list(graph.input.shape),
            "shape": list(shape),
            "layout": layout,
        },
        "sizes": size_note(fused) or None,
        "outputs": [{"name": name, "shape": list(shapes[name])} for name in graph.outputs],
        "parameters": graph.parameters,
    }


def _step(step: KernelLaunch) -> dict[str, Any]:
    return {
        "step": step.label,
        "kernel": step.kernel.label,
        "grid": list(step.grid),
        "block": list(step.block),
        "shared_nbytes": step.shared,
        "flop": step.flop,
        "nbytes": step.nbytes,
        "names": list(step.names),
    }


def _value(value: TensorDesc, family: str) -> dict[str, Any]:
    return {
        "name": value.name,
        "shape": list(value.shape),
        "layout": value.layout.value,
        "element": value.element.name,
        "kernels": family,
        "arena": value.pointer.arena.value,
        "offset": value.pointer.offset,
        "nbytes": value.nbytes,
    }


def _second_pass(plan: CompiledModel) -> dict[str, Any] | None:
    """Return the further costs of fp32 on tensor cores; their memory is in the same arenas."""
    if plan.second_pass is None or plan.calibration is None:
        return None
    return {
        "activations_nbytes": plan.second_pass.activations_nbytes,
        "calibration_nbytes": plan.calibration.program.activations_nbytes,
        "samples": len(plan.calibration.samples),
    }


def _print_graph(report: dict[str, Any]) -> None:
    screen = console()
    _print_summary(screen, report)
    print_stages(screen, report["passes"])


def _print_summary(screen: Console, report: dict[str, Any]) -> None:
    heading(screen, f"{report['model']} ({megabytes(report['file_nbytes'])})")
    if report["note"]:
        screen.print(f"Note: {report['note']}", markup=False)
    given = report["input"]
    outputs = ", ".join(f"{output['name']} {_times(output['shape'])}" for output in report["outputs"])
    declared = _times(["?" if side is None else side for side in given["declared"]])
    screen.print(
        f"Input: {given['name']} {_times(given['shape'])} {given['layout']} (declared {declared}); output: {outputs}",
        markup=False,
    )
    if report["sizes"]:
        screen.print(f"Image size: {report['sizes']}", markup=False, soft_wrap=True)
    if report["preprocess"]:
        screen.print(sentence(report["preprocess"]["line"]), markup=False, soft_wrap=True)
    screen.print(f"Parameters: {report['parameters']:,}")


def _print(report: dict[str, Any]) -> None:
    screen = console()
    _print_summary(screen, report)
    screen.print(f"Cost of a run: {report['flop'] / 1e9:.2f} GFLOP (2 per multiply-add)")
    heading(screen, "Layers, as in the file")
    screen.print(_layer_table(report))
    heading(screen, f"Plan for {report['device']}, precision {report['precision']}, kernels {report['kernels']}")
    if len(report["batches"]) > 1:
        *smaller, largest = report["batches"]
        beside = ", ".join(map(str, smaller))
        screen.print(f"Batch {largest} is shown; the engine runs {beside} too, in the same memory")
    screen.print(_step_table(report))
    heading(screen, "Values, as they are stored")
    screen.print(_value_table(report))
    memory = report["memory"]
    screen.print(
        f"Device memory: {megabytes(memory['device_nbytes'])} = weights {megabytes(memory['weights_nbytes'])} + "
        f"activation arena {megabytes(memory['activations_nbytes'])}; "
        f"while building also staging {megabytes(memory['staging_nbytes'])}"
    )
    if gradient := report["gradient"]:
        more = gradient["memory"]
        screen.print(
            f"Gradient to the input, batch {report['batches'][-1]}: {megabytes(more['device_nbytes'])} more = weights "
            f"{megabytes(more['weights_nbytes'])} + arena {megabytes(more['activations_nbytes'])}, beside "
            f"{megabytes(more['shared_weights_nbytes'])} of weights that it shares with the model; "
            f"{gradient['flop'] / 1e9:.2f} GFLOP in {gradient['steps']} launches, the model's own among them"
        )
    if second := report["second_pass"]:
        screen.print(
            f"Scales are fixed on {second['samples']} typical inputs while building "
            f"({megabytes(second['calibration_nbytes'])} of the activation arena); an image out of their range is run "
            f"again in float32 arithmetic ({megabytes(second['activations_nbytes'])} of it)"
        )


def _layer_table(report: dict[str, Any]) -> Table:
    numbers = ["#", "parameters", "MFLOP"]
    result = table(["#", "op", "value", "shape", "parameters", "MFLOP"], right=numbers)
    for index, row in enumerate(report["layers"], start=1):
        cost = f"{row['flop'] / 1e6:,.1f}" if row["flop"] else ""
        parameters = f"{row['parameters']:,}" if row["parameters"] else ""
        add_row(result, index, row["op"], row["name"], _times(row["shape"]), parameters, cost)
    return result


def _step_table(report: dict[str, Any]) -> Table:
    numbers = ["#", "threads", "MFLOP", "MB"]
    result = table(["#", "step", "kernel", "grid", "threads", "MFLOP", "MB"], right=numbers)
    for index, row in enumerate(report["steps"], start=1):
        add_row(
            result,
            index,
            row["step"],
            row["kernel"],
            _times(row["grid"]),
            math.prod(row["block"]),
            f"{row['flop'] / 1e6:,.1f}",
            f"{row['nbytes'] / 1e6:,.2f}",
        )
    return result


def _value_table(report: dict[str, Any]) -> Table:
    numbers = ["MB", "at"]
    result = table(["value", "shape", "kernels", "stored as", "MB", "at"], right=numbers)
    for row in report["values"]:
        add_row(
            result,
            row["name"],
            _times(row["shape"]),
            row["kernels"],
            row["element"],
            f"{row['nbytes'] / 1e6:,.2f}",
            row["offset"],
        )
    return result


def _times(sides: Any) -> str:
    return "x".join(str(side) for side in sides)

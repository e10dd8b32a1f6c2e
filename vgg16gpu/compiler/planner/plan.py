"""The planner: a graph and the facts of a device in, programs out. Pure: needs no GPU, decides everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, Gemm, Op, Pool, Shape, Transpose, op_arrays, with_operands
from vgg16gpu.compiler.op_kernels import kernels_for
from vgg16gpu.compiler.op_kernels.base import ActivationScale, WeightPacker
from vgg16gpu.compiler.op_kernels.layout import preprocess, scales
from vgg16gpu.compiler.op_kernels.mma_pairs import has_pairs
from vgg16gpu.compiler.planner.schedule import ROWS, ProgramBuilder
from vgg16gpu.compiler.planner.selection import KernelAssignment, PlanOptions, select_kernels
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import CompiledModel, PairScaling, WeightPlan
from vgg16gpu.program.types import DeviceFacts, Pointer


def make_plan(
    graph: Graph,
    facts: DeviceFacts,
    input_shapes: Sequence[Shape] | Mapping[str, Shape],
    options: PlanOptions | None = None,
) -> CompiledModel:
    """Return programs for runs on each of `input_shapes` (equal but for the batch), and their shared weights.

    A mapping has the shape of each input, for one program; fp32 is on tensor cores there where options allow that and
    have samples of the first input. Raises ModelError when the graph does not fit an input shape, and when the
    precision cannot be had.
    """
    options = options or PlanOptions()
    if isinstance(input_shapes, Mapping):
        return _plan_of_several(_with_stored_inputs(graph), facts, input_shapes, options)
    shapes = sorted(input_shapes, key=lambda shape: shape[0])
    selection = select_kernels(graph, facts, infer_shapes(graph, shapes[0]), options)
    if selection.splits_float32 and _runs_alone(graph, shapes[0]):
        return _split_plan(selection, shapes, options)
    if selection.splits_float32:
        return _one_pass_plan(graph, facts, shapes, replace(options, kernels="ffma"))
    return _plain_plan(selection, shapes, options)


def _plan_of_several(
    graph: Graph, facts: DeviceFacts, shapes: Mapping[str, Shape], options: PlanOptions
) -> CompiledModel:
    """Return one program for a graph of several inputs."""
    exact = replace(options, kernels="ffma") if options.precision == "fp32" else options
    if options.precision == "fp32" and options.kernels != "ffma" and options.samples is not None:
        kernels = "mma" if options.kernels == "mma" and has_pairs(facts) else "auto"
        selection = select_kernels(graph, facts, infer_shapes(graph, shapes), replace(options, kernels=kernels))
        shape = shapes[graph.input.name]
        is_usual = _runs_alone(selection.sampled_part.graph, shape) and _keeps_images_apart(selection, shape)
        if selection.splits_float32 and is_usual:
            return _split_plan_of_several(selection, shapes, options, options.samples)
    return _one_pass_plan(graph, facts, [shapes], exact)


def _keeps_images_apart(selection: KernelAssignment, shape: Shape) -> bool:
    """Return whether what is in pairs has as many images as the input: each has words of its own, by its number."""
    on_tensor_cores = (op for op in selection.graph.ops if selection.op_kernels[op.y].family != "ffma")
    values = {name for op in on_tensor_cores for name in (op.x, op.y)}
    return len(shape) in ROWS and all(selection.shapes[name][:1] == shape[:1] for name in values)


def _with_stored_inputs(graph: Graph) -> Graph:
    """Add a copy of every further input whose reader knows the NHWC layout alone."""
    copies: dict[str, Op] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if not any(op_kernel.any_layout for op_kernel in kernels_for(op)):
            for item in graph.others:
                is_map = len(item.shape) in ROWS and item.name not in graph.twins  # which are taken in as the input is
                if item.name in op.operands and is_map:
                    order = tuple(range(len(item.shape)))
                    y = f"{item.name}/stored"
                    if item.name not in copies:  # not in front of all: kernels may take the first op's input as it is
                        copies[item.name] = Transpose(item.name, y, (y,), order)
                        ops.append(copies[item.name])
            op = with_operands(op, [copies[name].y if name in copies else name for name in op.operands])  # noqa: PLW2901
        ops.append(op)
    return replace(graph, ops=tuple(ops))


def _one_pass_plan(
    graph: Graph, facts: DeviceFacts, shapes: Sequence[Shape | Mapping[str, Shape]], options: PlanOptions
) -> CompiledModel:
    return _plain_plan(select_kernels(graph, facts, infer_shapes(graph, shapes[0]), options), shapes, options)


def _plain_plan(
    selection: KernelAssignment, shapes: Sequence[Shape | Mapping[str, Shape]], options: PlanOptions
) -> CompiledModel:
    arena = WeightPacker()
    normalise = preprocess.weights(options.normalisation, arena) if options.normalisation else None
    selection = selection.with_scalings(_unit_scalings(selection, arena))
    scheduler = ProgramBuilder(
        selection,
        _constants(selection, arena),
        _held(selection.graph, arena),
        normalise,
        options.keep_values,
        given=options.given,
    )
    programs = tuple(scheduler.program(shape) for shape in shapes)
    return CompiledModel(_weight_plan(arena), programs, families=selection.families, keeps_values=options.keep_values)


def _runs_alone(graph: Graph, shape: Shape) -> bool:
    """Return whether one image can be run by itself, as the second pass of float32 pairs does."""
    try:
        infer_shapes(graph, (1, *shape[1:]))
    except ModelError:
        return False
    return True


def _split_plan(selection: KernelAssignment, shapes: Sequence[Shape], options: PlanOptions) -> CompiledModel:
    """Plan float32 on tensor cores: runs on FFMA fix scales, and run images again that are out of their range."""
    arena = WeightPacker()
    normalise = preprocess.weights(options.normalisation, arena) if options.normalisation else None
    held = _held(selection.graph, arena)
    selection = selection.with_scalings(_scalings(selection, arena))
    constants = _constants(selection, arena)
    exact = selection.on_ffma()
    scheduler = ProgramBuilder(selection, constants, held, normalise, options.keep_values)
    programs = tuple(scheduler.program(shape) for shape in shapes)
    kept = max(program.activations_nbytes for program in programs) if options.keep_values else 0
    exact_scheduler = ProgramBuilder(exact, _constants(exact, arena), held, normalise, keep_values=False, reserved=kept)
    single = 1, *shapes[0][1:]
    observing = exact_scheduler.program(single, observed=selection.scalings)
    if options.samples is None:
        raise ModelError(
            "fp32 on tensor cores fixes its scales on typical inputs; give some, or ask for kernels 'ffma'"
        )
    scaling = PairScaling(observing, options.samples(), tuple(arena.finish))
    second_passes = {shape: exact_scheduler.program(shape) for shape in shapes}
    return CompiledModel(
        _weight_plan(arena),
        programs,
        scaling,
        second_pass=second_passes.get(single) or exact_scheduler.program(single),
        families=selection.families,
        keeps_values=options.keep_values,
        second_passes=tuple(second_passes.values()),
    )


def _split_plan_of_several(
    selection: KernelAssignment, shapes: Mapping[str, Shape], options: PlanOptions, samples: Callable[[], Array]
) -> CompiledModel:
    """Plan the same for several inputs: samples of the first one fix the scales that depend on it alone.

    The second pass runs the whole batch.
    """
    arena = WeightPacker()
    selection = selection.with_scalings(_scalings(selection, arena))
    held = _held(selection.graph, arena)
    constants = _constants(selection, arena)
    program = ProgramBuilder(selection, constants, held, None, keep_values=False, given=options.given).program(shapes)
    on_ffma = selection.on_ffma()
    constants = _constants(on_ffma, arena)
    second_pass = ProgramBuilder(on_ffma, constants, held, None, keep_values=False, given=options.given).program(shapes)
    sampled, scaling = selection.sampled_part, None
    if sampled.graph.ops:
        exact = sampled.on_ffma()
        read = {name: held[name] for name in exact.graph.constants}
        observer = ProgramBuilder(
            exact, {op.y: constants[op.y] for op in exact.graph.ops}, read, None, keep_values=False
        )
        single = 1, *shapes[selection.graph.input.name][1:]
        scaling = PairScaling(observer.program(single, selection.scalings), samples(), tuple(arena.finish))
    return CompiledModel(
        _weight_plan(arena), (program,), scaling, families=selection.families, second_passes=(second_pass,)
    )


def _held(graph: Graph, arena: WeightPacker) -> dict[str, Pointer]:
    """Add the constants that general ops read; return their pointers by name."""
    return {name: arena.add(array) for name, array in graph.constants.items()}


def _weight_plan(arena: WeightPacker) -> WeightPlan:
    return WeightPlan(tuple(arena.uploads), arena.nbytes, arena.staging_nbytes, arena.items)


def _scalings(selection: KernelAssignment, arena: WeightPacker) -> dict[str, ActivationScale]:
    """Reserve scales for every value that an op on tensor cores reads or writes."""
    names: dict[str, bool] = {}
    twins = selection.graph.twins
    sampled = (op for op in selection.graph.ops if selection.unsampled.isdisjoint(op.results) and op.y not in twins)
    ops = [op for op in sampled if selection.op_kernels[op.y].family != "ffma"]
    for op in ops:
        names[op.x] = names.get(op.x, False) or isinstance(op, Gemm) or op.x == selection.graph.input.name
        names.setdefault(op.y, False)
    pooled = {op.y: op.x for op in ops if isinstance(op, Pool)}  # these hand the scales of what they pool on
    for y, x in reversed(pooled.items()):
        names[x] |= names.pop(y)
    found = {name: scales.reserve(selection.shapes[name][1], uniform, arena) for name, uniform in names.items()}
    for y, x in pooled.items():
        found[y] = found[x]
    return found | {twin: found[name] for twin, name in twins.items() if name in found}


def _unit_scalings(selection: KernelAssignment, arena: WeightPacker) -> dict[str, ActivationScale]:
    """Add scales of 1 for values that fp16 stores as pairs."""
    if selection.precision != "fp16":
        return {}
    names = [name for layer in selection.layers(selection.shapes) for name in selection.stored_pairs(layer)]
    channels = max((selection.shapes[name][1] for name in names), default=0)
    return dict.fromkeys(names, scales.unit(channels, arena)) if names else {}


def _constants(selection: KernelAssignment, arena: WeightPacker) -> dict[str, object]:
    """Pack the weights of every op, in order; each scale is chosen once what it depends on is known."""
    scaled = selection.scalings.get(selection.graph.input.name)
    if scaled and selection.splits_float32:
        arena.finish.append(scales.choose(scaled))
    constants: dict[str, object] = {}
    known: dict[tuple[object, ...], object] = {}  # what twins, and their ways back, share
    for layer in selection.layers(selection.shapes):
        op_kernel = selection.op_kernels[layer.op.y]
        arrays = tuple(map(id, op_arrays(layer.op)))
        key = (type(layer.op), arrays, op_kernel, layer.x_shape[1:], layer.x_scaling, layer.y_scaling, layer.rescaled)
        if arrays and key in known:
            constants[layer.op.y] = known[key]
            continue
        constants[layer.op.y] = known[key] = op_kernel.weights(layer, arena)
        if selection.splits_float32 and layer.y_scaling and layer.y_scaling is not layer.x_scaling:
            arena.finish.append(scales.choose(layer.y_scaling))
    return constants

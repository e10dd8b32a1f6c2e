"""Choose the kernel of each op, under the options of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from vgg16gpu.compiler.choices import FAMILIES
from vgg16gpu.compiler.graph.graph import Graph, readers_of_values
from vgg16gpu.compiler.graph.ops import (
    Array,
    Clip,
    Conv,
    FusedConvPair,
    Gemm,
    Limits,
    Op,
    Pool,
    Shape,
    parts,
    with_operands,
)
from vgg16gpu.compiler.graph.passes import CLIP_PASSES, simplify
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, same_window
from vgg16gpu.compiler.op_kernels import kernels_for, mma_pairs
from vgg16gpu.compiler.op_kernels.base import FLOAT, ActivationScale, AnyOpKernel, OpContext
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import DeviceFacts, DType

if TYPE_CHECKING:
    from vgg16gpu.compiler.quantization.scheme import QuantisedOp


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is made for, beside the graph and the device.

    precision: "fp32", "fp16", "bf16" or "int8". kernels: "auto", or the only family that may be used beside "ffma".
    normalisation: adds an entry for bytes (N, H, W, C). keep_values: every op stores its value, and no buffer is used
    twice, so that every value can be read after a run. samples: makes (n, C, H, W) typical inputs, which fix the scales
    of fp32 on tensor cores. quantised: what int8 needs of each op. given: what further inputs are made of that are read
    where a caller has them, row-major, at addresses that are multiples of 16.
    """

    precision: str = "fp32"
    kernels: str = "auto"
    normalisation: Normalisation | None = None
    keep_values: bool = False
    samples: Callable[[], Array] | None = None
    quantised: Mapping[str, QuantisedOp] | None = None
    given: Mapping[str, DType] = field(default_factory=dict)


_TAKEN_IN: Final = (2, 4)  # ranks of inputs that a kernel takes in; what has another rank is read where it is


def without_input_clip(graph: Graph) -> tuple[Graph, Limits | None]:
    """Return the graph without a Clip that alone reads its input, and the limits; the same graph and None without one.

    0 must lie between the limits, as padding is 0.
    """
    source = graph.input
    readers = readers_of_values(graph).get(source.name, [])
    if len(readers) != 1 or source.name in graph.outputs or len(source.shape) not in _TAKEN_IN:
        return graph, None
    (clip,) = readers
    if not isinstance(clip, Clip) or clip.others or clip.y in graph.outputs:
        return graph, None
    if not clip.range[0] <= 0 <= clip.range[1]:
        return graph, None

    def renamed(op: Op) -> Op:
        return with_operands(op, [source.name if name == clip.y else name for name in op.operands])

    return replace(graph, ops=tuple(renamed(op) for op in graph.ops if op is not clip)), clip.range


def pooled_maps(graph: Graph) -> dict[str, Pool]:
    """Return the pool of each convolution whose map has other readers too, by the map's name.

    A map that only the pool reads is absent: `passes.fuse_max_pool` has fused it.
    """
    readers, found = readers_of_values(graph), dict[str, Pool]()
    for op in graph.ops:
        pools = [reader for reader in readers.get(op.y, ()) if isinstance(reader, Pool) and _is_plain(reader)]
        if isinstance(op, Conv) and not op.pool and pools:
            found[op.y] = pools[0]
    return found


def with_kept_maps(graph: Graph, pools: Mapping[str, Pool]) -> Graph:
    """Merge these pools into the convolutions whose maps they read."""
    gone = {pool.y for pool in pools.values()}
    return replace(graph, ops=tuple(_joined(op, pools) for op in graph.ops if op.y not in gone))


def keeps_map(op: Op) -> bool:
    """Return whether a map before a pool is wanted of an op."""
    return any(isinstance(part, Conv) and part.kept for part in parts(op))


def _joined(op: Op, pools: Mapping[str, Pool]) -> Op:
    if not isinstance(op, Conv) or op.y not in pools:
        return op
    pool = pools[op.y]
    return replace(op, y=pool.y, names=(*op.names, *pool.names), pool=True, kept=op.y)


def _is_plain(op: Pool) -> bool:
    return op.kind == "max" and same_window(op.window, MAX_POOL_2X2)


KEEPING: Final = ("fp16", "bf16")  # of pairs the pool is a launch of its own: the second pass knows it so


@dataclass(frozen=True, eq=False)
class KernelAssignment:
    """A graph with an op kernel for each op. `shapes` are those of the smallest batch.

    The graph may have a FusedConvPair in place of its first two ops; `quantised` knows their parts. `input_limits`: to
    what the run-time input is clipped as it is taken in.
    """

    graph: Graph
    facts: DeviceFacts
    shapes: Mapping[str, Shape]
    precision: str
    op_kernels: Mapping[str, AnyOpKernel]  # by the name of the op's result
    scalings: Mapping[str, ActivationScale] = field(default_factory=dict)
    quantised: Mapping[str, QuantisedOp] = field(default_factory=dict)
    input_limits: Limits | None = None

    @property
    def splits_float32(self) -> bool:
        """Return whether float32 is computed from float16 pairs, and so depends on scales."""
        return self.precision == "fp32" and not {*self.families.values()} <= {"ffma"}

    @property
    def families(self) -> Mapping[str, str]:
        """The kernels of each op, by the names of its results."""
        chosen = [(op, self.op_kernels[op.y]) for op in self.graph.ops if op.y in self.op_kernels]
        return {name: op_kernel.family for op, op_kernel in chosen for name in op.results}

    def layers(self, shapes: Mapping[str, Shape]) -> Iterator[OpContext[Op]]:
        """Yield the ops with their contexts, for a run with these shapes."""
        for number, op in enumerate(self.graph.ops, start=1):
            layer = OpContext(
                op=op,
                x_shape=shapes[op.x],
                other_shapes=tuple(shapes[name] for name in op.operands[1:]),
                facts=self.facts,
                precision=self.precision,
                number=number,
                reads_input=op in self._only_readers,
                x_scaling=self.scalings.get(op.x),
                y_scaling=self.scalings.get(op.y),
                quantised=self.quantised.get(op.y),
                keeps_digits=self._keeps_digits,
                compared=not self.graph.compared.isdisjoint(op.results),
                rescaled=op.y in self._linear,
            )
            yield replace(layer, parts=self._parts(op, layer)) if isinstance(op, FusedConvPair) else layer

    def _parts(self, chain: FusedConvPair, whole: OpContext[Op]) -> tuple[OpContext[Conv], OpContext[Conv]]:
        """Return the convolutions of a chain as separate layers."""
        first, second, place = chain.first, chain.second, (whole.facts, whole.precision, whole.number)
        between = first.shape_of_y(whole.x_shape)
        of_first, of_second = self.quantised.get(first.y), self.quantised.get(second.y)
        return (
            OpContext(first, whole.x_shape, *place, whole.reads_input, x_scaling=whole.x_scaling, quantised=of_first),
            OpContext(second, between, *place, y_scaling=whole.y_scaling, quantised=of_second),
        )

    @cached_property
    def _only_readers(self) -> tuple[Op, ...]:
        """The ops that alone read images, which nobody wants back either: the run-time input, or a twin of it."""
        found = []
        for name in (self.graph.input.name, *self.twin_inputs):
            readers = [op for op in self.graph.ops if name in op.operands]
            if len(readers) == 1 and name not in self.graph.outputs:
                found.append(readers[0])
        return tuple(found)

    @property
    def twin_inputs(self) -> tuple[str, ...]:
        """Further inputs that are images, too."""
        return tuple(item.name for item in self.graph.others if item.name in self.graph.twins)

    def rescales(self, op: Op) -> bool:
        """Return whether an op scales each image of its operand to float16's range; its result keeps the factor."""
        return op.y in self._linear and self.op_kernels[op.y].family != "ffma"

    @cached_property
    def unsampled(self) -> frozenset[str]:
        """The values that typical inputs do not tell the sizes of: they depend on further inputs, and are no twins."""
        found = {item.name for item in self.graph.others}
        for op in self.graph.ops:
            if not found.isdisjoint(op.operands):
                found.update(op.results)
        return frozenset(found - self.graph.twins.keys())

    @property
    def sampled_part(self) -> KernelAssignment:
        """The ops that depend on the first input alone, up to those on tensor cores; what none reads is an output."""
        kept: list[Op] = []
        read: set[str] = set()
        for op in reversed(self.graph.ops):
            is_sampled = self.unsampled.isdisjoint(op.results) and op.y not in self.graph.twins
            on_tensor_cores = self.op_kernels[op.y].family != "ffma" and is_sampled
            if on_tensor_cores or not read.isdisjoint(op.results):
                kept.append(op)
                read.update(op.operands)
        ops = tuple(reversed(kept))
        outputs = tuple(name for op in ops for name in op.results if name not in read)
        constants = {name: array for name, array in self.graph.constants.items() if name in read}
        return replace(self, graph=Graph(self.graph.input, ops, outputs, (), constants))

    @cached_property
    def _linear(self) -> frozenset[str]:
        """Results of float16 and its pairs that are linear in such values: a factor of these is one of the result.

        Not of a result that has a factor itself: that was made for what it came from.
        """
        found: set[str] = set()
        for op in self.graph.ops if self.precision in ("fp32", "fp16") else ():
            bare = isinstance(op, Conv) and op.bias is None and not (op.relu or op.limits or op.pool)
            if bare and op.x in self.unsampled and op.x not in found:
                found.add(op.y)
        return frozenset(found)

    @cached_property
    def steps(self) -> Mapping[str, float]:
        """The step of every value that an op reads or writes as integers."""
        found: dict[str, float] = {}
        for op in (part for whole in self.graph.ops for part in parts(whole)):
            if quantised := self.quantised.get(op.y):
                found.setdefault(op.x, quantised.x.step)
                if quantised.y:
                    found.setdefault(op.y, quantised.y.step)
        return found

    def with_scalings(self, scalings: Mapping[str, ActivationScale]) -> KernelAssignment:
        """Return the same assignment with these scales."""
        return replace(self, scalings=scalings)

    def on_ffma(self) -> KernelAssignment:
        """Return the same graph on float32 arithmetic."""
        return replace(self, precision="fp32", scalings={}, quantised={}).choosing(("ffma",))

    def choosing(self, families: tuple[str, ...]) -> KernelAssignment:
        """Return the same with the best kernel of each op, from the first of these families that has one.

        Raises ModelError for an op that has none.
        """
        chosen: dict[str, AnyOpKernel] = {}
        for layer in self.layers(self.shapes):
            usable = _usable(layer, families)
            if isinstance(layer.op, Pool) and (layer.op.x not in chosen or chosen[layer.op.x].family == "ffma"):
                usable = ("ffma",)  # float32 is pooled as it is
            if self._lacks_scales(layer):
                usable = ("ffma",)
            chosen[layer.op.y] = _best(layer, usable)
        return replace(self, op_kernels=chosen)

    def with_limits(self) -> KernelAssignment:
        """Return the same with clips as limits of their operands' producers, or of the input, if kernels can."""
        if not any(isinstance(op, Clip) for op in self.graph.ops):
            return self
        graph = simplify(self.graph, passes=CLIP_PASSES)
        if graph.twins:  # of which no more than one would lose its clip
            return replace(self, graph=graph)
        graph, limits = without_input_clip(graph)
        return replace(self, graph=graph, input_limits=limits)

    def keeping_maps(self, families: tuple[str, ...]) -> KernelAssignment:
        """Return the same with a convolution and its pool as one op if a kernel of these families stores both maps."""
        found = pooled_maps(self.graph) if self.precision in KEEPING else {}
        if not found:
            return self
        chosen = self.choosing(families).op_kernels
        stored = {y: pool for y, pool in found.items() if chosen[y].keeps and chosen[y].family == chosen[pool.y].family}
        return replace(self, graph=with_kept_maps(self.graph, stored))

    def _lacks_scales(self, layer: OpContext[Op]) -> bool:
        """Return whether it would read pairs whose scales nobody can choose, or float16 that has left its range."""
        if self.precision == "fp16":
            return isinstance(layer.op, Conv) and layer.op.x in self._linear and not layer.rescaled
        reads_pairs = isinstance(layer.op, Conv | Gemm | Pool) and self.precision == "fp32"
        return reads_pairs and layer.op.x in self.unsampled and not layer.rescaled

    def stored_pairs(self, layer: OpContext[Op]) -> tuple[str, ...]:
        """Return the results that an op stores as pairs of float16."""
        is_pair = self.op_kernels[layer.op.y].output_dtype(layer, FLOAT) is DType.F16_PAIR
        return layer.op.results if is_pair else ()

    @property
    def _keeps_digits(self) -> bool:
        """Return whether float16 has to have the digits of TF32 with float32 between."""
        return self.precision == "fp16" and bool(self.graph.compared)

    def chained(self, families: tuple[str, ...]) -> KernelAssignment:
        """Return the same with a chain in the graph, if one of these families computes it; else itself.

        Not where digits count: it rounds images.
        """
        if self._keeps_digits:
            return self
        selection = replace(self, graph=_with_chain(self.graph))
        first = next(selection.layers(selection.shapes))
        is_whole = all(_usable(part, families) == families for part in first.parts)
        return selection if isinstance(first.op, FusedConvPair) and is_whole and _found(first, families) else self


def select_kernels(
    graph: Graph, facts: DeviceFacts, shapes: Mapping[str, Shape], options: PlanOptions
) -> KernelAssignment:
    """Return the best kernel of each op.

    Raises ModelError for an op that has none, or a family that can do nothing here.
    """
    families = tuple(dict.fromkeys((options.kernels, "ffma")))
    if options.kernels == "auto":  # on a CPU tensor cores are emulated, for tests and for what nothing else computes
        families = FAMILIES if facts.kind == "cuda" or options.precision == "int8" else ("ffma",)
        if options.precision == "fp32" and not mma_pairs.pays(facts):
            families = tuple(family for family in families if family != "mma")
    selection = KernelAssignment(graph, facts, shapes, options.precision, {}, quantised=options.quantised or {})
    if not options.keep_values:
        selection = selection if options.precision == "int8" else selection.with_limits()
        selection = selection.keeping_maps(families).chained(families)
    selection = selection.choosing(families)
    if options.precision == "int8" and {*selection.families.values()} <= {"ffma"}:
        raise ModelError(
            f"precision int8 needs tensor cores: {facts.name} has none that the kernels can use; use precision fp32"
        )
    if options.kernels not in ("auto", *selection.families.values()):
        raise ModelError(
            f"kernels {shown(options.kernels)}: none of them computes an op of this model in {options.precision} on "
            f"{facts.name}; accepted: auto, {', '.join(FAMILIES)}"
        )
    return selection


def _with_chain(graph: Graph) -> Graph:
    """Join the first two convolutions to one op if no other op reads the map between; else return the graph itself."""
    match graph.ops:
        case (Conv() as first, Conv() as second, *others):
            wanted = {*graph.outputs, *(name for op in others for name in op.operands)}
            if first.x == graph.input.name and second.x == first.y and first.y not in wanted:
                chain = FusedConvPair(first.x, second.y, (*first.names, *second.names), first, second)
                return replace(graph, ops=(chain, *others))
    return graph


def _usable(layer: OpContext[Op], families: tuple[str, ...]) -> tuple[str, ...]:
    """Return the usable families: without a scale for its input an int8 op stays in float32."""
    plain = layer.precision == "int8" and layer.quantised is None and isinstance(layer.op, Conv | Gemm)
    return ("ffma",) if plain else families


def _best(layer: OpContext[Op], families: tuple[str, ...]) -> AnyOpKernel:
    found = _found(layer, families)
    if found is None:
        raise ModelError(f"{type(layer.op).__name__} '{layer.op.y}': there is no kernel for this operator")
    return found


def _found(layer: OpContext[Op], families: tuple[str, ...]) -> AnyOpKernel | None:
    for family in families:
        for op_kernel in kernels_for(layer.op, family):
            if op_kernel.supports(layer) and (op_kernel.keeps or not keeps_map(layer.op)):
                return op_kernel
    return None

"""One batch size of a kernel selection as a program: elements and places of values, conversions between, steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.graph.ops import Conv, Flatten, Gemm, Op, Shape, Softmax
from vgg16gpu.compiler.op_kernels.base import (
    FLOAT,
    ActivationScale,
    HostInput,
    InputKernel,
    MultiOpKernel,
    OpContext,
    OpMemory,
    Rescaling,
)
from vgg16gpu.compiler.op_kernels.layout import convert, give, layout, scales
from vgg16gpu.compiler.planner.memory import LiveRange, assign_offsets
from vgg16gpu.compiler.planner.selection import KernelAssignment
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import InputEntry, InputSlot, KernelLaunch, LaunchPlan, StatusBlock
from vgg16gpu.program.types import Arena, DType, Layout, Pointer, TensorDesc, TensorFormat, aligned

WATCHED: Final = (DType.F16, DType.F16_PAIR)  # what may overflow
LOWEST_OF_PAIRS = 8.0  # of an image's largest magnitude; samples come to 2^10. Below, 2^-25 of rounding is felt

_Buffer: TypeAlias = tuple[str, str]  # (what it is for, name): an ONNX name may be anything
_BLOCK: _Buffer = ("block", "")  # the raw inputs, the control words, the outputs
ROWS: Final = (2, 4)  # ranks of matrices and feature maps, which have a row for each image


@dataclass(frozen=True)
class ProgramBuilder:
    """Makes the programs of a kernel selection.

    `weights` are what each op's op kernel put into the arena, `held` the places of the graph's constants.
    `normalisation`: scale and shift of the entry for bytes. With `keep_values` no buffer is used twice. `reserved`:
    bytes at the start of the activation arena that are left alone. `given`: what further inputs are made of that are
    read where a caller has them.
    """

    selection: KernelAssignment
    weights: Mapping[str, object]
    held: Mapping[str, Pointer]
    normalisation: tuple[Pointer, Pointer] | None
    keep_values: bool
    reserved: int = 0
    given: Mapping[str, DType] = field(default_factory=dict)

    def program(
        self, input_shape: Shape | Mapping[str, Shape], observed: Mapping[str, ActivationScale] | None = None
    ) -> LaunchPlan:
        """Return the program for inputs of this shape; it also notes the largest magnitudes of `observed` values.

        Raises ModelError for values beyond the kernels' indices.
        """
        shapes = infer_shapes(self.selection.graph, input_shape)
        _check_sizes(shapes)
        return _Schedule(self, shapes, observed or {}).program()


class MemoryPlan(NamedTuple):
    """Where everything lies in the activation arena.

    given: further inputs as they come. counters: of each op, by its value. bounds: words for the largest magnitudes of
    values, by their names. buffers: places with a lifetime: stored values, conversions, workspaces, and the block of
    raw inputs, control words and outputs. values: what ops read and write, constants of the graph among them. raw_end,
    output_end: offsets behind the raw inputs and the outputs. nbytes: of the whole arena.
    """

    control: StatusBlock
    given: Mapping[str, TensorDesc]
    counters: Mapping[str, Pointer]
    bounds: Mapping[str, Pointer]
    buffers: Mapping[_Buffer, Pointer]
    values: Mapping[str, TensorDesc]
    outputs: tuple[TensorDesc, ...]
    raw_end: int
    output_end: int
    nbytes: int


class _Schedule:
    """The work on one program: sizes first, then places, then steps."""

    def __init__(
        self, scheduler: ProgramBuilder, shapes: Mapping[str, Shape], observed: Mapping[str, ActivationScale]
    ) -> None:
        self.selection, self.shapes, self.observed = scheduler.selection, shapes, observed
        self.graph = self.selection.graph
        self.weights, self.normalisation = scheduler.weights, scheduler.normalisation
        self.held, self.given = scheduler.held, scheduler.given
        self.keep_values, self.reserved = scheduler.keep_values, scheduler.reserved
        self.layers = list(self.selection.layers(shapes))
        self.readers: dict[str, list[OpContext[Op]]] = {}
        for layer in self.layers:
            for name in dict.fromkeys(layer.op.operands):
                self.readers.setdefault(name, []).append(layer)
        self.input_shape = shapes[self.graph.input.name]
        self.producers = {name: op for op in self.graph.ops for name in op.results}
        self.rescaled = {layer.op.y: layer for layer in self.layers if self.selection.rescales(layer.op)}
        self.scaled = self._scaled()
        self.batch = self.input_shape[0] if len(self.input_shape) in ROWS else 1
        self.elements = self._elements()
        converted = {
            name for layer in self.layers for name, other in self._converted(layer).items() if other in WATCHED
        }
        # Not what is in range whatever is multiplied, nor a map that is looked at together with what is pooled of it:
        looked_at = self.selection.op_kernels.keys() - self.rescaled.keys()
        stored = {name for name, element in self.elements.items() if element in WATCHED and name in looked_at}
        self.watched = tuple(name for name in self.shapes if name in stored | converted)
        self.bounded = self._bounded()
        self.found: set[str] = set()  # of these, what the steps so far have found the largest magnitudes of
        self.waiting = {*self._stored_twins}  # what the steps so far have not taken in
        self.placement = self._placement()

    def program(self) -> LaunchPlan:
        steps: list[KernelLaunch] = []
        for layer in self.layers:
            if layer is not self.layers[0] or not self.takes_input:  # else it is a step of the entries
                steps += self._op_steps(layer)
            steps += self._observe(layer.op.y)
        outputs = self.placement.outputs
        stored_outputs = tuple(self.placement.values[y.name] for y in outputs)
        pairs = zip(stored_outputs, outputs, strict=True)
        output_steps = tuple(give.give(stored, TensorFormat(), y.pointer) for stored, y in pairs if stored is not y)
        further = (name for op in self.graph.ops for name in op.results[1:])  # behind those that ops are counted by
        names = (self.graph.input.name, *(op.y for op in self.graph.ops), *further)
        return LaunchPlan(
            batch=self.batch,
            input=self._input_slot(),
            control=self.placement.control,
            steps=tuple(steps),
            output_steps=output_steps,
            outputs=outputs,
            stored_outputs=stored_outputs,
            output_end=self.placement.output_end,
            activations_nbytes=self.placement.nbytes,
            values=tuple(self.placement.values[name] for name in names if name in self.placement.values),
            others=tuple(self.placement.given[other.name] for other in self.graph.others),
        )

    # What is stored how

    @property
    def takes_input(self) -> bool:
        """Return whether the first op reads the run-time input itself, so that no other form of it is stored."""
        return self._takes_raw(self.layers[0])

    def _takes_raw(self, layer: OpContext[Op]) -> bool:
        """Return whether an op reads images as they come."""
        return isinstance(self.selection.op_kernels[layer.op.y], InputKernel)

    @property
    def _stored_twins(self) -> tuple[str, ...]:
        """The further images that are stored in another form than they come in."""
        names = self.selection.twin_inputs
        return tuple(name for name in names if not all(map(self._takes_raw, self.readers.get(name, ()))))

    @property
    def _stays_raw(self) -> bool:
        """Return whether the kernels read the input where the host left it: it is no matrix and no feature map."""
        return len(self.input_shape) not in ROWS

    def _elements(self) -> dict[str, DType]:
        """Return the element of every stored value."""
        found = {} if self.takes_input else {self.graph.input.name: DType.F32}
        found |= dict.fromkeys(self._stored_twins, DType.F32)
        for layer in self.layers:
            readers = self.readers.get(layer.op.y, [])
            wanted = self.selection.op_kernels[readers[0].op.y].input_dtypes(readers[0]) if readers else FLOAT
            op_kernel = self.selection.op_kernels[layer.op.y]
            found[layer.op.y] = wanted[0] if layer.op.y in self.scaled else op_kernel.output_dtype(layer, wanted)
            found.update(dict.fromkeys(layer.op.results[1:], found[layer.op.y] if op_kernel.keeps else DType.F32))
        return found

    def _converted(self, layer: OpContext[Op]) -> dict[str, DType]:
        """Return the elements that operands are converted to for this op, by name, without those read as stored."""
        op_kernel = self.selection.op_kernels[layer.op.y]
        input_dtypes = op_kernel.input_dtypes(layer)
        stored = {name: self.elements[name] for name in layer.op.operands if name in self.elements}
        kept = () if op_kernel.reads_factors else self.rescaled.keys()
        return {
            name: input_dtypes[0] for name, element in stored.items() if element not in input_dtypes or name in kept
        }

    def _is_high_half(self, name: str, element: DType) -> bool:
        """Return whether a value is read as the first half of its pair: float16 before its rounding's rest."""
        is_pair = self.elements[name] is DType.F16_PAIR and name not in self.rescaled and name not in self.scaled
        return self.selection.precision == "fp16" and element is DType.F16 and is_pair

    def _layout(self, name: str) -> Layout:
        """Return NHWC if some kernel needs it, else plain, the layout between general kernels."""
        if len(self.shapes[name]) not in ROWS:
            return Layout.PLAIN
        if name not in self.producers or self.elements[name] is not DType.F32:  # images, or what kernels know so
            return Layout.NHWC
        op_kernels = [
            self.selection.op_kernels[self.producers[name].y],
            *(self.selection.op_kernels[reader.op.y] for reader in self.readers.get(name, ())),
        ]
        return Layout.PLAIN if all(op_kernel.any_layout for op_kernel in op_kernels) else Layout.NHWC

    def _value(self, name: str, element: DType, pointer: Pointer) -> TensorDesc:
        scaling = self.selection.scalings.get(name)
        return TensorDesc(
            name,
            self.shapes[name],
            self._layout(name),
            pointer,
            element,
            scaling.scale if scaling and element is DType.F16_PAIR else None,
            self.selection.steps.get(name, 1.0),
        )

    # Where it lies

    def _placement(self) -> MemoryPlan:
        """Return the places of everything in the activation arena. Step 0 takes the input in, op i is step i + 1."""
        raw = [item.name for item in self.graph.inputs if item.name not in self.given]
        raw_nbytes = sum(aligned(4 * math.prod(self.shapes[name])) for name in raw)
        counters = [self.selection.op_kernels[layer.op.y].counters(layer) for layer in self.layers]
        in_block = [aligned(self._control(raw_nbytes, counters).end)]  # where outputs begin, from the block's start
        for name in self.graph.outputs:
            in_block.append(in_block[-1] + aligned(4 * math.prod(self.shapes[name])))
        buffers, nbytes = self._assign(in_block[-1])
        start = buffers[_BLOCK].offset
        raw_end = start + raw_nbytes
        outputs = tuple(
            TensorDesc(name, self.shapes[name], Layout.PLAIN, _at(start + offset))
            for name, offset in zip(self.graph.outputs, in_block[:-1], strict=True)
        )
        places = [_at(raw_end + 4 * before) for before in accumulate(self._words(counters), initial=0)]
        return MemoryPlan(
            control=self._control(raw_end, counters),
            counters={layer.op.y: first for layer, first in zip(self.layers, places, strict=False)},
            bounds=dict(zip(self.bounded, places[len(counters) :], strict=False)),
            buffers=buffers,
            values=self._values(buffers, outputs),
            given=self._given_inputs() | self._raw_inputs(start),
            outputs=outputs,
            raw_end=raw_end,
            output_end=start + in_block[-1],
            nbytes=nbytes,
        )

    def _control(self, start: int, counters: Sequence[int]) -> StatusBlock:
        """Return the control words from `start` on: op counters, then what is copied back, aligned for that kernel."""
        lowest = LOWEST_OF_PAIRS if self.selection.splits_float32 else 0.0
        back = _at(start + aligned(4 * sum(self._words(counters))))
        return StatusBlock(_at(start), back, self.batch, self.watched, lowest)

    def _words(self, counters: Sequence[int]) -> list[int]:
        """Return the counts of words that are zero at first: the counters of each op, then the bounds of values."""
        return [*counters, *(self.shapes[name][0] for name in self.bounded)]

    def _values(self, buffers: Mapping[_Buffer, Pointer], outputs: Sequence[TensorDesc]) -> Mapping[str, TensorDesc]:
        """Return the operands and results by name: an output that its op writes itself is its value's only form."""
        stored = {
            name: self._with_factor(self._value(name, element, buffers["value", name]), buffers)
            for name, element in self.elements.items()
            if ("value", name) in buffers
        }
        plain = {value.name: value for value in outputs}
        held = {name: TensorDesc(name, self.shapes[name], Layout.PLAIN, pointer) for name, pointer in self.held.items()}
        others = self._given_inputs() | self._raw_inputs(buffers[_BLOCK].offset)
        return plain | others | stored | held

    def _given_inputs(self) -> dict[str, TensorDesc]:
        """Return the inputs that kernels read in a caller's memory, at places that differ."""
        found: dict[str, TensorDesc] = {}
        start = 0
        for name, element in self.given.items():
            found[name] = TensorDesc(name, self.shapes[name], Layout.PLAIN, Pointer(Arena.GIVEN, start), element)
            start += aligned(found[name].nbytes)
        return found

    def _raw_inputs(self, start: int) -> dict[str, TensorDesc]:
        """Return the inputs that kernels read where the host wrote them, in sequence from offset `start` on."""
        found = {}
        others = [item for item in self.graph.others if item.name not in self.given]
        for item in (*others, *([self.graph.input] if self._stays_raw else [])):
            found[item.name] = TensorDesc(item.name, self.shapes[item.name], Layout.PLAIN, _at(start))
            start += aligned(found[item.name].nbytes)
        return found

    def _assign(self, block_nbytes: int) -> tuple[dict[_Buffer, Pointer], int]:
        end = len(self.graph.ops) + 1
        last_use = {name: step for step, op in enumerate(self.graph.ops, 1) for name in op.operands}
        born = {name: step for step, op in enumerate(self.graph.ops, 1) for name in op.results}
        born |= dict.fromkeys((self.graph.input.name, *self._stored_twins), 0)
        outputs = set(self.graph.outputs)  # each has its place to itself, so that a run can put it somewhere else
        lives = {_BLOCK: LiveRange(block_nbytes, 0, end)}
        for name, element in self.elements.items():
            if not self._writes_output(name) and not (self._stays_raw and name == self.graph.input.name):
                life = (0, end) if name in outputs else (born[name], last_use.get(name, born[name]))
                lives["value", name] = LiveRange(self._value(name, element, _at(0)).nbytes, *life)
        for step, layer in enumerate(self.layers, 1):
            for name, other in self._converted(layer).items():
                if self._is_high_half(name, other):
                    continue
                place = "converted", f"{layer.op.y}\0{name}"
                lives[place] = LiveRange(self._value(name, other, _at(0)).nbytes, step, step)
            if nbytes := self.selection.op_kernels[layer.op.y].workspace_nbytes(layer):
                lives["workspace", layer.op.y] = LiveRange(nbytes, step, step)
            if layer.op.y in self.rescaled:
                last = end if layer.op.y in outputs else last_use.get(layer.op.y, step)
                lives |= self._lives_of_factors(layer, LiveRange(0, step, last), born[layer.op.x])
        if self.keep_values:
            lives = {buffer: life._replace(first=0, last=end) for buffer, life in lives.items()}
        offsets, size = assign_offsets(tuple(lives.values()))
        first = aligned(self.reserved)
        return {buffer: _at(first + offset) for buffer, offset in zip(lives, offsets, strict=True)}, first + size

    def _writes_output(self, name: str) -> bool:
        """Return whether the op of `name` can write the output itself: it is plain, or a matrix without readers."""
        producer = self.producers.get(name)
        if producer and name in self.graph.outputs and self._layout(name) is Layout.PLAIN:
            return True
        read = name in self.readers
        if not isinstance(producer, Gemm | Softmax | Flatten) or self.elements[name] is not DType.F32:
            return False
        aligned_rows = self.shapes[name][-1] % self.selection.op_kernels[name].output_alignment == 0
        return name in self.graph.outputs and aligned_rows and not read

    # What is launched

    def _op_steps(self, layer: OpContext[Op]) -> list[KernelLaunch]:
        op, steps = layer.op, list[KernelLaunch]()
        read = {name: self.placement.values[name] for name in op.operands}
        if self._takes_raw(layer):
            source, y = self._source(self.placement.given[op.x]), self.placement.values[op.y]
            op_kernel = self.selection.op_kernels[op.y]
            return [*op_kernel.steps(layer, source, y, self.weights[op.y], self._op_places(op))]
        steps += [self._take_in(name) for name in op.operands if name in self.waiting]
        for name, element in self._converted(layer).items():
            if self._is_high_half(name, element):
                read[name] = replace(read[name], element=element, scale=None)
                continue
            converted = self._value(name, element, self.placement.buffers["converted", f"{op.y}\0{name}"])
            if op.y in self.rescaled:
                converted = replace(converted, factor=self.placement.buffers["factors", op.y])
                steps += self._find_bounds((name,))
                steps.append(self._rescale(layer, read[name], converted))
            else:
                steps.append(convert.convert(read[name], converted, self._maxima(name)))
            read[name] = converted
        if op.y in self.scaled:
            steps += self._find_bounds(op.operands[1:])
        op_kernel = self.selection.op_kernels[op.y]
        x = tuple(read[name] for name in op.operands) if isinstance(op_kernel, MultiOpKernel) else read[op.x]
        steps += op_kernel.steps(layer, x, self.placement.values[op.y], self.weights[op.y], self._op_places(op))
        return steps

    def _source(self, given: TensorDesc) -> HostInput:
        """Return a further input as the host wrote it."""
        return HostInput(given.pointer, "float32", limits=self.selection.input_limits)

    def _take_in(self, name: str) -> KernelLaunch:
        """Return the launch that stores a further input as kernels read it; once."""
        self.waiting.remove(name)
        status, kind = self.placement.control.status, self.selection.facts.kind
        return layout.take_in(self._source(self.placement.given[name]), self.placement.values[name], status, kind)

    def _op_places(self, op: Op) -> OpMemory:
        buffers = self.placement.buffers
        workspace = buffers.get(("workspace", op.y), buffers[_BLOCK])
        further = tuple(self.placement.values[name] for name in op.results[1:])
        return OpMemory(
            workspace,
            self.placement.control,
            self.placement.counters[op.y],
            maxima=self._largest_of_results(op) if op.y in self.rescaled else self._maxima(op.y),
            further=further,
            bound=self.placement.bounds.get(op.results[-1]),
            rescaling=self._rescaling(self.scaled[op.y], op.operands[1:]) if op.y in self.scaled else None,
        )

    def _largest_of_results(self, op: Op) -> Pointer:
        """Return where an op on tensor cores writes the largest magnitudes of rescaled results, read or not."""
        return self.placement.bounds.get(op.y) or self.placement.buffers["unread", op.y]

    # What is multiplied with a factor for each image: float16, once a bound of each image's magnitudes is known

    def _scaled(self) -> dict[str, OpContext[Op]]:
        """Return the values that their op stores with factors for their only reader, which multiplies them."""
        found = {}
        for layer in self.layers:
            readers = self.readers.get(layer.op.y, [])
            is_alone = len(readers) == 1 and layer.op.y not in self.graph.outputs
            if is_alone and self.selection.op_kernels[layer.op.y].rescales and readers[0].op.y in self.rescaled:
                found[layer.op.y] = readers[0]
        return found

    def _bounded(self) -> tuple[str, ...]:
        """Return the values whose largest magnitudes are needed: summands and sources of values stored with factors."""
        of_sums = (name for y in self.scaled for name in self.producers[y].operands[1:])
        return tuple(dict.fromkeys((*of_sums, *(r.op.x for r in self.rescaled.values() if r.op.x not in self.scaled))))

    def _lives_of_factors(self, layer: OpContext[Op], life: LiveRange, born: int) -> dict[_Buffer, LiveRange]:
        """Return a rescaled op's places. life: from the op to its result's last reader; born: where x is computed."""
        from vgg16gpu.compiler.op_kernels.layout import rescale  # noqa: PLC0415 - gradients alone come here

        y, batch, step = layer.op.y, layer.x_shape[0], life.first
        first = born if layer.op.x in self.scaled else step
        found: dict[_Buffer, LiveRange] = {("factors", y): LiveRange(rescale.factors_nbytes(batch), first, life.last)}
        return found if y in self.bounded else {**found, ("unread", y): LiveRange(4 * batch, step, step)}

    def _with_factor(self, value: TensorDesc, buffers: Mapping[_Buffer, Pointer]) -> TensorDesc:
        """Return a stored value, with the factors of its images if it has some."""
        if value.name in self.scaled:
            return replace(value, factor=buffers["factors", self.scaled[value.name].op.y])
        if value.name not in self.rescaled:
            return value
        from vgg16gpu.compiler.op_kernels.layout import rescale  # noqa: PLC0415 - as above

        return replace(value, factor=rescale.of_results(buffers["factors", value.name], value.shape[0]))

    def _rescaling(self, reader: OpContext[Op], names: Sequence[str]) -> Rescaling:
        """Return the rescaling of the operand of `reader`, which is the sum of these values."""
        from vgg16gpu.compiler.op_kernels.conv.known_linear import rescaling  # noqa: PLC0415 - as above

        assert isinstance(reader.op, Conv)  # nothing else is rescaled
        element = self.selection.op_kernels[reader.op.y].input_dtypes(reader)[0]
        return rescaling(reader.op.weight, element, tuple(self.placement.bounds[name] for name in names))

    def _find_bounds(self, names: Iterable[str]) -> list[KernelLaunch]:
        """Return launches that find the needed largest magnitudes of these values, unless their producers do."""
        from vgg16gpu.compiler.op_kernels.layout import rescale  # noqa: PLC0415 - as above

        steps = []
        for name in names:
            if name not in self.found and not self._finds_bound(name):
                steps.append(rescale.largest(self.placement.values[name], self.placement.bounds[name]))
            self.found.add(name)
        return steps

    def _finds_bound(self, name: str) -> bool:
        """Return whether the op that computes a value leaves its largest magnitudes."""
        op = self.producers.get(name)
        if op is None or name != op.results[-1]:
            return False
        return self.selection.op_kernels[op.y].finds_bound or (
            name in self.rescaled and self.elements[name] is not DType.F32
        )

    def _rescale(self, layer: OpContext[Op], x: TensorDesc, y: TensorDesc) -> KernelLaunch:
        from vgg16gpu.compiler.op_kernels.layout import rescale  # noqa: PLC0415 - as above

        return rescale.rescale(x, y, self._rescaling(layer, (x.name,)), self._maxima(x.name))

    def _maxima(self, name: str) -> Pointer:
        """Return where a value's largest magnitudes go; for one that is not watched the error word, never written."""
        return (
            self.placement.control.maxima(self.watched.index(name))
            if name in self.watched
            else self.placement.control.error
        )

    def _observe(self, name: str) -> list[KernelLaunch]:
        return [scales.observe(self.placement.values[name], self.observed[name])] if name in self.observed else []

    def _input_slot(self) -> InputSlot:
        name = self.graph.input.name
        size = math.prod(self.shapes[name])
        entries = {"float32": self._entry("float32", 4 * size, None)}
        if self.normalisation:
            entries["uint8"] = self._entry("uint8", size, self.normalisation)
        return InputSlot(name, self.shapes[name], entries)

    def _entry(self, element_type: str, nbytes: int, normalisation: tuple[Pointer, Pointer] | None) -> InputEntry:
        place = _at(self.placement.raw_end - aligned(nbytes))
        source = HostInput(place, element_type, normalisation, self.selection.input_limits)
        if self.takes_input:
            layer = self.layers[0]
            y, weights = self.placement.values[layer.op.y], self.weights[layer.op.y]
            steps = self.selection.op_kernels[layer.op.y].steps(layer, source, y, weights, self._op_places(layer.op))
        elif self._stays_raw:
            steps = ()
        else:
            stored = self.placement.values[self.graph.input.name]
            kind, status = self.selection.facts.kind, self.placement.control.status
            steps = (layout.take_in(source, stored, status, kind), *self._observe(stored.name))
        return InputEntry(source.pointer, nbytes, steps)


def _check_sizes(shapes: Mapping[str, Shape]) -> None:
    """Raise ModelError beyond 32-bit counts of an image's elements and of a value's 16-byte vectors."""
    for name, shape in shapes.items():
        rows = len(shape) in ROWS
        stored = math.prod(TensorDesc(name, shape, Layout.NHWC, _at(0), DType.F16).stored_shape if rows else shape)
        if stored // (max(shape[0], 1) if rows else 1) >= 1 << 31 or stored >= 1 << 33:
            raise ModelError(
                f"value '{name}' of shape {shape} is too large: an image may have 2^31 values, a batch 2^33; "
                "use a smaller image or batch"
            )


def _at(offset: int) -> Pointer:
    return Pointer(Arena.ACTIVATIONS, offset)

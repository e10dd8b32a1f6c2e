"""The public face: an ONNX file and a device in, scores out."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, overload

import numpy as np

from vgg16gpu.compiler.compile import EngineOptions, SizePlanner
from vgg16gpu.compiler.declared import Declared
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.compiler.quantization.scheme import Scales
from vgg16gpu.devices import Opened, open_device
from vgg16gpu.devices.base import Counters
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import InputError
from vgg16gpu.program.plans import Plan, Program
from vgg16gpu.program.values import Value
from vgg16gpu.runtime import device_array
from vgg16gpu.runtime.batcher import Item, Source, cut, flow, item_name
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.double_buffer import Pipeline, Sent
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.forms import Images, Input
from vgg16gpu.runtime.outputs import Results, check_flags
from vgg16gpu.runtime.plans.opening import Size, Timings, any_size, form_of, sides_of
from vgg16gpu.runtime.plans.sized import SizedPlan, SizeUse
from vgg16gpu.runtime.plans.sizes import AnySize

_log = logging.getLogger(__name__)

Outputs: TypeAlias = Array | tuple[Array, ...]
DeviceInput: TypeAlias = device_array.SupportsCudaArray | Mapping[str, device_array.SupportsCudaArray]
DeviceOutputs: TypeAlias = device_array.DeviceArray | tuple[device_array.DeviceArray, ...]


class Engine(Closing):
    """VGG-family inference from an ONNX file.

    Everything is decided, compiled and allocated here; `run` copies in, launches, copies out, and `stream` does all
    three at once. Use as a context manager, or call `close`. Several threads may share an engine; their batches take
    turns. After a fork build a new one.

    model: the ONNX file, "digits" for the small net in the package, the bytes of a file, what `onnx.load` returns, or a
        `Model`, which several engines and sessions can share.
    device: "auto" (a GPU if one works, else the CPU; the logger "vgg16gpu" tells), "cpu", "cuda" or "cuda:N"; or what
        `devices.open_device` gave, which the engine closes.
    precision: "fp32" (errors no larger than those of plain float32 arithmetic), "fp16", "bf16", or "int8" with the
        scales that `vgg16gpu calibrate` wrote next to the model.
    batch: one size or several; a run of any number of images is made of those that should take the least time.
    size: image size (side, or height and width), or "any". Without it a model that leaves its size open takes any, too;
        so does one whose file says 224, where `outputs` end before what needs that.
    memory: bytes on the device for plans of any size and their weights; None: half of what is free. See below.
    outputs: what to return instead of the model's outputs: names of ONNX values, nodes, torchvision's layers
        ("features.22") or VGG's ("relu3_3"). What none of them needs is not computed.
    mean, std: per channel, of bytes / 255, for uint8 inputs, whose channels are in the network's order. Without them
        as `infer` does it to pictures: by the file's metadata, else by what its first layers let assume.
    allow_nonfinite: accept NaN and Inf in inputs.
    keep_values: keep every intermediate value for `read_values`.
    scales: int8's, as `calibration.calibrate` returns them, in place of the file next to the model.
    kernels: "auto", or one family to be used where it can be: "wgmma", "mma" (tensor cores), "ffma" (float32).

    Of any size: the first images of a size plan it (kernels are compiled where they are new). Each size has all batch
    sizes and memory of its own; weights lie on the device once. What was used longest ago goes, where `memory` or the
    device is full: see `sizes`. Bits are those of an engine for that size alone. Building plans 224 pixels, or what
    fits.

    Attributes, beside those below: `model` (a Model), `graph` (simplified), `device` (open until `close`),
    `device_choice` (which device, and why), `precision`, `timings` (what building took), `allows_nonfinite`.

    Raises ModelError, InputError, DeviceError, KernelError.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        device: str | Opened = "auto",
        precision: str = "fp32",
        batch: int | Sequence[int] = 1,
        size: Size = None,
        outputs: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        allow_nonfinite: bool = False,
        keep_values: bool = False,
        kernels: str = "auto",
        scales: Scales | None = None,
        memory: int | None = None,
    ) -> None:
        started = time.perf_counter()
        sides = sides_of(size)
        options = EngineOptions(batch, sides, outputs, precision, mean, std, keep_values, kernels, scales)
        with stage("model"):
            self.model = Model.of(model)
            self.graph = options.graph(self.model)
        self.precision = precision
        self.device, self.device_choice = device if isinstance(device, Opened) else open_device(device)
        self._lock = threading.Lock()
        self._sized: SizedPlan | None = None  # the one used last; None once closed
        self._any: AnySize | None = None
        self.allows_nonfinite = allow_nonfinite
        self._keeps_values = keep_values
        self._last_batch: int | None = None
        try:
            with stage("plan"):
                planner = SizePlanner(self.model, options, self.device.facts)
                self._any = any_size(self.model, planner, self.device, size, memory)
                plan = planner.plan(sides)
            planned = time.perf_counter()
            self._last = self._sized = self._loaded(plan)
            self._form = form_of(self.graph, plan.programs[-1], is_any=self._any is not None)
        except BaseException:
            self.close()
            raise
        executor = self._last.executor
        self.timings = Timings(planned - started, executor.compile_seconds, executor.upload_seconds)
        took = time.perf_counter() - started
        asked = f"{self.model.name}: batch {', '.join(map(str, self._last.sizes))}, {precision}"
        _log.info("%s, built in %.3g s on %s", asked, took, self.device_choice)
        if self._any:
            _log.info("it takes images of any size that the model fits, %s; size=... fixes one", self.inputs[0])
        self._at_build = Counters(**vars(self.device.counters))

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self._last.sizes))
        takes, gives = (", ".join(map(str, values)) for values in (self.inputs, self.outputs))
        closed = "" if self._sized else ", closed"
        what = f"{self.model.name} on {self.device.facts.name}, {self.precision}, batch {sizes}{closed}"
        return f"Engine({what}; {takes} -> {gives})"

    @property
    def inputs(self) -> tuple[Declared, ...]:
        """The input, as `run` takes it: float32 in the file's own shape, N images."""
        value = self.program.input
        return (Declared(value.name, np.dtype(np.float32), (None, *self._form.accepted[np.dtype(np.float32)])),)

    @property
    def outputs(self) -> tuple[Declared, ...]:
        """The outputs, as `run` returns them: float32, a row for each image where the model has one."""
        whole, shapes = self._last.whole, [(None, *y.shape[1:]) for y in self.program.outputs]
        if self._any:
            shapes = [(None, *shape[1:]) for shape in self._any.output_shapes(self.program.input.shape)]
        named = zip(self.program.outputs, shapes, strict=True)
        return tuple(Declared(y.name, np.dtype(np.float32), whole.get(i, rows)) for i, (y, rows) in enumerate(named))

    @property
    def plan(self) -> Plan:
        """What is computed where; of the size that ran last, at first of the model's own or the usual one."""
        return self._last.plan

    @property
    def program(self) -> Program:
        """What a run of the largest batch size does; prints as a table. Of the same size as `plan`."""
        return self._last.program

    @property
    def sizes(self) -> SizeUse:
        """Which sizes of images are planned on the device now, and how many have been."""
        with self._lock:
            sized = self._require_open()
            return self._any.use if self._any else sized.use

    @property
    def counters(self) -> Counters:
        """What runs have done on the device since the engine was built."""
        return self.device.counters.since(self._at_build)

    @property
    def second_passes(self) -> int:
        """How many images were computed again on exact kernels: values had left the range of pairs of float16."""
        return self._any.second_passes if self._any else self.executor.second_passes

    @property
    def executor(self) -> Executor:
        """`plan` on the device, for measurements. Raises InputError once the engine is closed."""
        return self._require_open().executor

    @overload
    def run(self, x: DeviceInput, *, stream: device_array.Stream = None) -> DeviceOutputs: ...

    @overload
    def run(self, x: Input) -> Outputs: ...

    def run(self, x: Any, *, stream: device_array.Stream = None) -> Outputs | DeviceOutputs:
        """Outputs for N inputs: float32 in the file's own shape, or uint8 (N, H, W, C) to be normalised on the device.

        float16 on the host becomes float32. `x` may be a dict from the input's name; N may be 0. Returns one array, or
        a tuple for several outputs, with N rows each; an output that does not have a row for each image comes whole, in
        the shape that the file gives it, and then N must be 1.
        The same image gets the same bits at the same built batch size, in every run, at any position in the batch and
        beside any neighbours; on FFMA kernels (`kernels="ffma"`, and the CPU) also across batch sizes.
        An array on the engine's GPU (torch, CuPy, ...: DLPack or the CUDA array interface, contiguous) gives arrays
        there, `DeviceArray`, ready for any stream, and nothing is copied from or to the host. What is enqueued
        on `stream` now (a handle, or a stream of torch, CuPy or cuda.core) is waited for; without it, what the library
        of `x` is at: see `interop.view_of`.
        Raises InputError for a wrong shape or type, for NaN or Inf unless they are allowed, and in fp16 for an image
        whose values leave float16's range inside the network; DeviceError for a new size that the memory cannot hold.
        """
        if device_array.is_on_device(array := self._form.only(x)):
            return self._run_on_device(array, stream)
        if stream is not None:
            raise InputError("stream is for arrays on the GPU, and this input is on the host; leave it out")
        images = self._form.checked(x)
        parts = []
        with self._lock:
            sized = self._at(images.dtype, images.shape)
            for first, batch in sized.batches(len(images)):
                self._last_batch = batch
                parts.append(sized.executor.run(batch, images[first : first + batch]))
        return self._joined(sized, parts)

    def __call__(self, x: Any, *, stream: device_array.Stream = None) -> Any:
        """The same as `run`."""
        return self.run(x) if stream is None else self.run(x, stream=stream)

    def _run_on_device(self, x: object, stream: device_array.Stream) -> DeviceOutputs:
        parts = []
        with self._lock:
            self._require_open()
            foreign = self.device.foreign
            if foreign is None:
                raise InputError("the input lies on a GPU, this engine runs on the CPU; build it with device='cuda'")
            view = device_array.view_of(x, foreign, stream)
            self._form.check(view.dtype, view.shape, "x.float() in torch, x.astype('float32') in CuPy")
            if self.graph.input.channels_last and view.dtype == np.float32:
                raise InputError(
                    f"input '{self.program.input.name}' has its channels last in the model's file, and the host turns "
                    "them: give the float32 array on the host, or uint8 pixels on the GPU"
                )
            count, sized = view.shape[0], self._at(view.dtype, view.shape)
            outputs = tuple(device_array.DeviceArray(foreign, shape) for shape in sized.output_shapes(count))
            for first, batch in sized.batches(count):
                self._last_batch = batch
                targets = [output.row_address(first) for output in outputs]
                images = view.rows(first, first + batch)
                parts.append(sized.executor.run_on_device(batch, view.dtype.name, images, targets))
        check_flags(parts, self.allows_nonfinite)
        return outputs[0] if len(outputs) == 1 else outputs

    def stream(
        self, iterable: Iterable[Input | DeviceInput], batch: int | None = None
    ) -> Iterator[Outputs | DeviceOutputs]:
        """What `run` returns for each item, in order, while the device computes without a pause.

        Items are what `run` takes, of any N each that it takes. The rows of those on the host are put together to
        batches of size `batch`, one of the engine's, the largest if not given. A batch that is not full runs when the
        iterable ends or element type or image size change, at the smallest size that holds it; two batches are read
        ahead. An array on the GPU is run by itself in its turn, and gives arrays there.
        Bits are those of `run` at the same built batch size; on FFMA kernels, and with an engine of one size, that is
        always so. uint8 needs a quarter of the copying of float32. The first use allocates two buffers each way on the
        host, pinned, and on the device, as large as the inputs and outputs of a batch, which `vgg16gpu info` does not
        count.
        The engine may be used meanwhile, by other streams and threads too, and after leaving a stream at any point.
        What the iterable raises comes out once the results of the items before it are out. Raises InputError as `run`
        does, naming the item (counted from 0), for what cannot be iterated over, and for a batch size that is not the
        engine's.
        """
        sizes = self._last.sizes
        if batch is not None and batch not in sizes:
            raise InputError(f"batch {batch}: the engine is built for {', '.join(map(str, sizes))}; give one of these")
        try:
            items = iter(iterable)
        except TypeError as error:
            raise InputError(
                f"stream takes inputs one after the other, a list or any iterable, and no {type(iterable).__name__}; "
                "give a single input to run"
            ) from error
        return self._stream(Source(items, self._checked_item), batch or sizes[-1])

    def input(self, element_type: str = "float32") -> Images:
        """The pinned memory that `run` sends from: float32 as in the file or uint8 (N, H, W, C), N the largest batch.

        Fill its first n rows and `run(engine.input()[:n])`: then the host copies nothing. All element types share this
        memory, every `run` may change all of it, and it goes with the engine: fill it anew each time, and only while no
        other thread runs the engine. Raises InputError for a type that the model does not take, and once closed.
        """
        with self._lock:
            sized, accepted = self._require_open(), self.program.input.entries
            if element_type not in accepted:
                raise InputError(f"element type '{element_type}': this model takes {' or '.join(accepted)}")
            images = sized.executor.input(element_type)
            return self.graph.input.to_file(images) if element_type == "float32" else images

    def read_values(self) -> Iterator[tuple[tuple[str, ...], Array]]:
        """Every value of the last batch that ran, with the ONNX names that its step computed (the last is the value's).

        Arrays have the ONNX shape for the batch size that ran; each is read when it is asked for, so finish before the
        next run. Raises InputError without `keep_values=True`, and before the first run.
        """
        return ((names, self._read(value)) for names, value in self.kept_values())

    def kept_values(self) -> list[tuple[tuple[str, ...], Value]]:
        """Where on the device `read_values` finds the values; the same names, and raises the same."""
        if not self._keeps_values:
            raise InputError("intermediate values are not kept; build the engine with keep_values=True")
        program = next((program for program in self.plan.programs if program.batch == self._last_batch), None)
        if program is None:
            raise InputError("there are no values before the first run; call run")
        names = {op.y: op.names for op in self.graph.ops}
        return [(names.get(value.name, (value.name,)), value) for value in program.values]

    def _read(self, value: Value) -> Array:
        with self._lock:
            return self.executor.read(value)

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        with self._lock:
            sized, self._sized = self._sized, None
            try:
                if self._any:
                    self._any.close()
                elif sized:
                    sized.executor.close()
            finally:
                self.device.close()

    @contextmanager
    def turn(self) -> Iterator[Executor]:
        """The executor, which no other thread has meanwhile. Raises InputError once the engine is closed."""
        with self._lock:
            yield self._require_open().executor

    def _require_open(self) -> SizedPlan:
        if self._sized is None:
            raise InputError("the engine is closed; build a new one")
        return self._sized

    def _loaded(self, plan: Plan) -> SizedPlan:
        if self._any:
            return self._any.load(plan)
        return SizedPlan(self.graph.input, plan, self.precision, Executor.load(plan, self.device))

    def _at(self, dtype: np.dtype[Any], shape: Shape) -> SizedPlan:
        """The plan for a batch of this shape, as the kernels read it. Raises InputError, also once closed."""
        sized = self._require_open()
        if self._any:
            sized = self._last = self._sized = self._any.at(self._form.sides(dtype.name, shape))
            sized.form.check_rows(dtype, shape)
        return sized

    def _checked_item(self, x: Any) -> Any:
        """An item of a stream, as the kernels read it; an array on the GPU as it is, for who runs it to check."""
        images = self._form.checked_or_foreign(x)
        if self._any and isinstance(images, np.ndarray):
            self._any.check(self._form.sides(images.dtype.name, images.shape))
        return images

    def _stream(self, source: Source, size: int) -> Iterator[Outputs | DeviceOutputs]:
        for form, items in itertools.groupby(source, key=lambda item: item.form):
            if form is None:
                yield from map(self._run_foreign, items)
                continue
            element_type, sample = form
            with self._lock:
                sized = self._at(np.dtype(element_type), (size, *sample))
                pipeline = sized.pipeline(element_type, size)
            send, receive = partial(self._send, sized, pipeline), partial(self._receive, sized, pipeline)
            try:
                for item in flow(cut(items, size), send, receive):
                    yield self._joined(sized, item.results, f"{item_name(item.number)}: ")
            finally:
                sized.give_back(pipeline, element_type, size)
        if source.failure:
            raise source.failure

    def _run_foreign(self, item: Item) -> DeviceOutputs:
        try:
            return self._run_on_device(item.images, None)
        except InputError as error:
            raise InputError(f"{item_name(item.number)}: {error}") from error

    def _send(self, sized: SizedPlan, pipeline: Pipeline, rows: Sequence[Images]) -> Sent:
        batch = sized.smallest(sum(map(len, rows)))
        with self._lock:
            self._require_open()
            self._last = self._sized = sized
            self._last_batch = batch
            return pipeline.send(batch, rows)

    def _receive(self, sized: SizedPlan, pipeline: Pipeline, sent: Sent) -> Results:
        with self._lock:
            self._require_open()
            images, results = pipeline.receive(sent)
            return sized.executor.finished(results, images.__getitem__)

    def _joined(self, sized: SizedPlan, parts: Sequence[Results], where: str = "") -> Outputs:
        """What the caller gets for inputs that were run in parts. Raises InputError if some gave no valid results."""
        check_flags(parts, self.allows_nonfinite, where)
        outputs = sized.joined(parts)
        return outputs[0] if len(outputs) == 1 else outputs

"""The public face: an ONNX file and a device in, scores out."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from vgg16gpu.compiler.compile import EngineOptions, SizePlanner, sampler
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.graph.passes import CHANNELS_FIRST
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.devices import Opened, open_device
from vgg16gpu.devices.base import ArrayInterop, Counters
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import InputError
from vgg16gpu.program.launch import CompiledModel, LaunchPlan
from vgg16gpu.program.types import TensorDesc
from vgg16gpu.runtime import on_device
from vgg16gpu.runtime.arrays import AssumedPixels, Images, Input, OpenShape
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.outputs import OutputRows, Outputs, check_flags
from vgg16gpu.runtime.plans.opening import Size, Timings, form_of, kept_plans, sides_of
from vgg16gpu.runtime.plans.sizes import ShapeProfile, SizeUse
from vgg16gpu.runtime.streaming import Pipeline, Sent, StagingBuffer, StreamSession

if TYPE_CHECKING:
    from vgg16gpu.compiler.declared import Declared
    from vgg16gpu.compiler.quantization.scheme import Scales
    from vgg16gpu.runtime.on_device.pending import AsyncStatus
    from vgg16gpu.runtime.on_device.results import DeviceArray, RunOptions
    from vgg16gpu.runtime.on_device.views import Stream, StridedView, SupportsCudaArray
    from vgg16gpu.runtime.plans.gradients import Gradients
    from vgg16gpu.runtime.plans.sizes import DynamicShapes, EnginePlans

    DeviceInput: TypeAlias = SupportsCudaArray | StridedView | Mapping[str, SupportsCudaArray]
    DeviceOutputs: TypeAlias = DeviceArray | tuple[DeviceArray, ...]

_log = logging.getLogger(__name__)


class Engine(Closing):
    """VGG-family inference from an ONNX file.

    Everything is decided, compiled and allocated here; `run` copies in, launches, copies out, and `stream` does all
    three at once. Use as a context manager, or call `close`. Several threads may share an engine; their batches take
    turns. After a fork build a new one.

    model: the ONNX file, "digits" for the small net in the package, the bytes of a file, what `onnx.load` returns, a
        VGG of torch (see `Model.from_torch`), or a `Model`, which several engines and sessions can share.
    device: "auto" (a GPU if one works, else the CPU; the logger "vgg16gpu" tells), "cpu", "cuda" or "cuda:N"; or what
        `devices.open_device` gave, which the engine closes.
    precision: "fp32" (errors no larger than those of plain float32 arithmetic), "fp16", "bf16", or "int8" with the
        scales that `vgg16gpu calibrate` wrote next to the model.
    batch: one size or several; a run of any number of images is made of those that should take the least time.
    size: image size (side, or height and width), or "any". Without it a model that leaves its size open takes any, too;
        so does one whose file says 224, where `outputs` end before what needs that.
    memory: bytes on the device for plans of any size, for gradients, and for their weights; None: half of what is free.
        See below.
    outputs: what to return instead of the model's outputs: names of ONNX values, nodes, torchvision's layers
        ("features.22") or VGG's ("relu3_3"). What none of them needs is not computed.
    mean, std: per channel, of bytes / 255, for uint8 inputs, whose channels are in the network's order. Without them
        as `infer` does it to pictures: by the file's metadata, else by what its first layers let assume, which the
        first uint8 input logs as a warning.
    allow_nonfinite: accept NaN and Inf in inputs.
    keep_values: keep every intermediate value for `read_values`.
    scales: int8's, as `calibration.calibrate` returns them, in place of the file next to the model.
    kernels: "auto", or one family to be used where it can be: "wgmma", "mma" (tensor cores), "ffma" (float32).
    gradient: also build what `vjp` needs; in fp32, fp16 and bf16.
    planner: what makes the plans; one of these very options, for engines on equal devices to share.

    Of any size: the first images of a size plan it (kernels are compiled where they are new). Each size has all batch
    sizes and memory of its own; weights lie on the device once. What was used longest ago goes, where `memory` or the
    device is full: see `sizes`. Bits are those of an engine for that size alone. Building plans 224 pixels, or what
    fits. A gradient keeps to `memory` together with the plan of its size: a batch for which that is too little is
    computed in halves, and these, and where not one image fits, DeviceError says so.

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
        gradient: bool = False,
        planner: SizePlanner | None = None,
    ) -> None:
        started = time.perf_counter()
        sides = sides_of(size)
        options = EngineOptions(batch, sides, outputs, precision, mean, std, keep_values, kernels, scales)
        with stage("model"):
            self.model = Model.of(model)
            self.graph = options.graph(self.model)
        self.precision = precision
        self.device, self.device_choice = device if isinstance(device, Opened) else open_device(device)
        self._pending: AsyncStatus | None = None  # before the first run on an array on the device
        self._gradients: Gradients | None = None
        self._lock = threading.Lock()
        self._sized: ShapeProfile | None = None  # the one used last; None once closed
        self._any: DynamicShapes | None = None
        self._kept: EnginePlans | None = None  # of several plans, those of gradients among them
        self.allows_nonfinite = allow_nonfinite
        self._keeps_values = keep_values
        self._last_batch: int | None = None
        try:
            with stage("plan"):
                planner = planner or SizePlanner(self.model, options, self.device.facts)
                self._kept, self._any = kept_plans(self.model, planner, self.device, size, memory, gradient=gradient)
                plan = planner.plan(sides)
            planned = time.perf_counter()
            self._last = self._sized = self._loaded(planner, plan)
            self._form = form_of(self.graph, plan.programs[-1], is_any=self._any is not None)
            self._assumed = AssumedPixels(self.model, self.graph, plan.programs[-1].input.shape, mean, std)
            if gradient:
                from vgg16gpu.runtime.plans.gradients import Gradients  # noqa: PLC0415 - who only infers does without
                from vgg16gpu.runtime.plans.plan_cache import NoRoomError  # noqa: PLC0415 - as above

                samples = sampler(self.model, options, self.graph)
                self._gradients = Gradients(self.graph, self.device, precision, kernels, samples, self._kept)
                try:
                    self._gradients.prepare([program.input.shape for program in plan.programs])
                except NoRoomError:
                    if self._any is None:
                        raise
                    _log.info("the gradient of the size that is planned first has no room; smaller ones may")
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
        return (_float32(value.name, (None, *self._form.accepted[np.dtype(np.float32)])),)

    @property
    def outputs(self) -> tuple[Declared, ...]:
        """The outputs, as `run` returns them: float32, a row for each image where the model has one."""
        whole, shapes = self._last.whole, [(None, *y.shape[1:]) for y in self.program.outputs]
        if self._any:
            shapes = [(None, *shape[1:]) for shape in self._any.output_shapes(self.program.input.shape)]
        named = zip(self.program.outputs, shapes, strict=True)
        return tuple(_float32(y.name, whole.get(i, rows)) for i, (y, rows) in enumerate(named))

    @property
    def plan(self) -> CompiledModel:
        """What is computed where; of the size that ran last, at first of the model's own or the usual one."""
        return self._last.plan

    @property
    def program(self) -> LaunchPlan:
        """What a run of the largest batch size does; prints as a table. Of the same size as `plan`."""
        return self._last.program

    @property
    def sizes(self) -> SizeUse:
        """Which sizes of images are planned on the device now, and how many have been."""
        with self._lock:
            sized = self._require_open()
            if self._kept is None:
                return sized.use
            from vgg16gpu.runtime.plans.sizes import use_of  # noqa: PLC0415 - as `kept_plans`

            return use_of(self._kept)

    @property
    def counters(self) -> Counters:
        """What runs have done on the device since the engine was built."""
        return self.device.counters.since(self._at_build)

    @property
    def second_passes(self) -> int:
        """How many images had to be computed again on exact kernels: values had left the range of pairs of float16.

        Those of runs with wait=False count once `check`, or a run that waits, has looked.
        """
        waited = self._kept.second_passes if self._kept else self.executor.second_passes
        return waited + (self._pending.second_passes if self._pending else 0)

    @property
    def executor(self) -> Executor:
        """`plan` on the device, for measurements. Raises InputError once the engine is closed."""
        return self._require_open().executor

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        with self._lock:
            sized, self._sized = self._sized, None
            if self._pending:
                self._pending.close()
            try:
                if self._kept:
                    self._kept.close()
                elif sized:
                    sized.executor.close()
            finally:
                self.device.close()

    @contextmanager
    def turn(self) -> Iterator[Executor]:
        """The executor, which no other thread has meanwhile. Raises InputError once the engine is closed."""
        with self._lock:
            yield self._require_open().executor

    @overload
    def run(
        self, x: DeviceInput, *, stream: Stream = None, form: str | None = None, out: None = None, wait: bool = True
    ) -> DeviceOutputs: ...

    @overload
    def run(self, x: DeviceInput, *, stream: Stream = None, out: Any, wait: bool = True) -> Any: ...

    @overload
    def run(self, x: Input) -> Outputs: ...

    def run(self, x: Any, *, stream: Stream = None, form: str | None = None, out: Any = None, wait: bool = True) -> Any:
        """Outputs for N inputs: float32 in the file's own shape, or uint8 (N, H, W, C) to be normalised on the device.

        float16 on the host, and a torch tensor's bfloat16, become float32. `x` may be a dict from the input's name; N
        may be 0. Returns one array, or a tuple for several outputs, with N rows each; an output that does not have a
        row for each image comes whole, in the shape that the file gives it, and then N must be 1.
        The same image gets the same bits at the same built batch size, in every run, at any position in the batch and
        beside any neighbours; on FFMA kernels (`kernels="ffma"`, and the CPU), and in fp32 on "mma", also across batch
        sizes.

        An array on the engine's GPU (torch, CuPy, ...: DLPack or the CUDA array interface), of float32, float16,
        bfloat16 or uint8 and with any strides, gives arrays there, `DeviceArray`, ready for any stream, and nothing is
        copied from or to the host. What is enqueued on `stream` now (a handle, or a stream of torch, CuPy or cuda.core)
        is waited for; without it, what the library of `x` is at: see `on_device.views.view_of`.
        form: of outputs on the GPU. None: float32, row-major. "stored": as the kernels store them, so that nothing is
        converted or copied: float16 or bfloat16 in these precisions on tensor cores, else float32, feature maps with
        channels last. Or an element type, "float32", "float16" or "bfloat16", alone (row-major) or with
        " channels_last" behind it. out: the caller's own arrays in place of new ones, one or a tuple; element type and
        strides of each say in which form it is wanted, and they are returned.
        wait: False returns at once; then `stream` is needed, and what is enqueued there later finds the results. Nobody
        has looked at them: rows of an image for which `run` would raise are NaN, and `check`, or the next `run` that
        waits, raises; fp32 on tensor cores has the same bits as with wait=True also for images out of its range.
        Results lie in memory that earlier ones on that stream have let go. While the stream captures a CUDA graph
        (torch.cuda.graph), `out` is needed, and an earlier run of that size; such a graph and other runs of the engine
        must not overlap.

        Raises InputError for a wrong shape or type, for NaN or Inf unless they are allowed, and in fp16 for an image
        whose values leave float16's range inside the network; DeviceError for a new size that the memory cannot hold.
        """
        if on_device.is_on_device(array := self._form.only(x)):
            return self._run_on_device(array, on_device.RunOptions(stream, form, out, wait))
        on_device.refuse_on_host(stream, form, out, wait)
        images = self._form.checked(x)
        parts = []
        with self._lock:
            self._check_pending()
            sized = self._at(images.dtype, images.shape)
            self._assumed.warn(images.dtype)
            for first, batch in sized.batches(len(images)):
                self._last_batch = batch
                parts.append(sized.executor.run(batch, images[first : first + batch]))
        return self._joined(sized, parts)

    def __call__(self, x: Any, **options: Any) -> Any:
        """The same as `run`."""
        return self.run(x, **options)

    @overload
    def vjp(
        self, x: DeviceInput, cotangents: Any, *, stream: Stream = None, out: None = None, wait: bool = True
    ) -> DeviceArray: ...

    @overload
    def vjp(self, x: DeviceInput, cotangents: Any, *, stream: Stream = None, out: Any, wait: bool = True) -> Any: ...

    @overload
    def vjp(self, x: Input, cotangents: Any) -> Array: ...

    def vjp(self, x: Any, cotangents: Any, *, stream: Stream = None, out: Any = None, wait: bool = True) -> Any:
        """The gradient to x of the sum of all outputs, each weighted by its cotangent (a vector-Jacobian product).

        x: float32 on the host, as `run` takes it. cotangents: float32 in the shape of the outputs for x, one array or
        one for each output: the gradients of a loss to them. The result has the shape of x. A ReLU hands nothing on at
        0, a maximum to the first of equals. The same bits in every run, at any position in a batch of one built size
        (FFMA: of any). NaN and Inf are not looked for; in fp32 a batch that leaves the range of tensor cores is run
        again by FFMA. Arrays on the engine's GPU, of float32, float16 or bfloat16 and any strides, all of them there,
        give a float32 `DeviceArray`; they are waited for as those of `run` are, and nothing goes over the host. stream,
        out, wait: as for `run`.
        Raises InputError for wrong shapes and types, for an engine without `gradient=True`, and in fp16 for images
        whose values leave its range.
        """
        if on_device.is_on_device(array := self._form.only(x)):
            return self._vjp_on_device(array, cotangents, on_device.RunOptions(stream, None, out, wait))
        on_device.refuse_on_host(stream, None, out, wait)
        images = self._form.checked(x)
        with self._lock:
            self._check_pending()
            sized = self._at(images.dtype, images.shape)
            gradients = self._require_gradients()
            return self.graph.input.to_file(gradients.vjp(images, cotangents, sized.batches(len(images))))

    def _vjp_on_device(self, x: object, cotangents: Any, asked: RunOptions) -> Any:
        given = cotangents if isinstance(cotangents, list | tuple) else [cotangents]
        if not all(map(on_device.is_on_device, given)):
            raise InputError("the input lies on a GPU, and a gradient of an output on the host; bring it there, too")
        with self._lock:
            self._require_open()
            gradients, foreign = self._require_gradients(), self._require_foreign()
            if self.graph.input.channels_last:
                raise InputError("a model with its channels last gives gradients on the host; give arrays there")
            pending = self._require_pending()
            is_captured, waits = asked.checked(foreign, pending), asked.stream is None
            view = self._checked_view(on_device.view_of(x, foreign, asked.stream))
            if view.element_type == "uint8":
                raise InputError("x is uint8, whole numbers without a gradient; give float32, normalised")
            what = "the gradient of an output"
            slopes = [on_device.view_of(y, foreign, asked.stream, what=what, waits=waits) for y in given]
            runs = self._at(view.input_type, view.shape).batches(view.shape[0])
            (target,), (found,) = asked.outputs(foreign, [view.shape], None, pending)
            gradients.vjp_on_device(view, slopes, target, runs, asked.sink(pending), singly=is_captured)
            asked.lead(foreign)
        return found

    def _require_gradients(self) -> Gradients:
        if self._gradients is None:
            raise InputError("the engine was built without gradients; build it with gradient=True")
        return self._gradients

    def _require_foreign(self) -> ArrayInterop:
        if self.device.foreign is None:
            raise InputError("the input lies on a GPU, this engine runs on the CPU; build it with device='cuda'")
        return self.device.foreign

    def check(self) -> None:
        """Wait for all runs with wait=False, and raise what was wrong with them since the last check.

        Replays of a captured graph count, too, but are not waited for: synchronise their stream first. InputError for
        NaN and Inf in inputs, and in fp16 values out of range; KernelError for a kernel that gave up.
        """
        with self._lock:
            self._require_open()
            self._check_pending()

    def _check_pending(self) -> None:
        if self._pending:
            self._pending.check()

    def _require_pending(self) -> AsyncStatus:
        """What runs on the device leave to say; there from the first of them on."""
        self._pending = self._pending or on_device.AsyncStatus(self.device)
        return self._pending

    def _run_on_device(self, x: object, asked: RunOptions) -> Any:
        with self._lock:
            self._require_open()
            foreign, pending = self._require_foreign(), self._require_pending()
            is_captured = asked.checked(foreign, pending)
            view = self._checked_view(on_device.view_of(x, foreign, asked.stream))
            count, dtype = view.shape[0], view.input_type
            sized = self._at(dtype, view.shape)
            self._assumed.warn(dtype)
            sized.is_captured |= is_captured
            targets, results = asked.outputs(foreign, sized.output_shapes(count), sized.program, pending)
            parts = []
            for first, batch in sized.batches(count):
                self._last_batch = batch
                images = view.rows(first, first + batch)
                rows = [y if i in sized.whole else y.rows(first, first + batch) for i, y in enumerate(targets)]
                if asked.wait:
                    parts.append(sized.runner.run(batch, (images,), rows))
                else:
                    sink = on_device.ErrorSink(pending.found, first, self.allows_nonfinite)
                    sized.runner.enqueue(batch, (images,), rows, sink, singly=is_captured)
            asked.lead(foreign)
        check_flags(parts, self.allows_nonfinite)
        return results[0] if len(results) == 1 else results

    def _checked_view(self, view: StridedView) -> StridedView:
        """An array on the device as the kernels read it. Raises InputError for a wrong shape or type."""
        self._form.check(view.input_type, view.shape, "x.float() in torch, x.astype('float32') in CuPy")
        is_file_order = self.graph.input.channels_last and view.input_type == np.float32
        return view.permuted(CHANNELS_FIRST) if is_file_order else view

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
        return self._stream(items, batch or sizes[-1])

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

    def kept_values(self) -> list[tuple[tuple[str, ...], TensorDesc]]:
        """Where on the device `read_values` finds the values; the same names, and raises the same."""
        if not self._keeps_values:
            raise InputError("intermediate values are not kept; build the engine with keep_values=True")
        program = next((program for program in self.plan.programs if program.batch == self._last_batch), None)
        if program is None:
            raise InputError("there are no values before the first run; call run")
        names = {op.y: op.names for op in self.graph.ops}
        return [(names.get(value.name, (value.name,)), value) for value in program.values]

    def _read(self, value: TensorDesc) -> Array:
        with self._lock:
            return self.executor.read(value)

    def checked(self, x: Any) -> Any:
        """An input in the order that the kernels read; an array on the GPU as it is, for who runs it to check.

        Raises InputError.
        """
        images = self._form.checked_or_foreign(x)
        if self._any and isinstance(images, np.ndarray):
            self._any.check(self._form.sides(images.dtype.name, images.shape))
        return images

    def _stream(self, given: Iterator[Any], size: int) -> Iterator[Outputs | DeviceOutputs]:
        from vgg16gpu.runtime.batcher import RequestStream, cut, flow, item_name  # noqa: PLC0415 - most do not stream

        source = RequestStream(given, self.checked)
        for form, items in itertools.groupby(source, key=lambda item: item.form):
            if form is None:
                yield from (self._run_foreign(item.images, item_name(item.number)) for item in items)
                continue
            element_type, sample = form
            self._assumed.warn(np.dtype(element_type))
            with self.lane(element_type, sample, size) as lane:
                for item in flow(cut(items, size), lane.send, lane.receive):
                    yield lane.joined(item.results, f"{item_name(item.number)}: ")
        if source.failure:
            raise source.failure

    def batches(self, images: Images) -> list[tuple[int, int]]:
        """(first image, batch size) of the batches that `run` makes of `checked` images. Raises InputError."""
        with self._lock:
            return list(self._at(images.dtype, images.shape).batches(len(images)))

    @contextmanager
    def lane(self, element_type: str, sample: Shape, size: int, *, is_direct: bool = False) -> Iterator[StreamSession]:
        """A way through the engine for batches of up to `size` images of this type and shape, as the kernels read them.

        size: one of the engine's batch sizes. is_direct: see `Pipeline`. Raises InputError, also once closed;
        DeviceError when memory runs out.
        """
        with self._lock:
            sized = self._at(np.dtype(element_type), (size, *sample))
            pipeline = sized.pipeline(element_type, size, is_direct)
        try:
            yield StreamSession(
                partial(self._send, sized, pipeline),
                pipeline.take,
                partial(self._launch, sized, pipeline),
                partial(self._receive, sized, pipeline),
                partial(self._joined, sized),
            )
        finally:
            sized.give_back(pipeline, element_type, size, is_direct)

    def _run_foreign(self, x: object, name: str) -> DeviceOutputs:
        try:
            outputs: DeviceOutputs = self._run_on_device(x, on_device.RunOptions())
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        return outputs

    def _send(self, sized: ShapeProfile, pipeline: Pipeline, rows: Sequence[Images], batch: int | None = None) -> Sent:
        batch = batch or sized.smallest(sum(map(len, rows)))
        with self._lock:
            self._require_open()
            self._last = self._sized = sized
            self._last_batch = batch
            return pipeline.send(batch, rows)

    def _launch(self, sized: ShapeProfile, pipeline: Pipeline, frame: StagingBuffer, batch: int, count: int) -> Sent:
        with self._lock:
            self._require_open()
            self._last = self._sized = sized
            self._last_batch = batch
            return pipeline.launch(frame, batch, count)

    def _receive(self, sized: ShapeProfile, pipeline: Pipeline, sent: Sent) -> OutputRows:
        with self._lock:
            self._require_open()
            images, results = pipeline.receive(sent)
            return sized.executor.finished(results, images)

    def _joined(self, sized: ShapeProfile, parts: Sequence[OutputRows], where: str = "") -> Outputs:
        """What the caller gets for inputs that were run in parts. Raises InputError if some gave no valid results."""
        check_flags(parts, self.allows_nonfinite, where)
        outputs = sized.joined(parts)
        return outputs[0] if len(outputs) == 1 else outputs

    def _require_open(self) -> ShapeProfile:
        if self._sized is None:
            raise InputError("the engine is closed; build a new one")
        return self._sized

    def _loaded(self, planner: SizePlanner, plan: CompiledModel) -> ShapeProfile:
        if self._kept:
            from vgg16gpu.runtime.plans.sizes import load_sized  # noqa: PLC0415 - as `kept_plans`

            return load_sized(self._kept, planner, plan)
        return ShapeProfile(self.graph.input, plan, self.precision, Executor.load(plan, self.device))

    def _at(self, dtype: np.dtype[Any], shape: Shape) -> ShapeProfile:
        """The plan for a batch of this shape, as the kernels read it. Raises InputError, also once closed."""
        sized = self._require_open()
        if self._any:
            sized = self._last = self._sized = self._any.at(self._form.sides(dtype.name, shape))
            sized.form.check_rows(dtype, shape)
        return sized


def _float32(name: str, shape: OpenShape) -> Declared:
    from vgg16gpu.compiler.declared import Declared  # noqa: PLC0415 - an engine runs without being asked

    return Declared(name, np.dtype(np.float32), shape)

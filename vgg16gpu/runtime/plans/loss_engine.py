"""`LossEngine`: how far images are from others by the features of a network, and the gradient of that."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vgg16gpu.compiler.compile import EngineOptions, sampler
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.devices import Opened, open_device
from vgg16gpu.devices.base import ArrayInterop
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import OUTPUT_ELEMENTS, TensorFormat
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.on_device import is_on_device, refuse_on_host
from vgg16gpu.runtime.on_device.pending import AsyncStatus
from vgg16gpu.runtime.on_device.results import RunOptions
from vgg16gpu.runtime.on_device.views import Stream, StridedView, stream_handle, view_of
from vgg16gpu.runtime.outputs import check_flags
from vgg16gpu.runtime.plans.loss_inputs import LossInputs, as_map, as_target, require_several
from vgg16gpu.runtime.plans.losses import (
    Distance,
    Enqueued,
    FeatureComparison,
    LossKey,
    LossKind,
    Weight,
    loss_programs,
)
from vgg16gpu.runtime.plans.opening import check_batch, check_memory_bound, warn_of_random_weights
from vgg16gpu.runtime.plans.program_cache import LoadedProgram


class LossEngine(Closing):
    """A perceptual loss: images are compared by what a network makes of them, on either device.

    Image, features, loss and gradient are one program: nothing comes back from the device in between, and the
    gradient of each term is computed in the same pass as its value. Several threads may share it; they take turns.

    model: as for `Engine`. layers: the weight of each layer that is compared, by its name as for
        `Engine(outputs=...)`. distance: how, for all layers. Of a layer with weight w an image gets w times the mean of
        its squared differences ("squared"), of their magnitudes ("absolute"), or, over pixels, of the sum of squared
        differences of unit vectors ("unit"; there w may be an array with a weight for each channel): LPIPS, see Zhang
        et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric"; a unit vector is a pixel's
        channels over sqrt(1e-8 + the sum of their squares).
    style: the weight of each layer whose Gram matrices are compared, w times the mean of their squared differences. A
        Gram matrix has the products of all pairs of channels, summed over pixels, divided by C * H * W (Gatys et al.,
        "Image Style Transfer Using Convolutional Neural Networks").
    precision: "fp32", with errors of float32 whatever the kernels, or "fp16" or "bf16": convolutions round what they
        read, all else is float32. In fp16 the gradient of each image is brought to its range before each product.
    device, kernels: as for `Engine`; in fp32 a batch with an image whose values leave the range of Hopper's tensor
        cores is computed again on FFMA kernels. batch: the most images that are computed at once; more are cut up.
    memory: bytes on the device for programs and their weights; the program that was used longest ago goes first, and a
        batch whose program does not fit is cut into halves. None: half of what is free for those that are kept, and all
        for the one that runs.

    Images are float32 (N, C, H, W), normalised as the model wants them, of any size that it fits; each size is planned
    when it comes for the first time. N may be 0: results have no rows, and nothing is launched. NaN and Inf are not
    looked for. The same bits in every run; on FFMA kernels
    whatever the batch is.

    Raises ModelError, InputError, KernelError, and DeviceError, also where the memory does not hold what one image
    needs.
    """

    def __init__(
        self,
        model: ModelSource,
        layers: Mapping[str, Weight] | None = None,
        style: Mapping[str, float] | None = None,
        *,
        distance: Distance = "squared",
        precision: str = "fp32",
        device: str | Opened = "auto",
        batch: int = 16,
        kernels: str = "auto",
        memory: int | None = None,
    ) -> None:
        self.model = Model.of(model)
        check_batch(batch)
        check_memory_bound(memory)
        self._compared = FeatureComparison.of(self.model, layers, style, distance)
        warn_of_random_weights(self.model)
        self.names, self.graph = self._compared.names, self._compared.graph
        self.device, self.device_choice = device if isinstance(device, Opened) else open_device(device)
        try:
            samples = sampler(self.model, EngineOptions(), self.graph)
            self._programs = loss_programs(self._compared, self.device, precision, kernels, samples, memory)
        except BaseException:
            self.device.close()
            raise
        self._inputs = LossInputs(self._compared, precision, batch, self._programs)
        self._is_whole = self.graph.input.shape[0] is not None  # a batch has the size that the file says
        self._lock = threading.Lock()
        self._is_closed = False
        self._pending: AsyncStatus | None = None

    def targets(
        self, images: Any = None, style: Any = None, *, stream: Stream = None, out: Any = None, wait: bool = True
    ) -> tuple[Any, ...]:
        """What `value` compares with: of each layer features (N, H*W, C), then of each style layer a Gram matrix.

        images: what `layers` are compared with, and, without `style`, the others, too. style: of any size. Raises
        InputError where images that are needed are missing.
        Arrays on the engine's GPU, as `Engine.run` takes them, give `DeviceArray`s, here and below: nothing goes over
        the host. Targets come in the element type that `target_types` tells, and are read where they lie; float32 ones
        are taken, too. stream, out, wait: as for `Engine.run`; out: an array for each result, in their order, whose
        shapes `target_shapes` tells.
        """
        results: tuple[Any, ...] = ()
        for inputs, terms, outs in self.target_runs(images, style, out):
            results += self._results("targets", inputs, RunOptions(stream, None, outs, wait), terms=terms)
        return results

    def target_runs(self, images: Any, style: Any, out: Any = None) -> list[tuple[tuple[Any], tuple[int, ...], Any]]:
        """Return (inputs, terms, arrays for results) of each run for `targets`, as `on_host` and `on_device` take them.

        Without `style` one run gives all targets. Raises InputError where images that are needed are missing.
        """
        content, styled = len(self._compared.content), len(self._compared.style)
        pictures = images if style is None else style
        if (content and images is None) or (styled and pictures is None):
            raise InputError("images to compare with are missing; give images, and style where layers have one")
        outs = out if out is None or isinstance(out, list | tuple) else (out,)
        if outs is not None and len(outs) != content + styled:
            raise InputError(f"out has {len(outs)} arrays; there are {content + styled} targets: give one for each")
        split = content + styled if style is None else content
        parts = ((images, range(split)), (style, range(split, content + styled)))
        return [
            ((given,), tuple(terms), None if outs is None else tuple(outs[i] for i in terms))
            for given, terms in parts
            if terms
        ]

    def target_shapes(self, images: Shape | None, style: Shape | None = None) -> tuple[Shape, ...]:
        """The shapes of what `targets` gives for images of these shapes (N, C, H, W). Raises InputError."""
        shapes = (images if style is None or term.kind != "gram" else style for term in self._compared.terms)
        return tuple(self._inputs.target_shapes(shape)[i] for i, shape in enumerate(shapes) if shape is not None)

    def target_types(self, images: Shape | None, style: Shape | None = None) -> tuple[str, ...]:
        """The element types of what `targets` gives on a GPU for images of these shapes: those of stored features.

        In fp16 and bf16 two bytes hold a feature as the kernels store it, and no more would tell it better. Gram
        matrices are float32. Raises as `target_shapes`.
        """
        shapes = [images if style is None or term.kind != "gram" else style for term in self._compared.terms]
        with self._lock:
            found = [self._inputs.target_elements(shape)[i] for i, shape in enumerate(shapes) if shape is not None]
        return tuple(OUTPUT_ELEMENTS[element] for element in found)

    def value(
        self,
        x: Any,
        targets: Sequence[Any],
        *,
        mean: bool = False,
        stream: Stream = None,
        out: Any = None,
        wait: bool = True,
    ) -> Any:
        """The loss of each image, (N,) float32. targets: as `targets` gives them, each of N images or of one for all.

        mean: the N-th part of each, so that their sum is the mean. stream, out, wait: as for `targets`.
        Raises InputError for targets that do not fit x.
        """
        inputs, options = (x, *require_several(targets)), RunOptions(stream, None, out, wait)
        return self._results("loss", inputs, options, mean=mean)[0]

    def value_and_gradient(
        self,
        x: Any,
        targets: Sequence[Any],
        *,
        mean: bool = False,
        stream: Stream = None,
        out: Any = None,
        wait: bool = True,
    ) -> tuple[Any, Any]:
        """The loss of each image, (N,) float32, and its gradient to that image, in the shape of x. Raises as `value`.

        A ReLU hands nothing on at 0, a maximum to the first of equals, a difference of 0 has no slope.
        mean: of both the N-th part. out: two arrays.
        """
        inputs, options = (x, *require_several(targets)), RunOptions(stream, None, out, wait)
        loss, gradient = self._results("loss", inputs, options, gradients=1, mean=mean)
        return loss, gradient

    def compare(
        self,
        x: Any,
        y: Any,
        *,
        gradients: int = 0,
        mean: bool = False,
        stream: Stream = None,
        out: Any = None,
        wait: bool = True,
    ) -> tuple[Any, ...]:
        """The loss of each image of x against the one of y, (N,) float32, in one run for both.

        gradients: 1 adds that to x, 2 those to x and to y, in the shape of these. Style layers compare the same images.
        mean, stream, out, wait: as for `value`. Raises InputError where x and y have not the same shape.
        """
        if isinstance(gradients, bool) or not isinstance(gradients, int | np.integer) or gradients not in (0, 1, 2):
            raise InputError(f"gradients {shown(gradients)}: give 0, 1 for that to x, or 2 for those to both")
        return self._results("pair", (x, y), RunOptions(stream, None, out, wait), gradients=int(gradients), mean=mean)

    def on_host(
        self,
        kind: LossKind,
        inputs: Sequence[Any],
        *,
        gradients: int = 0,
        mean: bool = False,
        terms: tuple[int, ...] = (),
    ) -> tuple[Array, ...]:
        """Return the results of a run on arrays on the host: targets, or losses and so many of their gradients.

        inputs: images, and what they are compared with: "loss" targets, "pair" images. terms: of "targets", by number,
        which know no `mean`.
        """
        arrays = self._inputs.arrays(kind, inputs)
        x = arrays[0]
        share, parts = len(x) if mean else 1, []
        with self._lock:
            self._check_pending()
            for first, key, program in self._programs_of(LossKey(kind, x.shape, terms, gradients, None, share)):
                rows = [array[first : first + key.shape[0]] for array in arrays]
                parts.append(program.executor.run_once(dict(zip(program.spec.shapes, rows, strict=True))))
        shapes = self._result_shapes(kind, x.shape, terms, gradients)
        if kind == "targets":
            return tuple(map(as_target, _joined(parts, shapes)))
        loss, *others = _joined(parts, shapes)
        return loss, *(self.graph.input.to_file(array) for array in others)

    def on_device(
        self,
        kind: LossKind,
        inputs: Sequence[Any],
        options: RunOptions,
        *,
        gradients: int = 0,
        mean: bool = False,
        terms: tuple[int, ...] = (),
    ) -> tuple[tuple[Any, ...], Enqueued]:
        """Return the results of a run on arrays on the GPU, as `on_host` has them, and what `repeat` takes.

        That is nothing for a run that is waited for.
        """
        self._require_on_device(kind, inputs)
        with self._lock:
            foreign = self._require_foreign()
            views = self._views(kind, inputs, foreign, options.stream)
            x = views[0]
            pending = self._pending = self._pending or AsyncStatus(self.device)
            singly = options.checked(foreign, pending)
            forms = None
            if kind == "targets":
                elements = self._inputs.target_elements(x.shape)
                forms = [TensorFormat(elements[i]) for i in terms]
            shapes = self._result_shapes(kind, x.shape, terms, gradients)
            places, found = options.outputs(foreign, shapes, None, pending, forms)
            whole = LossKey(kind, x.shape, terms, gradients, None, x.shape[0] if mean else 1)
            enqueued: Enqueued = ()
            for first, key, program in self._programs_of(whole, views[1:] if kind == "loss" else ()):
                count = key.shape[0]
                rows, outs = ([view.rows(first, first + count) for view in each] for each in (views, places))
                if kind == "targets":
                    values = program.executor.plan.programs[0].outputs
                    outs = [as_map(out, value.shape) for out, value in zip(outs, values, strict=True)]
                if sink := options.sink(pending, first):
                    enqueued += ((key, program.runner.enqueue(count, rows, outs, sink, singly=singly)),)
                else:
                    check_flags([program.runner.run(count, rows, outs)], allows_nonfinite=True)
            options.lead(foreign)
        return found, enqueued

    def repeat(self, enqueued: Enqueued, stream: Stream) -> bool:
        """Enqueue for the same arrays what `on_device` has enqueued; in a small part of its time.

        False, and nothing is enqueued, where that is not kept, or the stream captures: then `on_device` does. Whoever
        calls knows that the arrays are where they were, in the same form.
        """
        with self._lock:
            self._require_open()
            foreign, pending, handle = self.device.foreign, self._pending, stream_handle(stream)
            if foreign is None or pending is None or foreign.captures(handle):
                return False
            launches = [call.launch for _, call in enqueued if call.is_whole and call.launch]
            if len(launches) < len(enqueued):
                return False
            pending.begin()
            foreign.follow(handle)
            for (key, call), launch in zip(enqueued, launches, strict=True):
                self._programs.touch(key)
                call.touch()
                launch()
            foreign.lead(handle)
        return True

    @property
    def nbytes(self) -> int:
        """Bytes on the device of the programs that are kept now, with weights."""
        with self._lock:
            return self._programs.nbytes

    def check(self) -> None:
        """Wait for all runs with wait=False, and raise what was wrong with them, as `Engine.check` does."""
        with self._lock:
            self._check_pending()

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            try:
                self._programs.close()
                if self._pending:
                    self._pending.close()
            finally:
                self.device.close()

    def __repr__(self) -> str:
        return f"LossEngine({self.model.name} on {self.device.facts.name}, {', '.join(self.names)})"

    def _results(
        self,
        kind: LossKind,
        inputs: Sequence[Any],
        options: RunOptions,
        *,
        gradients: int = 0,
        mean: bool = False,
        terms: tuple[int, ...] = (),
    ) -> tuple[Any, ...]:
        """Return the results of a run on arrays on the host or on the GPU."""
        if is_on_device(inputs[0]):
            return self.on_device(kind, inputs, options, gradients=gradients, mean=mean, terms=terms)[0]
        refuse_on_host(*options)
        return self.on_host(kind, inputs, gradients=gradients, mean=mean, terms=terms)

    def _result_shapes(self, kind: LossKind, shape: Shape, terms: tuple[int, ...], gradients: int) -> list[Shape]:
        """Return the shapes of the results for images of this shape."""
        if kind == "targets":
            shapes = self._inputs.target_shapes(shape)
            return [shapes[i] for i in terms]
        return [shape[:1], *[shape] * gradients]

    def _programs_of(
        self, key: LossKey, targets: Sequence[StridedView] = ()
    ) -> Iterator[tuple[int, LossKey, LoadedProgram]]:
        """Yield (first image, key, program) of each run that computes images of a key, as many at once as may be.

        targets: those on the device, which are read where they are if the kernels can read all of them there.
        """
        for first, count in self._inputs.cut(key.shape[0]):
            yield from self._fitting(key._replace(shape=(count, *key.shape[1:])), targets, first)

    def _fitting(
        self, key: LossKey, targets: Sequence[StridedView], first: int
    ) -> Iterator[tuple[int, LossKey, LoadedProgram]]:
        """Yield the same of one batch, which begins at image `first`: in parts where there is no room for it."""
        count, *sample = key.shape
        if targets:
            key = key._replace(given=self._inputs.readable([view.rows(first, first + count) for view in targets]))
        fit = count
        if not self._is_whole:
            fit = self._programs.fitting(count, lambda rows: key._replace(shape=(rows, *sample)))
        if fit == count:
            yield first, key, self._programs.at(key)
            return
        for start in range(0, count, fit):
            part = key._replace(shape=(min(fit, count - start), *sample))
            yield from self._fitting(part, targets, first + start)

    def _require_on_device(self, kind: LossKind, inputs: Sequence[object]) -> None:
        """Raise InputError for arrays on the host among those on the GPU."""
        if all(map(is_on_device, inputs)):
            return
        if kind == "pair":
            raise InputError("x lies on a GPU, and y on the host; bring both to one device")
        raise InputError("the images lie on a GPU, and a target on the host; use targets(...) of images there")

    def _require_foreign(self) -> ArrayInterop:
        """Return what knows others' arrays on the GPU. Raises InputError."""
        self._require_open()
        foreign = self.device.foreign
        if foreign is None:
            raise InputError("the images lie on a GPU, this engine runs on the CPU; build it with device='cuda'")
        if self.graph.input.channels_last:
            raise InputError("a model with its channels last has its losses on the host; give arrays there")
        return foreign

    def _views(
        self, kind: LossKind, inputs: Sequence[Any], foreign: ArrayInterop, stream: Stream
    ) -> Sequence[StridedView]:
        """Return the arrays of a run on the device, one target for all images repeated. Raises InputError."""
        x = view_of(inputs[0], foreign, stream, what="the images")
        self._inputs.check(x.element_type, x.shape)
        what = "y" if kind == "pair" else "a target"
        others = [view_of(given, foreign, stream, what=what, waits=stream is None) for given in inputs[1:]]
        if kind == "loss":
            return [x, *self._inputs.targets_on_device(others, x.shape)]
        for other in others:
            self._inputs.check(other.element_type, other.shape)
            self._inputs.check_pair(x.shape, other.shape)
        return [x, *others]

    def _check_pending(self) -> None:
        self._require_open()
        if self._pending:
            self._pending.check()

    def _require_open(self) -> None:
        if self._is_closed:
            raise InputError("the loss is closed; build a new one")


def _joined(parts: Sequence[tuple[Array, ...]], shapes: Sequence[Shape]) -> tuple[Array, ...]:
    """The results for images that were run in parts. shapes: of all of each, for the case of no images."""
    if not parts:
        return tuple(np.empty(shape, np.float32) for shape in shapes)
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

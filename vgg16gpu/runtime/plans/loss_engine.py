"""`LossEngine`: how far images are from others by the features of a network, and the gradient of that."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vgg16gpu.compiler.compile import EngineOptions, sampler
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.devices import Opened, open_device
from vgg16gpu.devices.base import ArrayInterop
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import OUTPUT_ELEMENTS, DType, TensorFormat
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.on_device import is_on_device, refuse_on_host
from vgg16gpu.runtime.on_device.pending import AsyncStatus
from vgg16gpu.runtime.on_device.results import RunOptions
from vgg16gpu.runtime.on_device.views import Stream, StridedView, stream_handle, view_of
from vgg16gpu.runtime.plans.loss_inputs import LossInputs, require_several
from vgg16gpu.runtime.plans.losses import Distance, Enqueued, FeatureComparison, Losses, Weight
from vgg16gpu.runtime.plans.opening import check_batch, check_memory_bound, warn_of_random_weights


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
        self._inputs = LossInputs(self._compared, batch)
        self.names, self.graph = self._compared.names, self._compared.graph
        self.device, self.device_choice = device if isinstance(device, Opened) else open_device(device)
        try:
            samples = sampler(self.model, EngineOptions(), self.graph)
            self._losses = Losses(self.graph, self._compared.terms, self.device, precision, kernels, samples, memory)
        except BaseException:
            self.device.close()
            raise
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
        return self._all_targets(images, style, RunOptions(stream, None, out, wait))[0]

    def enqueue_targets(self, images: Any, style: Any, out: Sequence[Any], stream: Stream) -> Enqueued:
        """As `targets` with wait=False, of arrays on the GPU; what `repeat` takes."""
        return self._all_targets(images, style, RunOptions(stream, None, out, wait=False))[1]

    def _all_targets(self, images: Any, style: Any, asked: RunOptions) -> tuple[tuple[Any, ...], Enqueued]:
        """The targets, and what has been enqueued for them."""
        out = asked.out
        content, styled = len(self._compared.content), len(self._compared.style)
        pictures = images if style is None else style
        if (content and images is None) or (styled and pictures is None):
            raise InputError("images to compare with are missing; give images, and style where layers have one")
        outs = out if out is None or isinstance(out, list | tuple) else (out,)
        if outs is not None and len(outs) != content + styled:
            raise InputError(f"out has {len(outs)} arrays; there are {content + styled} targets: give one for each")
        found: tuple[Any, ...] = ()
        enqueued: Enqueued = ()
        split = content + styled if style is None else content  # without `style` one run gives all
        parts = ((images, range(split)), (style, range(split, content + styled)))
        for given, terms in parts:
            if terms:
                part = replace(asked, out=None if outs is None else tuple(outs[i] for i in terms))
                made, done = self._targets(given, tuple(terms), part)
                found, enqueued = (*found, *made), (*enqueued, *done)
        return found, enqueued

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
            found = [self._stored(shape)[i] for i, shape in enumerate(shapes) if shape is not None]
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
        return self._loss(x, targets, RunOptions(stream, None, out, wait), gradient=False, mean=mean)[0]

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
        loss, gradient = self._loss(x, targets, RunOptions(stream, None, out, wait), gradient=True, mean=mean)
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
        if is_on_device(x):
            return self._compared_on_device(x, y, RunOptions(stream, None, out, wait), gradients, mean=mean)[0]
        refuse_on_host(stream, None, out, wait)
        first, second = self._inputs.images(x), self._inputs.images(y)
        self._inputs.check_pair(first.shape, second.shape)
        share = len(first) if mean else 1
        with self._lock:
            self._check_pending()
            parts = [
                self._losses.compare(first[rows], second[rows], gradients, share=share)
                for rows in self._inputs.cut(len(first))
            ]
        loss, *others = _joined(parts, (first.shape[:1], first.shape, first.shape)[: 1 + gradients])
        return loss, *(self.graph.input.to_file(array) for array in others)

    def enqueue_pair(self, x: Any, y: Any, out: Sequence[Any], stream: Stream, *, mean: bool = False) -> Enqueued:
        """As `compare` with wait=False, of arrays on the GPU; out: as many as results. What `repeat` takes."""
        return self._compared_on_device(x, y, RunOptions(stream, None, out, wait=False), len(out) - 1, mean=mean)[1]

    def enqueue(
        self, x: Any, targets: Sequence[Any], out: Sequence[Any], stream: Stream, *, mean: bool = False
    ) -> Enqueued:
        """As `value` (of one array in `out`) or `value_and_gradient` (of two) with wait=False: what `repeat` takes."""
        if not is_on_device(x):
            raise InputError("x lies on the host, where nothing is enqueued; use value or value_and_gradient")
        asked = RunOptions(stream, None, out, wait=False)
        return self._loss_on_device(x, targets, asked, gradient=len(out) > 1, mean=mean)[1]

    def repeat(self, enqueued: Enqueued, stream: Stream) -> bool:
        """Enqueue for the same arrays what `enqueue` or `enqueue_targets` has enqueued; in a small part of its time.

        False, and nothing that would be missed, where that is not kept, or the stream captures: then these do. Whoever
        calls knows that the arrays lie where they lay, in the same form.
        """
        with self._lock:
            self._require_open()
            foreign, pending, handle = self.device.foreign, self._pending, stream_handle(stream)
            if foreign is None or pending is None or foreign.captures(handle):
                return False
            pending.begin()
            foreign.follow(handle)
            is_done = self._losses.repeat(enqueued)
            foreign.lead(handle)
        return is_done

    @property
    def nbytes(self) -> int:
        """Bytes on the device of the programs that are kept now, with weights."""
        with self._lock:
            return self._losses.nbytes

    def check(self) -> None:
        """Wait for all runs with wait=False, and raise what was wrong with them, as `Engine.check` does."""
        with self._lock:
            self._check_pending()

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            try:
                self._losses.close()
                if self._pending:
                    self._pending.close()
            finally:
                self.device.close()

    def __repr__(self) -> str:
        return f"LossEngine({self.model.name} on {self.device.facts.name}, {', '.join(self.names)})"

    def _targets(self, images: Any, terms: tuple[int, ...], asked: RunOptions) -> tuple[tuple[Any, ...], Enqueued]:
        if is_on_device(images):
            return self._targets_on_device(images, terms, asked)
        refuse_on_host(asked.stream, asked.form, asked.out, asked.wait)
        x = self._inputs.images(images)
        with self._lock:
            self._check_pending()
            parts = [self._losses.targets(x[rows], terms) for rows in self._inputs.cut(len(x))]
        shapes = self._inputs.target_shapes(x.shape)
        return _joined(parts, [shapes[i] for i in terms]), ()

    def _targets_on_device(
        self, images: object, terms: tuple[int, ...], asked: RunOptions
    ) -> tuple[tuple[Any, ...], Enqueued]:
        with self._lock:
            x, foreign = self._view(images, asked)
            pending, singly = self._begun(foreign, asked)
            shapes = self._inputs.target_shapes(x.shape)
            stored = self._stored(x.shape)
            forms = [TensorFormat(stored[i]) for i in terms]
            places, found = asked.outputs(foreign, [shapes[i] for i in terms], None, pending, forms)
            parts: Enqueued = ()
            for rows in self._inputs.cut(x.shape[0]):
                part, *outs = (view.rows(rows.start, rows.stop) for view in (x, *places))
                verdict = asked.verdict(pending, rows.start)
                parts += self._losses.targets_on_device(part, terms, outs, verdict, singly=singly)
            asked.lead(foreign)
        return found, parts

    def _begun(self, foreign: ArrayInterop, asked: RunOptions) -> tuple[AsyncStatus, bool]:
        """What runs leave to say, and whether the stream captures. Raises InputError."""
        self._pending = self._pending or AsyncStatus(self.device)
        return self._pending, asked.checked(foreign, self._pending)

    def _loss(
        self, images: Any, targets: Sequence[Any], asked: RunOptions, *, gradient: bool, mean: bool
    ) -> tuple[Any, ...]:
        if is_on_device(images):
            return self._loss_on_device(images, targets, asked, gradient=gradient, mean=mean)[0]
        refuse_on_host(asked.stream, asked.form, asked.out, asked.wait)
        x = self._inputs.images(images)
        given = self._inputs.targets(targets, x.shape)
        with self._lock:
            self._check_pending()
            parts = [
                self._losses.loss(x[rows], [y[rows] for y in given], gradient=gradient, share=len(x) if mean else 1)
                for rows in self._inputs.cut(len(x))
            ]
        loss, *others = _joined(parts, (x.shape[:1], x.shape)[: 1 + gradient])
        return loss, *(self.graph.input.to_file(array) for array in others)

    def _loss_on_device(
        self, images: object, targets: Sequence[object], asked: RunOptions, *, gradient: bool, mean: bool
    ) -> tuple[tuple[Any, ...], Enqueued]:
        """The results, and what has been enqueued for them."""
        if not all(map(is_on_device, require_several(targets))):
            raise InputError("the images lie on a GPU, and a target on the host; use targets(...) of images there")
        with self._lock:
            x, foreign = self._view(images, asked)
            pending, singly = self._begun(foreign, asked)
            waits = asked.stream is None
            given = [view_of(target, foreign, asked.stream, what="a target", waits=waits) for target in targets]
            spread = self._inputs.targets_on_device(given, x.shape)
            places, found = asked.outputs(foreign, (x.shape[:1], x.shape)[: 1 + gradient], None, pending)
            parts: Enqueued = ()
            for rows in self._inputs.cut(x.shape[0]):
                part, *others = (view.rows(rows.start, rows.stop) for view in (x, *spread))
                outs = [place.rows(rows.start, rows.stop) for place in places]
                verdict, share = asked.verdict(pending, rows.start), x.shape[0] if mean else 1
                parts += self._losses.loss_on_device(part, others, outs, verdict, singly=singly, share=share)
            asked.lead(foreign)
        return found, parts

    def _compared_on_device(
        self, x: object, y: object, asked: RunOptions, gradients: int, *, mean: bool
    ) -> tuple[tuple[Any, ...], Enqueued]:
        """The results, and what has been enqueued for them."""
        if not is_on_device(y):
            raise InputError("x lies on a GPU, and y on the host; bring both to one device")
        with self._lock:
            first, foreign = self._view(x, asked)
            second = view_of(y, foreign, asked.stream, what="y", waits=asked.stream is None)
            self._inputs.check(second.element_type, second.shape)
            self._inputs.check_pair(first.shape, second.shape)
            pending, singly = self._begun(foreign, asked)
            shapes = (first.shape[:1], first.shape, first.shape)[: 1 + gradients]
            places, found = asked.outputs(foreign, shapes, None, pending)
            parts: Enqueued = ()
            for rows in self._inputs.cut(first.shape[0]):
                part, other, *outs = (view.rows(rows.start, rows.stop) for view in (first, second, *places))
                verdict, share = asked.verdict(pending, rows.start), first.shape[0] if mean else 1
                parts += self._losses.compare_on_device(part, other, outs, verdict, singly=singly, share=share)
            asked.lead(foreign)
        return found, parts

    def _view(self, images: object, asked: RunOptions) -> tuple[StridedView, ArrayInterop]:
        """Images on the device, and what knows others' arrays there. Raises InputError."""
        self._require_open()
        foreign = self.device.foreign
        if foreign is None:
            raise InputError("the images lie on a GPU, this engine runs on the CPU; build it with device='cuda'")
        if self.graph.input.channels_last:
            raise InputError("a model with its channels last has its losses on the host; give arrays there")
        x = view_of(images, foreign, asked.stream, what="the images")
        self._inputs.check(x.element_type, x.shape)
        return x, foreign

    def _stored(self, shape: Shape) -> tuple[DType, ...]:
        """What targets of images of this shape are made of; of the batches that are computed."""
        self._inputs.target_shapes(shape)
        return self._losses.stored((self._inputs.rows(shape[0]), *shape[1:]))

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

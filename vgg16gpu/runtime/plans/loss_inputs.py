"""What a loss takes: images, the targets that go with them, and how many images are computed at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.input_size import require_image_size
from vgg16gpu.compiler.graph.loss import target_graph, target_shape
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.op_kernels.general.feature_loss import target_elements
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import DType
from vgg16gpu.runtime.arrays import as_array
from vgg16gpu.runtime.on_device.graph_cache import can_be_read
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.plans.losses import FeatureComparison, LossKey, LossKind
from vgg16gpu.runtime.plans.program_cache import ProgramCache

_KEPT: Final = 256  # shapes of images


class LossInputs:
    """What images and targets a loss takes. One thread at a time.

    compared: what is compared. batch: the most images that are computed at once. programs: of the loss.
    """

    def __init__(
        self, compared: FeatureComparison, precision: str, batch: int, programs: ProgramCache[LossKey]
    ) -> None:
        self._compared, self._graph, self._batch = compared, compared.graph, batch
        self._readable = tuple(
            (DType.F32,) if term.kind == "gram" else target_elements(precision) for term in compared.terms
        )
        stored = None if precision == "fp32" else partial(_stored_elements, compared, self._readable, programs)
        kept = lru_cache(maxsize=_KEPT)  # to find these takes as long as to enqueue a run
        self._elements = stored and kept(stored)
        self._check_images, self._shapes = kept(partial(_check, self._graph)), kept(partial(_target_shapes, compared))

    def rows(self, count: int) -> int:
        """How many images are computed at once, of so many: as many as the file says, if it says so; one at least."""
        fixed = self._graph.input.shape[0]
        return min(max(count, 1), self._batch) if fixed is None else fixed

    def cut(self, count: int) -> Iterator[tuple[int, int]]:
        """Return (first image, images) of each batch of `count` images; nothing of none."""
        step = self.rows(count)
        return ((first, min(step, count - first)) for first in range(0, count, step))

    def arrays(self, kind: LossKind, inputs: Sequence[Any]) -> list[Array]:
        """Return the arrays of a run on the host, one target for all images repeated. Raises InputError."""
        x = self.images(inputs[0])
        if kind == "loss":
            return [x, *self.targets(inputs[1:], x.shape)]
        others = list(map(self.images, inputs[1:]))
        for other in others:
            self.check_pair(x.shape, other.shape)
        return [x, *others]

    def images(self, images: Any) -> Array:
        """Images on the host as the kernels read them. Raises as `check`."""
        given = as_array(images, "the batch of images", "float32")
        x = self._graph.input.from_file(given) if given.ndim == 4 else given
        self.check(given.dtype.name, x.shape)
        return np.ascontiguousarray(x, np.float32)

    def check(self, element_type: str, shape: Shape) -> None:
        """Raise InputError for what are no images, and for a size that the model does not fit."""
        self._check_images(element_type, shape)

    def check_pair(self, shape: Shape, other: Shape) -> None:
        """Raise InputError for images that are compared with others of another shape."""
        if shape != other:
            raise InputError(f"x has shape {shape}, and y {other}; give as many images, of the same size")

    def targets(self, targets: Sequence[Any], shape: Shape) -> list[Array]:
        """Targets on the host, those of one image for all images of this shape (N, C, H, W). Raises InputError."""
        arrays = [as_array(target, "a target", "float32") for target in targets]
        shapes = self.target_shapes(shape)
        self._compared.check_targets([(array.dtype.name, array.shape) for array in arrays], shapes, shape)
        for array, term in zip(arrays, self._compared.terms, strict=True):
            if term.kind == "gram" and not np.array_equal(array, array.swapaxes(1, 2), equal_nan=True):
                name = self._compared.names[term.output]
                raise InputError(f"the target of '{name}' is no Gram matrix: it is not symmetric; use targets(...)")
        return [
            np.broadcast_to(array.astype(np.float32, copy=False), wanted)
            for array, wanted in zip(arrays, shapes, strict=True)
        ]

    def targets_on_device(self, targets: Sequence[StridedView], shape: Shape) -> list[StridedView]:
        """As `targets`, of those that lie on the device; nothing is copied. Raises InputError."""
        shapes = self.target_shapes(shape)
        self._compared.check_targets([(y.element_type, y.shape) for y in targets], shapes, shape)
        return [_repeated(y, wanted[0]) for y, wanted in zip(targets, shapes, strict=True)]

    def target_shapes(self, shape: Shape) -> list[Shape]:
        """Return the shapes of the targets of all terms, for images of this shape. Raises as `check`."""
        self.check("float32", shape)
        return self._shapes(shape)

    def target_elements(self, shape: Shape) -> tuple[DType, ...]:
        """Return what targets of images of this shape are best made of: a map of what the loss stores its features as.

        Fewer bytes then hold what the features themselves can be told apart by. Raises ModelError, and as `check`.
        """
        self.check("float32", shape)
        if self._elements is None:
            return (DType.F32,) * len(self._readable)
        return self._elements((self.rows(shape[0]), *shape[1:]))

    def readable(self, targets: Sequence[StridedView]) -> tuple[DType, ...] | None:
        """Return what targets are made of, if the kernels can read all of them where they are; else None."""
        can_be = all(
            target.element in elements and can_be_read(target)
            for target, elements in zip(targets, self._readable, strict=True)
        )
        return tuple(target.element for target in targets) if can_be else None


def _check(graph: Graph, element_type: str, shape: Shape) -> None:
    """Raise InputError for what are no images of the graph of features."""
    item = graph.input
    channels = item.shape[1]
    if "float" not in element_type or len(shape) != 4 or channels not in (None, shape[1]):
        wanted = f"N, H, W, {channels or 'C'}" if item.channels_last else f"N, {channels or 'C'}, H, W"
        raise InputError(
            f"the images are {element_type} {shape}; give float32 ({wanted}), normalised as the model wants it"
        )
    if item.shape[0] is not None and shape[0] % item.shape[0]:
        raise InputError(f"the model takes {item.shape[0]} images at a time, and {shape[0]} are given")
    require_image_size(graph, shape[2], shape[3])


def _target_shapes(compared: FeatureComparison, shape: Shape) -> list[Shape]:
    """Return the shapes of the targets of all terms."""
    graph = target_graph(compared.graph, compared.terms, shape)
    shapes = infer_shapes(graph, shape)
    return [target_shape(shapes[name]) for name in graph.outputs]


def _stored_elements(
    compared: FeatureComparison,
    readable: Sequence[Sequence[DType]],
    programs: ProgramCache[LossKey],
    shape: Shape,
) -> tuple[DType, ...]:
    """Return what the loss of a batch of this shape stores the features of each term as, or float32."""
    _, plan = programs.planned(LossKey("loss", shape, gradients=1))
    elements = {value.name: value.element for value in plan.programs[0].values}
    features = [compared.graph.outputs[term.output] for term in compared.terms]
    return tuple(
        elements[name] if elements.get(name) in accepted else DType.F32
        for name, accepted in zip(features, readable, strict=True)
    )


def as_map(target: StridedView, shape: Shape) -> StridedView:
    """Return a target (N, H*W, C) as the map of this shape that it holds; a Gram matrix as it is."""
    if len(shape) != 4:
        return target
    rows, pixels, channels = target.strides
    strides = (rows, channels, shape[3] * pixels, pixels)
    return replace(target, shape=(target.shape[0], *shape[1:]), strides=strides)


def as_target(array: Array) -> Array:
    """Return a map (N, C, H, W) as a target (N, H*W, C); a Gram matrix as it is."""
    if array.ndim != 4:
        return array
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)).reshape(array.shape[0], -1, array.shape[1])


def require_several(targets: Any) -> Sequence[Any]:
    """Return the targets. Raises InputError for what is not several: nothing, a number, one array."""
    if isinstance(targets, list | tuple):
        return targets
    raise InputError(f"targets is {shown(targets)}; give what targets(...) gave, a tuple of arrays")


def _repeated(view: StridedView, count: int) -> StridedView:
    """One row for all, without a copy."""
    if view.shape[0] == count:
        return view
    return replace(view, shape=(count, *view.shape[1:]), strides=(0, *view.strides[1:]))

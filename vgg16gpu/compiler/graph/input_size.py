"""The input shape of a run: what the model leaves open is filled from the request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import (
    BatchNorm,
    Clip,
    Conv,
    FakeQuantize,
    Gemm,
    GeneralConv,
    Identity,
    Pad,
    Pool,
    Relu,
    Shape,
)
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.shown import shown

USUAL_SIZE = 224  # pixels; what every published VGG was trained on
LARGEST_SIDE = (1 << 31) - 1  # of an image: what shapes in files and kernels have room for
SEARCHED_SIZES = (USUAL_SIZE, *range(32, 513), *range(1, 32))


def resolve_input_shape(graph: Graph, batch: int, size: int | tuple[int, int] | None = None) -> Shape:
    """Return the input shape of a run of `batch` images, (N, C, H, W) or (N, F).

    `size` (pixels: one number, or height and width) fills an open image size; without it the usual 224 is tried first,
    then 32 to 512, then smaller sizes. Raises ModelError when the model fixes another batch or size, or when no size
    fits.
    """
    declared = graph.input.shape
    if declared[0] not in (None, batch):
        raise ModelError(
            f"the model's batch is fixed to {declared[0]}, {batch} is asked for; "
            f"use batch {declared[0]} or export the model with a dynamic batch"
        )
    head = batch, _known_channels(graph)
    if len(declared) == 2:
        if size is not None:
            raise ModelError(f"input '{graph.input.name}' is (N, F), it has no image size; leave size out")
        infer_shapes(graph, head)
        return head
    if size is None:
        return _first_fit(graph, head)
    height, width = size if isinstance(size, tuple) else (size, size)
    _check_size(graph, height, width)
    return _checked(graph, (*head, height, width))


def require_image_size(graph: Graph, height: int, width: int) -> None:
    """Raise InputError for images of a size, in pixels, that a graph does not fit: the images are at fault there."""
    try:
        resolve_input_shape(graph, graph.input.shape[0] or 1, (height, width))
    except ModelError as error:
        raise InputError(str(error)) from error


def _check_size(graph: Graph, height: int, width: int) -> None:
    if max(height, width) > LARGEST_SIDE:
        raise ModelError(f"an image size of {shown((height, width))} is too large; give at most {LARGEST_SIDE} pixels")
    rows, columns = open_shape(graph)[2:]
    if rows not in (None, height) or columns not in (None, width):
        raise ModelError(
            f"the model's image size is fixed to {rows or 'any'}x{columns or 'any'} (height x width), "
            f"{height}x{width} is asked for; leave size out or export the model for that size"
        )
    if min(height, width) < 1:
        hint = _fitting_sizes(graph) or "give positive numbers of pixels"
        raise ModelError(f"an image size of {height}x{width} is not possible; {hint}")


def _first_fit(graph: Graph, head: Shape) -> Shape:
    """Return the input shape for the first size that fits. Raises the first one's error if none fits."""
    for shape in _candidates(graph, head):
        if fits(graph, shape):
            return shape
    first = next(_candidates(graph, head))
    infer_shapes(graph, first)
    return first


def _checked(graph: Graph, shape: Shape) -> Shape:
    try:
        infer_shapes(graph, shape)
    except ModelError as error:
        fitting = _fitting_sizes(graph)
        hint = f"; {fitting}, or give outputs=[...] that end before it" if fitting else ""
        raise ModelError(f"image size {shape[2]}x{shape[3]} (height x width) does not fit: {error}{hint}") from error
    return shape


def _fitting_sizes(graph: Graph) -> str:
    """Return which sizes of images a graph fits, as the end of a message; "" where there are none."""
    head = graph.input.shape[0] or 1, _known_channels(graph)
    found = next((shape for shape in _candidates(graph, head) if fits(graph, shape)), None)
    if found is None:
        return ""
    return f"{_open_sizes(graph) if takes_any_size(graph) else f'{found[2]}x{found[3]}'} would fit"


def open_shape(graph: Graph) -> tuple[int | None, ...]:
    """Return the shape that the input must have, None for open dimensions: the file's, but for a size that is free."""
    shape = graph.input.shape
    return (*shape[:2], None, None) if graph.input.is_free else shape


def takes_any_size(graph: Graph) -> bool:
    """Return whether images of many sizes can be computed: the size is open, and much larger ones fit, too."""
    if not graph.input.is_open_in_size:
        return False
    batch, channels, height, width = _first_fit(graph, (graph.input.shape[0] or 1, _known_channels(graph)))
    rows, columns = open_shape(graph)[2:]
    return fits(graph, (batch, channels, rows or 2 * height, columns or 2 * width))


def size_note(graph: Graph) -> str:
    """Describe which image sizes a graph accepts, and why no others; "" for rows of numbers."""
    if len(graph.input.shape) != 4:
        return ""
    if not takes_any_size(graph):
        left_open = "left open in the file, but " if graph.input.is_open_in_size else ""
        return f"{left_open}{fixed_size(graph)}"
    return f"open: {_open_sizes(graph)}"


def _open_sizes(graph: Graph) -> str:
    """Return which heights and widths a graph takes that takes images of many sizes."""
    (rows, columns), (height, width) = open_shape(graph)[2:], least_sides(graph)
    return f"height {rows or f'from {height} on'}, width {columns or f'from {width} on'}"


def least_sides(graph: Graph) -> tuple[int, int]:
    """Return the least height and width, in pixels, of images that a graph takes; each beside a usual other one.

    Raises ModelError where no size fits.
    """
    batch, channels, height, width = _first_fit(graph, (graph.input.shape[0] or 1, _known_channels(graph)))
    if not takes_any_size(graph):
        return height, width
    rows, columns = open_shape(graph)[2:]
    sides = sorted(SEARCHED_SIZES)
    return (
        rows or next(side for side in sides if fits(graph, (batch, channels, side, width))),
        columns or next(side for side in sides if fits(graph, (batch, channels, height, side))),
    )


def fixed_size(graph: Graph) -> str:
    """Describe what fixes the image size of a graph, and the remedy, as messages say it.

    The cause is the first op that larger images do not fit (a Gemm, say), else the file's declaration.
    """
    batch, channels, height, width = _first_fit(graph, (graph.input.shape[0] or 1, _known_channels(graph)))
    larger = batch, channels, 2 * height + 1, 3 * width + 2
    for count, op in enumerate(graph.ops, start=1):
        if not fits(replace(graph, ops=graph.ops[:count], outputs=(op.y,)), larger):
            takes = f"takes {op.weight.shape[1]} numbers, which" if isinstance(op, Gemm) else "takes what"
            return (
                f"{type(op).__name__} '{op.y}' {takes} {height}x{width} gives; give outputs=[...] that end before it, "
                f"or {height}x{width} images"
            )
    return f"the file fixes {height}x{width} (height x width); give outputs=[...], or export it with sizes left open"


def _candidates(graph: Graph, head: Shape) -> Iterator[Shape]:
    height, width = graph.input.shape[2:]
    if height and width:
        yield (*head, height, width)
        return
    for size in SEARCHED_SIZES:
        yield (*head, height or size, width or size)


def fits(graph: Graph, shape: Shape) -> bool:
    """Return whether all ops of a graph can be computed for an input of this shape."""
    try:
        infer_shapes(graph, shape)
    except ModelError:
        return False
    return True


def _known_channels(graph: Graph) -> int:
    return graph.input.shape[1] or _channels(graph)


def _channels(graph: Graph) -> int:
    """Return the channels (or features) of an input that leaves them open, by its first weights. Raises ModelError."""
    same = {graph.input.name}  # values with as many channels as the input
    for op in graph.ops:
        if op.x in same:
            match op:
                case Conv() | Gemm(flattens=False):
                    return int(op.weight.shape[1])
                case BatchNorm():
                    return int(op.scale.size)
                case GeneralConv() if op.others[0] in graph.constants:
                    return int(graph.constants[op.others[0]].shape[1] * op.group)
                case Pool() | Relu() | Identity() | Pad() | Clip() | FakeQuantize():
                    same.add(op.y)
    raise ModelError(
        f"input '{graph.input.name}' leaves its channels open and no weight tells their number; "
        "export the model with them fixed"
    )

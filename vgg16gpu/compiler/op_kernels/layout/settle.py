"""The verdict on a run that nobody waits for: the Python side of kernels/layout/settle.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.op_kernels.base import BLOCK, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar, StatusBlock, StridedIndexer
from vgg16gpu.program.types import Pointer, TensorFormat

KERNEL: Final = Kernel("settle.cu", "settle")
WORDS: Final = 4  # of `found`
_OUTPUTS: Final = 4  # of one launch
_BLOCKS: Final = 32  # per image


class RunOutput(NamedTuple):
    """An output where a run left it. is_whole: it has no row for each image."""

    pointer: Pointer
    shape: Shape
    form: TensorFormat
    is_whole: bool


def settle(
    control: StatusBlock,
    found: Pointer,
    outputs: Sequence[RunOutput],
    images: int,
    first: int,
    *,
    allows_nonfinite: bool,
    guard: Pointer | None = None,
) -> list[KernelLaunch]:
    """Return launches that note in `found` what the control words say of `images` images from `first` on.

    The rows of images without a valid result become NaN. guard: where to write which images need the second pass that
    follows; images with lost values do, instead.
    """
    return [
        _step(
            control,
            found,
            outputs[start : start + _OUTPUTS],
            *(images, first),
            guard or found,
            *(int(allows_nonfinite), _follows(guard, start)),
        )
        for start in range(0, len(outputs), _OUTPUTS)
    ]


def _follows(guard: Pointer | None, start: int) -> int:
    """Return 0 without a second pass, 2 if one follows and this launch names its images, 1 otherwise."""
    if guard is None:
        return 0
    return 2 if start == 0 else 1


def _step(
    control: StatusBlock,
    found: Pointer,
    outputs: Sequence[RunOutput],
    images: int,
    first: int,
    guard: Pointer,
    allows_nonfinite: int,
    follows: int,
) -> KernelLaunch:
    missing = _OUTPUTS - len(outputs)
    places = [output.pointer for output in outputs] + [found] * missing
    return KernelLaunch(
        kernel=KERNEL,
        grid=Dim3(_BLOCKS, images),
        block=Dim3(BLOCK),
        arguments=(
            *(found, guard, control.error, control.status, control.maxima(0), *places),
            StridedIndexer(tuple(map(_rows, outputs))),
            *scalars(control.batch, len(control.watched), first, allows_nonfinite, follows),
            Scalar(control.lowest, "f"),
        ),
        label="verdict",
        programmatic=True,
    )


def _rows(output: RunOutput) -> tuple[int, int, int, int]:
    """Return rows, columns, pitch and bytes of an element."""
    (images, *inner), form = output.shape or (1,), output.form
    images = images if output.is_whole else 1
    if form.pitch is None:
        values = images * math.prod(inner)
        return 1, values, values, form.element.nbytes
    return images * math.prod(inner[1:]), inner[0], form.pitch, form.element.nbytes

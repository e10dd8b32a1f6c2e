"""What the variants are compared with: cuDNN, and numpy on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from vgg16gpu.bench.measure.timing import summarise, wall
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.measure.cudnn.base import MissingLibraryError
from vgg16gpu_lab.measure.cudnn.library import measure_cudnn
from vgg16gpu_lab.measure.cudnn.three import measure_three
from vgg16gpu_lab.measure.measure import Effort, Flush, Measurement, Status, Times
from vgg16gpu_lab.reference import Reference

CUDNN: Final = "cudnn"
CUDNN_TF32: Final = "cudnn_tf32"  # products rounded to TF32, as libraries do unless told otherwise
CUDNN_THREE: Final = "cudnn_three"  # three calls, each with a handle of its own: one time
NUMPY: Final = "numpy"

BASELINES: Final = (CUDNN, CUDNN_TF32, CUDNN_THREE, NUMPY)

Measure: TypeAlias = Callable[[Device, Reference, Effort, Flush | None], Measurement]


def measure_baseline(
    name: str, device: Device, reference: Reference, effort: Effort, flush: Flush | None
) -> Measurement:
    """Measure a baseline; its status says so where there is none. Raises what `measure_cudnn` does otherwise."""
    if reference.problem.bias:
        return Measurement(Status.REFUSED, f"{name} is asked for products alone: no bias")
    return _BASELINES[name](device, reference, effort, flush)


def _cudnn(
    device: Device,
    reference: Reference,
    effort: Effort,
    flush: Flush | None,
    *,
    tf32: bool = False,
    three: bool = False,
) -> Measurement:
    try:
        if three:
            found = measure_three(device, reference, effort, flush)
        else:
            found = measure_cudnn(device, reference, effort, flush, tf32=tf32)
    except MissingLibraryError as error:
        return Measurement(Status.MISSING, str(error))
    best = found.best
    if best is None:
        return Measurement(Status.REFUSED, found.reason, details=found.details)
    return Measurement(
        Status.RIGHT,
        error=best.error,
        tolerance=found.tolerance,
        checked=reference.extent,
        compute=best.times,
        details=found.details,
    )


def _numpy(_: Device, reference: Reference, effort: Effort, __: Flush | None) -> Measurement:
    """Measure the check itself, tap by tap in float64: what a host does without a kernel."""
    problem = reference.problem
    x, weight = reference.inputs
    one = wall(lambda: problem.expected(x, weight))
    count = 1 if one > effort.seconds else min(3, effort.samples)
    samples = [one, *(wall(lambda: problem.expected(x, weight)) for _ in range(count - 1))]
    return Measurement(Status.RIGHT, checked="it is the reference", error=0.0, compute=Times(summarise(samples)))


_BASELINES: Final[Mapping[str, Measure]] = {
    CUDNN: _cudnn,
    CUDNN_TF32: partial(_cudnn, tf32=True),
    CUDNN_THREE: partial(_cudnn, three=True),
    NUMPY: _numpy,
}

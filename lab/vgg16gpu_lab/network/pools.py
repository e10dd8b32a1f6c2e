"""The pools of a VGG, run: from minus infinity and from 0, on maps behind a ReLU and on any, against numpy's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.ops import Array, Pool
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error
from vgg16gpu.program.types import Arena, Pointer, aligned
from vgg16gpu_lab.experiment import Row
from vgg16gpu_lab.ladder.kernels import Placed, pool_from
from vgg16gpu_lab.ladder.layers import Site, sites
from vgg16gpu_lab.measure.measure import Measurement, Status
from vgg16gpu_lab.measure.outcome import outcome
from vgg16gpu_lab.network.rows import Place, Prepared

TABLE: Final = "pool"
METHODS: Final = {"pool_columns": False, "start_at_zero": True}  # whether the maximum begins at 0
BEHIND: Final = "after ReLU"
ANY: Final = "any sign"
NOTE: Final = "ours: rows and columns of what the kernel wrote; error: against numpy's pool without last row and column"
AS_EXPECTED: Final = "windows of negative numbers alone give 0, all others numpy's"

_VARIANT: Final = "pool_columns_f32"


def pool_rows(given: Prepared, place: Place) -> Iterator[Row]:
    """Yield a row for each pool, way to begin, and kind of map; its size is the pool's input's."""
    for site in sites(given.setting.graph, given.setting.shape):
        if isinstance(site.layer, Pool):
            x = np.random.default_rng(site.x_size).standard_normal(site.x_shape, np.float32)
            for method, zero in METHODS.items():
                for maps, numbers in ((BEHIND, np.maximum(x, np.float32(0))), (ANY, x)):
                    side, found = _tried(given.setting.device, site, numbers, zero=zero)
                    key = place.seed, place.table, str(site.x_shape[1]), method, maps
                    note = NOTE if not found.error else f"{AS_EXPECTED}; {NOTE}"
                    yield Row(*key, side, unit="ratio", variant=_VARIANT, measurement=found, note=note)


def run_pool(device: Device, site: Site, x: Array, *, zero: bool) -> Array:
    """Return all that the kernel wrote: numbers, in order, whatever their place in memory."""
    nbytes = aligned(x.nbytes)
    base = device.allocate(2 * nbytes)
    try:
        room = np.full(nbytes // 4, np.nan, np.float32)  # more than the output needs
        device.copy_in(base, room)
        device.copy_in(base + nbytes, np.ascontiguousarray(x))
        y, given = (Pointer(Arena.ACTIVATIONS, offset) for offset in (0, nbytes))
        step = pool_from(Placed(site, given, y), zero=zero)
        device.build([step.kernel])
        launch = device.bind([step], {Arena.ACTIVATIONS: base})
        try:
            launch()
            device.copy_out(room, base)
            device.synchronize()
        finally:
            device.unbind(launch)
    finally:
        device.free(base)
    written: Array = room[~np.isnan(room)]
    return written


def _tried(device: Device, site: Site, x: Array, *, zero: bool) -> tuple[float | None, Measurement]:
    """Return the rows of the output, and how it differs from numpy's; from 0 it may only where that is below."""
    try:
        written = run_pool(device, site, x, zero=zero)
    except Error as error:
        return None, outcome(error)
    channels = x.shape[0]
    side = math.isqrt(written.size // channels)
    right = _numpys(x)
    if written.size != channels * side**2 or right.shape[1] != side:
        reason = f"{written.size} numbers were written, not {right.size}"
        return None, Measurement(Status.WRONG, reason)
    found = written.reshape(right.shape)
    if not np.array_equal(found, np.maximum(right, 0) if zero else right):
        return None, Measurement(Status.WRONG, "other numbers than numpy's", layer_error(found, right))
    return float(side), Measurement(Status.RIGHT, error=layer_error(found, right), checked="all numbers, for equality")


def _numpys(x: Array) -> Array:
    """Return (C, rows, columns) maxima of 2x2 windows; an odd last row or column is dropped."""
    channels, height, width = x.shape
    rows, columns = height // 2, width // 2
    windows = x[:, : 2 * rows, : 2 * columns].reshape(channels, rows, 2, columns, 2)
    largest: Array = windows.max(axis=(2, 4))
    return largest

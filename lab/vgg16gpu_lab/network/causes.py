"""S5's three suspicions, each there or removed: work of the host, one thread that adds, a grid of one dimension.

Two kernels have it all, so that every cause is removed alone and beside the others: eight versions, the first of
which is version B.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu_lab.ladder import kernels
from vgg16gpu_lab.ladder.kernels import Technique
from vgg16gpu_lab.ladder.layers import sites
from vgg16gpu_lab.ladder.net import DeviceNet, HostNet
from vgg16gpu_lab.ladder.rung import Net, Setting
from vgg16gpu_lab.network.rows import Version

TABLE: Final = "causes"
ITERATIONS: Final = 5
HOST_NOTE: Final = "weights stay on the GPU (left open there); what the host does is numpy's (there loops of C++)"

_PLACES: Final = {"host": HOST_NOTE, "device": "padding by a test in the kernel, bias and ReLU in a kernel"}
_SUMS: Final = {
    "serial": (kernels.conv_serial, kernels.gemm_serial, "thread 0 adds"),
    "tree": (kernels.conv_tree, kernels.gemm_tree, "a tree of additions"),
}
_GRIDS: Final = {
    "1d": (False, "a block for each output channel"),
    "2d": (True, "a block for each row of it, whose threads are input channels as before"),
}


def causes() -> tuple[Version, ...]:
    """Return one version for each combination: "host serial 1d" and so on."""
    return tuple(_version(*names) for names in product(_PLACES, _SUMS, _GRIDS))


def unlike_published(setting: Setting) -> str:
    """Return which convolutions do not fit into the published shared array; "" for a VGG."""
    found = sites(setting.graph, setting.shape)
    others = [site.layer.y for site in found if isinstance(site.layer, Conv) and not kernels.fits_published(site)]
    reason = "not 3x3 or over 512 channels: shared memory as large as needed, not [512][3][3]"
    return f"{', '.join(others)}: {reason}" if others else ""


def _version(place: str, sums: str, grid: str) -> Version:
    conv, gemm, added = _SUMS[sums]
    rows, blocks = _GRIDS[grid]
    technique = Technique(partial(conv, rows=rows), gemm, kernels.pool_columns)
    name = f"{place} {sums} {grid}"
    note = "; ".join((added, blocks, _PLACES[place]))
    opened = partial(_open, place, technique)
    return Version(name, (ITERATIONS,), opened, name, note, is_named=False, has_roof=False)


def _open(place: str, technique: Technique, setting: Setting) -> Net:
    made = HostNet if place == "host" else DeviceNet
    return made(setting.graph, setting.shape, setting.device, technique)

"""The launches of the ladder's own kernels (kernels/ladder/*.cu), for one image in NCHW, float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm
from vgg16gpu.compiler.graph.window import NO_PADS, Window
from vgg16gpu.compiler.op_kernels.base import ceil_div, linear, scalars
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import DeviceFacts, Pointer
from vgg16gpu_lab.ladder.layers import Site

PARTIALS = "ladder/channel_partials.cu"
SERIAL = "ladder/channel_serial.cu"
TREE = "ladder/channel_tree.cu"
COLUMNS = "ladder/pool_columns.cu"
BIAS_RELU = "ladder/bias_relu.cu"
PIXELS = "ladder/pixels.cu"
SHARED = "ladder/conv_shared.cu"
REGISTERS = "ladder/conv_registers.cu"

THREADS: Final = 512  # of a block of the gemms, and most of a convolution's with a thread for each input channel
FIXED_KERNEL: Final = (3, 3)  # for whose products, of THREADS channels, the published sum has its room
MAX_COLUMNS: Final = 1024  # threads of a pool
MAX_ROWS: Final = 65535  # of a grid
TILE: Final = 16  # rows and columns of a block with a thread for each output
VECTOR: Final = 4  # floats that one instruction loads
TILE_C: Final = 8  # channels in shared memory at a time
TILE_OC = TILE_PX = 64  # of the register tile
REGISTER_THREADS: Final = 128


@dataclass(frozen=True)
class Placed:
    """A layer and where its arrays lie; a pool has no weight."""

    site: Site
    x: Pointer
    y: Pointer
    weight: Pointer | None = None

    @property
    def arguments(self) -> tuple[Pointer, ...]:
        """The pointers, in the order of every kernel."""
        return (self.y, self.x) if self.weight is None else (self.y, self.x, self.weight)


Maker: TypeAlias = Callable[[Placed], KernelLaunch]


@dataclass(frozen=True)
class Technique:
    """How the layers of a rung are computed.

    `addends`: numbers that are left to add for each output of a layer. `weight`: a layer's weights as its kernel takes
    them, None for a pool.
    """

    conv: Maker
    gemm: Maker
    pool: Maker
    addends: Callable[[Site], int] = lambda _: 1
    weight: Callable[[Site], Array | None] = lambda site: site.weight

    def step(self, placed: Placed, facts: DeviceFacts) -> KernelLaunch:
        """Return the launch of a layer, without bias and ReLU. Raises ModelError if shared memory is too small."""
        layer = placed.site.layer
        maker = self.conv if isinstance(layer, Conv) else self.gemm if isinstance(layer, Gemm) else self.pool
        step = maker(placed)
        if step.shared > facts.shared_nbytes:
            raise ModelError(
                f"{type(layer).__name__} '{layer.y}': {step.kernel.name} needs {step.shared} bytes of shared memory, a "
                f"block of {facts.name} has {facts.shared_nbytes}"
            )
        return step


def padded(site: Site) -> Site:
    """Return a convolution after its map has been padded."""
    assert isinstance(site.layer, Conv)
    channels, height, width = site.x_shape
    pads = site.window.pads
    shape = channels, height + pads.top + pads.bottom, width + pads.left + pads.right
    return replace(site, layer=replace(site.layer, window=replace(site.window, pads=NO_PADS)), x_shape=shape)


# Convolutions


def conv_partials(placed: Placed) -> KernelLaunch:
    """Return one launch: a block an output channel, a thread an input channel; the host adds. x: a padded map."""
    site = placed.site
    return _step(
        placed,
        Kernel(PARTIALS, "conv_partials_f32"),
        Dim3(site.y_shape[0]),
        Dim3(min(site.x_shape[0], THREADS)),
        scalars(*site.x_shape, *site.y_shape[1:], *site.window.kernel, *site.window.strides),
    )


def conv_serial(placed: Placed, *, rows: bool = False) -> KernelLaunch:
    """Return the same, added by thread 0 in shared memory; with `rows` a block for each row of an output channel.

    The published array, 512 channels of 3x3, where the layer fits into it (`fits_published`), else one as large as is
    needed.
    """
    channels, taps = placed.site.x_shape[0], math.prod(placed.site.window.kernel)
    if fits_published(placed.site):
        return _channels_step(placed, SERIAL, "conv_serial_f32", (("FIXED", 1),), 0, rows=rows)
    # Whole vectors: ptxas loads what is left of the last four together, though it uses no more than there is.
    floats = ceil_div(channels * taps, VECTOR) * VECTOR
    return _channels_step(placed, SERIAL, "conv_serial_f32", (("FIXED", 0),), floats, rows=rows)


def conv_tree(placed: Placed, *, rows: bool = False) -> KernelLaunch:
    """Return the same, added as a tree."""
    return _channels_step(placed, TREE, "conv_tree_f32", (), min(placed.site.x_shape[0], THREADS), rows=rows)


def fits_published(site: Site) -> bool:
    """Return whether a convolution's products fit into the published __shared__ float shared[512][3][3]."""
    return site.window.kernel == FIXED_KERNEL and site.x_shape[0] <= THREADS


def conv_pixels(placed: Placed) -> KernelLaunch:
    """Return one launch: a thread for each output."""
    return _step(placed, Kernel(PIXELS, "conv_pixels_f32"), *_tiles(placed.site), _conv_dims(placed.site))


def conv_shared(placed: Placed) -> KernelLaunch:
    """Return one launch: a thread for each output; the block's part of the map in shared memory."""
    window = placed.site.window
    halo = [(TILE - 1) * stride + size for stride, size in zip(window.strides, window.kernel, strict=True)]
    floats = TILE_C * (math.prod(halo) + math.prod(window.kernel))
    kernel = Kernel(SHARED, "conv_shared_f32", (("TILE_C", TILE_C),))
    return _step(placed, kernel, *_tiles(placed.site), _conv_dims(placed.site), shared=4 * floats)


def conv_registers(placed: Placed) -> KernelLaunch:
    """Return one launch: 8 x 4 outputs a thread."""
    site = placed.site
    outputs, rows, columns = site.y_shape
    height, width = site.window.kernel
    return _step(
        placed,
        Kernel(REGISTERS, "conv_registers_f32", (("KERNEL_H", height), ("KERNEL_W", width))),
        Dim3(ceil_div(rows * columns, TILE_PX), ceil_div(outputs, TILE_OC)),
        Dim3(REGISTER_THREADS),
        scalars(*site.x_shape, *site.y_shape, *site.window.strides, *_origin(site.window)),
    )


# Fully connected layers: a block for each output


def gemm_partials(placed: Placed) -> KernelLaunch:
    """Return one launch: the host adds the threads' sums."""
    return _gemm_step(placed, Kernel(PARTIALS, "gemm_partials_f32"), 0)


def gemm_serial(placed: Placed) -> KernelLaunch:
    """Return one launch: the threads add up in shared memory, then thread 0 adds."""
    return _gemm_step(placed, Kernel(SERIAL, "gemm_serial_f32"), 0)


def gemm_tree(placed: Placed) -> KernelLaunch:
    """Return one launch: the sums are added as a tree."""
    return _gemm_step(placed, Kernel(TREE, "gemm_tree_f32"), 4 * THREADS)


# Pools, bias and ReLU


def pool_columns(placed: Placed) -> KernelLaunch:
    """Return one launch: a block a channel, a thread a column; behind a ReLU the maximum begins at 0, as published."""
    return pool_from(placed, zero=placed.site.follows_relu)


def pool_from(placed: Placed, *, zero: bool) -> KernelLaunch:
    """Return the same from 0, or from minus infinity."""
    channels, _, columns = placed.site.y_shape
    kernel = Kernel(COLUMNS, "pool_columns_f32", (("START_AT_ZERO", int(zero)),))
    return _step(placed, kernel, Dim3(channels), Dim3(min(columns, MAX_COLUMNS)), _pool_dims(placed.site))


def pool_pixels(placed: Placed) -> KernelLaunch:
    """Return one launch: a thread for each output."""
    return _step(placed, Kernel(PIXELS, "pool_pixels_f32"), *_tiles(placed.site), _pool_dims(placed.site))


def bias_relu(y: Pointer, bias: Pointer, site: Site) -> KernelLaunch:
    """Adds the bias and takes the ReLU where the sums lie."""
    pixels = site.y_size // site.y_shape[0]
    numbers = scalars(site.y_size, pixels, int(site.relu))
    return KernelLaunch(
        Kernel(BIAS_RELU, "bias_relu_f32"), *linear(site.y_size), (y, bias, *numbers), label="bias, ReLU"
    )


def partial_sums(site: Site) -> int:
    """Return the number of sums that the kernels of PARTIALS leave to the host."""
    return site.x_shape[0] if isinstance(site.layer, Conv) else THREADS if isinstance(site.layer, Gemm) else 1


def _step(
    placed: Placed, kernel: Kernel, grid: Dim3, block: Dim3, numbers: tuple[Scalar, ...], shared: int = 0
) -> KernelLaunch:
    return KernelLaunch(kernel, grid, block, (*placed.arguments, *numbers), shared, label=placed.site.layer.y)


def _channels_step(
    placed: Placed, source: str, name: str, defines: tuple[tuple[str, int], ...], floats: int, *, rows: bool
) -> KernelLaunch:
    """Return the launch, without a test of bounds where a map has no padding left."""
    site = placed.site
    kernel = Kernel(source, name, (*defines, ("PADDED", int(site.window.pads == NO_PADS))))
    grid = Dim3(site.y_shape[0], min(site.y_shape[1], MAX_ROWS) if rows else 1)
    return _step(placed, kernel, grid, Dim3(min(site.x_shape[0], THREADS)), _conv_dims(site), shared=4 * floats)


def _gemm_step(placed: Placed, kernel: Kernel, shared: int) -> KernelLaunch:
    site = placed.site
    return _step(placed, kernel, Dim3(site.y_size), Dim3(THREADS), scalars(site.x_size), shared)


def _tiles(site: Site) -> tuple[Dim3, Dim3]:
    channels, rows, columns = site.y_shape
    return Dim3(ceil_div(columns, TILE), ceil_div(rows, TILE), channels), Dim3(TILE, TILE)


def _origin(window: Window) -> tuple[int, int]:
    return window.pads.top, window.pads.left


def _conv_dims(site: Site) -> tuple[Scalar, ...]:
    window = site.window
    return scalars(*site.x_shape, *site.y_shape[1:], *window.kernel, *window.strides, *_origin(window))


def _pool_dims(site: Site) -> tuple[Scalar, ...]:
    return _conv_dims(site)[1:]

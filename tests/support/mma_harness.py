"""The mma kernels under test, on any device: trials that force them and their tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import pytest

from tests.support import workers
from tests.support.kernel_harness import Result
from tests.support.wgmma_harness import FullyCase, Trial, build_together
from vgg16gpu.compiler.op_kernels.conv import conv_mma, conv_mma_first
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import HaloTile
from vgg16gpu.compiler.op_kernels.gemm import gemm_mma, gemm_mma_pairs
from vgg16gpu.compiler.op_kernels.mma import MmaTile
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts, DType

STORED = {"fp16": DType.F16, "bf16": DType.BF16, "int8": DType.U8}  # behind a ReLU
PRECISIONS = tuple(STORED)


@dataclass(frozen=True, eq=False)
class MmaTrial(Trial):
    """A trial on the mma kernels; the tiles are forced on all convolutions, and on all fully connected layers.

    first_on: kinds of devices where conv_mma_first takes images in.
    """

    kernels: str = "mma"
    conv_tile: MmaTile | HaloTile | None = None
    gemm_tile: MmaTile | None = None
    first_on: tuple[str, ...] = conv_mma_first.KINDS

    def plan(self, facts: DeviceFacts, *batches: int, keep_values: bool = False) -> CompiledModel:
        """The plan for these batch sizes, or for the trial's own."""
        with self._forced():
            return super().plan(facts, *batches, keep_values=keep_values)

    def run(self, device: Device) -> Result:
        """Once, on guarded memory."""
        with self._forced():
            return super().run(device)

    @contextmanager
    def _forced(self) -> Iterator[None]:
        """While this lasts, the planner takes the trial's tiles, and the first layer's kernel as it says."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(conv_mma_first, "KINDS", self.first_on))
            tiles = ((conv_mma, self.conv_tile), (gemm_mma, self.gemm_tile), (gemm_mma_pairs, self.gemm_tile))
            for module, tile in tiles:
                if tile is not None:
                    stack.enter_context(mock.patch.object(module, "_tile", return_value=tile))
            yield


@dataclass(frozen=True)
class FullyMmaCase(FullyCase):
    """A chain of fully connected layers on the mma kernels."""

    tile: MmaTile | None = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self._plain}{tile_id(self.tile)}"

    def trial(self) -> MmaTrial:
        """The graph and its input. The tile changes nothing of them."""
        made = self._plain.trial()
        return MmaTrial(made.graph, made.x, made.precision, gemm_tile=self.tile)

    @property
    def _plain(self) -> FullyCase:
        return FullyCase(self.precision, self.shape, self.outputs, relu=self.relu, bias=self.bias)


def tile_id(tile: MmaTile | HaloTile | None) -> str:
    """For names of tests."""
    if tile is None:
        return ""
    sizes = (tile.out, tile.px, tile.k_nbytes) if isinstance(tile, MmaTile) else (tile.out, tile.rows, "rows")
    return "-tile" + "x".join(map(str, sizes))


def build_module(device: Device, session: pytest.Session, module: str) -> Device:
    """The device, with the kernels of all selected cases of a module: one after the other they would take minutes."""
    items = (item for item in session.items if isinstance(item, pytest.Function))
    build_together(device, [item for item in items if item.module.__name__ == module], *workers.place(session.config))
    return device

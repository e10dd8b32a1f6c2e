"""What tests of plans share: a narrow VGG whose file says 48 pixels, cut before anything needs that, and devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting_device import Counting
from tests.support.foreign_arrays import CpuForeign
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.zoo.generate import make_vgg

CUT = "relu3_1"


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The whole model, whose size a Gemm fixes."""
    path = Path(tmp_path_factory.mktemp("any size")) / "vgg16-48.onnx"
    options: dict[str, Any] = {"variant": "vgg16", "size": 48, "width": 8, "hidden": 64, "classes": 10}
    make_vgg(path, **options)
    return Model(path)


class Card(Counting):
    """A device that knows how many bytes are allocated on it, and may have but few free."""

    def __init__(self, device: Any, free: int | None = None) -> None:
        super().__init__(device)
        self.facts = device.facts if free is None else replace(device.facts, memory_free=free)
        self.foreign = CpuForeign(device)
        self._sizes: dict[int, int] = {}

    def allocate(self, nbytes: int) -> Any:
        self._sizes[address := super().allocate(nbytes)] = nbytes
        return address

    def free(self, address: int) -> None:
        self._sizes.pop(address)
        super().free(address)

    @property
    def nbytes(self) -> int:
        return sum(self._sizes.values())

    def close(self) -> None:
        """Stay open, for tests to look at what is left."""


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    with closing(CpuDevice()) as device:
        yield device

"""A cpu device for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vgg16gpu.devices.cpu.device import CpuDevice


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()

"""A kernel to launch, and a GPU without graphs."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.devices.cuda_device.harness import BLOCK, SOURCE
from vgg16gpu.devices.cuda import device as cuda
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.program.launch import Kernel


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels") / "axpb.cu"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def kernel(source):
    return Kernel(source, "axpb_f32", (("BLOCK", BLOCK),))


@pytest.fixture
def plain_gpu(monkeypatch):
    """A GPU without cuda-bindings: no graphs."""
    monkeypatch.setattr(cuda, "load_bindings", lambda: None)
    with closing(CudaDevice()) as device:
        assert not device.uses_graphs
        yield device

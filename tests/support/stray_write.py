"""A pool on two cards, one of which meets an illegal address in the middle; see test_pool_cards.py.

In a process of its own, which must have no CUDA context.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import faulty_card
from tests.support.cpu_kernels import fixture_kernel
from tests.support.narrow_vgg import images
from vgg16gpu import EnginePool
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import Dim3, KernelLaunch
from vgg16gpu.program.types import Arena, Pointer

NOWHERE = 16  # an address


def break_card(device: Device) -> None:
    """From now on everything on it fails."""
    kernel = fixture_kernel("stray", "stray.cu")
    device.build([kernel])
    step = KernelLaunch(kernel, Dim3(1), Dim3(32), (Pointer(Arena.ACTIVATIONS, 0),))
    device.bind([step], {Arena.ACTIVATIONS: NOWHERE})()


def main(model: str, mark: str) -> None:
    """Say how many rows are those of one card, what became of the cards, and what of CUDA is imported here."""
    x = images(60)
    patch = pytest.MonkeyPatch()
    with EnginePool(model, devices=["cuda:0", "cuda:1"], batch=2) as pool:
        wanted = pool.run(x)
    faulty_card.plant(patch, "stray", 4, Path(mark))
    with EnginePool(model, devices=["cuda:0", "cuda:1"], batch=2) as pool:
        found = np.concatenate(list(pool.stream(x[i : i + 2] for i in range(0, 60, 2))))
        same = (found == wanted).all(axis=1)
        print(int(same.sum()), sorted(bool(share.problem) for share in pool.shares))
    print(sorted({"pycuda", "cuda.bindings", "vgg16gpu.devices.cuda.device"} & set(sys.modules)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

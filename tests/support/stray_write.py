"""A pool on two cards, one of which meets an illegal address in the middle; see test_pool_cards.py.

In a process of its own: what a broken context takes with it is not known before.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.support.cpu_kernels import fixture_kernel
from tests.support.narrow_vgg import images
from vgg16gpu import Engine, EnginePool
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launches import Dim3, Step
from vgg16gpu.program.values import Arena, Pointer

NOWHERE = 16  # an address


def break_card(device: Device) -> None:
    """From now on everything on it fails."""
    kernel = fixture_kernel("stray", "stray.cu")
    device.build([kernel])
    step = Step(kernel, Dim3(1), Dim3(32), (Pointer(Arena.ACTIVATIONS, 0),))
    device.bind([step], {Arena.ACTIVATIONS: NOWHERE})()


def main(model: str) -> None:
    """Say how many rows are those of one card, and what became of the other card."""
    x = images(60)
    with Engine(model, device="cuda:0", batch=2) as engine:
        wanted = np.concatenate([engine.run(x[i : i + 2]) for i in range(0, 60, 2)])
    with EnginePool(model, devices=["cuda:0", "cuda:1"], batch=2) as pool:
        found = []
        for number, scores in enumerate(pool.stream(x[i : i + 2] for i in range(0, 60, 2))):
            found.append(scores)
            if number == 4:
                with pool.engines[1].turn():
                    break_card(pool.engines[1].device)
        same = (np.concatenate(found) == wanted).all(axis=1)
        print(int(same.sum()), [bool(share.problem) for share in pool.shares], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""lab/kernels/lab/wgmma_smallest.cu: on Hopper against float64; elsewhere what is launched, and why it is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lab.harness import check, problem_id
from tests.support.kernel_signatures import arguments
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.program.launch import KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu_lab.measure.trial import RefusedError, guarded
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import places
from vgg16gpu_lab.variants.wgmma_smallest import VARIANTS

(VARIANT,) = VARIANTS
PROBLEMS = (
    Problem(1, 64, 8, 8, 64, padding=1),
    Problem(2, 3, 9, 7, 5, padding=1),
    Problem(1, 65, 17, 30, 70, padding=1),
    Problem(1, 130, 20, 12, 129, kernel=1),
    Problem(2, 7, 13, 40, 9, kernel=5, padding=3),
    Problem(1, 4, 6, 6, 3, kernel=4),
)
FACTS = DeviceFacts("cuda", "made up", 132, (9, 0), 227 << 10, 1 << 37, 1 << 37, tensor_maps=True)


@pytest.mark.gpu
@pytest.mark.every_case
@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_id)
def test_on_hopper(hopper: CudaDevice, problem: Problem) -> None:
    check(hopper, VARIANT, problem)


def launched(problem: Problem) -> tuple[KernelLaunch, KernelLaunch]:
    found, _ = places(problem, VARIANT.workspace_nbytes(problem, {}))
    launches = VARIANT.launches(problem, {}, found)
    return launches.convert[0], launches.compute[0]


def boxes(values: np.ndarray, tensor: TmaDescriptor, start: tuple[int, ...]) -> np.ndarray:
    """What the copy engine brings of an array: zero where it is not; as rows of the innermost dimension."""
    offset = tensor.pointer.offset // 2
    shape = tensor.dimensions[::-1]
    view = values[offset : offset + int(np.prod(shape))].reshape(shape)
    assert [4 * stride for stride in tensor.strides] == [*view.strides[::-1][1:]]  # of float16, of float64
    box = np.zeros(tensor.box[::-1])
    for place in np.ndindex(box.shape):
        at = [first + step for first, step in zip(start[::-1], place, strict=True)]
        if all(0 <= one < most for one, most in zip(at, shape, strict=True)):
            box[place] = view[tuple(at)]
    return box.reshape(-1, tensor.box[0])


def pack(step: KernelLaunch, x: np.ndarray, weight: np.ndarray, memory: np.ndarray) -> None:
    """wgmma_smallest_pack, said with numpy."""
    given = arguments(step)
    n, c, h, w = x.shape
    o, _, k, _ = weight.shape
    pixels, filters = np.zeros((n, h, w, given["CP"])), np.zeros((k * k, given["OCP"], given["CP"]))
    pixels[..., :c] = x.transpose(0, 2, 3, 1)
    filters[:, :o, :c] = weight.transpose(2, 3, 0, 1).reshape(k * k, o, c)
    for name, values in (("pixels", pixels), ("filters", filters)):
        start = given[name].offset // 2
        memory[start : start + values.size] = values.ravel()


def test_what_the_boxes_hold_makes_the_answer() -> None:
    """The kernel's loop, said with numpy: the maps, the coordinates and the layout of the sums fit together."""
    problem = Problem(1, 3, 9, 3, 5, padding=1)
    packing, step = launched(problem)
    x, weight = problem.random()
    _, nbytes = places(problem, VARIANT.workspace_nbytes(problem, {}))
    memory = np.full(nbytes // 2, np.nan)
    pack(packing, x, weight, memory)
    given = arguments(step)
    y = np.full(problem.y_shape, np.nan)
    blocks = given["OCP"] // 64
    for bz, by, bx in np.ndindex(step.grid.z, step.grid.y, step.grid.x):
        n, oc, top, left = bz // blocks, bz % blocks * 64, by * 8, bx * 8
        sums = np.zeros((64, 64))
        for tap in range(problem.kernel**2):
            h, w = top + tap // problem.kernel - given["padding"], left + tap % problem.kernel - given["padding"]
            for c in range(0, given["CP"], 64):
                filters = boxes(memory, given["filters"], (c, tap * given["OCP"] + oc))
                sums += filters @ boxes(memory, given["pixels"], (c, w, h, n)).T
        tile = sums.reshape(64, 8, 8)[: given["OC"] - oc, : given["OH"] - top, : given["OW"] - left]
        y[n, oc : oc + tile.shape[0], top : top + tile.shape[1], left : left + tile.shape[2]] = tile
    assert np.allclose(y, problem.expected(x, weight), atol=1e-12)


def test_other_devices_are_refused() -> None:
    for facts, reason in (
        (DeviceFacts("cpu", "some processor", 2, (0, 0), 227 << 10, 1 << 30, 1 << 30), "not some processor"),
        (DeviceFacts("cuda", "an A100", 108, (8, 0), 227 << 10, 1 << 37, 1 << 37), "compute capability 9.x"),
        (DeviceFacts("cuda", "no bindings", 132, (9, 0), 227 << 10, 1 << 37, 1 << 37), "cuda-bindings"),
    ):
        with pytest.raises(RefusedError, match=reason):
            guarded(VARIANT, PROBLEMS[0], {}, facts)
    assert guarded(VARIANT, PROBLEMS[0], {}, FACTS)
    with pytest.raises(RefusedError, match="stride 1, not 2"):
        guarded(VARIANT, Problem(1, 3, 9, 9, 4, stride=2), {}, FACTS)

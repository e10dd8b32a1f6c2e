"""Wrong kernels of second passes that come behind runs that nobody waits for, and of who says for whom."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.kernels import test_guard
from tests.kernels.layout import test_settle
from tests.mutants.mutant import Edit, Mutant
from vgg16gpu.devices.base import Device


def nothing(device: Device, name: str) -> None:
    """Where nobody needs it."""
    with tempfile.TemporaryDirectory() as folder:
        test_guard.test_nothing_is_written_where_nobody_needs_it(device, Path(folder), name)


def needed(device: Device, *images: int) -> None:
    """Where these images do."""
    with tempfile.TemporaryDirectory() as folder:
        test_guard.test_images_that_need_it_have_the_bits_of_an_ordinary_run(device, Path(folder), "vgg", images)


def alone(device: Device, name: str) -> None:
    """By a convolution."""
    with tempfile.TemporaryDirectory() as folder:
        test_guard.test_a_convolution_computes_images_that_need_it_alone(device, Path(folder), name)


ALWAYS = Edit("  RETURN_UNLESS_NEEDED();\n", "")
VGG, GENERAL = partial(nothing, name="vgg"), partial(nothing, name="general")
lost: Any = {"maxima": {(1, 2): 65505.0, (0, 4): np.nan}, "count": 4}
LOST = partial(test_settle.test_who_needs_a_second_pass, given=lost, words=[0, 0, 0, 1], images=(), needed=(2,))
gave_up: Any = {"maxima": {(0, 3): 7.0}, "error": 6}
GAVE_UP = partial(
    test_settle.test_who_needs_a_second_pass, given=gave_up, words=[6, 0, 0, 0], images=(0, 1, 2, 3, 4), needed=()
)

MUTANTS = (
    Mutant("a convolution for nobody", "conv_general.cu", ALWAYS, GENERAL),
    Mutant("a product for nobody", "gemm_splitk.cu", ALWAYS, VGG),
    Mutant("a product of a CPU for nobody", "gemm_direct.cu", ALWAYS, partial(nothing, name="direct")),
    Mutant("a function for nobody", "elementwise.cu", ALWAYS, GENERAL),
    Mutant("a norm for nobody", "lrn.cu", ALWAYS, GENERAL),
    Mutant("a matrix product for nobody", "matmul.cu", ALWAYS, GENERAL),
    Mutant(
        "an array of any form for nobody",
        "take.cu",
        Edit("  RETURN_UNLESS_NEEDED();\n  const int n", "  const int n"),
        GENERAL,
    ),
    Mutant(
        "bytes for nobody",
        "take.cu",
        Edit("  RETURN_UNLESS_NEEDED();\n  constexpr int READ", "  constexpr int READ"),
        VGG,
    ),
    Mutant(
        "every image convolved again",
        "conv_igemm.cu",
        Edit("RETURN_UNLESS_NEEDED_BY(row0 / (OH * OW), (row0 + TILE_PX - 1) / (OH * OW))", "RETURN_UNLESS_NEEDED()"),
        partial(alone, name="vgg"),
    ),
    Mutant(
        "every image summed again",
        "conv_direct.cu",
        Edit("RETURN_UNLESS_NEEDED_BY(block_row / (OH * OW), (", "RETURN_UNLESS_NEEDED_BY(0, (1 << 30) + 0 * ("),
        partial(alone, name="direct"),
    ),
    Mutant(
        "the image of a tile's last pixels forgotten",
        "common.cuh",
        Edit("n <= min(last, images - 1)", "n < min(last, images - 1)"),
        lambda device: needed(device, 2),
    ),
    Mutant(
        "the image before asked",
        "common.cuh",
        Edit("found |= guard[1 + n] != 0", "found |= guard[n] != 0"),
        lambda device: needed(device, 1),
    ),
    Mutant(
        "an output of every image replaced",
        "give.cu",
        Edit("RETURN_UNLESS_NEEDED_BY(blockIdx.z, blockIdx.z)", "RETURN_UNLESS_NEEDED()"),
        lambda device: needed(device, 1),
    ),
    Mutant("an image that is not there needed", "settle.cu", Edit("n < images && *words", "*words"), LOST),
    Mutant("needed after all", "settle.cu", Edit("*words.error == 0 && words.lost(n)", "words.lost(n)"), GAVE_UP),
    Mutant("named by each launch", "settle.cu", Edit("follows == SECOND_PASS_HERE", "follows != NO_SECOND_PASS"), LOST),
)

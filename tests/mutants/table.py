"""Wrong kernels: each differs from the right one in one place, and names the test of its kernel that must see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from tests import (
    test_conv_igemm,
    test_elementwise,
    test_gemm_splitk,
    test_layout,
    test_pack,
    test_pool,
    test_preprocess,
    test_softmax,
)
from tests.test_conv_igemm import Case
from vgg16gpu.devices.base import Device

Check: TypeAlias = Callable[[Device], None]


class Mutant(NamedTuple):
    """`old` occurs exactly once in `file` and becomes `new`; then `check` must fail."""

    name: str
    file: str
    old: str
    new: str
    check: Check
    order: str = "forward"  # in which the threads run between two barriers, see devices/cpu.py


def edges(case: Case) -> Check:
    return lambda device: test_conv_igemm.test_edges(device, case)


def splits(case: Case, count: int) -> Check:
    return lambda device: test_conv_igemm.test_every_split_gives_the_same_bits(device, case, count)


def gemm(shape: tuple[int, ...]) -> Check:
    return lambda device: test_gemm_splitk.test_small_shapes(device, shape)


PLAIN = edges(Case((2, 5, 6, 9), 10))
POOLED = edges(Case((2, 5, 6, 9), 10, pool=True))
THREE_GROUPS = Case((2, 72, 5, 5), 20)

CONVOLUTION = (
    Mutant("tap shifted", "conv_igemm.cu", "shift = ((kh * W + kw) * C", "shift = ((kh * W + kw + 1) * C", PLAIN),
    Mutant("last piece of the reduction dropped", "conv_igemm.cu", "(KH * KW * C + TILE_K - 1) / TILE_K", "KH * KW * C / TILE_K",
           lambda device: test_conv_igemm.test_reduction_lengths(device, 20)),
    Mutant("last channel block dropped", "conv_igemm.cu", "if (oc >= OC) continue;", "if (oc + 4 >= OC) continue;", PLAIN),
    Mutant("relu lost in one lane", "conv_igemm.cu", "if (apply_relu) value", "if (apply_relu && v != 3) value", PLAIN),
    Mutant("relu lost after a split", "conv_igemm.cu", "= apply_relu ? relu(biased) : biased;", "= biased;", splits(THREE_GROUPS, 2)),
    Mutant("the neighbour's bias", "conv_igemm.cu", "value[i][v] += b[v];", "value[i][v] += b[v ^ 1];", PLAIN),
    Mutant("missing barrier", "conv_igemm.cu", "__syncthreads();  // the tile has landed", "// the tile has landed", PLAIN, "7"),
    Mutant("a stage filled too early", "conv_igemm.cu", "fetch(stage == 0 ? STAGES - 1 : stage - 1)", "fetch(stage)",
           lambda device: test_conv_igemm.test_reduction_lengths(device, 36)),
    Mutant("groups of a split added backwards", "conv_igemm.cu", "for (int g = 1; g < groups; g++) {",
           "for (int g = groups - 1; g > 0; g--) {", splits(THREE_GROUPS, 3)),
    Mutant("a group sum dropped", "conv_igemm.cu", "before[1] + acc[i][j + 1]", "acc[i][j + 1]",
           lambda device: test_conv_igemm.test_reduction_lengths(device, 292)),
    Mutant("a group one tile too long", "conv_igemm.cu", "    left_in_group = group_tiles;", "    left_in_group = group_tiles + 1;",
           splits(THREE_GROUPS, 2)),
    Mutant("padding off by one on the right", "conv_igemm.cu", "(unsigned)iw < (unsigned)W", "(unsigned)iw <= (unsigned)W", PLAIN),
    Mutant("padding off by one at the top", "conv_igemm.cu", "oh * SH - PT : FAR_ABOVE", "oh * SH - PT + 1 : FAR_ABOVE", PLAIN),
    Mutant("stride of the other axis", "conv_igemm.cu", "iw0 = ow * SW - PL;", "iw0 = ow * SH - PL;",
           lambda device: test_conv_igemm.test_kernels_strides_and_padding(device, Case((2, 3, 10, 8), 6, strides=(2, 1)))),
    Mutant("pool window from the wrong rows", "conv_igemm.cu", "* 2 + row % 4 / 2;", "* 2 + row % 2;", POOLED),
    Mutant("a row too many stored", "conv_igemm.cu", "if (row >= rows) continue;", "if (row > rows) continue;", PLAIN),
    Mutant("wrong pitch of the output", "conv_igemm.cu", "store4(out + (POOL ? row / 4 : row) * OC", "store4(out + (POOL ? row / 4 : row) * C", PLAIN),
    Mutant("nan lost in the fused maximum", "common.cuh", "return a > b || a != a ? a : b;", "return a > b ? a : b;",
           lambda device: test_conv_igemm.test_what_is_not_finite_stays_where_it_belongs(device, np.nan, True)),
)  # fmt: skip

OTHERS = (
    Mutant("tail of the reduction dropped", "gemm_splitk.cu", "k0 = tid * 4; k0 < K;", "k0 = tid * 4; k0 + 4 < K;", gemm((1, 20))),
    Mutant("a warp's sum missing", "gemm_splitk.cu", "i < WARPS; i++) t +=", "i < WARPS - 1; i++) t +=", gemm((3, 1030))),
    Mutant("sums read before they are there", "gemm_splitk.cu", "__syncthreads();  // the sums", "// the sums", gemm((3, 1030))),
    Mutant("an image too many stored", "gemm_splitk.cu", "if (n >= N || o >= pitch) return;", "if (o >= pitch) return;", gemm((3, 1030))),
    Mutant("features behind the last not zeroed", "gemm_splitk.cu", "(apply_relu ? relu(t) : t) : 0.f;", "(apply_relu ? relu(t) : t) : 1.f;", gemm((1, 20))),
    Mutant("every image is the first", "gemm_splitk.cu", "min(n0 + n, N - 1) * K;", "min(n0, N - 1) * K;", gemm((3, 1030))),
    Mutant("lanes added in another order", "gemm_splitk.cu", "distance = 16; distance > 0; distance /= 2", "distance = 8; distance > 0; distance /= 2", gemm((3, 1030))),
    Mutant("maximum from zero", "pool.cu", "AVERAGE ? 0.f : -INFINITY;", "0.f;",
           test_pool.test_maximum_of_negative_values_and_minus_infinity),
    Mutant("last row of the window lost", "pool.cu", "h1 = min(top + KH, H)", "h1 = min(top + KH - 1, H)",
           lambda device: test_pool.test_small_shapes(device, "max")),
    Mutant("padding counted when it must not be", "pool.cu", "count_include_pad ? KH * KW :", "!count_include_pad ? KH * KW :",
           lambda device: test_pool.test_small_shapes(device, "average")),
    Mutant("nan lost in the maximum", "common.cuh", "return a > b || a != a ? a : b;", "return a > b || b != b ? a : b;",
           lambda device: test_pool.test_nan_reaches_the_windows_that_hold_it_and_no_other(device, "max", "2x2")),
    Mutant("largest not subtracted", "softmax.cu", "highest = block_reduce<true>(highest, scratch);", "highest = 0.f;",
           lambda device: test_softmax.test_sizes_of_numbers(device, 100, 0)),
    Mutant("warps read before they have written", "softmax.cu", "__syncthreads();  // all warps have written", "// all warps have written",
           lambda device: test_softmax.test_small_shapes(device, 257), "reverse"),
    Mutant("scratch overwritten while it is read", "softmax.cu", "__syncthreads();  // the previous", "// the previous",
           lambda device: test_softmax.test_small_shapes(device, 257), "7"),
    Mutant("status left as it was", "layout.cu", "status[n * gridDim.x + blockIdx.x] = result != 0;",
           "if (result) status[n * gridDim.x + blockIdx.x] = 1;",
           lambda device: test_layout.test_finite_images_are_not_accused(device, (3, 3, 17, 15))),
    Mutant("infinity passes", "layout.cu", "bad |= !(fabsf(v[i]) < INFINITY);", "bad |= v[i] != v[i];",
           lambda device: test_layout.test_only_images_with_a_nonfinite_value_are_accused(device, (5, 10), np.inf)),
    Mutant("channels behind the last not zeroed", "layout.cu", "v[i] = c + i < C ? x[(long long)(c + i) * HW + p] : 0.f;",
           "v[i] = x[(long long)min(c + i, C - 1) * HW + p];",
           lambda device: test_layout.test_input_lies_channels_last_with_zeros_behind(device, (3, 3, 17, 15))),
    Mutant("rows of the way back mixed up", "layout.cu", "c = index / HW, p = index % HW;", "c = index % C, p = index / C;",
           lambda device: test_layout.test_there_and_back_changes_no_bit(device, (3, 3, 17, 15))),
    Mutant("shift of another channel", "preprocess.cu", "shift[c + i])", "shift[c])",
           lambda device: test_preprocess.test_small_shapes(device, (2, 17, 16, 3))),
    Mutant("status of bytes not written", "preprocess.cu", "if (tid == 0) status", "if (tid == 1000) status",
           lambda device: test_preprocess.test_small_shapes(device, (2, 17, 16, 3))),
    Mutant("weights transposed", "pack.cu", "((long long)oc * C + c) * TAPS + tap", "((long long)c * OC + oc) * TAPS + tap",
           lambda device: test_pack.test_convolution(device, (5, 6, 3, 3))),
    Mutant("weights flattened in the wrong order", "pack.cu", "(pixel / HW * C + c) * HW + pixel % HW", "pixel * C + c",
           lambda device: test_pack.test_fully_connected_on_a_map(device, (2, 3, 7, 7), 6)),
    Mutant("scale of another channel", "elementwise.cu", "index % (C / 4) * 4", "index / (C / 4) % (C / 4) * 4",
           lambda device: test_elementwise.test_batch_norm(device, (2, 8, 16, 17))),
    Mutant("nan lost in the relu", "common.cuh", "return v < 0.0f ? 0.0f : v;", "return v > 0.0f ? v : 0.0f;",
           test_elementwise.test_relu_of_special_values),
)  # fmt: skip

MUTANTS = CONVOLUTION + OTHERS

# For the sanitizers, which must name the line.
OVERRUN = Mutant("out of bounds", "conv_igemm.cu", "(unsigned)ih < (unsigned)H", "(unsigned)ih <= (unsigned)H", PLAIN)
RACE = next(mutant for mutant in CONVOLUTION if mutant.name == "missing barrier")

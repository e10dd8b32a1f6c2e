"""Wrong kernels: each differs from the right one in one place, and names the test of its kernel that must see it."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.kernels.conv import test_conv_direct, test_conv_igemm
from tests.kernels.conv.test_conv_igemm import Case
from tests.kernels.gemm import test_gemm_direct, test_gemm_splitk
from tests.kernels.general import test_pool, test_softmax
from tests.mutants.mutant import Edit, Mutant, mutants
from tests.mutants.table_layout import COLOURS, EDGES_OF_THE_GRAPH, ELEMENTS, PICTURES

PLAIN = partial(test_conv_igemm.test_edges, case=Case((2, 5, 6, 9), 10))
POOLED = partial(test_conv_igemm.test_edges, case=Case((2, 5, 6, 9), 10, pool=True))
STRIDED = partial(test_conv_igemm.test_kernels_strides_and_padding, case=Case((2, 3, 10, 8), 6, strides=(2, 1)))
SPLIT = partial(test_conv_igemm.test_every_split_gives_the_same_bits, case=Case((2, 72, 5, 5), 20))  # three groups
NAN_IN_WINDOW = partial(test_conv_igemm.test_what_is_not_finite_stays_where_it_belongs, bad=np.nan, pool=True)
PADDING = test_conv_igemm.test_padding_channels_stay_zero_beside_an_infinity
reduction = partial(partial, test_conv_igemm.test_reduction_lengths)

CONVOLUTION = (
    *mutants(
        "conv_igemm.cu",
        ("tap shifted", "shift = ((kh * s.W + kw) * s.C", "shift = ((kh * s.W + kw + 1) * s.C", PLAIN),
        (
            "last piece of the reduction dropped",
            "(KH * KW * C + TILE_K - 1) / TILE_K",
            "KH * KW * C / TILE_K",
            reduction(k=20),
        ),
        ("last channel block dropped", "if (oc >= s.OC) continue;", "if (oc + 4 >= s.OC) continue;", PLAIN),
        (
            "relu lost in one lane",
            "(value[i][v], b[v], oc + v < out_channels, activation)",
            "(value[i][v], b[v], oc + v < out_channels, v != 3 ? activation : Activation{})",
            PLAIN,
        ),
        (
            "relu lost after a split",
            "finish_conv(value[w][v], b[v], oc + v < out_channels, ACTIVATION(activation))",
            "finish_conv(value[w][v], b[v], oc + v < out_channels, Activation{})",
            partial(SPLIT, splits=2),
        ),
        ("the neighbour's bias", "finish_conv(value[i][v], b[v],", "finish_conv(value[i][v], b[v ^ 1],", PLAIN),
        ("missing barrier", "__syncthreads();  // the tile has landed", "// the tile has landed", PLAIN, "7"),
        ("a stage filled too early", "next = stage == 0 ? STAGES - 1 : stage - 1;", "next = stage;", reduction(k=36)),
        (
            "groups of a split added in another order",
            "partial + (group * (long long)",
            "partial + ((group % 3 == 0 ? group : 3 - group) * (long long)",
            partial(SPLIT, splits=3),
        ),
        ("a group sum dropped", "total[v] + acc[i][j + v]", "acc[i][j + v]", reduction(k=292)),
        (
            "a group one tile too long",
            "    left_in_group = group_tiles;",
            "    left_in_group = group_tiles + 1;",
            partial(SPLIT, splits=2),
        ),
        ("padding off by one on the right", "(unsigned)iw < (unsigned)s.W", "(unsigned)iw <= (unsigned)s.W", PLAIN),
        ("padding off by one at the top", "s.rows ? ih : FAR_ABOVE", "s.rows ? ih + 1 : FAR_ABOVE", PLAIN),
        ("stride of the other axis", "iw = ow * s.SW - s.PL;", "iw = ow * s.SH - s.PL;", STRIDED),
    ),
    *mutants(
        "implicit_gemm.cuh",
        ("pool window from the wrong rows", "* 2 + row % 4 / 2;", "* 2 + row % 2;", POOLED),
    ),
    *mutants(
        "conv_igemm.cu",
        ("a row too many stored", "if (row >= s.rows) continue;", "if (row > s.rows) continue;", PLAIN),
        (
            "wrong pitch of the output",
            "store4(out + (POOL ? row / 4 : row) * s.OC",
            "store4(out + (POOL ? row / 4 : row) * s.C",
            PLAIN,
        ),
        (
            "channels behind the last not zeroed after a convolution",
            "finish_conv(value[i][v], b[v], oc + v < out_channels,",
            "finish_conv(value[i][v], b[v], true,",
            partial(PADDING, pool=False, splits=1),
        ),
        (
            "channels behind the last not zeroed after a split",
            "finish_conv(value[w][v], b[v], oc + v < out_channels,",
            "finish_conv(value[w][v], b[v], true,",
            partial(PADDING, pool=False, splits=2),
        ),
    ),
    *mutants(
        "common.cuh",
        ("nan lost in the fused maximum", "return a > b || a != a ? a : b;", "return a > b ? a : b;", NAN_IN_WINDOW),
    ),
)

gemm = partial(partial, test_gemm_splitk.test_small_shapes)
ONE_IMAGE, THREE_IMAGES = gemm(shape=(1, 20)), gemm(shape=(3, 1030))

DIRECT = partial(test_conv_direct.test_edges_of_tiles, case=Case((1, 4, 5, 5), 20))
DIRECT_ROWS = partial(test_conv_direct.test_edges_of_tiles, case=Case((1, 3, 1, 65), 20))
WITHIN_A_TAP = test_conv_direct.test_groups_that_end_within_a_tap
DIRECT_CONVOLUTION = mutants(
    "conv_direct.cu",
    ("a tap of the next column", "w = left[i] + kw;", "w = left[i] + kw + 1;", DIRECT),
    ("columns behind the last sixteen lost", "oc < OC; oc += 4", "oc < OC - 4; oc += 4", DIRECT),
    ("rows of the first thread", "block_row + threadIdx.x", "threadIdx.x", DIRECT_ROWS),
    ("a row behind the last stored", "if (row0 + i >= s.rows) return;", "", DIRECT_ROWS),
    ("the first group forgotten", "+= sum[i][j]", "= sum[i][j]", WITHIN_A_TAP),
    ("a group that begins with its tap", "c = first % s.C;", "c = 0;", WITHIN_A_TAP),
    ("the first pixel where there is none", ": zeros;", ": image[i];", DIRECT),
)

gemm_of_cpus = partial(partial, test_gemm_direct.test_small_shapes)
DIRECT_GEMM = mutants(
    "gemm_direct.cu",
    ("a plane twice", "source[4 * t + 2]", "source[4 * t + 1]", gemm_of_cpus(shape=(1, 20))),
    ("warps behind the first lost", "total += lanes[0]", "total = lanes[0]", gemm_of_cpus(shape=(3, 1030))),
    ("the second step of k lost", "k < K; k += STEP", "k < min(K, STEP); k += STEP", gemm_of_cpus(shape=(3, 1030))),
    ("images of the first tile", "inp + (long long)(n0 + n) * K", "inp + (long long)n * K", gemm_of_cpus(shape=(5, 7))),
)

GEMM = (
    *mutants(
        "gemm_splitk.cu",
        ("tail of the reduction dropped", "k0 = tid * 4; k0 < K;", "k0 = tid * 4; k0 + 4 < K;", ONE_IMAGE),
        ("a warp's sum missing", "i < WARPS; i++) t +=", "i < WARPS - 1; i++) t +=", THREE_IMAGES),
    ),
    *mutants(
        "cpu/intrinsics.h",
        ("lanes left out of the sum", "distance = 8; distance > 0", "distance = 8; distance > 1", THREE_IMAGES),
    ),
    *mutants(
        "gemm_splitk.cu",
        ("sums read before they are there", "__syncthreads();  // the sums", "// the sums", THREE_IMAGES),
        ("an image too many stored", "if (n >= N || o >= pitch) return;", "if (o >= pitch) return;", THREE_IMAGES),
        (
            "features behind the last not zeroed",
            "ACTIVATION(activation)(t) : 0.f;",
            "ACTIVATION(activation)(t) : 1.f;",
            ONE_IMAGE,
        ),
        ("every image is the first", "min(n0 + n, N - 1) * K;", "min(n0, N - 1) * K;", THREE_IMAGES),
    ),
)

POOL_AND_SOFTMAX = (
    *mutants(
        "pool.cu",
        (
            "maximum from zero",
            "AVERAGE ? 0.f : -INFINITY;",
            "0.f;",
            test_pool.test_maximum_of_negative_values_and_minus_infinity,
        ),
        (
            "last row of the window lost",
            "kh < rows.end",
            "kh < rows.end - 1",
            partial(test_pool.test_small_shapes, kind="max"),
        ),
        (
            "padding counted when it must not be",
            "if (count_include_pad)",
            "if (!count_include_pad)",
            partial(test_pool.test_small_shapes, kind="average"),
        ),
    ),
    *mutants(
        "common.cuh",
        (
            "nan lost in the maximum",
            "return a > b || a != a ? a : b;",
            "return a > b || b != b ? a : b;",
            partial(test_pool.test_nan_reaches_the_windows_that_hold_it_and_no_other, kind="max", window="2x2"),
        ),
    ),
    *mutants(
        "softmax.cu",
        (
            "largest not subtracted",
            "highest = block_reduce<true, WARPS>(highest, scratch);",
            "highest = 0.f;",
            partial(test_softmax.test_sizes_of_numbers, scale=100, offset=0),
        ),
    ),
    *mutants(
        "block_reduce.cuh",
        (
            "warps read before they have written",
            "__syncthreads();  // all warps have written",
            "// all warps have written",
            partial(test_softmax.test_small_shapes, columns=257),
            "reverse",
        ),
        (
            "scratch overwritten while it is read",
            "__syncthreads();  // the previous",
            "// the previous",
            partial(test_softmax.test_small_shapes, columns=257),
            "7",
        ),
    ),
)

MUTANTS = (
    *CONVOLUTION,
    *DIRECT_CONVOLUTION,
    *DIRECT_GEMM,
    *GEMM,
    *POOL_AND_SOFTMAX,
    *EDGES_OF_THE_GRAPH,
    *ELEMENTS,
    *PICTURES,
    *COLOURS,
)

# For the sanitizers. On the CPU they know where each buffer ends, on a GPU only where an allocation does.
RACE = next(mutant for mutant in CONVOLUTION if mutant.name == "missing barrier")
GPU_RACE = next(mutant for mutant in GEMM if mutant.name == "sums read before they are there")
OVERRUN = Mutant(
    "a row read behind the image",
    "conv_igemm.cu",
    Edit("(unsigned)ih < (unsigned)s.H", "(unsigned)ih <= (unsigned)s.H"),
    PLAIN,
)
GPU_OVERRUN = Mutant(
    "an image read far away",
    "gemm_splitk.cu",
    Edit("min(n0 + n, N - 1) * K;", "min(n0 + n, N - 1) * K + (1LL << 38);"),
    THREE_IMAGES,
)
PLANTED = (RACE, GPU_RACE, OVERRUN, GPU_OVERRUN)

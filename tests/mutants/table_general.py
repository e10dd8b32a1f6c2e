"""Wrong kernels of the general ops: those that take values of any layout, and what else few networks need."""

from __future__ import annotations

from functools import partial
from itertools import product

from tests.kernels.conv import test_conv_general
from tests.kernels.general import (
    test_elementwise,
    test_lrn,
    test_magnitudes,
    test_masked_gradient,
    test_matmul,
    test_pool,
    test_pool_gradient,
    test_pool_stored,
    test_rearrange,
    test_softmax,
)
from tests.mutants.mutant import for_each, mutants
from vgg16gpu.program.types import DType

MAPS = (2, 5, 3, 4)

ELEMENTWISE_AND_REARRANGE = (
    *mutants(
        "pool_stored.cu",
        (
            "halves of a pair pooled apart",
            "if constexpr (PLANES == 2) value[i] +=",
            "if constexpr (PLANES == 3) value[i] +=",
            partial(test_pool_stored.test_the_largest_of_each_window, element=DType.F16_PAIR, shape=(2, 64, 33, 40)),
        ),
        (
            "only the first warp's magnitude noted",
            "largest = max(largest, scratch[warp]);",
            "largest = scratch[0];",
            partial(test_pool_stored.test_the_largest_of_each_window, element=DType.F16, shape=(2, 64, 33, 40)),
        ),
    ),
    *mutants(
        "elementwise.cu",
        (
            "a function of the padding stored",
            "    if (i < real) {\n      y[i] =",
            "    {\n      y[i] =",
            test_elementwise.test_padding_of_operands_does_not_reach_the_output,
        ),
        (
            "a repeated operand read as if it were not",
            "source[i * strides[RANK - 1]]",
            "source[i]",
            partial(test_elementwise.test_broadcasting, shapes=(MAPS, ())),
        ),
        (
            "a vector of what lies apart",
            "real >= 4 && vectors >> k & 1",
            "real >= 4",
            partial(test_elementwise.test_operands_of_one_shape, function="add", shape=(2, 4, 2, 8)),
        ),
        (
            "the fifth operand forgotten",
            "if (k < f.operands) v =",
            "if (k < f.operands && k < 4) v =",
            partial(test_elementwise.test_several_operands, function="add", count=5),
        ),
        ("nan lost in a clip", "min_nan(max_nan(v,", "min_nan(fmaxf(v,", test_elementwise.test_clip_of_special_values),
        (
            "NaN of a ReLU hands nothing on",
            "return v <= 0.f ? 0.f :",
            "return !(v > 0.f) ? 0.f :",
            partial(test_elementwise.test_gradients_pass_where_a_relu_gave_something, shape=(3, 7), count=2),
        ),
        (
            "fourth gradient forgotten",
            "v <= 0.f ? 0.f : x[1] + x[2] + x[3] + x[4]",
            "v <= 0.f ? 0.f : x[1] + x[2] + x[3]",
            partial(test_elementwise.test_gradients_pass_where_a_relu_gave_something, shape=(3, 7), count=4),
        ),
        (
            "a clip that ends at the lower limit",
            "min_nan(max_nan(v, f.operands > 1 ? x[1] : f.first), f.operands > 1 ? x[2] : f.second)",
            "max_nan(min_nan(v, f.operands > 1 ? x[2] : f.second), f.operands > 1 ? x[1] : f.first)",
            partial(test_elementwise.test_clip, shape=(3, 4, 2), limits=(2.0, 1.0)),
        ),
        (
            "epsilon forgotten",
            "sqrtf(x[4] + f.first)",
            "sqrtf(x[4])",
            partial(test_elementwise.test_batch_norm_of_run_time_parameters, shape=(2, 5, 3, 3)),
        ),
    ),
    *mutants(
        "rearrange.cu",
        (
            "a slice without steps",
            "index[d] * walk.row[STEPS][d]",
            "index[d]",
            partial(test_rearrange.test_slices, shape=(9,), slices=(slice(7, 0, -3),)),
        ),
        (
            "what lies before a tensor taken for its own",
            "source[d] >= 0 && ",
            "",
            partial(test_rearrange.test_padding, shape=(5,), before=(2,), after=(3,), value=-1.5),
        ),
        (
            "padding channels filled like a margin",
            "if (!is_padding(walk, index)) v = inside",
            "v = inside",
            partial(test_rearrange.test_padding, shape=MAPS, before=(0, 0, 1, 2), after=(0, 0, 3, 1), value=-1.5),
        ),
        (
            "elements numbered in the order of memory",
            "walk.row[NUMBERS]",
            "walk.row[OUT_STRIDES]",
            partial(test_rearrange.test_reshaped, shape=MAPS, target=(4, 3, 5, 2)),
        ),
        (
            "the stride along the axis forgotten",
            "static_cast<long long>(along) * axis_stride",
            "static_cast<long long>(along)",
            partial(test_rearrange.test_gathered, shape=MAPS, axis=1, indices=[4, 0, 2]),
        ),
    ),
)

# ---- matmul.cu and conv_general.cu

PRODUCT = partial(test_matmul.test_small_shapes, layout=test_matmul.PLAIN)
PRODUCT_OF_MAPS = partial(test_matmul.test_small_shapes, layout=test_matmul.NHWC)
PRODUCT_WITH_BETA = partial(test_matmul.test_layouts_do_not_change_the_bits, case=test_matmul.EVERY_LAYOUT[1])
PRODUCT_WITH_INFINITY = partial(
    test_matmul.test_what_is_not_finite_stays_in_its_row_and_column, batch=(), bad=float("inf")
)
LONG_PRODUCT = test_matmul.test_sums_stay_exact_in_long_reductions
GENERAL_CONV = partial(test_conv_general.test_small_shapes, layout=test_conv_general.PLAIN)
GENERAL_CONV_NHWC = partial(test_conv_general.test_small_shapes, layout=test_conv_general.NHWC)
GENERAL_CONV_WITH_NAN = partial(
    test_conv_general.test_what_is_not_finite_stays_where_it_belongs, layout=test_conv_general.PLAIN, bad=float("nan")
)
LONG_GENERAL_CONV = partial(test_conv_general.test_sums_stay_exact_in_long_reductions, kernel=(3, 3))

MATMUL_AND_CONV = (
    *mutants(
        "matmul.cu",
        (
            "tiles overwritten while they are read",
            "__syncthreads();  // the tiles before",
            "// the tiles before",
            PRODUCT,
            "7",
        ),
        ("tiles read while they are written", "__syncthreads();  // all threads", "// all threads", PRODUCT, "7"),
        ("k beyond the matrix", "k0 + k < K && first", "first", PRODUCT),
        ("k and rows exchanged", "along_k ? slow : fast", "slow", PRODUCT),
        ("products in one chain", "GROUP_TILES = 9;", "GROUP_TILES = 9000;", LONG_PRODUCT),
        ("last group of products lost", " && k0 + TILE < depth", "", PRODUCT),
        ("groups of products added twice", "      sum[i] = 0.f;\n", "", LONG_PRODUCT),
        ("matrix of another batch", "batch.row[A]", "batch.row[B]", PRODUCT),
        ("padding batches computed", "real && index[d] <", "real && index[d] <=", PRODUCT_OF_MAPS),
        ("padding columns computed", "stored ? v : 0.f", "v", PRODUCT_WITH_INFINITY),
        ("beta forgotten", "fmaf(beta, c[m", "fmaf(1.f, c[m", PRODUCT_WITH_BETA),
        ("alpha forgotten", "alpha * total", "total", PRODUCT_WITH_BETA),
        ("last row of a product dropped", "m >= rows", "m + 1 >= rows", PRODUCT),
    ),
    *mutants(
        "conv_general.cu",
        ("filter rows all the same", "kh * s[WEIGHT_STRIDE][H]", "0", GENERAL_CONV),
        ("rows not dilated", "kh * s[DILATION][H]", "kh", GENERAL_CONV),
        ("row above the map", "h < 0 || ", "", GENERAL_CONV),
        ("columns behind the map", " && w < s[INP][W]", "", GENERAL_CONV),
        ("channels of the first group", "oc / group_outputs * s[INP][C]", "0", GENERAL_CONV),
        ("padding channels left", "    out[position] = 0.f;\n", "", GENERAL_CONV_NHWC),
        ("pixels before channels", "if (!channels_last) oc", "oc", GENERAL_CONV_NHWC),
        ("filter rows in one chain", "GROUP = 288", "GROUP = 288000", LONG_GENERAL_CONV),
        ("last filter rows lost", "total + sum +", "total +", GENERAL_CONV),
        ("bias of the first filter", "bias[oc] : 0.f", "bias[0] : 0.f", GENERAL_CONV),
        ("NaN lost in the ReLU", "ACTIVATION(activation)(v)", "fmaxf(v, 0.f)", GENERAL_CONV_WITH_NAN),
    ),
)

# ---- softmax.cu, pool.cu and lrn.cu

GENERAL_MEAN = partial(test_pool.test_small_maps, kind="average")
SOME_WINDOW = partial(test_pool.test_random_windows, case=7)
WHOLE_MEAN = partial(test_pool.test_whole_maps, kind="average", size=(15, 17), channels=5, inner=True)
FIRST_MAXIMUM = test_pool_gradient.test_the_first_of_several_maxima_gets_all
NAN_MAXIMUM = test_pool_gradient.test_maps_of_minus_infinity_and_of_nan
TIES = partial(test_pool_gradient.test_random_windows_with_ties, case=3)
LEFT_OUT = partial(test_pool_gradient.test_windows_that_leave_out_rows_give_them_nothing, kind="average")
PADDED_SHARE = partial(test_pool_gradient.test_average_that_counted_the_padding, window="3x3-same")
DILATED_MAXIMUM = partial(test_pool_gradient.test_windows, kind="max", shape=(2, 3, 10, 9), window="dilated-padded")
_MASKS_AND_SUMS = partial(for_each, range(1, 5), "count", test_masked_gradient.test_masks_and_sums, element=DType.BF16)
MASKED = _MASKS_AND_SUMS(out=DType.BF16, shape=(3, 20, 9, 9), pools=True)
MASKED_ROW = _MASKS_AND_SUMS(out=DType.F32, shape=(1, 64, 2, 130), pools=False)
MASKED_DEEP = _MASKS_AND_SUMS(out=DType.F32, shape=(1, 1100, 2, 3), pools=False)
MASKED_NAN = partial(
    test_masked_gradient.test_nan_is_above_zero_and_the_last_of_several_the_maximum, element=DType.BF16
)
CROSS_CHANNEL = partial(test_lrn.test_sizes, channels=4, inner=True)

SOFTMAX_POOL_LRN = (
    *mutants(
        "softmax.cu",
        (
            "padding channels summed",
            "start.real && place.real",
            "start.real",
            partial(test_softmax.test_small_maps, axis=1),
        ),
        (
            "rows of padding computed",
            "start.real && place.real",
            "place.real",
            partial(test_softmax.test_small_maps, axis=3),
        ),
        ("logarithm forgotten", "x - log_sum", "x", partial(test_softmax.test_small_maps, axis=3)),
        (
            "terms of a softmax in one chain",
            "GROUP = 288",
            "GROUP = 288000",
            test_softmax.test_a_long_row_is_added_up_in_groups,
        ),
    ),
    *mutants(
        "pool.cu",
        ("rows of a pool not dilated", "top + kh * DH", "top + kh", GENERAL_MEAN),
        ("padding below not counted", "H + PB", "H", SOME_WINDOW),
        ("what lies beyond the padding counted", "H + PB", "H + PB + KH * DH", GENERAL_MEAN),
        (
            "largest of nothing is no number",
            "else if (empty)",
            "else if (false)",
            partial(test_pool.test_a_window_of_nothing_but_padding, kind="max", count_include_pad=False),
        ),
        (
            "divided by nothing",
            "max(counted, 1)",
            "counted",
            partial(test_pool.test_a_window_of_nothing_but_padding, kind="average", count_include_pad=False),
        ),
        (
            "values of a window in one chain",
            "GROUP = 288",
            "GROUP = 288000",
            test_pool.test_a_large_window_is_added_up_in_groups,
        ),
    ),
    *mutants(
        "window.cuh",
        ("first element of a window lost", "return {first,", "return {first + 1,", GENERAL_MEAN),
    ),
    *mutants(
        "pool_gradient.cu",
        ("last of several maxima", "x[v] > best[v]", "x[v] >= best[v]", FIRST_MAXIMUM),
        ("NaN is no maximum", " || x[v] != x[v]", "", NAN_MAXIMUM),
        ("no maximum below infinity", "at[v] < 0 || ", "", NAN_MAXIMUM),
        ("windows between two strides", "start % stride == 0 && ", "", TIES),
        ("windows behind the last", " && start / stride < windows", "", LEFT_OUT),
        ("padding not counted", "count_include_pad ? H + PB : H", "H", PADDED_SHARE),
        ("gradient of the first image", "(long long)n * OH + oh", "oh", TIES),
        ("elements not dilated", "top + kh * g.DH", "top + kh", DILATED_MAXIMUM),
    ),
    *mutants(
        "masked_gradient.cu",
        ("last of a window's maxima", "v > best ||", "v >= best ||", MASKED),
        ("NaN no maximum of a window", " || v != v", "", MASKED_NAN),
        ("mask forgotten", "passed.is_at_end(x.at[p].value(i)) || ", "", MASKED),
    ),
    *mutants(
        "common.cuh",
        ("NaN masked", "return v <= 0.0f; }", "return !(v > 0.0f); }", MASKED_NAN),
    ),
    *mutants(
        "masked_gradient.cu",
        ("padding of operands handed on", " || i >= real", "", MASKED),
        ("half windows taken for whole", "inside[PIXELS - 1]", "inside[0]", MASKED),
        ("masks of the first image", "n * stride[0]", "0 * stride[0]", MASKED),
        ("columns of the block before", "(POOL ? 1 : PIXELS)", "1", MASKED_ROW),
        ("channels of one round", "channel += blockDim", "channel += 1000 * blockDim", MASKED_DEEP),
        (
            "element of the operand before",
            "FLOATS >> (row - MAP_STRIDES)",
            "FLOATS >> (row - OUT_STRIDES)",
            for_each(
                product((False, True), repeat=3),
                "halves",
                test_masked_gradient.test_operands_of_both_elements,
                element=DType.BF16,
                pools=True,
            ),
        ),
    ),
    *mutants(
        "pool.cu",
        ("last pixel of a map lost", "p < HW;", "p < HW - 1;", WHOLE_MEAN),
        ("map of the first image", "(long long)n * HW * C", "0 * n", WHOLE_MEAN),
        (
            "warps of a map read before they have written",
            "__syncthreads();  // all warps have written",
            "// all warps have written",
            WHOLE_MEAN,
            "7",
        ),
    ),
    *mutants(
        "lrn.cu",
        ("even window misplaced", "(size - 1) / 2", "size / 2", partial(CROSS_CHANNEL, size=2)),
        (
            "channels of the pixel before",
            "max(c - (size - 1) / 2, 0)",
            "c - (size - 1) / 2",
            partial(CROSS_CHANNEL, size=5),
        ),
        ("alpha of every channel", " / size * sum;", " * sum;", partial(CROSS_CHANNEL, size=3)),
        (
            "squares in float",
            "static_cast<double>(pixel[j]) * static_cast<double>(pixel[j])",
            "static_cast<double>(pixel[j] * pixel[j])",
            test_lrn.test_large_and_small_numbers,
        ),
    ),
)

# ---- magnitudes.cu

MAGNITUDES = partial(test_magnitudes.test_shapes, shape=(2, 70, 13, 11))

COUNTS = mutants(
    "magnitudes.cu",
    ("padding channels counted", "(C == CP || i % CP < C)", "true", MAGNITUDES),
    ("signs counted", "& 0x7fffffffu", "& 0xffffffffu", MAGNITUDES),
    (
        "zeros of other threads lost",
        "atomicAdd(&block_zeros, zeros);",
        "block_zeros = zeros;",
        test_magnitudes.test_after_a_relu,
    ),
    (
        "magnitudes outside of the window lost",
        "atomicAdd(out + bin, 1ull);",
        "continue;",
        test_magnitudes.test_magnitudes_of_every_size,
    ),
    (
        "the largest of the first elements",
        "      most = max(most, bits[k]);\n      const int",
        "      const int",
        partial(test_magnitudes.test_what_is_not_finite_is_seen, bad=float("inf")),
    ),
    (
        "infinity in a bin behind the last",
        "else if (bits[k] < INFINITE)",
        "else",
        partial(test_magnitudes.test_what_is_not_finite_is_seen, bad=float("inf")),
    ),
    ("last elements lost", "; i < count; i +=", "; i + step < count; i +=", MAGNITUDES),
    ("a window before its place is known", "__syncthreads();  // the first", "// the first", MAGNITUDES, "7"),
    ("counts taken before all are there", "__syncthreads();  // all elements", "// all elements", MAGNITUDES, "7"),
    (
        "counts of 32 bits",
        "atomicAdd(out, static_cast<unsigned long long>(block_zeros))",
        "atomicAdd(reinterpret_cast<unsigned*>(out), block_zeros)",
        test_magnitudes.test_counts_have_64_bits,
    ),
)

MUTANTS = (*ELEMENTWISE_AND_REARRANGE, *MATMUL_AND_CONV, *SOFTMAX_POOL_LRN, *COUNTS)

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
from tests.mutants.mutant import Edit, Mutant, for_each
from vgg16gpu.program.types import DType

MAPS = (2, 5, 3, 4)

ELEMENTWISE_AND_REARRANGE = (
    Mutant(
        "halves of a pair pooled apart",
        "pool_stored.cu",
        Edit("if constexpr (PLANES == 2) value[i] +=", "if constexpr (PLANES == 3) value[i] +="),
        partial(test_pool_stored.test_the_largest_of_each_window, element=DType.F16_PAIR, shape=(2, 64, 33, 40)),
    ),
    Mutant(
        "only the first warp's magnitude noted",
        "pool_stored.cu",
        Edit("largest = max(largest, scratch[warp]);", "largest = scratch[0];"),
        partial(test_pool_stored.test_the_largest_of_each_window, element=DType.F16, shape=(2, 64, 33, 40)),
    ),
    Mutant(
        "a function of the padding stored",
        "elementwise.cu",
        Edit("    if (i < real) {\n      y[i] =", "    {\n      y[i] ="),
        test_elementwise.test_padding_of_operands_does_not_reach_the_output,
    ),
    Mutant(
        "a repeated operand read as if it were not",
        "elementwise.cu",
        Edit("source[i * strides[RANK - 1]]", "source[i]"),
        partial(test_elementwise.test_broadcasting, shapes=(MAPS, ())),
    ),
    Mutant(
        "a vector of what lies apart",
        "elementwise.cu",
        Edit("real >= 4 && vectors >> k & 1", "real >= 4"),
        partial(test_elementwise.test_operands_of_one_shape, function="add", shape=(2, 4, 2, 8)),
    ),
    Mutant(
        "the fifth operand forgotten",
        "elementwise.cu",
        Edit("if (k < f.operands) v =", "if (k < f.operands && k < 4) v ="),
        partial(test_elementwise.test_several_operands, function="add", count=5),
    ),
    Mutant(
        "nan lost in a clip",
        "elementwise.cu",
        Edit("min_nan(max_nan(v,", "min_nan(fmaxf(v,"),
        test_elementwise.test_clip_of_special_values,
    ),
    Mutant(
        "NaN of a ReLU hands nothing on",
        "elementwise.cu",
        Edit("return v <= 0.f ? 0.f :", "return !(v > 0.f) ? 0.f :"),
        partial(test_elementwise.test_gradients_pass_where_a_relu_gave_something, shape=(3, 7), count=2),
    ),
    Mutant(
        "fourth gradient forgotten",
        "elementwise.cu",
        Edit("v <= 0.f ? 0.f : x[1] + x[2] + x[3] + x[4]", "v <= 0.f ? 0.f : x[1] + x[2] + x[3]"),
        partial(test_elementwise.test_gradients_pass_where_a_relu_gave_something, shape=(3, 7), count=4),
    ),
    Mutant(
        "a clip that ends at the lower limit",
        "elementwise.cu",
        Edit(
            "min_nan(max_nan(v, f.operands > 1 ? x[1] : f.first), f.operands > 1 ? x[2] : f.second)",
            "max_nan(min_nan(v, f.operands > 1 ? x[2] : f.second), f.operands > 1 ? x[1] : f.first)",
        ),
        partial(test_elementwise.test_clip, shape=(3, 4, 2), limits=(2.0, 1.0)),
    ),
    Mutant(
        "epsilon forgotten",
        "elementwise.cu",
        Edit("sqrtf(x[4] + f.first)", "sqrtf(x[4])"),
        partial(test_elementwise.test_batch_norm_of_run_time_parameters, shape=(2, 5, 3, 3)),
    ),
    Mutant(
        "a slice without steps",
        "rearrange.cu",
        Edit("index[d] * walk.row[STEPS][d]", "index[d]"),
        partial(test_rearrange.test_slices, shape=(9,), slices=(slice(7, 0, -3),)),
    ),
    Mutant(
        "what lies before a tensor taken for its own",
        "rearrange.cu",
        Edit("source[d] >= 0 && ", ""),
        partial(test_rearrange.test_padding, shape=(5,), before=(2,), after=(3,), value=-1.5),
    ),
    Mutant(
        "padding channels filled like a margin",
        "rearrange.cu",
        Edit("if (!is_padding(walk, index)) v = inside", "v = inside"),
        partial(test_rearrange.test_padding, shape=MAPS, before=(0, 0, 1, 2), after=(0, 0, 3, 1), value=-1.5),
    ),
    Mutant(
        "elements numbered in the order of memory",
        "rearrange.cu",
        Edit("walk.row[NUMBERS]", "walk.row[OUT_STRIDES]"),
        partial(test_rearrange.test_reshaped, shape=MAPS, target=(4, 3, 5, 2)),
    ),
    Mutant(
        "the stride along the axis forgotten",
        "rearrange.cu",
        Edit("static_cast<long long>(along) * axis_stride", "static_cast<long long>(along)"),
        partial(test_rearrange.test_gathered, shape=MAPS, axis=1, indices=[4, 0, 2]),
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
    Mutant(
        "tiles overwritten while they are read",
        "matmul.cu",
        Edit("__syncthreads();  // the tiles before", "// the tiles before"),
        PRODUCT,
        order="7",
    ),
    Mutant(
        "tiles read while they are written",
        "matmul.cu",
        Edit("__syncthreads();  // all threads", "// all threads"),
        PRODUCT,
        order="7",
    ),
    Mutant("k beyond the matrix", "matmul.cu", Edit("k0 + k < K && first", "first"), PRODUCT),
    Mutant("k and rows exchanged", "matmul.cu", Edit("along_k ? slow : fast", "slow"), PRODUCT),
    Mutant("products in one chain", "matmul.cu", Edit("GROUP_TILES = 9;", "GROUP_TILES = 9000;"), LONG_PRODUCT),
    Mutant("last group of products lost", "matmul.cu", Edit(" && k0 + TILE < depth", ""), PRODUCT),
    Mutant("groups of products added twice", "matmul.cu", Edit("      sum[i] = 0.f;\n", ""), LONG_PRODUCT),
    Mutant("matrix of another batch", "matmul.cu", Edit("batch.row[A]", "batch.row[B]"), PRODUCT),
    Mutant("padding batches computed", "matmul.cu", Edit("real && index[d] <", "real && index[d] <="), PRODUCT_OF_MAPS),
    Mutant("padding columns computed", "matmul.cu", Edit("stored ? v : 0.f", "v"), PRODUCT_WITH_INFINITY),
    Mutant("beta forgotten", "matmul.cu", Edit("fmaf(beta, c[m", "fmaf(1.f, c[m"), PRODUCT_WITH_BETA),
    Mutant("alpha forgotten", "matmul.cu", Edit("alpha * total", "total"), PRODUCT_WITH_BETA),
    Mutant("last row of a product dropped", "matmul.cu", Edit("m >= rows", "m + 1 >= rows"), PRODUCT),
    Mutant("filter rows all the same", "conv_general.cu", Edit("kh * s[WEIGHT_STRIDE][H]", "0"), GENERAL_CONV),
    Mutant("rows not dilated", "conv_general.cu", Edit("kh * s[DILATION][H]", "kh"), GENERAL_CONV),
    Mutant("row above the map", "conv_general.cu", Edit("h < 0 || ", ""), GENERAL_CONV),
    Mutant("columns behind the map", "conv_general.cu", Edit(" && w < s[INP][W]", ""), GENERAL_CONV),
    Mutant("channels of the first group", "conv_general.cu", Edit("oc / group_outputs * s[INP][C]", "0"), GENERAL_CONV),
    Mutant("padding channels left", "conv_general.cu", Edit("    out[position] = 0.f;\n", ""), GENERAL_CONV_NHWC),
    Mutant("pixels before channels", "conv_general.cu", Edit("if (!channels_last) oc", "oc"), GENERAL_CONV_NHWC),
    Mutant("filter rows in one chain", "conv_general.cu", Edit("GROUP = 288", "GROUP = 288000"), LONG_GENERAL_CONV),
    Mutant("last filter rows lost", "conv_general.cu", Edit("total + sum +", "total +"), GENERAL_CONV),
    Mutant("bias of the first filter", "conv_general.cu", Edit("bias[oc] : 0.f", "bias[0] : 0.f"), GENERAL_CONV),
    Mutant(
        "NaN lost in the ReLU",
        "conv_general.cu",
        Edit("ACTIVATION(activation)(v)", "fmaxf(v, 0.f)"),
        GENERAL_CONV_WITH_NAN,
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
    Mutant(
        "padding channels summed",
        "softmax.cu",
        Edit("start.real && place.real", "start.real"),
        partial(test_softmax.test_small_maps, axis=1),
    ),
    Mutant(
        "rows of padding computed",
        "softmax.cu",
        Edit("start.real && place.real", "place.real"),
        partial(test_softmax.test_small_maps, axis=3),
    ),
    Mutant(
        "logarithm forgotten",
        "softmax.cu",
        Edit("x - log_sum", "x"),
        partial(test_softmax.test_small_maps, axis=3),
    ),
    Mutant(
        "terms of a softmax in one chain",
        "softmax.cu",
        Edit("GROUP = 288", "GROUP = 288000"),
        test_softmax.test_a_long_row_is_added_up_in_groups,
    ),
    Mutant("rows of a pool not dilated", "pool.cu", Edit("top + kh * DH", "top + kh"), GENERAL_MEAN),
    Mutant("padding below not counted", "pool.cu", Edit("H + PB", "H"), SOME_WINDOW),
    Mutant("what lies beyond the padding counted", "pool.cu", Edit("H + PB", "H + PB + KH * DH"), GENERAL_MEAN),
    Mutant(
        "largest of nothing is no number",
        "pool.cu",
        Edit("else if (empty)", "else if (false)"),
        partial(test_pool.test_a_window_of_nothing_but_padding, kind="max", count_include_pad=False),
    ),
    Mutant(
        "divided by nothing",
        "pool.cu",
        Edit("max(counted, 1)", "counted"),
        partial(test_pool.test_a_window_of_nothing_but_padding, kind="average", count_include_pad=False),
    ),
    Mutant(
        "values of a window in one chain",
        "pool.cu",
        Edit("GROUP = 288", "GROUP = 288000"),
        test_pool.test_a_large_window_is_added_up_in_groups,
    ),
    Mutant("first element of a window lost", "window.cuh", Edit("return {first,", "return {first + 1,"), GENERAL_MEAN),
    Mutant("last of several maxima", "pool_gradient.cu", Edit("x[v] > best[v]", "x[v] >= best[v]"), FIRST_MAXIMUM),
    Mutant("NaN is no maximum", "pool_gradient.cu", Edit(" || x[v] != x[v]", ""), NAN_MAXIMUM),
    Mutant("no maximum below infinity", "pool_gradient.cu", Edit("at[v] < 0 || ", ""), NAN_MAXIMUM),
    Mutant("windows between two strides", "pool_gradient.cu", Edit("start % stride == 0 && ", ""), TIES),
    Mutant("windows behind the last", "pool_gradient.cu", Edit(" && start / stride < windows", ""), LEFT_OUT),
    Mutant("padding not counted", "pool_gradient.cu", Edit("count_include_pad ? H + PB : H", "H"), PADDED_SHARE),
    Mutant("gradient of the first image", "pool_gradient.cu", Edit("(long long)n * OH + oh", "oh"), TIES),
    Mutant("elements not dilated", "pool_gradient.cu", Edit("top + kh * g.DH", "top + kh"), DILATED_MAXIMUM),
    Mutant("last of a window's maxima", "masked_gradient.cu", Edit("v > best ||", "v >= best ||"), MASKED),
    Mutant("NaN no maximum of a window", "masked_gradient.cu", Edit(" || v != v", ""), MASKED_NAN),
    Mutant("mask forgotten", "masked_gradient.cu", Edit("passed.is_at_end(x.at[p].value(i)) || ", ""), MASKED),
    Mutant("NaN masked", "common.cuh", Edit("return v <= 0.0f; }", "return !(v > 0.0f); }"), MASKED_NAN),
    Mutant("padding of operands handed on", "masked_gradient.cu", Edit(" || i >= real", ""), MASKED),
    Mutant("half windows taken for whole", "masked_gradient.cu", Edit("inside[PIXELS - 1]", "inside[0]"), MASKED),
    Mutant("masks of the first image", "masked_gradient.cu", Edit("n * stride[0]", "0 * stride[0]"), MASKED),
    Mutant("columns of the block before", "masked_gradient.cu", Edit("(POOL ? 1 : PIXELS)", "1"), MASKED_ROW),
    Mutant(
        "channels of one round",
        "masked_gradient.cu",
        Edit("channel += blockDim", "channel += 1000 * blockDim"),
        MASKED_DEEP,
    ),
    Mutant(
        "element of the operand before",
        "masked_gradient.cu",
        Edit("FLOATS >> (row - MAP_STRIDES)", "FLOATS >> (row - OUT_STRIDES)"),
        for_each(
            product((False, True), repeat=3),
            "halves",
            test_masked_gradient.test_operands_of_both_elements,
            element=DType.BF16,
            pools=True,
        ),
    ),
    Mutant("last pixel of a map lost", "pool.cu", Edit("p < HW;", "p < HW - 1;"), WHOLE_MEAN),
    Mutant("map of the first image", "pool.cu", Edit("(long long)n * HW * C", "0 * n"), WHOLE_MEAN),
    Mutant(
        "warps of a map read before they have written",
        "pool.cu",
        Edit("__syncthreads();  // all warps have written", "// all warps have written"),
        WHOLE_MEAN,
        order="7",
    ),
    Mutant("even window misplaced", "lrn.cu", Edit("(size - 1) / 2", "size / 2"), partial(CROSS_CHANNEL, size=2)),
    Mutant(
        "channels of the pixel before",
        "lrn.cu",
        Edit("max(c - (size - 1) / 2, 0)", "c - (size - 1) / 2"),
        partial(CROSS_CHANNEL, size=5),
    ),
    Mutant("alpha of every channel", "lrn.cu", Edit(" / size * sum;", " * sum;"), partial(CROSS_CHANNEL, size=3)),
    Mutant(
        "squares in float",
        "lrn.cu",
        Edit(
            "static_cast<double>(pixel[j]) * static_cast<double>(pixel[j])", "static_cast<double>(pixel[j] * pixel[j])"
        ),
        test_lrn.test_large_and_small_numbers,
    ),
)

# ---- magnitudes.cu

MAGNITUDES = partial(test_magnitudes.test_shapes, shape=(2, 70, 13, 11))

COUNTS = (
    Mutant("padding channels counted", "magnitudes.cu", Edit("(C == CP || i % CP < C)", "true"), MAGNITUDES),
    Mutant("signs counted", "magnitudes.cu", Edit("& 0x7fffffffu", "& 0xffffffffu"), MAGNITUDES),
    Mutant(
        "zeros of other threads lost",
        "magnitudes.cu",
        Edit("atomicAdd(&block_zeros, zeros);", "block_zeros = zeros;"),
        test_magnitudes.test_after_a_relu,
    ),
    Mutant(
        "magnitudes outside of the window lost",
        "magnitudes.cu",
        Edit("atomicAdd(out + bin, 1ull);", "continue;"),
        test_magnitudes.test_magnitudes_of_every_size,
    ),
    Mutant(
        "the largest of the first elements",
        "magnitudes.cu",
        Edit("      most = max(most, bits[k]);\n      const int", "      const int"),
        partial(test_magnitudes.test_what_is_not_finite_is_seen, bad=float("inf")),
    ),
    Mutant(
        "infinity in a bin behind the last",
        "magnitudes.cu",
        Edit("else if (bits[k] < INFINITE)", "else"),
        partial(test_magnitudes.test_what_is_not_finite_is_seen, bad=float("inf")),
    ),
    Mutant("last elements lost", "magnitudes.cu", Edit("; i < count; i +=", "; i + step < count; i +="), MAGNITUDES),
    Mutant(
        "a window before its place is known",
        "magnitudes.cu",
        Edit("__syncthreads();  // the first", "// the first"),
        MAGNITUDES,
        order="7",
    ),
    Mutant(
        "counts taken before all are there",
        "magnitudes.cu",
        Edit("__syncthreads();  // all elements", "// all elements"),
        MAGNITUDES,
        order="7",
    ),
    Mutant(
        "counts of 32 bits",
        "magnitudes.cu",
        Edit(
            "atomicAdd(out, static_cast<unsigned long long>(block_zeros))",
            "atomicAdd(reinterpret_cast<unsigned*>(out), block_zeros)",
        ),
        test_magnitudes.test_counts_have_64_bits,
    ),
)

MUTANTS = (*ELEMENTWISE_AND_REARRANGE, *MATMUL_AND_CONV, *SOFTMAX_POOL_LRN, *COUNTS)

"""Wrong kernels of those that bring values and weights into other layouts or elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.kernels.general import test_elementwise
from tests.kernels.layout import (
    test_convert,
    test_give,
    test_layout,
    test_pack,
    test_pack_blocks,
    test_planes,
    test_preprocess,
    test_resize,
    test_scales,
    test_settle,
    test_take,
    test_transfer,
)
from tests.mutants.mutant import mutants
from vgg16gpu.compiler.op_kernels.layout.resize import PassOrder
from vgg16gpu.program.types import DType, Layout

taken_in = partial(partial, test_layout.test_input_lies_channels_last_with_zeros_behind)

EDGES_OF_THE_GRAPH = (
    *mutants(
        "take.cu",
        (
            "a byte of the words behind the images left as it was",
            "i < zeros; i += threads",
            "i < zeros - 1; i += threads",
            partial(test_take.test_images_come_in, element=DType.F16, order="as it is", shape=(2, 3, 33, 20)),
        ),
        (
            "images one behind the other, whatever lies between",
            "inp, n * image_stride + i",
            "inp, n * values + i",
            test_take.test_images_with_room_between_them,
        ),
        (
            "images of somebody else's array taken as if they were dense",
            "static_cast<long long>(n) * image_stride",
            "static_cast<long long>(n) * values",
            partial(test_take.test_images_come_in, element=DType.F32, order="every second", shape=(2, 3, 33, 20)),
        ),
    ),
    *mutants(
        "give.cu",
        (
            "an output of pairs with its scales",
            "v /= scale[FACTOR ? image : column]",
            "v /= scale[0]",
            partial(
                test_give.test_every_form,
                element=DType.F16_PAIR,
                layout=Layout.NHWC,
                given=DType.F32,
                shape=(2, 64, 3, 3),
            ),
        ),
        (
            "a tile turned beyond the last row",
            "if (r < rows && c < columns)\n      StoredElement<OUTPUT>",
            "if (c < columns)\n      StoredElement<OUTPUT>",
            partial(
                test_give.test_every_form,
                element=DType.BF16,
                layout=Layout.NHWC,
                given=DType.BF16,
                shape=(2, 33, 40, 7),
            ),
        ),
        (
            "columns of the image before",
            "(n * columns + c) * out_pitch + r, 0, v[c]",
            "c * out_pitch + r, 0, v[c]",
            partial(
                test_give.test_every_form,
                element=DType.F32,
                layout=Layout.NHWC,
                given=DType.BF16,
                shape=(2, 8, 33, 20),
            ),
        ),
        (
            "rows behind the last",
            "if (r >= rows) return;",
            "",
            partial(
                test_give.test_every_form,
                element=DType.F32,
                layout=Layout.NHWC,
                given=DType.F32,
                shape=(2, 8, 33, 20),
            ),
        ),
    ),
    *mutants(
        "settle.cu",
        (
            "values below the lowest let through",
            "largest >= lowest && ",
            "",
            partial(
                test_settle.test_the_verdict,
                given={"maxima": {(0, 4): 7.0}, "lowest": 8.0},
                words=[0, 0, 0xFFFFFFFF - 4, 0],
                images=(4,),
            ),
        ),
    ),
    *mutants(
        "transfer.cu",
        (
            "words behind the last group left out",
            "if (first < rest)",
            "if (first < rest - 1)",
            partial(test_transfer.test_every_word_and_nothing_else, words=1023, groups=2),
        ),
        (
            "a group behind the last one copied",
            "if (first + g * THREADS < groups) store4",
            "if (first + g * THREADS <= groups) store4",
            partial(test_transfer.test_every_word_and_nothing_else, words=1020, groups=2),
        ),
    ),
    *mutants(
        "layout.cu",
        (
            "another image accused",
            "atomicOr(status + n, 1)",
            "atomicOr(status, 1)",
            partial(test_layout.test_only_images_with_a_nonfinite_value_are_accused, shape=(5, 10), bad=np.nan),
        ),
        (
            "a warp's verdict forgotten",
            "result |= warp_bad[i];",
            "result = warp_bad[i];",
            partial(test_layout.test_a_nan_is_found_wherever_it_is, place=0),
        ),
        (
            "infinity passes",
            "bad |= !(fabsf(v[i]) < INFINITY);",
            "bad |= v[i] != v[i];",
            partial(test_layout.test_only_images_with_a_nonfinite_value_are_accused, shape=(5, 10), bad=np.inf),
        ),
        (
            "channels behind the last not zeroed",
            "v[i] = c + i < C ? x[(long long)(c + i) * HW + p] : 0.f;",
            "v[i] = x[(long long)min(c + i, C - 1) * HW + p];",
            taken_in(shape=(3, 3, 17, 15)),
        ),
        (
            "way back mixed up",
            "c = index / HW, p = index % HW;",
            "c = index % C, p = index / C;",
            partial(test_layout.test_flatten, shape=(3, 3, 17, 15), inner=True),
        ),
    ),
    *mutants(
        "preprocess.cu",
        (
            "shift of another channel",
            "shift[c + i])",
            "shift[c])",
            partial(test_preprocess.test_small_shapes, shape=(2, 17, 16, 3)),
        ),
    ),
    *mutants(
        "pack.cu",
        (
            "weights transposed",
            "((long long)oc * C + c) * TAPS + tap",
            "((long long)c * OC + oc) * TAPS + tap",
            partial(test_pack.test_convolution, shape=(5, 6, 3, 3)),
        ),
        (
            "weights flattened in the wrong order",
            "(pixel / HW * C + c) * HW + pixel % HW",
            "pixel * C + c",
            partial(test_pack.test_fully_connected_on_a_map, shape=(2, 3, 7, 7), outputs=6),
        ),
    ),
    *mutants(
        "elementwise.cu",
        (
            "scale of another channel",
            "x[i][k] = v[i];",
            "x[i][k] = v[k > 0 ? i ^ 1 : i];",
            partial(test_elementwise.test_batch_norm, shape=(2, 8, 16, 17)),
        ),
    ),
    *mutants(
        "common.cuh",
        (
            "nan lost in the relu",
            "return v < 0.0f ? 0.0f : v;",
            "return v > 0.0f ? v : 0.0f;",
            test_elementwise.test_relu_of_special_values,
        ),
    ),
)

converted = partial(partial, test_convert.test_float32_into_every_element)
blocks = partial(partial, test_pack_blocks.test_weights_in_channel_blocks)
rows = partial(partial, test_scales.test_rows, correction=1 + 2.0**-22)

ELEMENTS = (
    *mutants(
        "convert.cu",
        (
            "scales of pairs forgotten",
            "if (c < C && OUTPUT == F16_PAIR) v *= out_scale[c];",
            "",
            converted(target=DType.F16_PAIR, shape=(2, 64, 3, 3)),
        ),
        (
            "channels behind the last not zeroed in another element",
            "float v = c < C ? ",
            "float v = c < inp_pitch ? 1.f + ",
            converted(target=DType.F16, shape=(3, 70, 1, 1)),
        ),
        (
            "another image's magnitude",
            "reinterpret_cast<int*>(maxima + n)",
            "reinterpret_cast<int*>(maxima)",
            partial(test_convert.test_the_largest_magnitude_of_each_image_is_noted, target=DType.F16),
        ),
    ),
    *mutants(
        "stored.cuh",
        (
            "low halves of pairs lost",
            "v - round_to_f16(v)",
            "0.0f",
            converted(target=DType.F16_PAIR, shape=(2, 64, 3, 3)),
        ),
    ),
    *mutants(
        "pack_blocks.cu",
        (
            "weights of bytes in plain order",
            "IS_BYTE ? row / 16 * 16 + row % 8 * 2 + row % 16 / 8 : row",
            "row",
            test_pack_blocks.test_neighbouring_outputs_of_bytes_lie_eight_rows_apart,
        ),
        (
            "taps and channel blocks mixed up",
            "slab / TAPS * BLOCK + index % BLOCK, tap = slab % TAPS",
            "slab % blocks * BLOCK + index % BLOCK, tap = slab / blocks",
            blocks(element=DType.F16, shape=(16, 70)),
        ),
        (
            "scale of another input channel",
            "v *= row_scale[oc] / inp_scale[c]",
            "v *= row_scale[oc] / inp_scale[0]",
            partial(test_pack_blocks.test_pairs_are_scaled, shape=(5, 3)),
        ),
    ),
    *mutants(
        "scales.cu",
        (
            "largest magnitude of an earlier image lost",
            "atomicMax(reinterpret_cast<int*>(out + c), __float_as_int(largest));",
            "out[c] = largest;",
            partial(test_scales.test_the_largest_magnitude_of_each_channel_stays, shape=(1, 4, 7, 9)),
        ),
        (
            "scale twice as large",
            "exact_exp2(TARGET_EXPONENT - exponent_of(size))",
            "exact_exp2(TARGET_EXPONENT + 1 - exponent_of(size))",
            partial(test_scales.test_a_channel_comes_to_the_target, channels=64),
        ),
        (
            "scale of the input left in the sums",
            "per_channel ? chosen : chosen * unit",
            "chosen",
            rows(shape=(7, 1000, 1), folds=False),
        ),
        (
            "squares added before they are there",
            "= squares;\n  __syncthreads();",
            "= squares;",
            rows(shape=(64, 130, 9), folds=True),
        ),
        ("sums not corrected", "correction / chosen", "1.f / chosen", rows(shape=(5, 3, 9), folds=True)),
    ),
)

small = partial(partial, test_resize.test_small_pictures, channels=3)
CROPPED = partial(test_resize.test_a_batch_of_every_kind, channels=1, crop=True, interpolation="nearest")
STEEP = partial(
    test_resize.test_the_passes_in_the_order_of_every_version, interpolation="bilinear", order=PassOrder.STEEP
)

PICTURES = mutants(
    "resize.cu",
    ("sums cut, not rounded", "HALF = 1 <<", "HALF = 0 <<", small(interpolation="bilinear")),
    (
        "sums below zero not clipped",
        "min(max(v >> PRECISION, 0), 255)",
        "min(v >> PRECISION, 255)",
        small(interpolation="bicubic"),
    ),
    (
        "sums above 255 not clipped",
        "min(max(v >> PRECISION, 0), 255)",
        "max(v >> PRECISION, 0)",
        small(interpolation="bicubic"),
    ),
    ("a filter as narrow as if nothing shrank", "scale < 1.0 ? 1.0 : scale,", "1.0,", small(interpolation="bilinear")),
    (
        "a filter as wide as the result's pixels",
        "scale < 1.0 ? 1.0 : scale,",
        "scale,",
        small(interpolation="bilinear"),
    ),
    ("weights that do not add up to one", "if (sum != 0.0) v /= sum;", "", small(interpolation="bilinear")),
    (
        "weights below zero rounded the other way",
        "v < 0 ? v - 0.5 : v + 0.5",
        "v + 0.5",
        small(interpolation="bicubic"),
    ),
    ("another cubic", "(1.5 * x - 2.5)", "(1.25 * x - 2.25)", small(interpolation="bicubic")),
    (
        "weights of half a pixel beside",
        "double v = filter(interpolation, (t + first - center + 0.5)",
        "double v = filter(interpolation, (t + first - center)",
        small(interpolation="bilinear"),
    ),
    (
        "nearest by a product",
        "for (int k = 0; k < place; k++) position += step;",
        "position = (place + 0.5) * step;",
        partial(test_resize.test_sizes_of_networks, size=(7, 96), interpolation="nearest"),
    ),
    ("crop at the top", "is_row ? p.top : p.left", "is_row ? 0 : p.left", CROPPED),
    ("crop at the left", "is_row ? p.top : p.left", "is_row ? p.top : 0", CROPPED),
    ("passes in one order", "if (p.down_first)", "if (false)", STEEP),
    ("passes in the other order", "if (p.down_first)", "if (true)", STEEP),
    (
        "a chunk overwritten while it is read",
        "__syncthreads();  // the chunk before",
        "// the chunk before",
        small(interpolation="bilinear"),
        "7",
    ),
    (
        "a chunk read while it is written",
        "__syncthreads();  // this one",
        "// this one",
        small(interpolation="bilinear"),
        "7",
    ),
    (
        "taps of earlier chunks added again",
        "static_cast<long long>(first - taps.first) * size",
        "0",
        small(interpolation="bilinear"),
    ),
    (
        "the first row of a chunk for all",
        "return {first - start, count,",
        "return {0, count,",
        small(interpolation="bilinear"),
    ),
    (
        "four rows alike",
        "apart[k] = min(k, length - 1 - r) * pitch;",
        "apart[k] = 0 * pitch;",
        small(interpolation="bilinear"),
    ),
    ("columns of a chunk from the picture's first on", "inp + start * CHANNELS", "inp", STEEP),
    (
        "rows of a chunk from the picture's first on",
        "inp + static_cast<long long>(start) * pitch",
        "inp",
        small(interpolation="bilinear"),
    ),
    (
        "channels never turned",
        "reverse ? sum[CHANNELS - 1 - c] : sum[c]",
        "sum[c]",
        partial(test_resize.test_sizes_of_networks, size=(33, 31), interpolation="bilinear"),
    ),
    (
        "channels of fitted pictures turned",
        "const bool reverse = p.reverse;",
        "const bool reverse = true;",
        partial(test_resize.test_a_picture_that_fits_already_stays_as_it_is, crop=True, interpolation="bilinear"),
    ),
    (
        "pictures in the order of the table",
        "static_cast<long long>(p.n) * H",
        "static_cast<long long>(blockIdx.z) * H",
        partial(test_resize.test_a_batch_that_is_not_full, count=3),
    ),
)

colours = partial(partial, test_planes.test_a_batch_of_every_kind)

COLOURS = mutants(
    "planes.cu",
    ("narrow colours interpolated", "|| w <= NARROW", "", colours(sampling=0x21)),
    ("halves always up", "+ 8 - odd) >> 4", "+ 8) >> 4", colours(sampling=0x22)),
    ("halves always down", "near[next] + 1 + odd) >> 2", "near[next] + 1) >> 2", colours(sampling=0x21)),
    ("a neighbour on the wrong side", "(i & 1 ? 1 : -1)", "(i & 1 ? -1 : 1)", colours(sampling=0x22)),
    (
        "a neighbour beyond the edge",
        "+ (i & 1 ? 1 : -1), 0), size - 1)",
        "+ (i & 1 ? 1 : -1), 0), size)",
        colours(sampling=0x21),
    ),
    ("colours not clipped", "return min(max(v, 0), 255);", "return max(v, 0);", colours(sampling=0x11)),
    ("rows without gaps", "(w + PITCH - 1) / PITCH * PITCH", "w", colours(sampling=0x11)),
    ("red and blue change places", "(RED_CR * cr + HALF)", "(RED_CR * cb + HALF)", colours(sampling=0x11)),
    (
        "pictures behind the last one",
        "if (static_cast<int>(blockIdx.y) >= table[0]) return;",
        "",
        test_planes.test_a_batch_that_is_not_full_and_lies_far_away,
    ),
)

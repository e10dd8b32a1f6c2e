"""Wrong kernels of float32 from pairs of float16 on mma.sync."""

from __future__ import annotations

from functools import partial

from tests.kernels.conv import test_conv_mma_first_pairs, test_conv_mma_pairs
from tests.kernels.conv.test_conv_mma_pairs import HALOS, OTHERS, Case
from tests.kernels.gemm import test_gemm_mma_pairs
from tests.mutants.mutant import Edit, Mutant
from tests.support.mma_harness import FullyMmaCase
from tests.support.wgmma_harness import ConvCase

case = partial(partial, test_conv_mma_pairs.test_small_shapes)
IMAGES = case(case=Case(HALOS[0]))
POOLED = case(case=Case(HALOS[1]))
TALL = case(case=Case(HALOS[3]))
ANY = case(case=Case(OTHERS[0]))
FEW_PARTS = case(case=Case(OTHERS[2]))
ANY_POOLED = case(case=Case(OTHERS[1]))
INFINITY = partial(
    test_conv_mma_pairs.test_padding_channels_stay_zero_beside_an_infinity, shapes=test_conv_mma_pairs.BESIDE[0]
)
TINY = partial(test_conv_mma_pairs.test_an_image_out_of_range_is_computed_on_ffma, shapes=HALOS[0], factor=1e-5)

first = partial(partial, test_conv_mma_first_pairs.test_small_shapes)
FIRST = first(case=ConvCase("fp32", (2, 3, 5, 19), 70))
FIRST_BYTES = first(case=ConvCase("fp32", (1, 3, 5, 9), 64, pixels=True))
FIRST_NARROW = first(case=ConvCase("fp32", (2, 4, 5, 9), 9))
FIRST_NAN = partial(
    test_conv_mma_first_pairs.test_pixels_out_of_range_are_computed_on_ffma, value=float("nan"), is_finite=False
)

gemm = partial(partial, test_gemm_mma_pairs.test_small_shapes)
FULLY = gemm(case=FullyMmaCase("fp32", (3, 1100), (70, 20), relu=False))

_HALOS, _ANY, _PRODUCTS = "conv_mma_3x3.cu", "conv_mma.cu", "mma_pairs.cuh"
_FIRST, _FULLY = "conv_mma_first_pairs.cu", "gemm_mma_pairs.cu"

MUTANTS = (
    Mutant(
        "high halves twice",
        _HALOS,
        Edit("static_cast<long long>(half) * tile.N + n)", "static_cast<long long>(n))"),
        IMAGES,
    ),
    Mutant(
        "columns of the next image of pairs", _HALOS, Edit("beyond * (tile.width + 2)", "beyond * tile.width"), IMAGES
    ),
    Mutant("rows below the map", _HALOS, Edit("has_column && has_row) << l", "has_column) << l"), IMAGES),
    Mutant(
        "the channels before",
        _HALOS,
        Edit("PLANE_NBYTES - (TILE_ROWS + 2) * row_nbytes", "-(TILE_ROWS + 2) * row_nbytes"),
        POOLED,
    ),
    Mutant("weights of another kw", _HALOS, Edit("(kw < 2 ? 8 : 2) * tap", "8 * tap"), POOLED),
    Mutant("weights of another kh", _HALOS, Edit("source += 3 * tap;", "source += tap;"), IMAGES),
    Mutant(
        "weights of the first tile's channels",
        _HALOS,
        Edit("(tile.oc0 + channel_of_row<MT>(threadIdx.x / PIECES)) *", "channel_of_row<MT>(threadIdx.x / PIECES) *"),
        IMAGES,
    ),
    Mutant(
        "scales left in the sums",
        _HALOS,
        Edit("IS_PAIR ? fmaf(most, channel_dequant[v], channel_bias[v])", "false ? 0.0f"),
        IMAGES,
    ),
    Mutant(
        "rests in another image",
        _HALOS,
        Edit(
            "static_cast<long long>(N) * (tile.height / WINDOW)",
            "static_cast<long long>(N) * (tile.height / WINDOW - 1)",
        ),
        TALL,
    ),
    Mutant(
        "no weights' low halves", _PRODUCTS, Edit("add_products<Fp16, MT, 1>(part, low[kh], row[kh].high);", ""), IMAGES
    ),
    Mutant(
        "no pixels' low halves", _PRODUCTS, Edit("add_products<Fp16, MT, 1>(part, high[kh], row[kh].low);", ""), IMAGES
    ),
    Mutant(
        "weights of the last slot",
        _PRODUCTS,
        Edit("load_weights(high[kh], next.a, kh)", "load_weights(high[kh], at.a, kh)"),
        IMAGES,
    ),
    Mutant(
        "rows of the last slot",
        _PRODUCTS,
        Edit("row[1].load(next.b + ROW_NBYTES);\n  }\n};", "row[1].load(at.b + ROW_NBYTES);\n  }\n};"),
        IMAGES,
    ),
    Mutant(
        "a part for the sum",
        _PRODUCTS,
        Edit("add_part(sum[r], part);", "set_zero(sum[r]), add_part(sum[r], part);"),
        IMAGES,
    ),
    Mutant("recent parts forgotten", _ANY, Edit("  product.finish();\n", ""), FEW_PARTS),
    Mutant("recent parts added twice", _PRODUCTS, Edit("    set_zero(recent);\n    parts = 0;", "    parts = 0;"), ANY),
    Mutant("one group for two", _ANY, Edit("advance_groups(s, K_NBYTES / PAIR_NBYTES)", "advance_groups(s, 1)"), ANY),
    Mutant("the same channels again", _ANY, Edit("      c += PRODUCT_NBYTES;\n", ""), ANY),
    Mutant(
        "high halves twice, of any window",
        _ANY,
        Edit("threadIdx.x / 2 % 2 * (s.rows / (s.OH * s.OW) * image)", "0 * image"),
        ANY,
    ),
    Mutant(
        "scales left in the sums of any window",
        _ANY,
        Edit("IS_PAIR ? finish_scaled(sum,", "IS_PAIR ? finish(sum,"),
        ANY,
    ),
    Mutant(
        "magnitudes before they are scaled",
        _ANY,
        Edit("IS_PAIR ? value[v] * channels.scale[v] : value[v]", "value[v]"),
        ANY_POOLED,
    ),
    Mutant(
        "rests not stored", "mma_epilogue.cuh", Edit("    store_words(place + plane, rest, room * 2);\n", ""), IMAGES
    ),
    Mutant(
        "what a half has taken stays",
        "mma_epilogue.cuh",
        Edit("  low -= f16_value(static_cast<unsigned short>(taken));\n", ""),
        IMAGES,
    ),
    Mutant(
        "magnitudes of pairs not told",
        "mma_epilogue.cuh",
        Edit("return element == F16 || element == F16_PAIR; }", "return element == F16; }"),
        TINY,
    ),
    Mutant(
        "padding not zero beside an infinity of pairs",
        _HALOS,
        Edit("if (oc + CHANNELS > OC) clear_from(product.sum, OC - oc);", ""),
        INFINITY,
    ),
    Mutant("the third part of pixels twice", _FIRST, Edit("return 0x010201 >>", "return 0x010101 >>"), FIRST),
    Mutant("the third part of weights twice", _FIRST, Edit("return 0x001021 >>", "return 0x001011 >>"), FIRST),
    Mutant("pixels not scaled", _FIRST, Edit("limits(value) * in_scale", "limits(value)"), FIRST),
    Mutant("weights of other rows scaled", _FIRST, Edit("scale[2 * i + e % 2]", "scale[2 * i]"), FIRST),
    Mutant("padding of pairs normalised", _FIRST, Edit("inside ? limits", "true ? limits"), FIRST_BYTES),
    Mutant("columns of pairs stored beyond the map", _FIRST, Edit("output < columns && ", ""), FIRST_NARROW),
    Mutant(
        "weights of the first channels",
        _FIRST,
        Edit("static_cast<long long>(first_oc) * (3 * 16)", "static_cast<long long>(warp_oc) * (3 * 16)"),
        FIRST,
    ),
    Mutant(
        "parts of pixels in each other's place",
        _FIRST,
        Edit("plane = (2 * pairs + 2) * ROW_NBYTES;", "plane = (2 * pairs) * ROW_NBYTES;"),
        FIRST,
    ),
    Mutant(
        "NaN of pairs not told",
        _FIRST,
        Edit("if (pixels.largest_read >= INFINITE) atomicOr(status + n, 1);", ""),
        FIRST_NAN,
    ),
    Mutant("banks before rows", _FULLY, Edit("lane % 8, lane / 16 * 4 + lane / 8 % 2)", "lane % 8, lane / 8)"), FULLY),
    Mutant(
        "inputs' high halves twice",
        _FULLY,
        Edit("(static_cast<long long>(half) * N + first) * pitch", "static_cast<long long>(first) * pitch"),
        FULLY,
    ),
    Mutant(
        "the scale of another row",
        _FULLY,
        Edit("product.scale[v / 2][v % 2] = o + v < OUT", "product.scale[v / 2][1 - v % 2] = o + v < OUT"),
        FULLY,
    ),
    Mutant(
        "the third part of weights dropped",
        _FULLY,
        Edit("      add_products<Fp16, MT, NT>(part, a[1], b_high);\n", ""),
        FULLY,
    ),
    Mutant("a part of k dropped", _FULLY, Edit("part < parts; part++", "part < parts - 1; part++"), FULLY),
)

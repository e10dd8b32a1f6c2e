"""Wrong kernels of the mma family."""

from __future__ import annotations

from functools import partial

from tests.kernels.conv import test_conv_few, test_conv_mma, test_conv_mma_first
from tests.kernels.conv.test_conv_igemm import Case as Shapes
from tests.kernels.conv.test_conv_mma import Case
from tests.kernels.gemm import test_gemm_mma
from tests.mutants.mutant import Edit, Mutant
from tests.support.mma_harness import FullyMmaCase
from tests.support.wgmma_harness import ConvCase

case = partial(partial, test_conv_mma.test_small_shapes)
PLAIN = case(case=Case("fp16", Shapes((2, 70, 7, 7), 70)))
POOLED = case(case=Case("fp16", Shapes((2, 20, 7, 7), 70, pool=True)))
IMAGES = case(case=Case("fp16", Shapes((3, 20, 5, 5), 9)))  # several in a tile
IN_BFLOAT16 = case(case=Case("bf16", Shapes((2, 20, 7, 7), 70)))
IN_BYTES = case(case=Case("int8", Shapes((2, 20, 7, 7), 70, pool=True)))
LAST = case(case=Case("fp16", Shapes((3, 20, 5, 5), 20), last=True))
STRIDED = case(case=Case("fp16", Shapes((2, 3, 10, 8), 6, strides=(2, 1))))
NAN = partial(
    test_conv_mma.test_nan_reaches_the_windows_that_hold_it_and_no_other, precision="fp16", pool=False, tile=None
)
INFINITY = partial(
    test_conv_mma.test_padding_channels_stay_zero_beside_an_infinity, precision="fp16", pool=False, tile=None
)

halo = partial(partial, test_conv_mma.test_halos)
HALOS = halo(case=Case("fp16", test_conv_mma.SAME_3X3[0], tile=test_conv_mma.HALO))
HALOS_POOLED = halo(case=Case("fp16", test_conv_mma.SAME_3X3[1], tile=test_conv_mma.HALO))
HALO_INFINITY = partial(INFINITY, tile=test_conv_mma.HALO)

few = partial(partial, test_conv_few.test_small_shapes)
FEW = few(case=test_conv_few.Case("fp16", Shapes((2, 70, 5, 18), 3)))
FEW_TALL = few(case=test_conv_few.Case("bf16", Shapes((1, 64, 19, 5), 4)))
FEW_LARGE = partial(
    test_conv_few.test_every_tile_gives_the_same_bits, case=test_conv_few.Case("fp16", Shapes((2, 70, 18, 20), 3))
)

first = partial(partial, test_conv_mma_first.test_small_shapes)
FIRST = first(case=ConvCase("fp16", (2, 3, 5, 35), 64))
FIRST_NARROW = first(case=ConvCase("bf16", (2, 4, 5, 9), 5))
FIRST_BYTES = first(case=ConvCase("fp16", (1, 3, 5, 9), 64, pixels=True))
FIRST_WIDE = first(case=ConvCase("fp16", (1, 3, 5, 9), 70))
FIRST_NAN = partial(test_conv_mma_first.test_nan_reaches_the_windows_that_hold_it_and_no_other, precision="bf16")
FIRST_INFINITY = partial(test_conv_mma_first.test_padding_channels_stay_zero_beside_an_infinity, precision="bf16")
FIRST_INTEGERS = first(case=ConvCase("int8", (2, 3, 5, 19), 70))
FIRST_TIES = partial(test_conv_mma_first.test_saturated_pixels_and_ties, signed=True)
FIRST_FLOAT32 = test_conv_mma_first.test_integers_that_nobody_reads_are_float32
FIRST_LIMITS = partial(test_conv_mma_first.test_limits_of_integers, pixels=False, lowest=0.0)
FIRST_NAN_AS_INTEGER = test_conv_mma_first.test_nan_is_reported_in_int8
FIRST_BEYOND = partial(test_conv_mma_first.test_pixels_beyond_float16_are_reported, size=65520.0)

gemm = partial(partial, test_gemm_mma.test_small_shapes)
FULLY = gemm(case=FullyMmaCase("fp16", (3, 1100), (70, 3)))
FULLY_IN_PARTS = gemm(case=FullyMmaCase("int8", (3, 3000), (70, 3)))

HALO_MUTANTS = (
    Mutant("columns of the next image", "conv_mma_3x3.cu", Edit("tile.width + 2 : 0", "tile.width : 0"), HALOS),
    Mutant("half of a chunk's pixels", "conv_mma_3x3.cu", Edit("HALO_LOADS - FIRST_HALF : 0", "0 : 0"), HALOS_POOLED),
    Mutant("one kw for three", "conv_mma_3x3.cu", Edit("+ kh * 3 + kw) * channels", "+ kh * 3) * channels"), HALOS),
    Mutant(
        "a window of one row",
        "conv_mma_3x3.cu",
        Edit("product.sum[r + e / WINDOW][v / 2][0][v % 2 * 2 + e % 2]", "product.sum[r][v / 2][0][v % 2 * 2 + e % 2]"),
        HALOS_POOLED,
    ),
    Mutant(
        "the first image for all tiles", "conv_mma_3x3.cu", Edit("(long long)tile.n0 * tile.H", "0 * tile.H"), HALOS
    ),
    Mutant("rows of one tile", "conv_mma_3x3.cu", Edit("place % row_tiles * TILE_ROWS", "0"), HALOS),
    Mutant(
        "infinity in the padding",
        "conv_mma_3x3.cu",
        Edit("if (oc + CHANNELS > OC) clear_from(product.sum, OC - oc);", ""),
        HALO_INFINITY,
    ),
    Mutant(
        "slots read before they are filled",
        "slots.cuh",
        Edit("wait_until_filled(int, int) const { __syncthreads(); }", "wait_until_filled(int, int) const {}"),
        HALOS_POOLED,
        order="7",
    ),
)

MUTANTS = (
    *HALO_MUTANTS,
    Mutant("no third pixels", "conv_mma_first.cu", Edit("lane / 8 % 2 * THIRDS_AT", "0 * THIRDS_AT"), FIRST),
    Mutant(
        "a strip's last neighbour",
        "conv_mma_first.cu",
        Edit("PIXELS = TILE_COLUMNS + 2", "PIXELS = TILE_COLUMNS + 1"),
        FIRST,
    ),
    Mutant("rows of the wrong kh", "conv_mma_first.cu", Edit("b[half + kh]", "b[half + 2 - kh]"), FIRST),
    Mutant(
        "pixels of the row above at the edge",
        "conv_mma_first.cu",
        Edit("static_cast<unsigned>(x) < static_cast<unsigned>(W)", "true"),
        FIRST_NARROW,
    ),
    Mutant(
        "channels stored beyond the pitch", "conv_mma_first.cu", Edit("oc < pitch ? W - x : 0", "W - x"), FIRST_NARROW
    ),
    Mutant("columns stored beyond the map", "conv_mma_first.cu", Edit("output < columns && ", ""), FIRST_NARROW),
    Mutant("rows stored beyond the map", "conv_mma_first.cu", Edit(" && 2 * pair + half < height", ""), FIRST),
    Mutant(
        "padding normalised", "conv_mma_first.cu", Edit("inside ? limits(value) : 0.0f", "limits(value)"), FIRST_BYTES
    ),
    Mutant(
        "the bias of the first tile",
        "conv_mma_first.cu",
        Edit("load4(bias + oc + v)", "load4(bias + oc % TILE_OC + v)"),
        FIRST_WIDE,
    ),
    Mutant(
        "something beside the third pixel",
        "conv_mma_first.cu",
        Edit("make_uint4(cell.x, cell.y, 0, 0)", "make_uint4(cell.x, cell.y, 0x7fff7fff, 0)"),
        FIRST,
    ),
    Mutant(
        "NaN not told",
        "conv_mma_first.cu",
        Edit("if (pixels.largest_read >= INFINITE) atomicOr(status + n, 1);", ""),
        FIRST_NAN,
    ),
    Mutant(
        "padding not zero beside an infinity",
        "conv_mma_first.cu",
        Edit("if (oc + v >= OC) sum", "if (oc + v > OC + 64) sum"),
        FIRST_INFINITY,
    ),
    Mutant(
        "pixels beyond float16 not told",
        "conv_mma_first.cu",
        Edit("pixels.largest >= OVERFLOWS", "pixels.largest > OVERFLOWS"),
        FIRST_BEYOND,
    ),
    Mutant(
        "pixels not made integers",
        "conv_mma_first.cu",
        Edit("quantised<X_ELEMENT>(v[c] * in_scale)", "v[c] * in_scale"),
        FIRST_INTEGERS,
    ),
    Mutant(
        "pixels of the stored element",
        "conv_mma_first.cu",
        Edit("quantised<X_ELEMENT>", "quantised<OUT_ELEMENT>"),
        FIRST_INTEGERS,
    ),
    Mutant(
        "scales of the first tile",
        "conv_mma_first.cu",
        Edit("load4(dequant + oc + v)", "load4(dequant + oc % TILE_OC + v)"),
        FIRST_INTEGERS,
    ),
    Mutant("ties to odd", "mma_epilogue.cuh", Edit("ROUNDS = 12582912.0f", "ROUNDS = 12582911.0f"), FIRST_TIES),
    Mutant(
        "pixels that do not saturate",
        "mma_epilogue.cuh",
        Edit("return (saturated<ELEMENT_>(v) + ROUNDS)", "return (v + ROUNDS)"),
        FIRST_TIES,
    ),
    Mutant(
        "NaN the least integer",
        "mma_epilogue.cuh",
        Edit("ELEMENT_ != U8 && v != v ? 0.0f : v", "v"),
        FIRST_NAN_AS_INTEGER,
    ),
    Mutant(
        "limits of bytes dropped",
        "mma_epilogue.cuh",
        Edit("#ifndef CLIPS\n  if (ELEMENT_ == U8)", "#if 1\n  if (ELEMENT_ == U8)"),
        FIRST_LIMITS,
    ),
    Mutant(
        "eight channels stored where four are left",
        "conv_mma_first.cu",
        Edit("OUT_ELEMENT == F32 ? pitch - oc : CHANNELS", "CHANNELS"),
        FIRST_FLOAT32,
    ),
    Mutant("a window of two rows", "conv_few.cu", Edit("tap / SIDE * REACH", "tap / SIDE % 2 * REACH"), FEW),
    Mutant("pixels of the row above read at the edge", "conv_few.cu", Edit("&& (unsigned)w < (unsigned)W;", ";"), FEW),
    Mutant("the second half of 64 channels lost", "conv_few.cu", Edit("half = step / 2,", "half = 0 * step / 2,"), FEW),
    Mutant("channels behind the first 64 lost", "conv_few.cu", Edit("+ chunk * CHUNK, inside)", ", inside)"), FEW),
    Mutant(
        "columns that overlap", "conv_few.cu", Edit("products[column * PLANE", "products[column * (PLANE - 8)"), FEW
    ),
    Mutant("map of the first image of few", "conv_few.cu", Edit("{inp + first_pixel * CP,", "{inp,"), FEW),
    Mutant("rows behind the last stored", "conv_few.cu", Edit("if (h < H && w < W)", "if (w < W)"), FEW_TALL),
    Mutant("half of a tile's outputs", "conv_few.cu", Edit("index += THREADS)", "index += 2 * THREADS)"), FEW_LARGE),
    Mutant(
        "taps added before they are there",
        "conv_few.cu",
        Edit("  __syncthreads();\n", ""),
        FEW,
        order="7",
    ),
    Mutant(
        "no barrier between stages",
        "mma.cuh",
        Edit("    __syncthreads();  // the stage has landed", "    // the stage has landed"),
        POOLED,
        order="7",
    ),
    Mutant(
        "a row of channels in the wrong place",
        "mma.cuh",
        Edit("row % 8 * 2 * MT +", "row % 8 * 2 +"),
        PLAIN,
    ),
    Mutant(
        "k beyond the end is read",
        "mma.cuh",
        Edit("k < k_nbytes && row", "row"),
        FULLY_IN_PARTS,
    ),
    Mutant(
        "matrices of b swapped",
        "mma.cuh",
        Edit("lane / 8 % 2)", "lane / 16)"),
        PLAIN,
    ),
    Mutant(
        "pixels beyond the tensor stored",
        "conv_mma.cu",
        Edit("column < s.rows && channels.first < pitch", "channels.first < pitch"),
        LAST,
    ),
    Mutant(
        "taps beyond the last",
        "conv_mma.cu",
        Edit("kh < s.KH && ", ""),
        NAN,
    ),
    Mutant(
        "a tap of the row below",
        "conv_mma.cu",
        Edit("((kh * s.W + kw) * s.C + c)", "(((kh + 1) * s.W + kw) * s.C + c)"),
        PLAIN,
    ),
    Mutant(
        "another channel's scale",
        "conv_mma.cu",
        Edit("load4(all_dequant + (in_range ? oc + v : 0))", "load4(all_dequant + v)"),
        IN_BYTES,
    ),
    Mutant(
        "a neighbour's magnitude",
        "conv_mma.cu",
        Edit("if (pixel >= 0 && pixel < hw) largest", "largest"),
        IMAGES,
    ),
    Mutant(
        "the input of another image",
        "conv_mma.cu",
        Edit("(((n - n0) * s.H + ih)", "((n * s.H + ih)"),
        case(case=Case("fp16", Shapes((40, 8, 2, 2), 4))),
    ),
    Mutant(
        "the bias of the first channels",
        "conv_mma.cu",
        Edit("load4(all_bias + (in_range ? oc + v : 0))", "load4(all_bias + v)"),
        PLAIN,
    ),
    Mutant(
        "padding not zero after a sum of halves",
        "mma_epilogue.cuh",
        Edit(
            "const float v = sum + bias;\n  return real_channel ? activation(v) : 0.0f;",
            "const float v = sum + bias;\n  return activation(v);",
        ),
        INFINITY,
    ),
    Mutant(
        "bfloat16 truncated",
        "mma_epilogue.cuh",
        Edit("(bits + 0x7fffu + (bits >> 16 & 1)) >> 16", "bits >> 16"),
        IN_BFLOAT16,
    ),
    Mutant(
        "integers cut off",
        "mma_epilogue.cuh",
        Edit("rintf(saturated<ELEMENT_>(v))", "saturated<ELEMENT_>(v)"),
        IN_BYTES,
    ),
    Mutant(
        "integers of the next channels",
        "mma_epilogue.cuh",
        Edit("<< 8 * i;", "<< 8 * (3 - i);"),
        IN_BYTES,
    ),
    Mutant(
        "stride of the other axis on tensor cores",
        "conv_mma.cu",
        Edit("iw = ow * s.SW - s.PL;", "iw = ow * s.SH - s.PL;"),
        STRIDED,
    ),
    Mutant(
        "pool window of other columns",
        "conv_mma.cu",
        Edit("r % 8 / 2 * 4 + r % 16 / 8 * 2 +", "r % 8 / 2 * 2 + r % 16 / 8 * 8 +"),
        POOLED,
    ),
    Mutant(
        "magnitude of another image on tensor cores",
        "conv_mma.cu",
        Edit("maxima + (long long)n * maxima_stride, largest", "maxima, largest"),
        POOLED,
    ),
    Mutant(
        "channels behind the last not zeroed on tensor cores",
        "conv_mma.cu",
        Edit("is_real = v < real;", "is_real = true;"),
        INFINITY,
    ),
    Mutant(
        "a part of the reduction dropped",
        "gemm_mma.cu",
        Edit("part < parts; part++", "part < parts - 1; part++"),
        FULLY,
    ),
    Mutant(
        "an image too many stored on tensor cores",
        "gemm_mma.cu",
        Edit("if (n >= N || o >= OUTP) continue;", "if (o >= OUTP) continue;"),
        FULLY,
    ),
    Mutant(
        "the last part is too long",
        "gemm_mma.cu",
        Edit("k_end = min(pitch, k0 + part_nbytes)", "k_end = pitch"),
        FULLY_IN_PARTS,
    ),
    Mutant(
        "parts added from the second on",
        "gemm_mma.cu",
        Edit("for (int part = 0;", "for (int part = 1;"),
        FULLY,
    ),
)

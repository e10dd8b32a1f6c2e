"""Wrong kernels of losses between features."""

from __future__ import annotations

from functools import partial
from itertools import product

from tests.kernels.general import test_feature_loss, test_gram, test_masked_gradient, test_power_of_two, test_row_sum
from tests.kernels.layout import test_convert, test_give, test_rescale
from tests.mutants.mutant import Edit, Mutant, for_each
from vgg16gpu.program.types import DType

SQUARED = partial(test_feature_loss.test_partial_sums_and_gradients, distance="squared", shape=(3, 5, 13, 11))
ABSOLUTE = partial(test_feature_loss.test_partial_sums_and_gradients, distance="absolute", shape=(2, 64, 17, 9))
UNIT = partial(test_feature_loss.test_partial_sums_and_gradients, distance="unit", shape=(2, 64, 17, 9))
UNIT_NARROW = partial(test_feature_loss.test_partial_sums_and_gradients, distance="unit", shape=(3, 5, 13, 11))
UNIT_WIDE = partial(test_feature_loss.test_partial_sums_and_gradients, distance="unit", shape=(1, 36, 4, 3))
UNIT_OF_BFLOAT16 = partial(
    test_feature_loss.test_features_as_they_are_stored_give_the_bits_of_the_same_numbers,
    element=DType.BF16,
    distance="unit",
    shape=(2, 36, 4, 3),
)
TARGET_MAPS = partial(
    test_feature_loss.test_targets_as_they_are_stored_give_the_bits_of_the_same_numbers,
    element=DType.F16_PAIR,
    distance="unit",
    shape=(2, 36, 4, 3),
)
EQUAL = partial(test_feature_loss.test_no_difference_has_no_loss_and_no_slope, distance="absolute")
ZEROS = partial(test_feature_loss.test_pixels_of_zeros_have_a_unit_vector_of_zeros, channels=4)
ROWS = partial(test_row_sum.test_sums_of_rows, shapes=[(2, 700, 1), (2,), (2, 3, 3)])
GRAM = partial(test_gram.test_products_of_channels, shape=(2, 70, 33, 40))
GRAM_NARROW = partial(test_gram.test_products_of_channels, shape=(3, 3, 64, 65))

POWERS = partial(test_power_of_two.test_factors, shape=(3, 70, 33, 40), exponent=3)

FEATURE_LOSS = "feature_loss.cu"

RESCALED = partial(test_rescale.test_each_image_is_brought_to_below_two_to_the_15, shape=(3, 70, 33, 40), growth=7)
MASKED_PAIRS = for_each(
    product((DType.F32, DType.F16_PAIR), repeat=3),
    "elements",
    test_masked_gradient.test_pairs_with_factors_of_images,
    shape=(3, 20, 8, 9),
    pools=False,
)
LOSS_OF_PAIRS = partial(
    test_feature_loss.test_features_as_they_are_stored_give_the_bits_of_the_same_numbers,
    element=DType.F16_PAIR,
    distance="squared",
    shape=(2, 36, 4, 3),
)
LOSS_OF_WHOLE_PAIRS = partial(
    test_feature_loss.test_features_as_they_are_stored_give_the_bits_of_the_same_numbers,
    element=DType.F16_PAIR,
    distance="squared",
    shape=(2, 64, 17, 9),
)
PAIR_MUTANTS = (
    Mutant(
        "the factor of the first image for all",
        "rescale.cu",
        Edit("factor(most[blockIdx.y]", "factor(most[0]"),
        RESCALED,
    ),
    Mutant("low halves not stored", "stored.cuh", Edit("low[i] = v[i] - high[i];", "low[i] = 0.f;"), RESCALED),
    Mutant(
        "results as they come", "image_factor.cuh", Edit("= power_of_two(k - growth);", "= power_of_two(k);"), RESCALED
    ),
    Mutant(
        "an image of zeros out of range",
        "image_factor.cuh",
        Edit("most == 0.f ? power_of_two(exponent - 1) : round", "round"),
        test_rescale.test_what_has_no_power,
    ),
    Mutant(
        "low halves not read", "masked_gradient.cu", Edit("high.value(i) + low.value(i)", "high.value(i)"), MASKED_PAIRS
    ),
    Mutant("the factor of the first image", "masked_gradient.cu", Edit("(factors[n])", "(factors[0])"), MASKED_PAIRS),
    Mutant("the bound of the first image", "masked_gradient.cu", Edit("most[K][n]", "most[K][0]"), MASKED_PAIRS),
    Mutant("the bound of one gradient", "masked_gradient.cu", Edit(" + bound<K + 1>(n)", ""), MASKED_PAIRS),
    Mutant("factors left out", "masked_gradient.cu", Edit("if (SCALED) sum[i] *= factor;", ""), MASKED_PAIRS),
    Mutant(
        "factors in the bound",
        "masked_gradient.cu",
        Edit(" * inverse_factor<FIRST_GRADIENT + K>(factors[K], n)", ""),
        MASKED_PAIRS,
    ),
    Mutant("scales left in", FEATURE_LOSS, Edit(" * inverse_of_power(by[i])", ""), LOSS_OF_PAIRS),
    Mutant(
        "scales of channels behind the last",
        FEATURE_LOSS,
        Edit("!has_scales && pitch == C", "pitch == C"),
        LOSS_OF_WHOLE_PAIRS,
    ),
    Mutant(
        "the factor of a channel converted",
        "convert.cu",
        Edit("inp_scale[FACTOR ? n : c]", "inp_scale[c]"),
        test_convert.test_pairs_with_factors_of_images,
    ),
    Mutant(
        "the factor of a channel given",
        "give.cu",
        Edit("scale[FACTOR ? image : column]", "scale[column]"),
        partial(test_give.test_pairs_with_factors_of_images, pitch=3),
    ),
)

MUTANTS = (
    Mutant("one half of a slope", FEATURE_LOSS, Edit("d[v] = slope * differ", "d[v] = 0.5f * slope * differ"), SQUARED),
    Mutant(
        "padding of a cotangent left as it was",
        FEATURE_LOSS,
        Edit("c + k < cotangent_pitch", "c + k < 0"),
        SQUARED,
    ),
    Mutant(
        "one pitch for both maps",
        FEATURE_LOSS,
        Edit("(pixel) * cotangent_pitch + c", "(pixel) * pitch + c"),
        partial(
            test_feature_loss.test_features_as_they_are_stored_give_the_bits_of_the_same_numbers,
            element=DType.BF16,
            distance="squared",
            shape=(2, 36, 4, 3),
        ),
    ),
    Mutant(
        "the target of the first image",
        FEATURE_LOSS,
        Edit("goal_at = n * pixels * target_pitch;", "goal_at = 0;"),
        SQUARED,
    ),
    Mutant(
        "a target read as the feature is stored",
        FEATURE_LOSS,
        Edit("typedef Map<TARGET> Target;", "typedef Map<FEATURE> Target;"),
        partial(
            test_feature_loss.test_targets_of_two_bytes_give_the_bits_of_the_same_numbers,
            element=DType.BF16,
            feature="float32",
            distance="squared",
            shape=(3, 5, 13, 11),
        ),
    ),
    Mutant("magnitudes squared", FEATURE_LOSS, Edit("sum += fabsf(d);", "sum += d * d;"), ABSOLUTE),
    Mutant("a slope where there is none", FEATURE_LOSS, Edit("v < 0.f ? -1.f : v", "v <= 0.f ? -1.f : v"), EQUAL),
    Mutant(
        "the end of a block lost",
        FEATURE_LOSS,
        Edit("i < CHUNK / WIDTH && first", "i < CHUNK / WIDTH - 1 && first"),
        test_feature_loss.test_the_end_of_a_block,
    ),
    Mutant(
        "half of the lanes of a pixel",
        FEATURE_LOSS,
        Edit("lanes / 2; distance", "lanes / 4; distance"),
        UNIT,
    ),
    Mutant("the length kept fixed", FEATURE_LOSS, Edit("(own.w[i] * d - along * u)", "(own.w[i] * d)"), UNIT),
    Mutant(
        "a weight for all channels", FEATURE_LOSS, Edit("weighted = own.w[i] * d;", "weighted = own.w[0] * d;"), UNIT
    ),
    Mutant(
        "pixels behind the last",
        FEATURE_LOSS,
        Edit(", end = valid ? C : 0;", ", end = C;"),
        UNIT_NARROW,
    ),
    Mutant(
        "padding of pixels left as it was",
        FEATURE_LOSS,
        Edit("valid && c < cotangent_pitch; c", "valid && c < 0; c"),
        UNIT_NARROW,
    ),
    Mutant(
        "chunks after the first lost",
        FEATURE_LOSS,
        Edit("chunk < chunks; chunk++) {\n    own.load(", "chunk < 1; chunk++) {\n    own.load("),
        UNIT_WIDE,
    ),
    Mutant(
        "the feature's pitch for the target", FEATURE_LOSS, Edit("row * target_pitch", "row * pitch"), UNIT_OF_BFLOAT16
    ),
    Mutant("the largest slope of the first image", FEATURE_LOSS, Edit("words + blockIdx.y", "words"), TARGET_MAPS),
    Mutant("nothing under the root", FEATURE_LOSS, Edit("EPSILON = 1e-8f", "EPSILON = 0.f"), ZEROS),
    Mutant("the row of another operand", "row_sum.cu", Edit("n * count[k] + i", "n * count[0] + i"), ROWS),
    Mutant("one power too large", "image_factor.cuh", Edit("found - 126", "found - 127"), POWERS),
    Mutant("the slices after the first lost", "rescale.cu", Edit("blockIdx.x) * SLICE", "0) * SLICE"), POWERS),
    Mutant("the magnitude of the first image", "power_of_two.cu", Edit("most[blockIdx.x]", "most[0]"), POWERS),
    Mutant("negative numbers lost", "rescale.cu", Edit("fabsf(v[k])", "v[k]"), POWERS),
    Mutant("the last slice lost", "gram.cu", Edit("s < slices; s++", "s < max(slices - 1, 1); s++"), GRAM),
    Mutant("no mirror", "gram.cu", Edit("if (row_tile != column_tile) partials", "if (false) partials"), GRAM),
    Mutant("pixels of the next image", "gram.cu", Edit("pixel < pixels && c", "c"), GRAM),
    Mutant("groups thrown away", "gram.cu", Edit("total[i][j] += sum[i][j];", "total[i][j] = sum[i][j];"), GRAM),
    Mutant("not divided", "gram.cu", Edit("= scale * sum;", "= sum;"), GRAM_NARROW),
    *PAIR_MUTANTS,
)

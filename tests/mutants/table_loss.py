"""Wrong kernels of losses between features."""

from __future__ import annotations

from functools import partial
from itertools import product

from tests.kernels.general import test_feature_loss, test_gram, test_masked_gradient, test_power_of_two, test_row_sum
from tests.kernels.layout import test_convert, test_give, test_rescale
from tests.mutants.mutant import for_each, mutants
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
    *mutants(
        "rescale.cu",
        ("the factor of the first image for all", "factor(most[blockIdx.y]", "factor(most[0]", RESCALED),
    ),
    *mutants(
        "stored.cuh",
        ("low halves not stored", "low[i] = v[i] - high[i];", "low[i] = 0.f;", RESCALED),
    ),
    *mutants(
        "image_factor.cuh",
        ("results as they come", "= power_of_two(k - growth);", "= power_of_two(k);", RESCALED),
        (
            "an image of zeros out of range",
            "most == 0.f ? power_of_two(exponent - 1) : round",
            "round",
            test_rescale.test_what_has_no_power,
        ),
    ),
    *mutants(
        "masked_gradient.cu",
        ("low halves not read", "high.value(i) + low.value(i)", "high.value(i)", MASKED_PAIRS),
        ("the factor of the first image", "(factors[n])", "(factors[0])", MASKED_PAIRS),
        ("the bound of the first image", "most[K][n]", "most[K][0]", MASKED_PAIRS),
        ("the bound of one gradient", " + bound<K + 1>(n)", "", MASKED_PAIRS),
        ("factors left out", "if (SCALED) sum[i] *= factor;", "", MASKED_PAIRS),
        ("factors in the bound", " * inverse_factor<FIRST_GRADIENT + K>(factors[K], n)", "", MASKED_PAIRS),
    ),
    *mutants(
        FEATURE_LOSS,
        ("scales left in", " * inverse_of_power(by[i])", "", LOSS_OF_PAIRS),
        ("scales of channels behind the last", "!has_scales && pitch == C", "pitch == C", LOSS_OF_WHOLE_PAIRS),
    ),
    *mutants(
        "convert.cu",
        (
            "the factor of a channel converted",
            "inp_scale[FACTOR ? n : c]",
            "inp_scale[c]",
            test_convert.test_pairs_with_factors_of_images,
        ),
    ),
    *mutants(
        "give.cu",
        (
            "the factor of a channel given",
            "scale[FACTOR ? image : column]",
            "scale[column]",
            partial(test_give.test_pairs_with_factors_of_images, pitch=3),
        ),
    ),
)

MUTANTS = (
    *mutants(
        FEATURE_LOSS,
        ("one half of a slope", "d[v] = slope * differ", "d[v] = 0.5f * slope * differ", SQUARED),
        ("padding of a cotangent left as it was", "c + k < cotangent_pitch", "c + k < 0", SQUARED),
        (
            "one pitch for both maps",
            "(pixel) * cotangent_pitch + c",
            "(pixel) * pitch + c",
            partial(
                test_feature_loss.test_features_as_they_are_stored_give_the_bits_of_the_same_numbers,
                element=DType.BF16,
                distance="squared",
                shape=(2, 36, 4, 3),
            ),
        ),
        ("the target of the first image", "goal_at = n * pixels * target_pitch;", "goal_at = 0;", SQUARED),
        (
            "a target read as the feature is stored",
            "typedef Map<TARGET> Target;",
            "typedef Map<FEATURE> Target;",
            partial(
                test_feature_loss.test_targets_of_two_bytes_give_the_bits_of_the_same_numbers,
                element=DType.BF16,
                feature="float32",
                distance="squared",
                shape=(3, 5, 13, 11),
            ),
        ),
        ("magnitudes squared", "sum += fabsf(d);", "sum += d * d;", ABSOLUTE),
        ("a slope where there is none", "v < 0.f ? -1.f : v", "v <= 0.f ? -1.f : v", EQUAL),
        (
            "the end of a block lost",
            "i < CHUNK / WIDTH && first",
            "i < CHUNK / WIDTH - 1 && first",
            test_feature_loss.test_the_end_of_a_block,
        ),
        ("half of the lanes of a pixel", "lanes / 2; distance", "lanes / 4; distance", UNIT),
        ("the length kept fixed", "(own.w[i] * d - along * u)", "(own.w[i] * d)", UNIT),
        ("a weight for all channels", "weighted = own.w[i] * d;", "weighted = own.w[0] * d;", UNIT),
        ("pixels behind the last", ", end = valid ? C : 0;", ", end = C;", UNIT_NARROW),
        ("padding of pixels left as it was", "valid && c < cotangent_pitch; c", "valid && c < 0; c", UNIT_NARROW),
        (
            "chunks after the first lost",
            "chunk < chunks; chunk++) {\n    own.load(",
            "chunk < 1; chunk++) {\n    own.load(",
            UNIT_WIDE,
        ),
        ("the feature's pitch for the target", "row * target_pitch", "row * pitch", UNIT_OF_BFLOAT16),
        ("the largest slope of the first image", "words + blockIdx.y", "words", TARGET_MAPS),
        ("nothing under the root", "EPSILON = 1e-8f", "EPSILON = 0.f", ZEROS),
    ),
    *mutants(
        "row_sum.cu",
        ("the row of another operand", "n * count[k] + i", "n * count[0] + i", ROWS),
    ),
    *mutants(
        "image_factor.cuh",
        ("one power too large", "found - 126", "found - 127", POWERS),
    ),
    *mutants(
        "rescale.cu",
        ("the slices after the first lost", "blockIdx.x) * SLICE", "0) * SLICE", POWERS),
    ),
    *mutants(
        "power_of_two.cu",
        ("the magnitude of the first image", "most[blockIdx.x]", "most[0]", POWERS),
    ),
    *mutants(
        "rescale.cu",
        ("negative numbers lost", "fabsf(v[k])", "v[k]", POWERS),
    ),
    *mutants(
        "gram.cu",
        ("the last slice lost", "s < slices; s++", "s < max(slices - 1, 1); s++", GRAM),
        ("no mirror", "if (row_tile != column_tile) partials", "if (false) partials", GRAM),
        ("pixels of the next image", "pixel < pixels && c", "c", GRAM),
        ("groups thrown away", "total[i][j] += sum[i][j];", "total[i][j] = sum[i][j];", GRAM),
        ("not divided", "= scale * sum;", "= sum;", GRAM_NARROW),
    ),
    *PAIR_MUTANTS,
)

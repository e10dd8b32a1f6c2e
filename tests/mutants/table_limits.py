"""Wrong kernels of quantised files: limits at the end of a kernel, of the input, and on the way back."""

from __future__ import annotations

from functools import partial

from tests.kernels import test_limits
from tests.kernels.general import test_elementwise, test_masked_gradient
from tests.mutants.mutant import Edit, mutants

LIMITS = test_limits.LIMITS
CONV = partial(test_limits.test_clipped_to_the_bit, case=test_limits.CASES[0], limits=LIMITS)
MMA = partial(test_limits.test_clipped_to_the_bit, case=test_limits.CASES[-6], limits=LIMITS)
INPUT = partial(test_limits.test_an_input_is_clipped_as_it_is_taken_in, precision="fp32", kernels="ffma")
MASKED = partial(test_masked_gradient.test_what_a_clip_has_given, precision="fp32", pools=False, limits=(-0.7, 1.3))
PASSED = partial(test_elementwise.test_gradients_pass_between_the_limits_of_a_clip, shape=(3, 7), count=1)


def clip(what: str, parameters: str) -> str:
    """How limits are applied, in front of the macro that declares them."""
    return f"operator()(float v) const {{ return {what}; }}\n}};\n#define {parameters}"


def edit(what: str, parameters: str = "ACTIVATION_PARAMETER") -> Edit:
    return Edit(clip("min_nan(max_nan(v, low), high)", parameters), clip(what, parameters))


MUTANTS = (
    *mutants(
        "common.cuh",
        ("upper limit forgotten", *edit("max_nan(v, low)"), CONV),
        ("lower limit forgotten", *edit("min_nan(v, high)"), MMA),
        (
            "NaN lost in limits",
            *edit("fminf(fmaxf(v, low), high)"),
            partial(test_limits.test_nan_stays_and_infinity_ends, value=float("nan")),
        ),
        (
            "limits change places",
            "Activation { name##_low, name##_high }",
            "Activation { name##_high, name##_low }",
            CONV,
        ),
        (
            "upper limit of the input forgotten",
            *edit("max_nan(v, low)", "INPUT_PARAMETERS"),
            partial(INPUT, element="float32"),
        ),
    ),
    *mutants(
        "layout.cu",
        ("input not clipped", "        v[i] = INPUT_LIMITS(v[i]);\n", "", partial(INPUT, element="float32")),
        (
            "infinity clipped before it is told",
            "bad |= !(fabsf(v[i]) < INFINITY);",
            "bad |= !(fabsf(INPUT_LIMITS(v[i])) < INFINITY);",
            test_limits.test_an_infinite_input_is_told_and_clipped,
        ),
    ),
    *mutants(
        "preprocess.cu",
        ("bytes not clipped", "INPUT_LIMITS(fmaf(", "(fmaf(", partial(INPUT, element="uint8")),
    ),
    *mutants(
        "common.cuh",
        ("gradient above the upper limit", "v <= low || v >= high", "v <= low", MASKED),
        ("gradient below the lower limit", "v <= low || v >= high", "v >= high", MASKED),
    ),
    *mutants(
        "elementwise.cu",
        ("gradient of a matrix above", " || v >= f.second ?", " ?", PASSED),
        ("gradient of a matrix below", "v <= f.first || ", "", PASSED),
    ),
)

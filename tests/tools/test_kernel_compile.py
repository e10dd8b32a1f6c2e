"""tools/kernel_compile.py: what only Hopper has is compiled for Hopper alone."""

import kernel_compile
import pytest

from vgg16gpu.devices.kernel_source import source_path


@pytest.mark.parametrize(
    ("wanted", "archs"),
    [(("sm_75", "sm_90", "sm_100"), ("sm_90a",)), (("sm_90a",), ("sm_90a",)), (("sm_75", "sm_120"), ())],
)
def test_what_hopper_alone_has_is_compiled_for_that_alone(wanted, archs):
    assert kernel_compile.architectures(source_path("gemv.cu"), wanted) == archs
    assert kernel_compile.architectures(source_path("pool.cu"), wanted) == wanted

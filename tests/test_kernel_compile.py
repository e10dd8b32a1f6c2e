"""tools/kernel_compile.py: what ptxas prints is read, and what only Hopper has is compiled for Hopper alone."""

import kernel_compile
import pytest

from vgg16gpu.kernel_source import kernel_dir

KERNELS = kernel_dir()

OUTPUT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'add' for 'sm_75'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 2048 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 1.5 ms
ptxas info    : Compiling entry function 'mul' for 'sm_75'
ptxas info    : Function properties for mul
    40 bytes stack frame, 24 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 40 bytes cumulative stack size, 380 bytes cmem[0]
"""


def test_parse():
    add, mul = kernel_compile.parse(OUTPUT)
    assert add == kernel_compile.Usage("add", "sm_75", registers=12, shared_nbytes=2048, stack_nbytes=0, spill_nbytes=0)
    assert mul == kernel_compile.Usage("mul", "sm_75", registers=32, shared_nbytes=0, stack_nbytes=40, spill_nbytes=40)


def test_output_that_is_not_understood():
    with pytest.raises(ValueError, match="not understood"):
        kernel_compile.parse("Compiling entry function 'add' for 'sm_75'\n")


@pytest.mark.parametrize(
    ("wanted", "archs"),
    [(("sm_75", "sm_90", "sm_100"), ("sm_90a",)), (("sm_90a",), ("sm_90a",)), (("sm_75", "sm_120"), ())],
)
def test_what_hopper_alone_has_is_compiled_for_that_alone(wanted, archs):
    assert kernel_compile.architectures(KERNELS / "gemv.cu", wanted) == archs
    assert kernel_compile.architectures(KERNELS / "pool.cu", wanted) == wanted

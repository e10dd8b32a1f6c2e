"""devices/cuda/ptxas.py: what ptxas prints is read."""

import pytest

from vgg16gpu.devices.cuda import ptxas

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
    add, mul = ptxas.parse(OUTPUT)
    assert add == ptxas.Usage("add", "sm_75", registers=12, shared_nbytes=2048, stack_nbytes=0, spill_nbytes=0)
    assert mul == ptxas.Usage("mul", "sm_75", registers=32, shared_nbytes=0, stack_nbytes=40, spill_nbytes=40)


def test_output_that_is_not_understood():
    with pytest.raises(ValueError, match="not understood"):
        ptxas.parse("Compiling entry function 'add' for 'sm_75'\n")

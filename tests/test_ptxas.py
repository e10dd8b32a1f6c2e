"""tools/ptxas.py: it reads what ptxas prints, and a kernel that spills or does not compile fails it."""

import shutil

import ptxas
import pytest

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


def test_report(capsys):
    add, mul = ptxas.parse(OUTPUT)
    assert ptxas.report([add], []) == 0
    assert ptxas.report([add, mul], []) == 1
    assert "SPILLS 40 B" in capsys.readouterr().out
    assert ptxas.report([add], ["add.cu does not compile"]) == 1
    assert ptxas.report([], []) == 1


def test_no_nvcc(monkeypatch, capsys):
    monkeypatch.setattr(ptxas, "find_toolkits", lambda: ())
    assert ptxas.main([]) == 2
    assert "No working nvcc" in capsys.readouterr().err


SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) hungry(float* out) {
  float values[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) values[i] = out[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 200; ++i) out[i * 1024 + threadIdx.x] = values[199 - i] * values[i];
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ('extern "C" __global__ void fine(float* out) { *out = 1; }', 0, "1 kernels compiled, 0 spill"),
        (SPILLING, 1, "SPILLS"),
        ("no C++", 1, "1 files do not compile"),
    ],
)
def test_real_compilations(tmp_path, capsys, text, code, word):
    source = tmp_path / "kernel.cu"
    source.write_text(text)
    assert ptxas.main([str(source), "--arch", "sm_75"]) == code
    assert word in capsys.readouterr().out

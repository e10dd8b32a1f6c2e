"""tools/ptxas.py: a kernel that spills or does not compile fails it; what it compiles; what it refuses."""

import shutil
from dataclasses import replace

import compiled_table
import kernel_variants
import ptxas
import pytest
from kernel_compile import Usage

from vgg16gpu.compiler.lowering.conv import conv_wgmma
from vgg16gpu.compiler.lowering.conv.conv_wgmma_tiles import ConvProblem
from vgg16gpu.devices.kernel_source import own_sources, source_path
from vgg16gpu.program.device_properties import DeviceFacts
from vgg16gpu.program.values import Element


def test_report(capsys):
    add, mul = Usage("add", "sm_75", 12, 2048, 0, 0), Usage("mul", "sm_75", 32, 0, 40, 40)
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


# ---- The table


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_real_kernel_is_as_recorded(monkeypatch, capsys):
    """Of the release of nvcc that the table is of; with another one that is said."""
    arguments = [str(source_path("lrn.cu")), "--arch", "sm_80"]
    assert ptxas.main(arguments) == 0
    told = capsys.readouterr().out
    if "only spills were checked" in told:
        return
    assert "2 kernels are as compiled.txt has them" in told
    table = compiled_table.read()
    fewer = {key: replace(row, figures=replace(row.figures, registers=7)) for key, row in table.rows.items()}
    monkeypatch.setattr(compiled_table, "read", lambda: replace(table, rows=fewer))
    assert ptxas.main(arguments) == 1
    assert "lrn.cu lrn_f32 sm_80 default: registers: was 7, is" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_recording_needs_a_disassembler(monkeypatch, capsys):
    monkeypatch.setattr(ptxas.disassembler, "find", lambda _: None)
    assert ptxas.main(["--record", "--reason", "none"]) == 2
    assert "--record needs nvdisasm: `pip install" in capsys.readouterr().err


def test_a_reason_is_for_recording(capsys):
    with pytest.raises(SystemExit):
        ptxas.main(["--reason", "none"])
    assert "--reason is for --record" in capsys.readouterr().err


# ---- What is compiled

HOPPER_ONLY = {"conv_first", "conv_first_two", "conv_wgmma", "conv_wgmma_small", "gemm_wgmma", "gemv"}


def test_headers_of_headers_count():
    assert kernel_variants.included(source_path("gemv.cu")) == {
        "wgmma_tile.cuh",
        "element.cuh",
        "early_start.cuh",
        "hopper.cuh",
        "timeline.cuh",
        "wgmma.cuh",
        "common.cuh",
    } | ({"cpu_shim.h"} | {name for name in kernel_variants.included(source_path("lrn.cu")) if name != "common.cuh"})


def test_kernels_of_one_architecture():
    assert {path.stem for path in own_sources() if kernel_variants.is_hopper_only(path)} == HOPPER_ONLY


def test_a_file_that_nobody_knows_has_its_defaults(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("")
    assert kernel_variants.variants(source) == ((),)


@pytest.mark.parametrize("kernel", sorted(HOPPER_ONLY))
def test_every_precision_is_compiled(kernel):
    """Under the name that the source gives it."""
    found = kernel_variants.variants(source_path(f"{kernel}.cu"))
    inputs = {number for defines in found for name, number in defines if name in ("ELEMENT", "INPUT")}
    wanted = {Element.F16.number, Element.BF16.number, Element.U8.number}
    wanted |= set() if kernel == "conv_first_two" else {Element.F16_PAIR.number}
    assert wanted <= inputs
    assert len(set(found)) == len(found)


def test_what_the_planner_chooses_is_compiled():
    facts = DeviceFacts("cuda", "NVIDIA H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
    problem = ConvProblem(32, 56, 56, 256, 256, Element.F16, Element.F16, pool=False)
    kernel = conv_wgmma.choose(problem, facts).kernel
    assert kernel.defines in kernel_variants.variants(source_path(kernel.source))

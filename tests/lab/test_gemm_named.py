"""kernels/lab/gemm_named.cu: the machine code of gemm_shared.cu."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from vgg16gpu.cuda_probe import compile_problem, find_toolkits
from vgg16gpu.devices.cuda_compiler import FLAGS
from vgg16gpu.kernel_source import kernel_dir, source_path
from vgg16gpu.lab.variants.gemm_named import VARIANTS

(VARIANT,) = VARIANTS
BLOCKS = VARIANT.parameters["block"]


# ---- Names cost nothing and bring nothing


def machine_code(nvcc: Path, folder: Path, name: str, block: int) -> bytes:
    """Of the kernel `name` in kernels/lab/<name>.cu for sm_90, as the product is compiled."""
    target = folder / f"{name}.cubin"
    command = [str(nvcc), *FLAGS, "-arch=sm_90", "--cubin", f"-DBLOCK={block}", "-I", str(kernel_dir())]
    source = source_path(f"lab/{name}.cu")
    subprocess.run([*command, "-o", str(target), str(source)], check=True, capture_output=True, timeout=120)
    return section(target.read_bytes(), f".text.{name}")


def section(elf: bytes, name: str) -> bytes:
    """The content of a section of a 64-bit ELF file (System V ABI: ELF header, section header table)."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry) for index in range(count)]
    strings = headers[names][4]
    for label, _, _, _, offset, size in headers:
        start = strings + label
        if elf[start : elf.index(b"\0", start)] == name.encode():
            return elf[offset : offset + size]
    raise LookupError(name)


@pytest.mark.parametrize("block", BLOCKS)
def test_same_machine_code_as_without_names(tmp_path: Path, block: int) -> None:
    toolkit = next((found for found in find_toolkits() if not compile_problem(found)), None)
    if toolkit is None or "sm_90" not in toolkit.archs:
        pytest.skip("no working nvcc that knows sm_90")
    named, shared, register = (
        machine_code(toolkit.nvcc, tmp_path, f"gemm_{mode}", block) for mode in ("named", "shared", "register")
    )
    assert len(named) > 16 * block  # a multiply-add of 16 bytes for each tap of a tile
    assert named == shared
    assert register != shared

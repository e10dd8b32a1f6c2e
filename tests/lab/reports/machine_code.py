"""How many machine instructions of each kind a compiled kernel has, read from the cubin itself: no disassembler."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from vgg16gpu.devices.cuda.compiler import FLAGS
from vgg16gpu.devices.cuda.probe import compile_problem, find_toolkits
from vgg16gpu.devices.kernel_source import include_dirs

ARCH: Final = "sm_90"
OPERATIONS: Final = {  # the low 12 bits of an instruction of 16 bytes, by nvdisasm for this architecture
    0x381: "LDG",
    0x981: "LDG",
    0x386: "STG",
    0x986: "STG",
    0x984: "LDS",
    0x388: "STS",
    0x988: "STS",
    **dict.fromkeys((0x223, 0x423, 0x823, 0xA23, 0xC23), "FFMA"),
    0x947: "BRA",
}
_SINGLE: Final = "--fmad=false"  # ours write fmaf themselves; theirs leave it to the compiler


def counts(text: str, name: str, folder: Path, *macros: str, fused: bool = False) -> Counter[str]:
    """Of kernel `name` in a source; `fused`: products and sums may become one. Skips without nvcc."""
    return counted(section(cubin(text, folder, *macros, fused=fused).read_bytes(), f".text.{name}"))


def cubin(text: str, folder: Path, *macros: str, fused: bool = False) -> Path:
    """A source compiled as the product compiles its own."""
    toolkit = next((found for found in find_toolkits() if not compile_problem(found)), None)
    if toolkit is None or ARCH not in toolkit.archs:
        pytest.skip(f"no working nvcc that knows {ARCH}")
    flags = [flag for flag in FLAGS if not (fused and flag == _SINGLE)]
    source, target = folder / "source.cu", folder / "source.cubin"
    source.write_text(text, encoding="utf-8")
    command = [str(toolkit.nvcc), *flags, f"-arch={ARCH}", "--cubin", *macros]
    command += [*(f"-I{path}" for path in include_dirs()), "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return target


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


def counted(code: bytes) -> Counter[str]:
    """Instructions by what they do; others are left out."""
    operations = (struct.unpack_from("<Q", code, start)[0] & 0xFFF for start in range(0, len(code), 16))
    return Counter(OPERATIONS[each] for each in operations if each in OPERATIONS)

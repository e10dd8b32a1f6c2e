"""What the register tiles of the ladder save, counted in their machine code: what their predictions rest on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.reports.machine_code import counts
from vgg16gpu.devices.kernel_source import read_source

# Per step of 16 taps: loads from shared memory, stores to it, loads from memory into registers, multiply-adds.
STEPS = {
    "registers": {"LDS": 192, "STS": 16, "LDG": 16, "FFMA": 512},
    "vectors": {"LDS": 48, "STS": 10, "LDG": 10, "FFMA": 512},
    "warps": {"LDS": 64, "STS": 18, "LDG": 18, "FFMA": 1024},
    "swizzle": {"LDS": 64, "STS": 6, "LDG": 18, "FFMA": 1024},
    # cp.async alone; ptxas puts three loads that are never made before each of three groups of copies.
    "pipeline": {"LDS": 64 + 9, "STS": 0, "LDG": 0, "FFMA": 1024},
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.slow(reason="of sources that seldom change")
def test_loads_and_stores_of_a_step(name: str, tmp_path: Path) -> None:
    found = counts(read_source(f"ladder/conv_{name}.cu"), f"conv_{name}_f32", tmp_path)
    assert {operation: found[operation] for operation in STEPS[name]} == STEPS[name]

"""lab/kernels/lab/gemm/gemm_named.cu: the machine code of gemm_shared.cu."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.reports.machine_code import cubin, section
from vgg16gpu.devices.kernel_source import read_source
from vgg16gpu_lab.variants.gemm.gemm_named import VARIANTS

(VARIANT,) = VARIANTS
BLOCKS = VARIANT.parameters["block"]


# ---- Names cost nothing and bring nothing


def machine_code(folder: Path, name: str, block: int) -> bytes:
    """Of the kernel `name` in lab/kernels/lab/<name>.cu for sm_90, as the product is compiled."""
    text = read_source(f"lab/{name}.cu")
    return section(cubin(text, folder, f"-DBLOCK={block}").read_bytes(), f".text.{name}")


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.slow(reason="of sources that seldom change")
def test_same_machine_code_as_without_names(tmp_path: Path, block: int) -> None:
    named, shared, register = (
        machine_code(tmp_path, f"gemm_{mode}", block) for mode in ("named", "shared", "register")
    )
    assert len(named) > 16 * block  # a multiply-add of 16 bytes for each tap of a tile
    assert named == shared
    assert register != shared

"""Every kernel opens with the same fields, names its macros there, and has a Python side and a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel_variants import DRIVERS, OF_DEVICES, driver, included

from vgg16gpu.compiler.lowering import modules
from vgg16gpu.devices.kernel_source import headers, own_sources, read_source, source_name, source_path

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    path.name: path
    for folder in ("kernels", "lab/variants")  # a kernel's, a variant's
    for path in (ROOT / "tests" / folder).rglob("test_*.py")
}
SIDES = {name.rpartition(".")[2]: name for name in modules()}  # the Python sides
# Those of several kernels, or of none.
SHARED = {
    "activation",
    "base",
    "common",
    "conv_wgmma_tiles",
    "fc_wgmma_tiles",
    "guard",
    "known_linear",
    "mma",
    "mma_geometry",
    "same_3x3",
    "strided",
    "tile_choice",
}
KERNELS = [path.stem for path in own_sources()]
HEADERS = sorted(path.name for path in headers() if "/" not in source_name(path) and path.suffix == ".cuh")
FIELDS = ("Layouts", "Mapping", "Tiles", "Shared", "Cost", "Edges", "Why")
MAX_LINES = 30


def text_of(kernel: str) -> str:
    return read_source(f"{kernel}.cu")


def header_of(kernel: str) -> list[str]:
    """The comment that the file opens with, without its slashes."""
    lines = []
    for line in text_of(kernel).splitlines():
        if not line.startswith("//"):
            return lines
        lines.append(line.removeprefix("//").removeprefix(" "))
    return lines


def fields_of(kernel: str) -> dict[str, str]:
    """Field name -> its text, in order."""
    name = "Formula"
    fields = {name: ""}
    for line in header_of(kernel):
        if found := re.match(r"([A-Z]\w+):\s+(.*)", line):
            name = found[1]
            fields[name] = found[2]
        else:
            assert line.startswith("  ") or not fields["Formula"], (
                f"{kernel}: {line!r} neither starts nor continues a field"
            )
            fields[name] += " " + line.strip()
    return fields


def defaults_of(text: str) -> dict[str, str]:
    """The macros of a source that may be set from outside, and what they are otherwise."""
    return dict(re.findall(r"#ifndef (\w+)\n#define \1 (\w+)\n#endif", text))


def test_there_are_kernels() -> None:
    assert {"conv_igemm", "gemm_splitk", "pool", "softmax", "layout", "preprocess", "elementwise", "pack"} <= {*KERNELS}


@pytest.mark.parametrize("kernel", KERNELS)
def test_header_has_all_fields_in_order(kernel: str) -> None:
    assert len(header_of(kernel)) <= MAX_LINES
    names = [name for name in fields_of(kernel) if name in FIELDS]
    assert tuple(names) == FIELDS
    assert all(fields_of(kernel).values())


@pytest.mark.parametrize("kernel", KERNELS)
def test_header_opens_with_a_formula_for_a_kernel_of_the_file(kernel: str) -> None:
    formula = fields_of(kernel)["Formula"].strip()
    name = formula.partition(":")[0]
    assert f" {name}(" in text_of(kernel) or f"\n{name}(" in text_of(kernel)
    assert re.search(r"out\[.*\] = ", formula)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_macro_is_listed_under_tiles_with_its_default(kernel: str) -> None:
    """Its own, and those of a header that it shares with another kernel."""
    tiles = fields_of(kernel)["Tiles"]
    defaults = defaults_of(text_of(kernel))
    assert {*re.findall(r"#define (\w+)", text_of(kernel))} == {*defaults}, "a macro that cannot be set from outside"
    for header in included(source_path(f"{kernel}.cu")):
        defaults |= defaults_of(read_source(header))
    for macro, default in defaults.items():
        assert re.search(rf"\b{macro}\b[^,;]*\({default}[;:)]", tiles), f"{macro} ({default}) is not in: {tiles}"
    listed = {*re.findall(r"\b([A-Z][A-Z_0-9]+)\b(?=[^,;(]*\((?:\d+|[A-Z_]+)[;:)])", tiles)}
    assert listed == {*defaults}


# ---- Which files belong together


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_includes_our_headers_alone(kernel: str) -> None:
    """System headers come through ours: what is portable then stays so."""
    includes = re.findall(r"#include (.*)", text_of(kernel))
    assert includes
    for name in includes:
        assert source_path(name.strip('"')).is_file()
    assert "common.cuh" in included(source_path(f"{kernel}.cu"))


@pytest.mark.parametrize("header", HEADERS)
def test_what_only_hopper_has_stays_behind_one_header(header: str) -> None:
    """Portable headers neither include CUDA's nor spell its newest instructions."""
    path = source_path(header)
    text = path.read_text()
    if header in ("hopper.cuh", "wgmma.cuh") or "hopper.cuh" in included(path):
        return
    assert not re.search(r"#include <cuda", text)
    spelled = set(re.findall(r"wgmma\.|cp\.async\.bulk|mbarrier|griddepcontrol", text))
    assert spelled <= ({"griddepcontrol"} if header == "early_start.cuh" else set())  # it says nothing elsewhere


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_python_side_and_test_have_the_same_name(kernel: str) -> None:
    """Or, of the Python side, the one that is written down: a module may drive two kernels."""
    assert f"{kernel}.cu" in (ROOT / f"{driver(kernel).replace('.', '/')}.py").read_text()
    assert f"{kernel}.cu" in TESTS[f"test_{kernel}.py"].read_text()


def test_every_exception_is_needed() -> None:
    assert {*DRIVERS, *OF_DEVICES} <= {*KERNELS}
    assert not {*DRIVERS} & {*SIDES}


def test_no_python_side_without_a_kernel() -> None:
    sides = {*SIDES} - SHARED
    assert {SIDES[side] for side in sides} == {driver(kernel) for kernel in {*KERNELS} - OF_DEVICES}

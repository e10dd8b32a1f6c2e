"""Where the kernel sources are found, and what is said when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgg16gpu.devices import kernel_source
from vgg16gpu.errors import KernelError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder without kernels, in which the module believes to lie."""
    package = tmp_path / "site" / "vgg16gpu"
    package.mkdir(parents=True)
    monkeypatch.setattr(kernel_source, "__file__", str(package / "devices" / "kernel_source.py"))
    monkeypatch.setattr(kernel_source, "_added", [])
    return package


def put_kernels(folder: Path) -> Path:
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "common.cuh").write_text("// common\n")
    (folder / "scale.cu").write_text("// scale\n")
    return folder


def test_the_checkout_has_sources_and_headers() -> None:
    folder = kernel_source.kernel_dir()
    assert folder.name == "kernels"
    names = {str(path.relative_to(folder)) for path in kernel_source.headers("conv_mma.cu")}
    assert names >= {
        "include/common.cuh",
        "include/cpu_shim.h",
        "cpu/scheduler.h",
        "cpu/intrinsics.h",
        "cpu/stack_switch.h",
    }
    ordered = [kernel_source.source_name(path) for path in kernel_source.headers("conv_mma.cu")]
    assert ordered == sorted(ordered, key=Path)
    assert kernel_source.read_source("common.cuh") == (folder / "include" / "common.cuh").read_text()


def test_sources_in_the_package_come_first(installed: Path) -> None:
    put_kernels(installed.parent / "kernels")
    packaged = put_kernels(installed / "kernels")
    assert kernel_source.kernel_dir() == packaged
    assert kernel_source.source_path("scale.cu") == packaged / "scale.cu"


def test_folders_sort_sources_and_names_stay(installed: Path) -> None:
    folder = put_kernels(installed / "kernels")
    for name in ("conv/conv.cu", "cpu/half.h", "include/conv.cuh", "plain/direct/conv.cu", "plain/tiny.cu"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"// {name}\n")
    names = ["common.cuh", "conv.cu", "conv.cuh", "cpu/half.h", "plain/conv.cu", "plain/tiny.cu", "scale.cu"]
    assert [kernel_source.source_name(path) for path in kernel_source.files(*kernel_source.SUFFIXES)] == names
    assert [kernel_source.source_name(kernel_source.source_path(name)) for name in names] == names
    assert kernel_source.own_sources() == (folder / "conv" / "conv.cu", folder / "scale.cu")
    with pytest.raises(KernelError, match=r"'tiny\.cu' not found in .*; there are: conv\.cu, scale\.cu"):
        kernel_source.source_path("tiny.cu")


def test_other_packages_add_theirs(installed: Path, tmp_path: Path) -> None:
    put_kernels(installed / "kernels")
    for name in ("lab/direct/rows.cu", "lab/rows.cuh"):
        (tmp_path / "more" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "more" / name).write_text(f"// {name}\n")
    kernel_source.add_kernel_dir(tmp_path / "more")
    assert kernel_source.read_source("lab/rows.cu") == "// lab/direct/rows.cu\n"
    assert [path.name for path in kernel_source.headers("scale.cu")] == ["common.cuh"]
    assert [path.name for path in kernel_source.headers("lab/rows.cu")] == ["common.cuh", "rows.cuh"]
    assert [path.name for path in kernel_source.own_sources()] == ["scale.cu"]
    assert kernel_source.include_dirs()[-1] == tmp_path / "more"


def test_missing_sources_are_named(installed: Path) -> None:
    with pytest.raises(KernelError, match=r"no kernel sources .*vgg16gpu/kernels or .*/kernels: .* install it again"):
        kernel_source.kernel_dir()
    put_kernels(installed / "kernels")
    with pytest.raises(KernelError, match=r"'nonesuch\.cu' not found in .*; there are: scale\.cu"):
        kernel_source.read_source("nonesuch.cu")
    (installed / "kernels" / "scale.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(KernelError, match=r"scale\.cu cannot be read"):
        kernel_source.read_source("scale.cu")

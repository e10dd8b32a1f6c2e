"""The tree and its pages: each folder has its row, what pages name is there, public names stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from vgg16gpu.compat import RENAMED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def folders(top: str) -> list[Path]:
    """Those that hold sources; an exercise is one thing."""
    found = {path.parent for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    found |= {parent for path in found for parent in path.parents if (ROOT / top) in parent.parents}
    return sorted(path for path in found if path.parent.name != "exercises" and path != ROOT / top)


@pytest.mark.parametrize("top", ["vgg16gpu", "kernels", "serving/vgg16gpu_serving"])
def test_every_folder_has_a_row(top: str) -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|"))
    missing = [path for path in folders(top) if f"`{path.relative_to(ROOT / top)}/`" not in rows]
    assert not missing


NAMING = ("architecture.md", "internals.md")  # pages that name files and classes of the package
SOURCES = (".py", ".cu", ".cuh", ".h")


@cache
def sources() -> dict[str, list[Path]]:
    """Every source of the checkout by its name."""
    found: dict[str, list[Path]] = {}
    for top in ("vgg16gpu", "kernels", "serving", "lab", "testbench", "tests", "tools", "examples"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in SOURCES:
                found.setdefault(path.name, []).append(path)
    return found


@cache
def classes() -> frozenset[str]:
    """Every class that the package defines, and with a dot in front every attribute and method of classes."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "vgg16gpu").rglob("*.py")))
    attributes = re.findall(r"^    (?:def )?([a-z]\w*)[:(]", text, re.MULTILINE)
    return frozenset(re.findall(r"^class (\w+)", text, re.MULTILINE)) | {f".{name}" for name in attributes}


def code(page: str) -> Iterator[str]:
    """Return the names that a page has between backticks, without patterns such as NAME.py."""
    text = re.sub(r"^    .*$", "", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    yield from (found for found in re.findall(r"`([^`]+)`", text) if not re.search(r"NAME|\*", found))


@pytest.mark.parametrize("page", NAMING)
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = [found for found in code(page) if re.fullmatch(r"[\w./]+", found) and found.endswith(SOURCES)]
    assert len(named) > 20
    gone = [
        name
        for name in named
        if not any(str(path.relative_to(ROOT)).endswith(f"/{name}") for path in sources().get(name.split("/")[-1], ()))
        and not (ROOT / name).is_file()
    ]
    assert not gone


@pytest.mark.parametrize("page", NAMING)
def test_classes_that_a_page_names_are_there(page: str) -> None:
    named = [found for found in code(page) if re.fullmatch(r"[A-Z]\w*[a-z]\w*(?:\.[a-z]\w*)?", found)]
    assert len(named) > 20
    parts = {part for name in named for part in re.findall(r"^\w+|\.\w+$", name)}
    assert parts <= classes()


@pytest.mark.parametrize("page", NAMING)
def test_functions_and_constants_that_a_page_names_are_there(page: str) -> None:
    named = {found for found in code(page) if re.fullmatch(r"_?[a-z]+_\w+|[A-Z_]{4,}", found)}
    assert len(named) > 10
    known = {word for paths in sources().values() for path in paths for word in re.findall(r"\w+", path.read_text())}
    assert named <= known


@pytest.mark.parametrize(
    "statement",
    [
        "from vgg16gpu import Engine, Session, Model, calibrate, DeviceArray",
        "from vgg16gpu import Error, ModelError, InputError, DeviceError, KernelError, __version__",
        "from vgg16gpu.errors import Error, ModelError, InputError, DeviceError, KernelError",
        "from vgg16gpu.session import Session; from vgg16gpu.preprocessing import Preprocess",
        "import vgg16gpu.onnx_backend as backend; backend.prepare, backend.run_model, backend.supports_device",
        "from vgg16gpu.program import Dim3, Kernel, KernelLaunch, Scalar",
        "from vgg16gpu.devices import open_device",
        "from vgg16gpu_lab.problem import Problem; from vgg16gpu_lab.trial import Trial",
        "from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant",
    ],
)
def test_public_names_are_where_they_were(statement: str) -> None:
    exec(statement)


def test_old_names_warn_and_are_those_of_today() -> None:
    """Step is in the kernels that `lab new` wrote."""
    for module, names in RENAMED.items():
        for old, today in names.items():
            found = import_module(module)
            with pytest.warns(DeprecationWarning, match=f"{module}.{old} is called {today} now"):
                assert getattr(found, old) is getattr(found, today)
    with pytest.raises(AttributeError, match=r"module 'vgg16gpu\.program' has no attribute 'Stride'"):
        import_module("vgg16gpu.program").Stride  # noqa: B018


def test_kernels_of_lab_new_import_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="vgg16gpu_lab"):
        from vgg16gpu.lab.problem import Problem
    from vgg16gpu.lab.trial import Trial
    from vgg16gpu.lab.variant import Variant

    from vgg16gpu_lab import problem, trial, variant

    assert (Problem, Trial, Variant) == (problem.Problem, trial.Trial, variant.Variant)


COMMANDS = (
    "vgg16gpu.__main__ vgg16gpu.cuda_setup vgg16gpu.devices.sanitize tests.conformance.suite tests.fuzz.models "
    "tests.sanitize.gpu tests.stress.promises testbench.measure.accuracy testbench.measure.cold_start "
    "testbench.measure.host_path testbench.measure.sweep_conv"
)


@pytest.mark.parametrize("name", COMMANDS.split())
def test_public_commands_are_where_they_were(name: str) -> None:
    assert 'if __name__ == "__main__":' in (ROOT / f"{name.replace('.', '/')}.py").read_text()

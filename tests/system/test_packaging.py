"""What ships: wheel and source archive hold all of it and nothing else, and an installed copy works by itself."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import vgg16gpu

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = [path for path in sys.path if path.endswith("-packages")]  # without .pth files, and so this checkout
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "*.partial"
)


def copy_project(target, *names):
    """The parts of the project that builds read, elsewhere: a build leaves files beside its sources."""
    target.mkdir()
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=LEFT_OUT)
        elif source.is_file():
            shutil.copy(source, target / name)


def build(kind, project, output):
    """Run the build back end as pip does, without a network; the file that it made."""
    output.mkdir(exist_ok=True)
    script = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(output)!r}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is absent from the `packages` configuration" not in done.stderr
    return output / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packaging") / "project"
    top_level = (
        "pyproject.toml README.md CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE MANIFEST.in Makefile SECURITY.md "
        "THIRD_PARTY.md vgg16gpu kernels serving lab tests tools testbench docs examples .ci .github"
    )
    copy_project(folder, *top_level.split())
    return folder


@pytest.fixture(scope="module")
def wheel(project):
    return build("wheel", project, project.parent / "wheel")


@pytest.fixture(scope="module")
def sdist(project):
    return build("sdist", project, project.parent / "sdist")


@pytest.fixture(scope="module")
def beside(project):
    """The wheels of the packages beside it."""
    return {name: build("wheel", project / name, project.parent / name) for name in ("serving", "lab")}


@pytest.fixture(scope="module")
def installed(wheel):
    """The wheel unpacked in a folder of its own."""
    return unpacked(wheel.parent / "installed", wheel)


def unpacked(target, *wheels):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target


def files_below(folder, prefix):
    """The names that a folder's files should have in the wheel."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{prefix}/{path.relative_to(folder).as_posix()}" for path in found}


def in_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_wheel_is_the_package_the_kernels_the_references_and_nothing_else(wheel):
    expected = files_below(ROOT / "vgg16gpu", "vgg16gpu") | files_below(ROOT / "kernels", "vgg16gpu/kernels")
    expected |= files_below(ROOT / "testbench" / "references", "vgg16gpu/references")
    assert {name for name in in_wheel(wheel) if ".dist-info/" not in name} == expected
    named = {"py.typed", "kernels/include/common.cuh", "data/digits.onnx", "references/vgg16-224-seed0.npz"}
    assert {f"vgg16gpu/{name}" for name in named} <= expected


@pytest.mark.slow(reason="`.ci/run` builds and installs them")
def test_wheels_beside_it_are_a_package_its_kernels_and_nothing_else(beside):
    for name, package in (("serving", "vgg16gpu_serving"), ("lab", "vgg16gpu_lab")):
        expected = files_below(ROOT / name / package, package)
        expected |= files_below(ROOT / name / "kernels", f"{package}/kernels")
        assert {file for file in in_wheel(beside[name]) if ".dist-info/" not in file} == expected


@pytest.mark.slow(reason="`.ci/run` builds and installs the wheels, and `make lint` has the contracts")
def test_source_archive_holds_what_tests_and_builds_need(sdist, wheel):
    folder = sdist.parent / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    for name in (
        "Makefile",
        "LICENSE",
        "tools/bootstrap.py",
        "tests/system/test_packaging.py",
        ".ci/run",
        ".github/workflows/ci.yml",
        ".github/ISSUE_TEMPLATE/bug.yml",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "THIRD_PARTY.md",
        "docs/stable-api.md",
        "examples/tour.ipynb",
    ):
        assert (root / name).is_file(), name
    assert files_below(root / "examples", "") == files_below(ROOT / "examples", "")
    again = build("wheel", root, sdist.parent / "wheel")
    assert in_wheel(again) == in_wheel(wheel)


def run_installed(installed, *command, **environ):
    """Run Python with the installed copy in front, from a folder that has nothing to do with the project."""
    return subprocess.run(
        [sys.executable, "-S", *command],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *LIBRARIES]), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_installed_copy_works_by_itself(installed):
    """On its own kernels and references; beside the project file of whoever has copied the package."""
    (installed / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "9"')
    script = (
        "import vgg16gpu; from vgg16gpu.checks.references import reference_files;"
        "from vgg16gpu.devices.kernel_source import kernel_dir;"
        "print(vgg16gpu.__version__, kernel_dir(), *reference_files(), sep='\\n')"
    )
    done = run_installed(installed, "-c", script)
    package = installed / "vgg16gpu"
    expected = [vgg16gpu.__version__, package / "kernels", *sorted((package / "references").glob("*.npz"))]
    assert done.stdout.splitlines() == list(map(str, expected)), done.stderr
    assert len(expected) == 5


def test_a_command_without_its_package_is_one_line(installed):
    script = (
        "import importlib.metadata as m; m.entry_points = lambda **_: ()\n"
        "import sys; from vgg16gpu.cli import main\n"
        "for name in ('serve', 'lab', 'ladder', 'report'):\n"
        "    sys.argv[1:] = [name, '--help']\n"
        "    try: main()\n"
        "    except SystemExit as end: print(end.code)\n"
    )
    done = run_installed(installed, "-c", script)
    folders = {"serve": "serving", "lab": "lab", "ladder": "lab", "report": "lab"}
    said = [
        f"vgg16gpu: {command} is not installed: pip install ./{folder}, in a checkout of the repository"
        for command, folder in folders.items()
    ]
    assert (done.stdout.split(), done.stderr.splitlines()) == (["2"] * 4, said)


def test_a_command_whose_package_is_broken_is_one_line(installed, tmp_path):
    metadata = tmp_path / "broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[vgg16gpu.commands]\nserve = not_there:command\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from vgg16gpu.cli import main; main()"
    done = run_installed(installed, "-c", script, "serve", "--help")
    said = "vgg16gpu: serve cannot be loaded: No module named 'not_there'; install it again: pip install ./serving\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_there_is_one_version():
    projects = [
        tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"] for name in (".", "serving", "lab")
    ]
    written = projects[0]["version"]
    assert vgg16gpu.__version__ == written
    for project in projects[1:]:
        assert (project["version"], project["dependencies"][0]) == (written, f"vgg16gpu=={written}")
    named = [path.name for path in (ROOT / "vgg16gpu").rglob("*.py") if f'"{written}"' in path.read_text()]
    assert named == []


def test_every_package_is_listed():
    """The lists of the two packages beside it are checked by what their wheels hold."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in (ROOT / "vgg16gpu").rglob("*.py")}
    folders |= {ROOT / "vgg16gpu" / "data", ROOT / "vgg16gpu" / "data" / "tuned"}
    kernels = {path.parent for path in (ROOT / "kernels").rglob("*") if path.suffix in (".cu", ".cuh", ".h")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    names |= {".".join(("vgg16gpu", *folder.relative_to(ROOT).parts)) for folder in kernels} | {"vgg16gpu.references"}
    assert set(settings["packages"]) == names

"""Run the GPU tests that are marked `sanitize` under compute-sanitizer: memcheck, then racecheck.

With `--record FILE`, in whose name TOOL becomes the tool's, each writes one: outcomes, machine, versions.

Without an NVIDIA driver there is nothing to run, which is said and is no failure. With one, the tests must run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vgg16gpu.devices.cuda.probe import nvcc_candidates, probe_driver

TOOLS = ("memcheck", "racecheck")
FOUND_ERRORS = "86"  # exit code that pytest does not use
TESTS = ("-m", "pytest", "-m", "sanitize and gpu", "--require-gpu")
ROOT = Path(__file__).resolve().parents[2]
OF_SEVERAL_KERNELS = ("test_variants.py", "test_halo.py", "test_kernels.py", "test_kept_maps.py", "test_published.py")


def find_sanitizer() -> Path | None:
    """compute-sanitizer beside an nvcc (its place differs between packagings), or on PATH."""
    for _, nvcc in nvcc_candidates():
        for place in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer"):
            path = nvcc.parents[1] / place
            if path.is_file() and os.access(path, os.X_OK):
                return path
    on_path = shutil.which("compute-sanitizer")
    return Path(on_path) if on_path else None


def python_under(sanitizer: Path, tool: str) -> list[str]:
    """The command line of one tool with Python as its program."""
    options = ["--tool", tool, "--error-exitcode", FOUND_ERRORS, "--target-processes", "all"]
    options += ["--report-api-errors", "no"]  # the device asks the driver until it says no, and checks every answer
    return [str(sanitizer), *options, sys.executable]


def kernel_tests() -> list[str]:
    """The test files of the kernels. Collecting the others would import much that is slow under a sanitizer."""
    kernels = (path for folder in ("kernels", "lab/kernels") for path in (ROOT / folder).rglob("*.cu"))
    names = {*OF_SEVERAL_KERNELS, *(f"test_{path.stem}.py" for path in kernels)}
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if path.name in names or _is_of_the_lab(path))
    return sorted(map(str, found))


def _is_of_the_lab(path: Path) -> bool:
    """Whether a file tests kernels of the lab, several in one file."""
    return path.is_relative_to(ROOT / "tests" / "lab") and "mark.sanitize" in path.read_text()


def record_of(tool: str, pattern: Path) -> Path:
    """The record of one tool: TOOL in the pattern's last part is its name."""
    return pattern.with_name(pattern.name.replace("TOOL", tool))


def main(arguments: Sequence[str]) -> int:
    """Run both tools; 1 if one finds something or a test fails, 2 without the program. The rest goes to pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize.gpu", allow_abbrev=False)
    parser.add_argument("--record", type=Path, metavar="FILE")
    options, others = parser.parse_known_args(arguments)
    if probe_driver() is None:
        print("No NVIDIA driver: compute-sanitizer is left out.")
        return 0
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is missing: install the package cuda-sanitizer of your CUDA toolkit.", file=sys.stderr)
        return 2
    unhurried = {**os.environ, "PYTEST_TIMEOUT": "0"}
    codes = []
    for tool in TOOLS:
        record = ["--record", str(record_of(tool, options.record))] if options.record else []
        codes.append(
            subprocess.call([*python_under(sanitizer, tool), *TESTS, *kernel_tests(), *record, *others], env=unhurried)
        )
    for tool, code in zip(TOOLS, codes, strict=True):
        print(f"{tool}: {'clean' if code == 0 else f'FAILED (exit code {code})'}")
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Installs PyCUDA and cuda-bindings to fit a machine's driver: `python -m vgg16gpu.cuda_setup`.

Standard library only, so that it runs in an environment that has nothing yet. PyCUDA has no wheels; it is compiled
against a CUDA toolkit, and a build against a newer CUDA than the driver's does not load. So the driver is asked first,
and every package is held at its version or below. The toolkit is one that the machine has, else the packages on the
Python index.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from vgg16gpu.cuda_probe import (
    DRIVER_LIBRARY,
    Driver,
    Runner,
    Toolkit,
    Version,
    choose_toolkit,
    compile_problem,
    dotted,
    find_toolkits,
    objection,
    probe_bindings,
    probe_driver,
)
from vgg16gpu.errors import DeviceError

PYCUDA = "2026.1"
PACKAGED_SINCE = 13  # CUDA major version; the index's packages for CUDA 12 have ptxas but no nvcc

_LOG_LINES = 15  # of a failed command, shown

# What to install


def toolkit_requirement(driver: Driver) -> str | None:
    """The toolkit on the Python index, the set that pins the parts of one release; None if there is none to serve."""
    if driver.version[0] < PACKAGED_SINCE:
        return None
    return f"cuda-toolkit[nvcc,cccl,profiler,sanitizer]>={PACKAGED_SINCE},{_not_newer(driver.version)}"


def bindings_requirement(driver: Driver) -> str:
    """cuda-bindings, no newer than the driver."""
    return f"cuda-bindings{_not_newer(driver.version)}"


def _not_newer(version: Version) -> str:
    major, minor = version
    return f"<{major}.{minor + 1}"


def siteconf(toolkit: Toolkit, link_dir: Path) -> str:
    """PyCUDA's build configuration: this toolkit, the driver's library, no CURAND (its packages cannot be linked)."""
    settings = {
        "CUDA_ROOT": str(toolkit.root),
        "CUDA_INC_DIR": [str(toolkit.include)],
        "CUDADRV_LIB_DIR": [str(link_dir)],
        "CUDA_ENABLE_CURAND": False,
    }
    return "".join(f"{name} = {value!r}\n" for name, value in settings.items())


def advice(driver: Driver) -> str:
    """What a person must install when there is no usable toolkit."""
    wanted = f"the CUDA toolkit {dotted(driver.version)} or older (https://developer.nvidia.com/cuda-toolkit-archive)"
    if toolkit_requirement(driver):
        return f"install {wanted} and set CUDA_HOME to it, or let pip reach a package index"
    return f"install {wanted} and set CUDA_HOME to it, or a driver for CUDA {PACKAGED_SINCE}.0 or newer"


# Installing


class Installer:
    """Installs PyCUDA and cuda-bindings for one driver into the environment of `python`.

    Every command goes through `run`, every line for people through `say`.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        python: str = sys.executable,
        run: Runner | None = None,
        find: Callable[[], tuple[Toolkit, ...]] = find_toolkits,
        say: Callable[[str], None] = print,
    ) -> None:
        self.driver = driver
        self.python = python
        self.run = run or _run_logged
        self.find = find
        self.say = say

    def install(self) -> None:
        """All of it; returns when PyCUDA loads. Raises DeviceError with what to do if it cannot work."""
        toolkit = self.toolkit()
        self.say(f"Building PyCUDA {PYCUDA} against {toolkit}: this takes some minutes, once.")
        with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
            self._build(toolkit, Path(folder))
        self._pip("install", bindings_requirement(self.driver), "--only-binary=cuda-bindings")
        state = probe_bindings(self.python, self.run)
        if state.problem:
            raise DeviceError(f"PyCUDA was built but does not load: {state.problem}")
        self.say(f"{state} are ready.")

    def toolkit(self) -> Toolkit:
        """A toolkit of this machine that fits, else the packaged one, installed. Raises DeviceError."""
        toolkit, refused = choose_toolkit(self.find(), self._judge)
        if toolkit:
            return toolkit
        for line in refused:
            self.say(f"Passed over {line}")
        requirement = toolkit_requirement(self.driver)
        if requirement is None:
            raise DeviceError(f"no usable CUDA toolkit: {advice(self.driver)}")
        self.say("No usable CUDA toolkit on this machine: taking it from the Python index (about 150 MB).")
        try:
            self._pip("install", requirement)
        except DeviceError as error:
            raise DeviceError(f"{error}\nno usable CUDA toolkit: {advice(self.driver)}") from error
        toolkit, refused = choose_toolkit(self.find(), self._judge)
        if toolkit is None:
            raise DeviceError(f"no usable CUDA toolkit: {'; '.join(refused)}; {advice(self.driver)}")
        return toolkit

    def _judge(self, toolkit: Toolkit) -> str:
        places = (toolkit.include, Path("/usr/include"))
        if not any((place / "cudaProfiler.h").is_file() for place in places):
            return f"it has no {toolkit.include / 'cudaProfiler.h'}, which PyCUDA is compiled with"
        return objection(toolkit, self.driver, linked=True) or compile_problem(toolkit, self.run)

    def _build(self, toolkit: Toolkit, folder: Path) -> None:
        # From an unpacked folder, because pip would keep a wheel built from the archive and give it to the next
        # environment, whatever its driver.
        self._pip("download", f"pycuda=={PYCUDA}", "--no-deps", "--no-binary=pycuda", "--dest", str(folder))
        source = unpack(folder / f"pycuda-{PYCUDA}.tar.gz", folder)
        link_dir = folder / "driver"
        link_dir.mkdir()
        (link_dir / "libcuda.so").symlink_to(self.driver.library)  # the toolkit's packages carry no stub to link with
        (source / "siteconf.py").write_text(siteconf(toolkit, link_dir), encoding="utf-8")
        self._pip("install", "--force-reinstall", "--no-deps", str(source))
        self._pip("install", f"pycuda=={PYCUDA}", "numpy")  # what it depends on; of numpy it only says so for building

    def _pip(self, verb: str, *arguments: str) -> None:
        command = [self.python, "-m", "pip", verb, "--disable-pip-version-check", *arguments]
        result = self.run(command)
        if result.returncode != 0:
            tail = "\n".join((result.stdout + result.stderr).splitlines()[-_LOG_LINES:])
            raise DeviceError(f"`{shlex.join(command[1:])}` failed:\n{tail}")


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a source archive into `folder`; the folder in it. Raises DeviceError if it is not there."""
    try:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise DeviceError(f"{archive.name} cannot be unpacked: {error}") from error
    return folder / archive.name.removesuffix(".tar.gz")


def _run_logged(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def missing_headers() -> str:
    """What to install if Python's own headers are absent, which extensions are compiled with; "" if they are there."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if header.is_file():
        return ""
    return f"{header} is missing: install the package python3-dev (python3-devel), then repeat this"


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what is missing. 0: ready, or no driver to install for; 1: it cannot work, and the message says why."""
    parser = argparse.ArgumentParser(
        prog="python -m vgg16gpu.cuda_setup", description="Install PyCUDA and cuda-bindings."
    )
    parser.add_argument("--force", action="store_true", help="build again even if they load")
    options = parser.parse_args(arguments)
    driver = probe_driver()
    if driver is None:
        print(f"No NVIDIA driver ({DRIVER_LIBRARY} does not load): the CPU device is used.")
        return 0
    state = probe_bindings()
    if not state.problem and not options.force:
        print(f"{state} are ready.")
        return 0
    try:
        if problem := missing_headers():
            raise DeviceError(problem)
        Installer(driver).install()
    except DeviceError as error:
        print(f"{error}\nThe GPU cannot be used; the CPU device is.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

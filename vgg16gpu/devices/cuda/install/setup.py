"""Installs PyCUDA and cuda-bindings to fit a machine's driver: `python -m vgg16gpu.cuda_setup`.

Standard library only, so that it runs in an environment that has nothing yet. PyCUDA is compiled against a CUDA toolkit
(`wheel.py`), and a build against a newer CUDA than the driver's does not load. So the driver is asked first, and
every package is held at its version or below. The toolkit is one that the machine has, else the packages on the Python
index.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from vgg16gpu.devices.cache import cache_dir
from vgg16gpu.devices.cuda.install.wheel import CACHE_KIND, Pip, PycudaWheels
from vgg16gpu.devices.cuda.probe import (
    DRIVER_LIBRARY,
    Bindings,
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
from vgg16gpu.errors import DeviceError, Error

PACKAGED_SINCE = 13  # CUDA major version; the index's packages for CUDA 12 have ptxas but no nvcc

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


def advice(driver: Driver) -> str:
    """What a person must install when there is no usable toolkit."""
    wanted = f"the CUDA toolkit {dotted(driver.version)} or older (https://developer.nvidia.com/cuda-toolkit-archive)"
    if toolkit_requirement(driver):
        return f"install {wanted} and set CUDA_HOME to it, or let pip reach a package index"
    return f"install {wanted} and set CUDA_HOME to it, or a driver for CUDA {PACKAGED_SINCE}.0 or newer"


# Installing


def _say(line: str) -> None:
    print(line, flush=True)


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
        say: Callable[[str], None] = _say,
        wheels: PycudaWheels | None = None,
    ) -> None:
        self.driver = driver
        self.python = python
        self.run = run or _run_logged
        self.find = find
        self.say = say
        self.pip = Pip(python, self.run)
        self.wheels = wheels or PycudaWheels(driver, python=python, run=self.run, say=say)

    def install(self, *, fresh: bool = False) -> None:
        """All of it; returns when PyCUDA loads. `fresh`: build even if there is a wheel in the cache.

        Raises DeviceError with what to do if it cannot work.
        """
        toolkit = self.toolkit()
        state, built = self._put_in(toolkit, fresh=fresh)
        if state.pycuda_problem and not built:
            self.say(f"The PyCUDA that was kept does not load ({state.pycuda_problem}): building it anew.")
            state, _ = self._put_in(toolkit, fresh=True)
        if state.problem:
            raise DeviceError(f"PyCUDA was built but does not load: {state.problem}")
        self.say(f"{state} are ready.")

    def prepare(self) -> None:
        """Make PyCUDA's wheel, if this machine has a toolkit for it, and install nothing: `install` takes it then."""
        toolkit, _ = choose_toolkit(self.find(), self._judge)
        if toolkit:
            with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
                self.wheels.wheel(toolkit, Path(folder))

    def _put_in(self, toolkit: Toolkit, *, fresh: bool = False) -> tuple[Bindings, bool]:
        """The packages as they are then, and whether PyCUDA was just built."""
        with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
            wheel, built = self.wheels.wheel(toolkit, Path(folder), fresh=fresh)
            kept = (
                "" if built else f" from {cache_dir() / CACHE_KIND}, built before for CUDA {dotted(toolkit.version)},"
            )
            self.say(f"Installing PyCUDA{kept} and cuda-bindings.")
            # With what PyCUDA depends on, all or nothing; of numpy it only says so for building.
            bindings = bindings_requirement(self.driver)
            self.pip("install", str(wheel), "numpy", bindings, "--only-binary=cuda-bindings")
            self.pip("install", "--force-reinstall", "--no-deps", str(wheel))  # one of this version may be there
        return probe_bindings(self.python, self.run), built

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
            self.pip("install", requirement)
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
    parser.add_argument("--wheel", action="store_true", help="only make PyCUDA's wheel, which a later call installs")
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
        installer = Installer(driver)
        installer.prepare() if options.wheel else installer.install(fresh=options.force)
    except (Error, OSError) as error:
        if options.wheel:
            return 1  # the later call meets the same, and says it
        print(f"{error}\nThe GPU cannot be used; the CPU device is.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

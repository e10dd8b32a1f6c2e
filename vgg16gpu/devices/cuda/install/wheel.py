"""A wheel of PyCUDA for one CUDA version: from the user's cache, else compiled from PyCUDA's source on all cores.

Standard library only, as `cuda_setup` is, which installs what comes out. PyCUDA has no wheels of its own.
"""

from __future__ import annotations

import io
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.devices.cuda.probe import Driver, Runner, Toolkit, dotted
from vgg16gpu.devices.platforms import machine_memory, usable_cores
from vgg16gpu.errors import DeviceError

PYCUDA = "2026.1"
FLAGS = ("-O1", "-g0", "-w")  # calls are as fast as with -O3, with -O0 three times slower; compiling takes two thirds
TOOLS = ("setuptools>=70.1", "numpy>=2")  # the first has bdist_wheel; what numpy 2 compiles runs with numpy 1 too
CACHE_KIND = "pycuda"

_JOB_NBYTES = 600 << 20  # of memory, for one compiler; the largest file takes 1 GB, most take 300 MB
_LOG_LINES = 15  # of a failed command, shown
_SUFFIX = ".whl"
_PACKAGES = Path(__file__).resolve().parents[4]

# To name what it downloads, pip asks the build backend of a source archive. PyCUDA's own then waits ten seconds for
# somebody to read that it is not configured, in an environment made for it. Its PKG-INFO holds the same answer.
_NAMING_BACKEND = """\
import pathlib, shutil

class __legacy__:
    @staticmethod
    def prepare_metadata_for_build_wheel(folder, settings=None):
        target = pathlib.Path(folder, "pycuda.dist-info")
        target.mkdir()
        shutil.copy("PKG-INFO", target / "METADATA")
        return target.name
"""

Teller: TypeAlias = Callable[[Sequence[str], Callable[[str], None]], "subprocess.CompletedProcess[str]"]


class Pip:
    """pip of one environment, every command through `run`."""

    def __init__(self, python: str, run: Runner) -> None:
        self.python = python
        self._run = run

    def __call__(self, verb: str, *arguments: str, path: Path | None = None) -> None:
        """One command, with `path` in front of where it finds modules. Raises DeviceError with the end of its words."""
        command = [self.python, "-m", "pip", verb, "--disable-pip-version-check", *arguments]
        require(self._run([*_finding(path), *command] if path else command), command)


def require(result: subprocess.CompletedProcess[str], command: Sequence[str]) -> None:
    """Raise DeviceError with the end of what a command said if it failed."""
    if result.returncode != 0:
        tail = "\n".join((result.stdout + result.stderr).splitlines()[-_LOG_LINES:])
        raise DeviceError(f"`{shlex.join(command[1:])}` failed:\n{tail}")


def run_told(command: Sequence[str], say: Callable[[str], None]) -> subprocess.CompletedProcess[str]:
    """Run a command; each line of its stdout goes to `say` at once, its stderr into the result."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace") as process:
            assert process.stdout is not None  # a pipe was asked for
            try:
                for line in process.stdout:
                    say(line.rstrip("\n"))
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        return subprocess.CompletedProcess(list(command), process.returncode, "", log.read())


class PycudaWheels:
    """Wheels of PyCUDA for the interpreter of `python`, which is that of this process or an environment of it."""

    def __init__(
        self,
        driver: Driver,
        *,
        python: str,
        run: Runner,
        run_told: Teller = run_told,
        say: Callable[[str], None] = print,
    ) -> None:
        self._driver = driver
        self._python = python
        self._pip = Pip(python, run)
        self._run = run
        self._run_told = run_told
        self._say = say
        self._cache = KernelCache(CACHE_KIND)

    def wheel(self, toolkit: Toolkit, folder: Path, *, fresh: bool = False) -> tuple[Path, bool]:
        """A wheel for this toolkit's CUDA version, in `folder` under its own name, and whether it was just built.

        `fresh`: whatever the cache holds. Raises DeviceError if it cannot be built.
        """
        key = self._key(toolkit)
        found = None if fresh else self._cache.find(key, _SUFFIX, _is_wheel)
        if found:
            return _written(found.content, folder), False
        content = self._built(toolkit, folder)
        self._keep(key, content)
        return _written(content, folder), True

    def _keep(self, key: Sequence[str], content: bytes) -> None:
        """Put a wheel into the cache, in place of what was there."""

        def write(path: Path) -> None:
            path.write_bytes(content)

        while old := self._cache.find(key, _SUFFIX):
            old.discard()
        self._cache.fetch(key, _SUFFIX, write)

    def _key(self, toolkit: Toolkit) -> tuple[str, ...]:
        """What a wheel depends on. It is linked with the driver alone, so the toolkit's place does not matter."""
        compilers = [shlex.split(_setting(name)) for name in ("CC", "CXX")]
        return (
            PYCUDA,
            sys.implementation.cache_tag or "",
            str(sysconfig.get_config_var("SOABI")),
            sysconfig.get_platform(),
            *platform.libc_ver(),
            dotted(toolkit.version),
            *(self._run([*command, "--version"]).stdout for command in compilers),
            *(f"{name}={_setting(name)}" for name in ("CC", "CXX")),
            *(f"{name}={os.environ.get(name, '')}" for name in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")),
            *FLAGS,
            *TOOLS,
        )

    def _built(self, toolkit: Toolkit, folder: Path) -> bytes:
        started = time.monotonic()
        jobs = _jobs()
        self._say(f"Building PyCUDA {PYCUDA} against {toolkit}, on {jobs} cores; the wheel is kept for next time.")
        tools, made = folder / "tools", folder / "made"
        made.mkdir()
        with ThreadPoolExecutor(1) as pool:
            installing = pool.submit(self._pip, "install", "--target", str(tools), "--no-compile", *TOOLS)
            archive = self._archive(folder)
            source = self._configured(archive, folder / "source", toolkit)
        try:
            installing.result()
            self._compile(source, made, tools, jobs)
        except DeviceError as error:
            self._say(f"{error}\nThat way it cannot be built; pip builds it file by file, which takes minutes.")
            source = self._configured(archive, folder / "again", toolkit)
            made = folder / "made-by-pip"
            made.mkdir()
            self._pip("wheel", "--no-deps", "--wheel-dir", str(made), str(source))
        content = _only_wheel(made)
        self._say(f"PyCUDA is built: {time.monotonic() - started:.0f} s")
        return content

    def _archive(self, folder: Path) -> Path:
        """PyCUDA's source, downloaded."""
        backend = folder / "backend" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_NAMING_BACKEND, encoding="utf-8")
        what = ("download", f"pycuda=={PYCUDA}", "--no-deps", "--no-binary=pycuda", "--dest", str(folder))
        try:
            self._pip(*what, "--no-build-isolation", path=backend.parent)
        except DeviceError:
            self._pip(*what)  # a pip that takes no such answer; or there is no network, and this error says so
        return folder / f"pycuda-{PYCUDA}.tar.gz"

    def _configured(self, archive: Path, folder: Path, toolkit: Toolkit) -> Path:
        """The source unpacked, with what PyCUDA's build must know."""
        folder.mkdir()
        source = unpack(archive, folder)
        link_dir = folder / "driver"
        link_dir.mkdir()
        (link_dir / "libcuda.so").symlink_to(self._driver.library)  # the toolkit's packages carry no stub to link with
        (source / "siteconf.py").write_text(siteconf(toolkit, link_dir), encoding="utf-8")
        return source

    def _compile(self, source: Path, made: Path, tools: Path, jobs: int) -> None:
        command = [self._python, "-m", "vgg16gpu.devices.cuda.install.build", str(source), str(made), str(jobs)]
        result = self._run_told([*_finding(tools, _PACKAGES), *command], self._say)
        require(result, command)


def siteconf(toolkit: Toolkit, link_dir: Path) -> str:
    """PyCUDA's build configuration: this toolkit, the driver's library, no CURAND (its packages cannot be linked)."""
    settings = {
        "CUDA_ROOT": str(toolkit.root),
        "CUDA_INC_DIR": [str(toolkit.include)],
        "CUDADRV_LIB_DIR": [str(link_dir)],
        "CUDA_ENABLE_CURAND": False,
        "CXXFLAGS": list(FLAGS),
    }
    return "".join(f"{name} = {value!r}\n" for name, value in settings.items())


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a source archive into `folder`; the folder in it. Raises DeviceError if it is not there."""
    try:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise DeviceError(f"{archive.name} cannot be unpacked: {error}") from error
    return folder / archive.name.removesuffix(".tar.gz")


def _finding(*folders: Path | None) -> list[str]:
    """What goes in front of a command for Python to look for modules in these folders first."""
    places = [*map(str, filter(None, folders)), os.environ.get("PYTHONPATH", "")]
    return ["env", f"PYTHONPATH={os.pathsep.join(filter(None, places))}"]


def _setting(name: str) -> str:
    return os.environ.get(name) or str(sysconfig.get_config_var(name))


def _jobs() -> int:
    return max(1, min(usable_cores(), machine_memory()[1] // _JOB_NBYTES))


def _only_wheel(folder: Path) -> bytes:
    wheels = list(folder.glob("*.whl"))
    content = wheels[0].read_bytes() if len(wheels) == 1 else b""
    if not _is_wheel(content):
        raise DeviceError(f"the build of PyCUDA left {len(wheels)} wheels, one was expected")
    return content


def _is_wheel(content: bytes) -> bool:
    return bool(_tag(content))


def _tag(content: bytes) -> str:
    """The compatibility tag of a wheel of this PyCUDA ("cp312-cp312-linux_x86_64"), "" for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            text = file.read(f"pycuda-{PYCUDA}.dist-info/WHEEL").decode()
    except Exception:  # damaged in whatever way: it is no such wheel
        return ""
    tags = re.findall(r"^Tag: ([\w.]+-[\w.]+-[\w.]+)$", text, re.MULTILINE)
    return tags[0] if len(tags) == 1 else ""


def _written(content: bytes, folder: Path) -> Path:
    """The wheel as a file that pip takes: under a wheel's name, which files of the cache do not have."""
    path = folder / f"pycuda-{PYCUDA}-{_tag(content)}.whl"
    path.write_bytes(content)
    return path

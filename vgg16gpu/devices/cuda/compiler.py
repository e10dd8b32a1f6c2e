"""From kernel sources to cubins for one architecture: nvcc by PyCUDA, or NVRTC; the kernel cache in front of it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vgg16gpu.devices import kernel_source
from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.devices.cuda.driver import chosen_package
from vgg16gpu.devices.cuda.nvrtc import PACKAGES, Nvrtc, find_nvrtc
from vgg16gpu.devices.cuda.probe import driver_major, nvcc_candidates, run_quietly
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.devices.stages import tell_compiling
from vgg16gpu.errors import KernelError

FLAGS = (
    "-std=c++17",
    "--fmad=false",  # multiply-adds are fused where the source says fmaf, nowhere else: the same bits as on the CPU
    "-O3",
    "-Wno-deprecated-gpu-targets",  # nvcc would say so each time, and PyCUDA would warn of that
)
NVRTC_FLAGS = ("-std=c++17", "--fmad=false", "-default-device")  # it optimises fully anyhow
NO_NVCC = (
    "no nvcc to compile the kernels: set CUDA_HOME or put nvcc on PATH, or install one: python -m vgg16gpu.cuda_setup"
)

NO_NVRTC = "no NVRTC to compile the kernels: python -m pip install {} (or have torch with CUDA, which brings it)"

_log = logging.getLogger(__name__)
_SUFFIX = ".cubin"
_ELF = b"\x7fELF"
_MARK = b"\nvgg16gpu: compiled by "


@dataclass(frozen=True)
class CubinUnit:
    """What one run of nvcc compiles: a source with its macros. It may hold several kernels."""

    source: str
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The macros as compiler options."""
        return tuple(f"-D{name}={value}" for name, value in self.defines)

    def __str__(self) -> str:
        return " ".join((self.source, *self.options))


def architecture(compute_capability: tuple[int, int]) -> str:
    """What nvcc calls the target. On 9.0 the `a` variant, which has the tensor-core instructions of that card alone."""
    major, minor = compute_capability
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def find_nvcc() -> Path | None:
    """The first nvcc of `cuda_probe.nvcc_candidates`."""
    return next((path for _, path in nvcc_candidates() if path.is_file()), None)


def compiler_identity(nvcc: Path) -> str:
    """A digest that changes when the compiler does.

    Places, sizes and times of nvcc and of the two programs that do its work: asking nvcc itself would cost a process at
    each start. Only a script that starts an nvcc elsewhere is asked: it stays the same when that one changes.
    """
    program = nvcc.resolve()
    parts = (program, program.with_name("ptxas"), program.parent.parent / "nvvm" / "bin" / "cicc")
    try:
        text = _states_of(parts)
    except OSError:
        text = f"{program}\n{run_quietly([str(nvcc), '--version']).stdout}"
    return _digest(text)


def _states_of(paths: Iterable[Path]) -> str:
    """Return places, sizes and times of files, a line each. Raises OSError."""
    states = ((path, path.stat()) for path in paths)
    return "".join(f"{path} {state.st_size} {state.st_mtime_ns}\n" for path, state in states)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True)
class Nvcc:
    """nvcc, called by PyCUDA."""

    place: Path

    @property
    def identity(self) -> str:
        """What changes when it does."""
        return compiler_identity(self.place)

    def compile(self, unit: CubinUnit, arch: str) -> bytes:
        """Return the cubin. Raises KernelError."""
        return _run_nvcc(self.place, unit, arch)


@dataclass(frozen=True)
class NvrtcBackend:
    """NVRTC, with stand-ins of the headers that it lacks."""

    library: Nvrtc

    @property
    def place(self) -> Path:
        """Where the library is."""
        return self.library.library

    @property
    def identity(self) -> str:
        """What changes when it does."""
        return _digest(_states_of([self.place.resolve()]))

    def compile(self, unit: CubinUnit, arch: str) -> bytes:
        """Return the cubin. Raises KernelError."""
        path = kernel_source.source_path(unit.source)
        folders = dict.fromkeys((kernel_source.kernel_dir() / "nvrtc", path.parent, *kernel_source.include_dirs()))
        options = [*NVRTC_FLAGS, *(f"-I{folder}" for folder in folders), *unit.options]
        return self.library.compile(kernel_source.read_source(unit.source), str(path), options, arch, str(unit))


def find_backend() -> Nvcc | NvrtcBackend | None:
    """Return the compiler: nvcc where PyCUDA drives and there is one, else NVRTC. None if there is neither."""
    if chosen_package() == "pycuda" and (nvcc := find_nvcc()):
        return Nvcc(nvcc)
    library = find_nvrtc(driver_major())
    return NvrtcBackend(library) if library else None


def missing_compiler() -> str:
    """Say which compiler is missing, and what to do."""
    if chosen_package() == "pycuda":
        return NO_NVCC
    return NO_NVRTC.format(PACKAGES.get(driver_major() or 0, PACKAGES[max(PACKAGES)]))


class CubinCompiler:
    """Cubins for one architecture, from the cache or a compiler. Touches no GPU; may be used from any thread."""

    def __init__(self, compute_capability: tuple[int, int]) -> None:
        self.arch = architecture(compute_capability)
        self._cache = KernelCache("cuda")
        self._headers: dict[tuple[Path, ...], tuple[bytes, ...]] = {}

    def cubins(self, units: Iterable[CubinUnit]) -> dict[CubinUnit, bytes]:
        """The cubin of each unit; what is missing is compiled in parallel.

        Raises KernelError with the compiler's message, or if something is missing and there is no compiler.
        """
        keys = {unit: self._key(unit) for unit in units}
        # What is there is found sooner without threads: they would wait for each other's turn in the interpreter.
        cubins = {unit: self._cached(key) for unit, key in keys.items()}
        missing = [unit for unit, cubin in cubins.items() if cubin is None]
        with ThreadPoolExecutor(max_workers=min(len(missing), usable_cores()) or 1) as pool:
            futures = {unit: pool.submit(self._compiled, unit, keys[unit]) for unit in missing}
            try:
                tell_compiling(futures.values())
                made = {unit: future.result() for unit, future in futures.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # the first complaint is enough
                raise
        return {unit: made[unit] if cubin is None else cubin for unit, cubin in cubins.items()}

    @property
    def name(self) -> str | None:
        """The compiler at hand, for messages; None if there is none."""
        return str(self._backend.place) if self._backend else None

    @cached_property
    def _backend(self) -> Nvcc | NvrtcBackend | None:
        return find_backend()

    @cached_property
    def _identity(self) -> bytes | None:
        return self._backend.identity.encode() if self._backend else None

    @cached_property
    def _takes_any(self) -> bool:
        return not isinstance(self._backend, Nvcc) and chosen_package() == "pycuda"

    def _header_parts(self, folders: tuple[Path, ...]) -> tuple[bytes, ...]:
        if folders not in self._headers:
            files = kernel_source.headers_below(folders)
            named = ((kernel_source.source_name(path).encode(), path.read_bytes()) for path in files)
            self._headers[folders] = tuple(part for pair in named for part in pair)
        return self._headers[folders]

    def _key(self, unit: CubinUnit) -> tuple[str | bytes, ...]:
        headers = self._header_parts(kernel_source.header_dirs(unit.source))
        return (kernel_source.read_source(unit.source), *unit.options, *FLAGS, self.arch, *headers)

    def _cached(self, key: tuple[str | bytes, ...]) -> bytes | None:
        found = self._cache.find(key, _SUFFIX, self._is_ours)
        return found.content.rpartition(_MARK)[0] if found else None

    def _compiled(self, unit: CubinUnit, key: tuple[str | bytes, ...]) -> bytes:
        found = self._cache.fetch(key, _SUFFIX, lambda target: self._compile(unit, target), self._is_ours)
        return found.content.rpartition(_MARK)[0]

    def _is_ours(self, content: bytes) -> bool:
        """Tell whether an entry is by the compiler at hand.

        Where PyCUDA has no nvcc every entry is welcome, so the compiler is not in the key.
        """
        cubin, _, identity = content.rpartition(_MARK)
        return cubin.startswith(_ELF) and (self._takes_any or self._identity == identity)

    def _compile(self, unit: CubinUnit, target: Path) -> None:
        if self._backend is None or self._identity is None:
            raise KernelError(missing_compiler())
        _log.info("compiling %s for %s", unit, self.arch)
        # What follows the ELF image is invisible to the driver and to cuobjdump: an entry stays a cubin for everyone.
        target.write_bytes(self._backend.compile(unit, self.arch) + _MARK + self._identity)


def _run_nvcc(nvcc: Path, unit: CubinUnit, arch: str) -> bytes:
    """The very call that PyCUDA's SourceModule makes, without PyCUDA's own cache (which is not written atomically)."""
    from pycuda.compiler import compile as compile_source  # noqa: PLC0415 - PyCUDA is loaded where it is needed
    from pycuda.driver import CompileError  # noqa: PLC0415 - PyCUDA may be missing

    path = kernel_source.source_path(unit.source)
    # PyCUDA compiles a copy, "kernel.cu"
    text = f"#line 1 {json.dumps(str(path))}\n{kernel_source.read_source(unit.source)}"
    folders = list(dict.fromkeys(map(str, (path.parent, *kernel_source.include_dirs()))))
    try:
        cubin: bytes = compile_source(
            text,
            nvcc=str(nvcc),
            options=[*FLAGS, *unit.options],
            no_extern_c=True,
            arch=arch,
            cache_dir=False,
            include_dirs=folders,
        )
    except CompileError as error:
        said = "\n".join(part.strip() for part in (error.stdout, error.stderr) if part and part.strip())
        raise KernelError(f"{unit} does not compile for {arch} with {nvcc}:\n{said}", said) from error
    except Warning as warning:  # where warnings are errors
        raise KernelError(f"{unit} for {arch}: {warning}") from warning
    except OSError as error:
        raise KernelError(f"{unit}: {nvcc} cannot be run: {error}") from error
    return cubin

"""What each kernel of the lab takes: registers, shared memory, and how many of its blocks a multiprocessor holds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from vgg16gpu import __version__
from vgg16gpu.bench.measure.environment import commit
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device, KernelResources
from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.devices.cuda.compiler import FLAGS, CubinUnit, architecture, compiler_identity, find_nvcc
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.devices.cuda.probe import Version, dotted
from vgg16gpu.devices.cuda.ptxas import VERBOSE, parse
from vgg16gpu.devices.cuda.versions import nvcc_release
from vgg16gpu.devices.kernel_source import headers, include_dirs, read_source, source_path
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.launch import Kernel, KernelLaunch
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Variant, places

SCHEMA: Final = 1
HOPPER: Final = (9, 0)  # what is compiled for where there is no card
NO_COMPILER: Final = (
    "no GPU and no nvcc: what kernels take is known to a compiler alone; install one with "
    "`python -m vgg16gpu.cuda_setup`, or set CUDA_HOME"
)
USAGE_NOTE: Final = (
    "Registers of a thread, bytes of shared memory of a block, blocks that a multiprocessor holds at once, the share "
    "of its threads that they are, and what allows no further block; with the usual parameters and 3x3 filters."
)

# The first one that a variant does, with its usual parameters.
PROBLEMS: Final = (
    Problem(1, 3, 64, 64, 8, kernel=3, padding=1),
    Problem(1, 6, 64, 64, 16, kernel=5, stride=2),
    Problem(1, 64, 64, 64, 64, kernel=3, padding=1),
)


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor has: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    threads: int
    blocks: int
    shared_nbytes: int
    registers: int = 65536
    reserved_nbytes: int = 1024  # of shared memory, for each block
    shared_unit: int = 128  # bytes; what blocks get is rounded up
    register_unit: int = 256  # for a warp


_VOLTA: Final = {"reserved_nbytes": 0, "shared_unit": 256}
LIMITS: Final[Mapping[Version, Limits]] = {
    (7, 0): Limits(2048, 32, 96 << 10, **_VOLTA),
    (7, 5): Limits(1024, 16, 64 << 10, **_VOLTA),
    (8, 0): Limits(2048, 32, 164 << 10),
    (8, 6): Limits(1536, 16, 100 << 10),
    (8, 7): Limits(1536, 16, 164 << 10),
    (8, 9): Limits(1536, 24, 100 << 10),
    (9, 0): Limits(2048, 32, 228 << 10),
    (10, 0): Limits(2048, 32, 228 << 10),
    (12, 0): Limits(1536, 24, 100 << 10),
}


@dataclass(frozen=True)
class Usage:
    """A kernel as a variant launches it. `occupancy` is the share of a multiprocessor's threads that are its."""

    variant: str
    kernel: str  # with its macros
    source: str
    block: tuple[int, int, int]
    registers: int  # a thread
    shared_nbytes: int  # a block, static and dynamic
    local_nbytes: int  # a thread: spills and stack
    resident_blocks: int
    occupancy: float
    bound: str  # what allows no further block: threads, blocks, registers, shared


@dataclass(frozen=True)
class Usages:
    """Of all variants: for which card or architecture, by which compiler."""

    capability: Version
    card: str  # "" where there is none
    nvcc: str
    kernels: tuple[Usage, ...]

    @property
    def content(self) -> dict[str, Any]:
        """As JSON, for a record."""
        environment = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(Path(__file__).resolve().parents[3]),
            "versions": {"vgg16gpu": __version__},
        }
        return {"schema": SCHEMA, "note": USAGE_NOTE, "environment": environment, **asdict(self)}

    @property
    def title(self) -> str:
        """For whom this holds."""
        where = self.card or f"compute capability {dotted(self.capability)}"
        return f"{where}, nvcc {self.nvcc}"


def resident(limits: Limits, threads: int, registers: int, shared_nbytes: int) -> tuple[int, str]:
    """Return how many blocks a multiprocessor holds, and what allows no further one."""
    warps = -(-threads // 32)
    per_warp = _up(registers * 32, limits.register_unit)
    shared = _up(shared_nbytes + limits.reserved_nbytes, limits.shared_unit)
    fitting = {
        "threads": limits.threads // (32 * warps),
        "blocks": limits.blocks,
        "registers": limits.registers // max(1, per_warp) // warps,
        "shared": limits.shared_nbytes // max(1, shared),
    }
    bound = min(fitting, key=lambda name: fitting[name])
    return fitting[bound], bound


def usages(variants: Sequence[Variant]) -> Usages:
    """Return the resources of these variants' kernels: on the GPU if one works, else as nvcc compiles for Hopper.

    Raises DeviceError where there is neither, KernelError for a kernel that does not compile.
    """
    card = _card()
    try:
        capability = card.facts.compute_capability if card else HOPPER
        steps = {variant.name: tuple(_steps(variant)) for variant in variants if _can_run(variant, capability)}
        kernels = list(dict.fromkeys(step.kernel for found in steps.values() for step in found))
        nvcc = find_nvcc()
        if card:
            card.build(kernels)
            taken = {kernel: card.resources(kernel) for kernel in kernels}
        elif nvcc:
            taken = _compiled(kernels, nvcc, architecture(capability))
        else:
            raise DeviceError(NO_COMPILER)
        limits = LIMITS[max(known for known in LIMITS if known <= max(capability, min(LIMITS)))]
        found = (_usage(name, step, taken[step.kernel], limits) for name, all_of in steps.items() for step in all_of)
        release = nvcc_release(nvcc) if nvcc else "unknown"
        return Usages(capability, card.facts.name if card else "", release, tuple(found))
    finally:
        if card:
            card.close()


def _card() -> CudaDevice | None:
    """Return the GPU, if one works."""
    try:
        device: Device = open_device("cuda")[0]
    except DeviceError:
        return None
    return device if isinstance(device, CudaDevice) else None


def _can_run(variant: Variant, capability: Version) -> bool:
    return capability == HOPPER or not variant.hopper


def _steps(variant: Variant) -> Iterator[KernelLaunch]:
    """Yield the launches of the first problem that it does, a kernel once."""
    parameters = variant.with_defaults({})
    problem = next((found for found in PROBLEMS if not variant.refuses(found, parameters)), None)
    if problem is None:
        return
    where, _ = places(problem, variant.workspace_nbytes(problem, parameters))
    launches = variant.launches(problem, parameters, where)
    yield from {step.kernel: step for step in (*launches.convert, *launches.compute)}.values()


def _usage(variant: str, step: KernelLaunch, taken: KernelResources, limits: Limits) -> Usage:
    threads = step.block.x * step.block.y * step.block.z
    shared = taken.shared_nbytes + step.shared
    blocks, bound = resident(limits, threads, taken.registers, shared)
    return Usage(
        variant,
        step.kernel.label,
        step.kernel.source,
        (step.block.x, step.block.y, step.block.z),
        taken.registers,
        shared,
        taken.local_nbytes,
        blocks,
        blocks * threads / limits.threads,
        bound,
    )


def _compiled(kernels: Sequence[Kernel], nvcc: Path, arch: str) -> dict[Kernel, KernelResources]:
    """Return ptxas' report on each kernel, from the cache or from nvcc, as many at once as there are cores."""
    units = list(dict.fromkeys(CubinUnit(kernel.source, kernel.defines) for kernel in kernels))
    with ThreadPoolExecutor(usable_cores()) as pool:
        texts = dict(zip(units, pool.map(lambda unit: _said(unit, nvcc, arch), units), strict=True))
    said = {(unit, usage.kernel): usage for unit, text in texts.items() for usage in parse(text)}
    found = {kernel: said[CubinUnit(kernel.source, kernel.defines), kernel.name] for kernel in kernels}
    return {
        kernel: KernelResources(usage.registers, usage.shared_nbytes, usage.stack_nbytes + usage.spill_nbytes)
        for kernel, usage in found.items()
    }


def _said(unit: CubinUnit, nvcc: Path, arch: str) -> str:
    parts = [read_source(unit.source), *unit.options, *FLAGS, arch, compiler_identity(nvcc)]
    key: list[str | bytes] = [*parts, *(path.read_bytes() for path in headers(unit.source))]
    found = KernelCache("cuda").fetch(key, ".ptxas", lambda target: _ask(unit, nvcc, arch, target))
    return found.content.decode("utf-8")


def _ask(unit: CubinUnit, nvcc: Path, arch: str, target: Path) -> None:
    """Compile for ptxas' words alone. Raises KernelError."""
    source = source_path(unit.source)
    folders = [f"-I{folder}" for folder in (source.parent, *include_dirs())]
    command = [str(nvcc), *FLAGS, *VERBOSE, *unit.options, f"-arch={arch}", "--cubin", *folders]
    done = subprocess.run(
        [*command, "-o", "/dev/null", str(source)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise KernelError(f"{unit} does not compile for {arch} with {nvcc}:\n{done.stderr}{done.stdout}")
    target.write_text(done.stderr, encoding="utf-8")


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit

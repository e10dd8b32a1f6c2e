"""A device that runs nothing and remembers what lies where: plans for a GPU are brought to it without one.

Memory holds tags, not numbers: that of what was copied there, or of the step that wrote it and all that it read. What a
launch reads of the weights can so be compared with what it reads in another engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Counters, step_by_step
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.launch import KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import Arena, DeviceFacts, Pointer

HOPPER = DeviceFacts("cuda", "an H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
# How many arguments, the first ones, a step of the build writes; other steps write no weights.
WRITES = {"choose_scale_f32": 1, "row_scale_f32": 4, "observe_f32": 1}
PACKS = ("pack_conv_f32", "pack_gemm_f32", "pack_rows", "pack_blocks")


class Traced:
    """`observed`: what the magnitudes of samples depend on, as an image's shape does."""

    def __init__(self, observed: Callable[[KernelLaunch], Any] = lambda _: "the same") -> None:
        self.facts = HOPPER
        self.counters = Counters()
        self.foreign = None
        self.live: dict[int, int] = {}
        self.tags: dict[int, str] = {}  # by address
        self.read: list[list[str]] = []  # tags of the weights that each launch reads, since `trace`
        self._observed = observed
        self._next = 1 << 20

    def allocate(self, nbytes: int) -> int:
        address = self._next
        self._next += -(-nbytes // 256) * 256 + 4096
        self.live[address] = nbytes
        return address

    def free(self, address: int) -> None:
        nbytes = self.live.pop(address)
        self.tags = {place: tag for place, tag in self.tags.items() if not address <= place < address + nbytes}

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def copy_in(self, address: int, source: npt.NDArray[np.generic], *_: Any) -> None:
        self._check(address, source.nbytes)
        self.counters.copies_in += 1
        numbers = np.ascontiguousarray(source)
        self.tags[address] = _tag(source.dtype, source.shape, sha256(numbers.view(np.uint8)).hexdigest())

    def copy_out(self, target: npt.NDArray[np.generic], address: int, *_: Any) -> None:
        self._check(address, target.nbytes)
        told = np.frombuffer(bytes.fromhex(self.tags.get(address, "00")), np.uint8)
        target.reshape(-1).view(np.uint8)[:] = np.resize(told, target.nbytes)

    def bind(self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], **_: bool) -> Callable[[], None]:
        known = [(step, self._places(step, bases)) for step in steps]

        def launch() -> None:
            for step, places in known:
                self._run(step, places)

        return launch

    def round_trip(self, upload: Any, launch: Callable[[], None], download: Any) -> Callable[[], None]:
        return step_by_step(self, upload, launch, download)  # type: ignore[arg-type]

    def build(self, kernels: Any) -> None: ...

    def unpin(self, buffer: Any) -> None: ...

    def unbind(self, launch: Any) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None: ...

    def _places(self, step: KernelLaunch, bases: Mapping[Arena, int]) -> list[tuple[Arena, int]]:
        given = [argument.pointer if isinstance(argument, TmaDescriptor) else argument for argument in step.arguments]
        pointers = [argument for argument in given if isinstance(argument, Pointer)]
        return [(pointer.arena, bases[pointer.arena] + pointer.offset) for pointer in pointers]

    def _run(self, step: KernelLaunch, places: list[tuple[Arena, int]]) -> None:
        for _, address in places:
            self._check(address, 1)
        name = step.kernel.name
        writes = 1 if name in PACKS else WRITES.get(name, 0)
        inside = [address for arena, address in places if arena is not Arena.ACTIVATIONS]
        seen = [self.tags.get(address, "nothing") for address in inside[writes:]]
        if writes:
            numbers: Any = [argument for argument in step.arguments if not isinstance(argument, Pointer)]
            if name == "observe_f32":
                numbers = self._observed(step)
            for i, address in enumerate(inside[:writes]):
                self.tags[address] = _tag(step.kernel, numbers, seen, i)
        else:
            self.read.append([step.kernel.label, *seen])

    def _check(self, address: int, nbytes: int) -> None:
        if not any(start <= address and address + nbytes <= start + size for start, size in self.live.items()):
            raise DeviceError(f"{address:#x} is nobody's")


def _tag(*parts: Any) -> str:
    return sha256(repr(parts).encode()).hexdigest()

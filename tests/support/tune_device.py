"""A device that computes nothing and takes the time that it is told, for tests of the tuner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.launch import Kernel, KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import Arena, DeviceFacts, Pointer

H200 = DeviceFacts("cuda", "NVIDIA H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
Y_ARGUMENT = {"conv_wgmma": 2, "conv_wgmma_small": 2, "conv_first": 0, "conv_first_two": 1, "gemm_wgmma": 3, "gemv": 0}
FIRST = 1 << 20  # address of the first allocation


class TuneDevice:
    """Every launch writes `answer(step)`, bytes or None, where its y lies, and takes `seconds(step)`."""

    def __init__(
        self, answer: Callable[[KernelLaunch], Any], seconds: Callable[[KernelLaunch], float], refused: str = ""
    ) -> None:
        self.facts, self.answer, self.seconds, self.refused = H200, answer, seconds, refused
        self.memory: dict[int, Any] = {}
        self.built: set[Kernel] = set()
        self.clock = 0.0
        self.launched: list[KernelLaunch] = []
        self.bound: list[Callable[[], None]] = []

    def build(self, kernels: Iterable[Kernel]) -> None:
        self.built |= set(kernels)

    def allocate(self, nbytes: int) -> int:
        address = FIRST + max((a + len(m) for a, m in self.memory.items()), default=0)
        self.memory[address] = np.full(nbytes, 0xCD, np.uint8)
        return address

    def free(self, address: int) -> None:
        if self.memory.pop(address, None) is None:
            raise DeviceError("not allocated")

    def _bytes(self, address: int, nbytes: int) -> Any:
        start = max(a for a in self.memory if a <= address)
        assert address + nbytes <= start + len(self.memory[start])
        return self.memory[start][address - start :][:nbytes]

    def copy_in(self, address: int, source: Any) -> None:
        data = source.reshape(-1).view(np.uint8)
        self._bytes(address, data.size)[:] = data

    def copy_out(self, target: Any, address: int) -> None:
        data = target.reshape(-1).view(np.uint8)
        data[:] = self._bytes(address, data.size)

    def copy_on_device(self, target: int, source: int, nbytes: int) -> None:
        self._bytes(target, nbytes)[:] = self._bytes(source, nbytes)

    def bind(self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], **_: bool) -> Callable[[], None]:
        for step in steps:
            if step.kernel not in self.built:
                raise KernelError(f"{step.kernel.label} is not built")

        def launch() -> None:
            for step in steps:
                self.launched.append(step)
                self.clock += self.seconds(step)
                place = step.arguments[Y_ARGUMENT[step.kernel.name]]
                pointer = place.pointer if isinstance(place, TmaDescriptor) else place
                assert isinstance(pointer, Pointer)
                data = self.answer(step)
                if data is not None:
                    self._bytes(bases[pointer.arena] + pointer.offset, len(data))[:] = data

        self.bound.append(launch)
        return launch

    def unbind(self, launch: Callable[[], None]) -> None:
        self.bound.remove(launch)

    def synchronize(self) -> None:
        pass

    def measure(self, work: Callable[[], None], repeats: int) -> list[float]:
        times = []
        for _ in range(repeats):
            before = self.clock
            work()
            times.append(self.clock - before)
        return times

"""What the planner may know of a device: plain data, so that plans can be made and tested without one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceFacts:
    """The properties of a device that a plan may depend on."""

    kind: str  # "cuda" or "cpu"
    name: str
    multiprocessors: int  # CPU: cores
    compute_capability: tuple[int, int]  # CPU: (0, 0)
    shared_nbytes: int  # largest shared memory of a block
    memory_total: int  # bytes
    memory_free: int  # bytes
    tensor_maps: bool = False  # whether the bulk copy engine of compute capability 9.0 can be used

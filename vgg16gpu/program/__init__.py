"""What a device is asked, as data. Exported here is what own variants of the lab are written with."""

from typing import Any

from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar

__all__ = ["Dim3", "Kernel", "KernelLaunch", "Scalar"]


def __getattr__(name: str) -> Any:
    from vgg16gpu.compat import renamed  # noqa: PLC0415 - a start does without

    return renamed(__name__, name)

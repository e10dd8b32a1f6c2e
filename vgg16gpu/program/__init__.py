"""What a device is asked, as data. Exported here is what own variants of the lab are written with."""

from vgg16gpu.program.launches import Dim3, Kernel, KernelLaunch, Scalar

__all__ = ["Dim3", "Kernel", "KernelLaunch", "Scalar"]

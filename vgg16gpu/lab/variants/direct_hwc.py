"""Direct convolution of images in HWC, one thread per output: the Python side of kernels/lab/direct_hwc.cu."""

from vgg16gpu.lab.direct import one_each
from vgg16gpu.lab.variant import Variant

VARIANTS = (
    Variant(
        name="direct-hwc",
        title="direct, HWC",
        order=10,
        source="lab/direct_hwc.cu",
        teaches="With channels innermost, neighbouring threads read and write several floats apart.",
        launches=one_each("direct_hwc"),
        x_layout="HWC",
        y_layout="HWC",
        seeds=("S2",),
        parameters={"block": (16, 8, 32)},
    ),
)

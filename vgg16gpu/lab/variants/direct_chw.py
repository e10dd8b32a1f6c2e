"""Direct convolution of images in CHW, one thread per output: the Python side of kernels/lab/direct_chw.cu."""

from vgg16gpu.lab.direct import one_each
from vgg16gpu.lab.variant import Variant

VARIANTS = (
    Variant(
        name="direct-chw",
        title="direct, CHW",
        order=20,
        source="lab/direct_chw.cu",
        teaches="Neighbouring threads read neighbouring floats: coalesced, but every value is loaded for each output.",
        launches=one_each("direct_chw"),
        seeds=("S1", "S3", "S4"),
        parameters={"block": (16, 8, 32)},
    ),
)

"""Even shares of tile and halo by 16 bytes: the Python side of kernels/lab/halo/halo_float4.cu."""

from vgg16gpu_lab.variants.halo.launches import step

VARIANTS = (
    step(
        "halo_float4",
        order=61,
        title="even halo, 16-byte copies, one output",
        teaches="Fewer instructions for the same bytes; addresses must be multiples of 16, so tiles begin early.",
    ),
)

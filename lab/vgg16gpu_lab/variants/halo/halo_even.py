"""Direct convolution whose threads fetch tile and halo evenly: the Python side of kernels/lab/halo/halo_even.cu."""

from vgg16gpu_lab.variants.halo.launches import step

VARIANTS = (
    step(
        "halo_even",
        order=61,
        title="even halo, single floats",
        teaches="Which thread fetches a value need not be the one that uses it: so all fetch as many.",
    ),
)

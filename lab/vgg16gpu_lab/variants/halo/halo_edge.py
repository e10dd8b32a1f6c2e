"""Direct convolution with a tile whose halo the edge threads fetch: the Python side of halo_edge.cu."""

from vgg16gpu_lab.variants.halo.launches import step

VARIANTS = (
    step(
        "halo_edge",
        order=61,
        title="halo by edge threads",
        teaches="A warp is as slow as its busiest thread: here the one in the corner, which fetches a whole window.",
    ),
)

"""Direct convolution whose threads fetch a tile and its halo evenly: the Python side of halo_shared.cu."""

from vgg16gpu_lab.variant import Variant
from vgg16gpu_lab.variants.halo.launches import PARAMETERS, launches, refuses

VARIANTS = (
    Variant(
        name="halo-shared",
        title="even halo, 16-byte copies",
        order=62,
        source="lab/halo_shared.cu",
        teaches="Fetching is dealt evenly among the threads, by 16 bytes; each value serves several output channels.",
        launches=launches("halo_shared"),
        seeds=("S4",),
        parameters=PARAMETERS,
        refuses=refuses(tiles=1),
    ),
)

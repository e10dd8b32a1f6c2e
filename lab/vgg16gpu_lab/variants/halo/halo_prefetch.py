"""halo_shared with the next channel on its way while one is used: the Python side of halo_prefetch.cu."""

from vgg16gpu_lab.variant import Variant
from vgg16gpu_lab.variants.halo.launches import PARAMETERS, launches, refuses

VARIANTS = (
    Variant(
        name="halo-prefetch",
        title="even halo, next channel prefetched",
        order=64,
        source="lab/halo_prefetch.cu",
        teaches="A prefetch needs a second tile and a copy that nobody waits for; one barrier a channel is enough.",
        launches=launches("halo_prefetch"),
        seeds=("S4",),
        parameters=PARAMETERS,
        refuses=refuses(tiles=2),
    ),
)

"""The faults of S4's kernel, in halo_shared.cu, and what the published loop lacks in halo_published.cu.

python tests/lab/faults/s4.py FAULT cpu|cuda [--without]    run its problem once; for sanitizers
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from tests.lab.faults.edited import Fault
from vgg16gpu.devices import open_device
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants.halo import halo_published, halo_shared

(HALO,) = halo_shared.VARIANTS
(PUBLISHED,) = halo_published.VARIANTS
SEVERAL_WARPS = (("block_x", 32), ("block_y", 4))

FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "channel forgotten": Fault(
            HALO, "    filter += TAPS;\n", "", Problem(1, 3, 9, 12, 2)
        ),  # the filter of channel 0 serves all
        "barrier missing": Fault(
            HALO,
            "    __syncthreads();  // nobody reads the tile any more\n",
            "",
            Problem(1, 3, 9, 64, 2),
            SEVERAL_WARPS,
        ),
        "published: refilled while read": Fault(
            PUBLISHED,
            "      __syncthreads();  // ours: nobody reads the tile any more\n",
            "",
            Problem(1, 3, 9, 64, 2),
        ),
        "published: read while refilled": Fault(
            PUBLISHED,
            "    __syncthreads();  // ours: the first channel is complete\n",
            "",
            Problem(1, 3, 9, 64, 2),
        ),
        "any width by fours": Fault(HALO, " && W % 4 == 0", "", Problem(1, 2, 9, 13, 2)),
    }
)


def main(name: str, device_name: str, *without: str) -> None:
    """A sanitizer ends the process, or marks it, before the last line."""
    fault = FAULTS[name]
    with TemporaryDirectory() as folder:
        variant = (fault.removed if without else fault.planted)(Path(folder))
        device, _ = open_device(device_name)
        with Trial(device, variant, fault.problem, dict(fault.parameters)) as trial:
            trial.run()
    print("nobody noticed")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What an engine keeps on its device: plans of sizes of images and of gradients, within one bound, weights once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias, cast

from vgg16gpu.compiler.compile import SizePlanner
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.weight_store import WeightCache
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.runtime.plans.kept import CachedPlan, PlanCache
from vgg16gpu.runtime.plans.sized import ShapeProfile, SizeUse

EnginePlans: TypeAlias = PlanCache[Hashable, CachedPlan]


def load_sized(kept: EnginePlans, planner: SizePlanner, plan: CompiledModel) -> ShapeProfile:
    """Bring the plan of a size to the device, and keep it. Raises DeviceError and KernelError.

    It stays until the next one of a size comes: who runs the engine holds it, whatever gradients need.
    """
    batch, *sample = plan.programs[-1].input.shape
    sides = tuple(sample[1:])
    what = f"size {'x'.join(map(str, sides))} (height x width)" if sides else "the model"
    held, kept.pinned = kept.pinned, None
    try:
        executor = kept.load(plan, f"{what} in batches of {batch}")
    except BaseException:
        kept.pinned = held
        raise
    sized = ShapeProfile(planner.graph.input, plan, planner.precision, executor)
    kept.keep(sides, sized)
    kept.pinned = sides
    return sized


def use_of(kept: EnginePlans) -> SizeUse:
    """What is kept, and what has been."""
    planned = [sized.sides for _, sized in kept.items if isinstance(sized, ShapeProfile)]
    gradients = len(kept.keys) - len(planned)
    return SizeUse(tuple(sides for sides in planned if sides), kept.made, kept.dropped, kept.nbytes, gradients)


def added_weights_nbytes(plan: CompiledModel, beside: CompiledModel) -> int:
    """Bytes of weights that a plan takes beside another on a device, which has those already that both want alike.

    Scales of float16 pairs are taken to be the same: both are fixed on the same samples.
    """
    store = WeightCache(cast("Device", _Paper()))
    found = []
    for each in (beside, plan):
        lease = store.lease(each.weights)
        lease.allocate()
        lease.settle(each.calibration)
        found.append(store.nbytes)
    return found[1] - found[0]


class _Paper:
    """In the place of a device, for who only counts."""

    def allocate(self, nbytes: int) -> int:
        """No memory: an address that nobody reads."""
        del nbytes
        return 0

    def free(self, address: int) -> None:
        """Nothing to give back."""

    def copy_out(self, target: Bytes, address: int) -> None:
        """Zeros, whatever is asked for."""
        del address
        target.fill(0)

    def synchronize(self) -> None:
        """Nothing to wait for."""

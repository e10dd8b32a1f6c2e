"""Plans that are kept on a device: their weights lie there once, and what was used longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from vgg16gpu.devices.base import Device
from vgg16gpu.devices.weight_store import Lease, WeightStore
from vgg16gpu.errors import DeviceError, Error
from vgg16gpu.program.plans import Plan
from vgg16gpu.runtime.executor import Executor

SHARE: Final = 0.5  # of the memory that is free at first; the rest is for the plan that runs and for other programs
UNBOUNDED: Final = 1 << 30  # plans


class Resident(Protocol):
    """What is kept: a plan on the device, or what was made with one."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device that go with it: no weights, for others may use them, too."""

    @property
    def is_busy(self) -> bool:
        """Whether somebody uses it just now, so that it has to stay."""

    def close(self) -> None:
        """Give back what it has on the device."""


Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept", bound=Resident)


class KeptPlans(Generic[Key, Kept]):
    """Plans by a key, such as a size of images. One thread at a time.

    At most so many `plans` are kept, and of `bound` bytes, weights included; only the plan that was used last may take
    more by itself, up to the memory of the device.

    Attributes: `bound`; `made` and `dropped` count plans.
    """

    def __init__(self, device: Device, bound: int | None = None, plans: int = UNBOUNDED) -> None:
        self.bound = int(SHARE * device.facts.memory_free) if bound is None else bound
        self.made = self.dropped = 0
        self._device = device
        self._most = plans
        self._weights = WeightStore(device)
        self._kept: OrderedDict[Key, Kept] = OrderedDict()  # the one used last comes last

    @property
    def keys(self) -> tuple[Key, ...]:
        """What is kept, the one used last comes last."""
        return tuple(self._kept)

    @property
    def values(self) -> tuple[Kept, ...]:
        """What is kept for these."""
        return tuple(self._kept.values())

    @property
    def nbytes(self) -> int:
        """Bytes on the device of all plans and their weights."""
        return self._weights.nbytes + sum(kept.nbytes for kept in self._kept.values())

    def find(self, key: Key) -> Kept | None:
        """What is kept for a key, which becomes the one used last; None if there is nothing."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: Key, made: Kept) -> Kept:
        """Keep something new, whose executor `load` gave if it has one."""
        while len(self._kept) >= self._most and self._drop_oldest():
            pass
        self._kept[key] = made
        return made

    def load(self, plan: Plan, what: str) -> Executor:
        """Bring a plan to the device, in place of others where there is no room beside them.

        what: what the plan is for, as the refusal says it. Raises DeviceError for a plan that does not fit by itself,
        and KernelError.
        """
        lease = self._leased(plan, what)
        try:
            executor = self._loaded(plan, lease)
        except DeviceError:  # memory that others have taken since the device was opened
            if not self._drop_all():
                raise
            executor = self._loaded(plan, self._leased(plan, what))
        self.made += 1
        return executor

    def _leased(self, plan: Plan, what: str) -> Lease:
        """The weights of a plan for which there is room."""
        lease = self._weights.lease(plan.weights)  # first, so that none of these goes with a plan that is dropped
        try:
            self._make_room(plan.activations_nbytes + lease.nbytes, lease, what)
        except BaseException:
            lease.release()
            raise
        return lease

    def _loaded(self, plan: Plan, lease: Lease) -> Executor:
        try:
            return Executor.load(plan, self._device, lease)
        except BaseException:
            lease.release()
            raise

    def _make_room(self, need: int, lease: Lease, what: str) -> None:
        """Drop plans until there is room for `need` bytes more; none where that would not do."""
        free = self._device.facts.memory_free - lease.staging_nbytes
        stays = lease.shared_nbytes + sum(kept.nbytes for kept in self._kept.values() if kept.is_busy)
        if stays + need <= free:
            while len(self._kept) >= self._most or self.nbytes + need > min(self.bound, free):
                if not self._drop_oldest():
                    break
            stays = self.nbytes
        if stays + need > free:
            beside = f" beside {stays / 1e6:.0f} MB that are in use" if stays else ""
            raise DeviceError(
                f"{self._device.facts.name}: {what} needs {(need + lease.staging_nbytes) / 1e6:.0f} MB of memory"
                f"{beside} and {self._device.facts.memory_free / 1e6:.0f} MB are free in all; use smaller images, a "
                "smaller batch or another device"
            )

    def _drop_oldest(self) -> bool:
        """Close what was used longest ago and is not used now; False if there is nothing of that kind."""
        key = next((key for key, kept in self._kept.items() if not kept.is_busy), None)
        if key is None:
            return False
        self.dropped += 1
        self._kept.pop(key).close()
        return True

    def _drop_all(self) -> bool:
        """Close all that is not used now; whether there was anything."""
        before = self.dropped
        while self._drop_oldest():
            pass
        return self.dropped > before

    def close(self) -> None:
        """Give everything back. Raises what freeing raises, once all has been tried."""
        closes: list[Callable[[], None]] = [kept.close for kept in self._kept.values()]
        self._kept.clear()
        failure: Error | None = None
        for close in closes:
            try:
                close()
            except Error as error:
                failure = error
        if failure:
            raise failure

"""Plans that are kept on a device: their weights lie there once, and what was used longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from vgg16gpu.devices.base import Device
from vgg16gpu.devices.weights import WeightBinding, WeightCache
from vgg16gpu.errors import DeviceError, Error
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.runtime.executor import Executor

SHARE: Final = 0.5  # of the memory that is free at first; the rest is for the plan that runs and for other programs
UNBOUNDED: Final = 1 << 30  # plans


class NoRoomError(DeviceError):
    """A plan needs more memory than there is for it."""


class CachedPlan(Protocol):
    """What is kept: a plan on the device, or what was made with one."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device that go with it: no weights, for others may use them, too."""

    @property
    def is_busy(self) -> bool:
        """Return whether somebody uses it just now, so that it has to stay."""

    @property
    def second_passes(self) -> int:
        """Return how many images have been computed again on exact kernels."""

    def close(self) -> None:
        """Give back what it has on the device."""


Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept", bound=CachedPlan)


class PlanCache(Generic[Key, Kept]):
    """Plans by a key, such as a size of images. One thread at a time.

    At most so many `plans` are kept, and of `bound` bytes, weights included (None: half of what is free); only the plan
    that was used last may take more by itself, up to the memory of the device.

    Attributes: `bound`; `made` and `dropped` count plans; `pinned`: the key of one that stays whatever comes.
    """

    def __init__(self, device: Device, bound: int | None = None, plans: int = UNBOUNDED) -> None:
        self.bound = int(SHARE * device.facts.memory_free) if bound is None else bound
        self.pinned: Key | None = None
        self._is_asked_for = bound is not None
        self._gone = 0  # second passes of plans that are no longer kept
        self.made = self.dropped = 0
        self._device = device
        self._most = plans
        self._weights = WeightCache(device)
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
    def items(self) -> tuple[tuple[Key, Kept], ...]:
        """Both."""
        return tuple(self._kept.items())

    @property
    def second_passes(self) -> int:
        """Return how many images have been computed again on exact kernels, of all plans that are or were kept."""
        return self._gone + sum(kept.second_passes for kept in self._kept.values())

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

    def load(self, plan: CompiledModel, what: str, *, is_within: bool = False) -> Executor:
        """Bring a plan to the device, in place of others where there is no room beside them.

        what: what the plan is for, as the refusal says it. is_within: whether this one keeps to a bound that was asked
        for even by itself. Raises NoRoomError for a plan that does not fit, DeviceError and KernelError.
        """
        most = self.bound if is_within and self._is_asked_for else None
        lease = self._leased(plan, what, most)
        try:
            executor = self._loaded(plan, lease)
        except DeviceError:  # memory that others have taken since the device was opened
            if not self._drop_all():
                raise
            executor = self._loaded(plan, self._leased(plan, what, most))
        self.made += 1
        return executor

    def _leased(self, plan: CompiledModel, what: str, most: int | None) -> WeightBinding:
        """The weights of a plan for which there is room."""
        lease = self._weights.lease(plan.weights)  # first, so that none of these goes with a plan that is dropped
        try:
            self._make_room(plan.activations_nbytes + lease.nbytes, lease, what, most)
        except BaseException:
            lease.release()
            raise
        return lease

    def _loaded(self, plan: CompiledModel, lease: WeightBinding) -> Executor:
        try:
            return Executor.load(plan, self._device, lease)
        except BaseException:
            lease.release()
            raise

    def _make_room(self, need: int, lease: WeightBinding, what: str, most: int | None) -> None:
        """Drop plans until there is room for `need` bytes more; none where that would not do.

        most: bytes of all that then lies there, or None for what the device has.
        """
        free = self._device.facts.memory_free - lease.staging_nbytes
        limit = free if most is None else min(free, most)
        stays = lease.shared_nbytes + sum(kept.nbytes for key, kept in self.items if self._has_to_stay(key, kept))
        if stays + need <= limit:
            while len(self._kept) >= self._most or self.nbytes + need > min(self.bound, free):
                if not self._drop_oldest():
                    break
            stays = self.nbytes
        if stays + need <= limit:
            return
        asked = f"{self._device.facts.name}: {what} needs"
        if limit < free:
            raise NoRoomError(
                f"{asked} {need / 1e6:.1f} MB of memory beside {stays / 1e6:.1f} MB that are in use, and memory={most} "
                f"allows {limit / 1e6:.1f} MB in all; give more, or use smaller images or a smaller batch"
            )
        beside = f" beside {stays / 1e6:.0f} MB that are in use" if stays else ""
        raise NoRoomError(
            f"{asked} {(need + lease.staging_nbytes) / 1e6:.0f} MB of memory{beside} and "
            f"{self._device.facts.memory_free / 1e6:.0f} MB are free in all; use smaller images, a smaller batch or "
            "another device"
        )

    def _has_to_stay(self, key: Key, kept: Kept) -> bool:
        return kept.is_busy or key == self.pinned

    def _drop_oldest(self) -> bool:
        """Close what was used longest ago and does not have to stay; False if there is nothing of that kind."""
        key = next((key for key, kept in self._kept.items() if not self._has_to_stay(key, kept)), None)
        if key is None:
            return False
        self.dropped += 1
        kept = self._kept.pop(key)
        self._gone += kept.second_passes
        kept.close()
        return True

    def _drop_all(self) -> bool:
        """Close all that is not used now; whether there was anything."""
        before = self.dropped
        while self._drop_oldest():
            pass
        return self.dropped > before

    def close(self) -> None:
        """Give everything back. Raises what freeing raises, once all has been tried."""
        self._gone = self.second_passes
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

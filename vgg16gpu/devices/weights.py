"""Weights on a device, once for all plans that want the same numbers in the same form.

A plan has its weights in an arena of its own, by offsets. Here each piece of such an arena is looked for among those
that lie on the device already: made of equal numbers, by the same packing. What is missing gets memory in one block,
and the plan's launches get the addresses of all. A block is given back with the last plan that uses something in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error
from vgg16gpu.program.launch import Argument, KernelLaunch, PairScaling, TmaDescriptor, Upload, WeightItem, WeightPlan
from vgg16gpu.program.types import Arena, Pointer, aligned

_NUMBER: Final = 48  # bits of a place within a piece, below its number
_SMALL: Final = 1 << 18  # bytes; of computed pieces, scales are no larger and packed weights nearly always are


@dataclass(eq=False)
class _Allocation:
    """One allocation."""

    address: int
    nbytes: int
    users: int = 0  # leases that have something in it


class _Stored(NamedTuple):
    """A piece on the device, and the numbers that it is made of."""

    address: int
    block: _Allocation
    arrays: tuple[npt.NDArray[np.generic], ...]


class _Given(NamedTuple):
    """A piece that is uploaded: all that decides what lies there."""

    form: Hashable
    arrays: tuple[npt.NDArray[np.generic], ...]


class _Computed(NamedTuple):
    """The pieces that a build computed, and all that decides what they are; each has a number in these steps."""

    finish: tuple[KernelLaunch, ...]  # with numbers in the place of offsets
    given: Mapping[int, _Given]  # the pieces that these read, by number
    scales: bytes
    pieces: Mapping[int, _Stored]  # by number

    def is_same(self, finish: tuple[KernelLaunch, ...], given: Mapping[int, _Given], scales: bytes) -> bool:
        """Return whether the same steps computed them of the same weights and scales."""
        return (
            (self.scales, self.finish, self.given.keys()) == (scales, finish, given.keys())
            and all(form == given[number].form for number, (form, _) in self.given.items())
            and all(map(_are_equal, self._arrays(self.given), self._arrays(given)))
        )

    @staticmethod
    def _arrays(given: Mapping[int, _Given]) -> Iterator[npt.NDArray[np.generic]]:
        return (array for number in sorted(given) for array in given[number].arrays)


class WeightCache:
    """What weights lie on a device. One thread at a time; its memory belongs to the leases.

    Numbers that lie there are kept on the host, too, to be compared with: those of a mapped file cost nothing.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._forms: dict[Hashable, list[_Stored]] = {}
        self._computed: list[_Computed] = []
        self._blocks: list[_Allocation] = []

    @property
    def nbytes(self) -> int:
        """Bytes that all weights take."""
        return sum(block.nbytes for block in self._blocks)

    def lease(self, weights: WeightPlan) -> WeightBinding:
        """Bind the weights of a plan, so far as they are stored; they stay until the binding is released."""
        return WeightBinding(self, weights)

    def find(self, form: Hashable, arrays: Sequence[npt.NDArray[np.generic]]) -> _Stored | None:
        """Return a piece of this form that is made of the same numbers; None without one."""
        for stored in self._forms.get(form, ()):
            if all(map(_are_equal, arrays, stored.arrays)):
                return stored
        return None

    def find_computed(
        self, finish: tuple[KernelLaunch, ...], given: Mapping[int, _Given], scales: bytes
    ) -> _Computed | None:
        """Return pieces that the same steps computed of the same weights and scales; None without any."""
        return next((computed for computed in self._computed if computed.is_same(finish, given, scales)), None)

    def add(self, form: Hashable, stored: _Stored) -> None:
        """Store a piece for other bindings to find."""
        self._forms.setdefault(form, []).append(stored)

    def add_computed(self, computed: _Computed) -> None:
        """Store the results of a build for other bindings to find."""
        self._computed.append(computed)

    def allocate(self, nbytes: int) -> _Allocation:
        """Allocate a block without users. Raises DeviceError when memory runs out."""
        block = _Allocation(self.device.allocate(max(nbytes, 1)), nbytes)
        self._blocks.append(block)
        return block

    def drop(self, block: _Allocation) -> None:
        """Release one use of a block; with the last, forget its pieces and free its memory."""
        block.users -= 1
        if block.users:
            return
        self._blocks.remove(block)
        self._forms = {form: [one for one in found if one.block is not block] for form, found in self._forms.items()}
        self._computed = [
            one for one in self._computed if all(piece.block is not block for piece in one.pieces.values())
        ]
        self.device.free(block.address)


@dataclass(eq=False)
class WeightBinding:
    """The weights of one plan in a store: what is there already, and room for what is not.

    Use: `allocate`, bring `uploads` to `address` of their targets, `settle`; then `located` steps can be bound.
    """

    store: WeightCache
    plan: WeightPlan
    _blocks: list[_Allocation] = field(default_factory=list)
    _pieces: dict[int, _Stored] = field(default_factory=dict)  # by offset in the plan
    _is_whole: bool = False  # all lies in one block, as in the plan

    def __post_init__(self) -> None:
        self._items = sorted(self.plan.items, key=lambda item: item.offset)
        self._offsets = [item.offset for item in self._items]
        self._uploads: dict[int, list[Upload]] = {item.offset: [] for item in self._items}
        for upload in self.plan.uploads:
            self._uploads[self._item(_target(upload).offset).offset].append(upload)
        for item in self._items:
            found = None if item.is_computed else self.store.find(self._form(item), self._arrays(item))
            if found:
                self._pieces[item.offset] = found
                self._use(found.block)
        self._missing = [item for item in self._items if item.offset not in self._pieces]

    @property
    def nbytes(self) -> int:
        """Bytes that `allocate` takes."""
        return sum(aligned(item.nbytes) for item in self._missing)

    @property
    def shared_nbytes(self) -> int:
        """Bytes that stay because of this lease, before `allocate`."""
        return sum(block.nbytes for block in self._blocks)

    @property
    def staging_nbytes(self) -> int:
        """Bytes of the staging arena that `uploads` need."""
        return max((aligned(upload.array.nbytes) for upload in self.uploads if upload.pack), default=0)

    @property
    def uploads(self) -> tuple[Upload, ...]:
        """The missing uploads, in order."""
        missing = {item.offset for item in self._missing}
        return tuple(one for one in self.plan.uploads if self._item(_target(one).offset).offset in missing)

    @property
    def base(self) -> int:
        """The arena's address for `located` steps."""
        return self._blocks[0].address if self._is_whole else 0

    def allocate(self) -> None:
        """Allocate what is missing; what the build computes is apart. Raises DeviceError when memory runs out."""
        self._is_whole = not self._pieces
        if self._is_whole:
            block = self._use(self.store.allocate(self.plan.weights_nbytes))
            self._pieces = {item.offset: self._stored(item, block, item.offset) for item in self._items}
            return
        for is_computed in (False, True):
            items = [item for item in self._missing if item.is_computed == is_computed]
            if items:
                block = self._use(self.store.allocate(sum(aligned(item.nbytes) for item in items)))
                offset = 0
                for item in items:
                    self._pieces[item.offset] = self._stored(item, block, offset)
                    offset += aligned(item.nbytes)

    def address(self, offset: int) -> int:
        """Return the device address of a place of the plan's arena."""
        if self._is_whole:
            return self.base + offset
        item = self._item(offset)
        return self._pieces[item.offset].address + offset - item.offset

    def located(self, steps: Sequence[KernelLaunch]) -> Sequence[KernelLaunch]:
        """Return the steps with the places of their weights, relative to `base`."""
        return steps if self._is_whole else [self._located(step) for step in steps]

    def settle(self, scaling: PairScaling | None) -> None:
        """Publish the pieces to other plans, now that all work on them is done.

        What the build computed is the same as in another plan where its scales are: then that one's is taken, and
        everything has to be bound anew.
        """
        for item in self._missing:
            if not item.is_computed:
                self.store.add(self._form(item), self._pieces[item.offset])
        if scaling:
            self._settle_computed(scaling)
        self._missing = []

    def release(self) -> None:
        """Release the weights. Safe to call twice. Raises what freeing raises, once all has been tried."""
        failure: Error | None = None
        while self._blocks:
            try:
                self.store.drop(self._blocks.pop())
            except Error as error:
                failure = error
        if failure:
            raise failure

    def _settle_computed(self, scaling: PairScaling) -> None:
        read = self._read_by(scaling.finish)
        numbers = {item.offset: number for number, item in enumerate(read)}
        mine = {numbers[item.offset]: self._pieces[item.offset] for item in read if item.is_computed}
        if len(mine) < sum(item.is_computed for item in self._items):
            return  # something else computes, too
        given = {
            numbers[item.offset]: _Given(self._form(item), self._arrays(item)) for item in read if not item.is_computed
        }
        finish = tuple(self._numbered(step, numbers) for step in scaling.finish)
        scales = self._scales(scaling, read)
        found = None if self._is_whole else self.store.find_computed(finish, given, scales)
        if found is None:
            self.store.add_computed(_Computed(finish, given, scales, mine))
            return
        self._pieces |= {read[number].offset: piece for number, piece in found.pieces.items()}
        for block in {piece.block for piece in found.pieces.values()}:
            self._use(block)
        for block in {piece.block for piece in mine.values()}:
            self._blocks.remove(block)
            self.store.drop(block)

    def _read_by(self, steps: Sequence[KernelLaunch]) -> list[WeightItem]:
        """Return the pieces that steps use, in the order of use."""
        places = (place.offset for step in steps for place in map(_weight_place, step.arguments) if place)
        return list(dict.fromkeys(map(self._item, places)))

    def _numbered(self, step: KernelLaunch, numbers: Mapping[int, int]) -> KernelLaunch:
        """Return a step with piece numbers in place of offsets: the same in every plan that computes so."""

        def numbered(offset: int) -> int:
            item = self._item(offset)
            return (numbers[item.offset] << _NUMBER) + offset - item.offset

        return _with_places(step, numbered)

    def _scales(self, scaling: PairScaling, read: Sequence[WeightItem]) -> bytes:
        """Return the scales that the build chose, without what the samples came to: only scales depend on that."""
        seen = {
            self._item(place.offset).offset
            for step in scaling.program.all_steps()
            for place in step.arguments
            if isinstance(place, Pointer) and place.arena is Arena.WEIGHTS
        }
        device, copies = self.store.device, []
        for item in read:
            if item.is_computed and item.nbytes <= _SMALL and item.offset not in seen:
                copies.append(np.empty(item.nbytes, np.uint8))
                device.copy_out(copies[-1], self.address(item.offset))
        device.synchronize()
        return b"".join(copy.tobytes() for copy in copies)

    def _use(self, block: _Allocation) -> _Allocation:
        if block not in self._blocks:
            self._blocks.append(block)
            block.users += 1
        return block

    def _item(self, offset: int) -> WeightItem:
        """Return the piece that a place belongs to."""
        return self._items[bisect_right(self._offsets, offset) - 1]

    def _stored(self, item: WeightItem, block: _Allocation, offset: int) -> _Stored:
        return _Stored(block.address + offset, block, self._arrays(item))

    def _arrays(self, item: WeightItem) -> tuple[npt.NDArray[np.generic], ...]:
        return tuple(upload.array for upload in self._uploads[item.offset])

    def _form(self, item: WeightItem) -> Hashable:
        """Return all that decides a piece's content, but for the numbers."""
        uploads = self._uploads[item.offset]
        steps = tuple(_moved(upload.pack, -item.offset) for upload in uploads if upload.pack)
        arrays = tuple((upload.array.dtype.str, upload.array.shape) for upload in uploads)
        return item.nbytes, arrays, steps

    def _located(self, step: KernelLaunch) -> KernelLaunch:
        return _with_places(step, self.address)


def _weight_place(argument: Argument) -> Pointer | None:
    """Return where an argument points into the arena of weights, if it does."""
    pointer = argument.pointer if isinstance(argument, TmaDescriptor) else argument
    return pointer if isinstance(pointer, Pointer) and pointer.arena is Arena.WEIGHTS else None


def _with_places(step: KernelLaunch, moved: Callable[[int], int]) -> KernelLaunch:
    """Return a step with other places in the arena of weights. moved: the new one of each offset."""

    def placed(argument: Argument) -> Argument:
        place = _weight_place(argument)
        if place is None:
            return argument
        pointer = Pointer(place.arena, moved(place.offset))
        return replace(argument, pointer=pointer) if isinstance(argument, TmaDescriptor) else pointer

    return replace(step, arguments=tuple(map(placed, step.arguments)))


def _target(upload: Upload) -> Pointer:
    """Return an array's place in the arena of weights: a packing step writes to its first argument."""
    if upload.pack is None:
        return upload.target
    target = upload.pack.arguments[0]
    assert isinstance(target, Pointer)
    return target


def _moved(step: KernelLaunch, by: int) -> KernelLaunch:
    """Return a packing step with its arena places shifted `by` bytes."""
    return _with_places(step, lambda offset: offset + by)


def _are_equal(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    """Return whether arrays of one shape and type are the same memory, or equal bit by bit."""
    if a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides:
        return True
    first, second = (np.ascontiguousarray(one).view(f"u{one.dtype.itemsize}") for one in (a, b))
    return bool(np.array_equal(first, second))

"""Launches for arrays at given places, kept for the next call with the same ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias

from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.runtime.executor import Executor

KEPT: Final = 32  # calls whose launches are kept; allocators hand out the same places again and again

Launch: TypeAlias = Callable[[], None]


class PlacesKey:
    """The places of a call, whose hash is found once."""

    def __init__(self, *places: Hashable) -> None:
        self._places, self._hash = places, hash(places)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PlacesKey) and self._places == other._places)


class GraphCache:
    """What calls launch, by their places. The first time it is launched step by step, from the second on as one.

    A place that comes once costs no CUDA graph, and one that comes back no binding. What was used longest ago goes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._kept: OrderedDict[Hashable, tuple[Launch, ...]] = OrderedDict()

    def launch(self, key: Hashable, steps: Callable[[], Sequence[KernelLaunch]], *, singly: bool = False) -> None:
        """Enqueue the steps of a key, which are asked for where they are not bound yet.

        singly: one by one whatever was before, for a stream that captures.
        """
        found = self._kept.get((key, singly))
        if found is None:
            made = steps()
            self._executor.device.build({step.kernel for step in made})
            found = self._keep((key, singly), tuple(self._executor.bind((step,), beside=0) for step in made))
        elif len(found) > 1 and not singly:
            self._drop((key, singly))
            found = self._keep((key, singly), (self._executor.bind(steps(), beside=0),))
        self._kept.move_to_end((key, singly))
        for launch in found:
            launch()

    def repeat(self, key: Hashable) -> bool:
        """Enqueue what a key has come to launch as one; False, and nothing is, where there is no such thing."""
        found = self._kept.get((key, False), ())
        if len(found) != 1:
            return False
        self._kept.move_to_end((key, False))
        found[0]()
        return True

    def _keep(self, key: Hashable, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
        while len(self._kept) >= KEPT:
            self._drop(next(iter(self._kept)))
        self._kept[key] = launches
        return launches

    def _drop(self, key: Hashable) -> None:
        for launch in self._kept.pop(key):
            self._executor.unbind(launch)

"""Who gets which shard, and what becomes of one whose actor fails: on a Ray that is played by this file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vgg16gpu.cluster.job import ShardPlan
from vgg16gpu.cluster.ray_run import ATTEMPTS, RayCluster, _Dealing
from vgg16gpu.errors import InputError, KernelError, ModelError


class ActorError(Exception):
    """Its process is gone."""


class PlayedRay:
    """Answers are there at once, in the order in which they were asked for; `script` says what comes of a shard."""

    def __init__(self, script: Callable[[int, int], None], ready: Callable[[int], None] = lambda _: None) -> None:
        self.exceptions = SimpleNamespace(RayActorError=ActorError, RayError=ActorError)
        self.util = SimpleNamespace(
            scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
        )
        self.restarted: list[int] = []
        self.killed: list[int] = []
        self.done: list[tuple[int, int]] = []  # (actor, shard)
        self._script, self._ready = script, ready
        self._actors = 0

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, **_: Any) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: self._actor(kind)))

    def _actor(self, kind: type) -> Any:
        if kind.__name__ == "RayProgress":
            return SimpleNamespace(take=SimpleNamespace(remote=lambda: lambda: 1), number=-1)
        number, self._actors = self._actors, self._actors + 1

        def compute(shard: int) -> Callable[[], None]:
            def answer() -> None:
                self._script(number, shard)
                self.done.append((number, shard))

            return answer

        called = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=compute))
        ready = SimpleNamespace(remote=lambda *_: lambda: self._ready(number))
        return SimpleNamespace(ready=ready, compute=called, number=number)

    def wait(self, answers: Any, **_: Any) -> tuple[list[Any], list[Any]]:
        return list(answers)[:1], list(answers)[1:]

    def get(self, answer: Callable[[], Any]) -> Any:
        return answer()

    def kill(self, actor: Any, no_restart: bool = True) -> None:
        (self.killed if no_restart else self.restarted).append(actor.number)


def deal(ray: PlayedRay, shards: int, actors: int) -> None:
    job: Any = SimpleNamespace(cut=ShardPlan(shards * 10, 10), folder=Path())
    _Dealing(ray, job, RayCluster("cpu", actors, 1), range(shards)).run(lambda _: None)


def test_each_shard_goes_to_who_is_free() -> None:
    ray = PlayedRay(lambda *_: None)
    deal(ray, 7, 3)
    assert sorted(shard for _, shard in ray.done) == list(range(7))
    assert {actor for actor, _ in ray.done} == {0, 1, 2}
    assert sorted(ray.killed) == [-1, 0, 1, 2]


@pytest.mark.parametrize("error", [ActorError("its node is gone"), KernelError("an illegal address was met")])
def test_a_shard_of_an_actor_that_fails_goes_to_another(error: Exception) -> None:
    failures = deque([error])

    def script(_: int, shard: int) -> None:
        if shard == 1 and failures:
            raise failures.popleft()

    ray = PlayedRay(script)
    deal(ray, 5, 2)
    assert sorted(shard for _, shard in ray.done) == list(range(5))  # each once
    assert ray.restarted == ([1] if isinstance(error, KernelError) else [])  # an actor with a broken device ends, too


def test_who_has_nothing_to_do_takes_over_from_one_that_is_gone_for_good() -> None:
    gone: list[int] = []

    def script(actor: int, shard: int) -> None:
        if shard == 1 and actor == 1:
            gone.append(actor)
            raise ActorError("its node is gone")

    def ready(actor: int) -> None:
        if actor in gone:
            raise ActorError("there is no room for it")

    ray = PlayedRay(script, ready)
    deal(ray, 2, 2)
    assert sorted(ray.done) == [(0, 0), (0, 1)]


def test_a_shard_that_ends_many_actors_ends_the_job() -> None:
    def script(_: int, shard: int) -> None:
        if shard == 2:
            raise ActorError("killed by a signal\nand more")

    with pytest.raises(
        ModelError, match=rf"shard 2, inputs 20 to 29, has ended {ATTEMPTS} actors.*killed by a signal;"
    ):
        deal(PlayedRay(script), 5, 2)


def test_what_no_actor_can_do_better_is_raised() -> None:
    def script(_: int, shard: int) -> None:
        if shard == 3:
            raise ModelError("no room on the disk")

    with pytest.raises(ModelError, match="no room on the disk"):
        deal(PlayedRay(script), 5, 2)


def test_an_actor_that_does_not_get_ready_is_left_out() -> None:
    def ready(number: int) -> None:
        if number != 1:
            raise InputError("the model is not on this machine")

    ray = PlayedRay(lambda *_: None, ready)
    deal(ray, 5, 3)
    assert {actor for actor, _ in ray.done} == {1}
    with pytest.raises(ModelError, match="no actor is left"):
        deal(PlayedRay(lambda *_: None, lambda _: ready(0)), 5, 3)

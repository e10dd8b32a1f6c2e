"""Shards on Ray: an actor for each device computes them; Ray places actors, restarts them, and finds dead nodes.

An actor is given the numbers of shards, and reads, decodes, computes and writes by itself: no pixels pass Ray's object
store. What is left to do here is to give the next shard to whoever is free, and that of an actor that died to another.
Ray is imported by who connects. Needs ray, extra [ray].
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import vgg16gpu
from vgg16gpu.cluster.job import ShardJob
from vgg16gpu.cluster.shards import ShardDone, ShardWorker
from vgg16gpu.devices import open_device
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import DeviceError, Error, InputError, KernelError, ModelError
from vgg16gpu.io.shown import shown

ATTEMPTS: Final = 5  # at one shard: what ends so many actors is its inputs

_LOCAL: Final = re.compile(r"local(?::(\d{1,4}))?", re.ASCII)
_POLL: Final = 1.0  # seconds between two looks at the progress
_OWN_VARIABLES: Final = "VGG16GPU_"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayCluster:
    """What there is to compute on. kind: "cuda" or "cpu". actors: how many, and how many of these share a node."""

    kind: str
    actors: int
    per_node: int


@contextmanager
def connected(address: str, device: str) -> Iterator[RayCluster]:
    """Connect to Ray until the end of the block.

    address: "auto" (the cluster of this machine), HOST:PORT, "local" or "local:N" (a cluster of this process alone,
    with N actors). device: "auto", "cuda" or "cpu". Raises InputError without ray, or where there is no such cluster;
    DeviceError for GPUs where there are none.
    """
    ray = _ray()
    local = _LOCAL.fullmatch(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "runtime_env": {"env_vars": _environment()},
    }
    try:
        if local:
            ray.init(address="local", include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"--ray {shown(address)}: {reason}; start a cluster (ray start --head), or say local"
        ) from error
    try:
        yield _resources(ray, device, int(local[1]) if local and local[1] else None)
    finally:
        ray.shutdown()


def compute(
    job: ShardJob, cluster: RayCluster, shards: Iterable[int], tell: Callable[[int], None] = lambda _: None
) -> None:
    """Compute all these shards on the actors. tell: is called now and then with the rows that have come since.

    Raises what a shard raises that no other actor could do better, and ModelError where no actor is left.
    """
    _Dealing(_ray(), job, cluster, shards).run(tell)


class ShardActor:
    """What Ray makes an actor of: one engine on one device. The engine comes with `ready`, or with the first shard."""

    def __init__(self, job: ShardJob, kind: str, per_node: int) -> None:
        self._kind = kind
        self._tell: Callable[[int], None] = lambda _: None
        self._threads = max(1, usable_cores() // per_node)
        self._job = replace(job, workers=job.workers or self._threads)
        self._worker: ShardWorker | None = None

    def ready(self, progress: Any = None) -> str:
        """Build the engine. progress: the actor that counts rows. Raises what building raises."""
        if progress is not None:
            self._tell = progress.add.remote
        if self._worker is None:
            try:
                os.chdir(self._job.cwd)
            except OSError as error:
                raise InputError(
                    f"'{self._job.cwd}' is not on {os.uname().nodename}; start in a folder that all machines see"
                ) from error
            opened = open_device(self._kind, self._threads if self._kind == "cpu" else None)
            try:
                self._worker = ShardWorker(self._job, [opened])
            except BaseException:
                opened.device.close()
                raise
        return self._worker.pool.engine.device_choice

    def compute(self, shard: int) -> ShardDone:
        """Compute one shard, to its file."""
        self.ready()
        assert self._worker is not None
        return self._worker.compute(shard, self._tell)


class RayProgress:
    """What Ray makes an actor of: counts the rows that come from all others."""

    def __init__(self) -> None:
        self._rows = 0

    def add(self, rows: int) -> None:
        """Add finished rows."""
        self._rows += rows

    def take(self) -> int:
        """Return the rows finished since the last call."""
        rows, self._rows = self._rows, 0
        return rows


class _Dealing:
    """Which actor has which shard in hand."""

    def __init__(self, ray: Any, job: ShardJob, cluster: RayCluster, shards: Iterable[int]) -> None:
        self._ray, self._job, self._shards = ray, job, deque(shards)
        self._failed: Counter[int] = Counter()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        self._progress = ray.remote(num_cpus=0, max_restarts=-1)(RayProgress).options(scheduling_strategy=here).remote()
        wanted = {"num_gpus": 1, "num_cpus": 0} if cluster.kind == "cuda" else {"num_cpus": 1}
        actor = ray.remote(**wanted, max_restarts=-1, max_task_retries=-1)(ShardActor).options(
            scheduling_strategy="SPREAD"
        )
        count = min(cluster.actors, len(self._shards))
        self._actors = [actor.remote(job, cluster.kind, cluster.per_node) for _ in range(count)]
        self._idle: list[Any] = []  # actors for which there was nothing left
        self._under_way: dict[Any, tuple[Any, int | None]] = {}  # by what Ray answers with; None: it gets ready

    def run(self, tell: Callable[[int], None]) -> None:
        """Run until all shards are whole."""
        ray = self._ray
        try:
            for actor in self._actors:
                self._prepare(actor)
            asked = self._progress.take.remote()
            while self._shards or any(shard is not None for _, shard in self._under_way.values()):
                if not self._under_way:
                    raise ModelError("no actor is left to compute on; see the lines above, mend it, and go on")
                ended, _ = ray.wait(list(self._under_way), timeout=_POLL)
                for each in ended:
                    self._take(each)
                asked = self._tell(asked, tell)
        finally:
            for actor in (*self._actors, self._progress):
                ray.kill(actor)

    def _prepare(self, actor: Any) -> None:
        self._under_way[actor.ready.remote(self._progress)] = actor, None

    def _give(self, actor: Any) -> None:
        """Start the next shard, if there is one; an actor that dies with it is not to try again by itself."""
        if not self._shards:
            self._idle.append(actor)
        else:
            shard = self._shards.popleft()
            self._under_way[actor.compute.options(max_task_retries=0).remote(shard)] = actor, shard

    def _take(self, answer: Any) -> None:
        """Handle the result of a shard, or of an actor's preparation."""
        actor, shard = self._under_way.pop(answer)
        exceptions = self._ray.exceptions
        try:
            self._ray.get(answer)
            self._give(actor)
        except exceptions.RayActorError as error:  # its process, or its node, is gone
            if shard is not None:
                self._put_back(shard, error)
                self._prepare(actor)  # answers once Ray has started it again, wherever there is room
            else:
                _log.warning("an actor is gone for good: %s", _first_line(error))
        except (DeviceError, KernelError) as error:
            if shard is None:
                _log.warning("an actor is left out: %s", _first_line(error))
                return
            self._put_back(shard, error)
            self._ray.kill(actor, no_restart=False)  # with its device; Ray starts it again
            self._prepare(actor)
        except Error as error:
            if shard is not None:
                raise
            _log.warning("an actor is left out: %s", _first_line(error))

    def _put_back(self, shard: int, error: Exception) -> None:
        self._failed[shard] += 1
        if self._failed[shard] == ATTEMPTS:
            first, last = self._job.cut.bounds(shard)
            raise ModelError(
                f"shard {shard}, inputs {first:,} to {last - 1:,}, has ended {ATTEMPTS} actors, the last by: "
                f"{_first_line(error)}; try these inputs alone"
            ) from error
        _log.warning("shard %d goes to another actor: %s", shard, _first_line(error))
        self._shards.appendleft(shard)
        if self._idle:  # the one that had it may find no room to start again
            self._give(self._idle.pop())

    def _tell(self, asked: Any, tell: Callable[[int], None]) -> Any:
        """Pass on what the actors have counted, if the answer is there; what has been asked."""
        done, _ = self._ray.wait([asked], timeout=0)
        if not done:
            return asked
        with suppress(self._ray.exceptions.RayError):
            tell(self._ray.get(asked))
        return self._progress.take.remote()


def _ray() -> Any:
    """Import ray. Raises InputError, which says what to install."""
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise InputError(f"--ray needs ray ({error}); install it with pip install 'vgg16gpu[ray]'") from error
    return ray


def _environment() -> dict[str, str]:
    """Return the actors' environment: this package's path, should it not be installed there, and its variables."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_OWN_VARIABLES)}
    paths = [str(Path(vgg16gpu.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**own, "PYTHONPATH": os.pathsep.join(paths)}


def _resources(ray: Any, device: str, actors: int | None) -> RayCluster:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if device == "cuda" and not gpus:
        raise DeviceError("--device cuda: Ray has no GPU to give; start its nodes with --num-gpus, or say --device cpu")
    if gpus and device != "cpu":
        count = actors or gpus
        if count > gpus:
            raise DeviceError(f"--ray local:{count}: there are {gpus} GPUs, and each actor has one")
        return RayCluster("cuda", count, int(max(node.get("GPU", 0) for node in nodes)))
    count = actors or max(1, len(nodes))
    return RayCluster("cpu", count, -(-count // max(1, len(nodes))))


def _first_line(error: BaseException) -> str:
    """Return the line of the cause: Ray puts a traceback of the other process before it."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

"""S5: the whole VGG16 from ONNX parameters to 1000 scores, on 3x244x244 inputs: A, B, and their causes as rungs C to E.

The model has random weights, which change neither work nor check; it is made for the run. Ten inputs are checked, one
is timed so many times, from host to host; theirs are means, so ours are means too. The causes are also removed in every
order (network/causes.py), version B is timed layer by layer (network/layers.py), and its pools are run alone
(network/pools.py). Version A's and B's kernels are the ladder's, where each rung is described; the whole ladder
is `vgg16gpu ladder`.

A user's own model (`Choice.model`) has rows of a table of its own, as nothing was published of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_lab.experiment import Choice, Row, Tell
from vgg16gpu_lab.ladder.planned import EngineNet
from vgg16gpu_lab.ladder.rung import Net, Setting
from vgg16gpu_lab.ladder.rungs import LETTERS, RUNGS
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.network.causes import HOST_NOTE, causes, unlike_published
from vgg16gpu_lab.network.causes import TABLE as CAUSES
from vgg16gpu_lab.network.host import TOLERANCE, OnnxruntimeNet, SequentialNet, work_of
from vgg16gpu_lab.network.layers import TABLE as LAYERS
from vgg16gpu_lab.network.layers import layer_rows
from vgg16gpu_lab.network.plain_model import PlainModel, plain_model
from vgg16gpu_lab.network.pools import TABLE as POOLS
from vgg16gpu_lab.network.pools import pool_rows
from vgg16gpu_lab.network.rows import MOST_SECONDS, PROBE, NetworkRows, Place, Version

SEED: Final = "S5"
TABLE: Final = "vgg16"
OWN_TABLE: Final = "own model"
SIZES, QUICK_SIZES = (244,), (32,)
RUN_ANYWAY: Final = ("engine", "onnxruntime")  # variants that are run on a user's own model whatever it takes
LARGE: Final = 10**9  # FLOP of a user's own model from which on that is tried


def _rung(letter: str) -> Callable[[Setting], Net]:
    return RUNGS[LETTERS.index(letter)].open


def _sequential(setting: Setting) -> Net:
    return SequentialNet(setting.graph, setting.shape)


def _onnxruntime(setting: Setting) -> Net:
    return OnnxruntimeNet(setting.model.path, setting.graph.input)


def _engine(setting: Setting) -> Net:
    return EngineNet(Engine(setting.model, device=setting.device_name, size=setting.size))


CPU_NOTE: Final = "im2col and product in numpy, one thread of the host"
ENGINE_NOTE: Final = "vgg16gpu's own kernels, fp32; on Hopper from tensor cores, so above FFMA's roof"
VERSIONS: Final = (
    Version("cpu", (1,), _sequential, "sequential", CPU_NOTE, has_roof=False),
    Version("version_a", (1, 5), _rung("A"), "ladder A", HOST_NOTE),
    Version("version_b", (1, 5, 500), _rung("B"), "ladder B", HOST_NOTE, remark=unlike_published),
    Version("no_host", (5,), _rung("C"), "ladder C", "padding, bias and ReLU on the GPU"),
    Version("tree", (5,), _rung("D"), "ladder D", "a tree in place of thread 0"),
    Version("pixels", (5,), _rung("E"), "ladder E", "two-dimensional tiles"),
    Version("engine", (500,), _engine, "engine", ENGINE_NOTE),
    Version("onnxruntime_cpu", (500,), _onnxruntime, "onnxruntime", "on this host's CPU", has_roof=False),
)
HOSTS: Final = tuple(version.method for version in VERSIONS if not version.has_roof)


@dataclass(frozen=True)
class NetworkExperiment:
    """The experiment, at every image size asked for."""

    name: str = SEED
    title: str = "The whole VGG16, two versions and what was wrong with them"
    teaches: str = "Where a sum is made, and who waits for whom, costs a network more than its arithmetic."

    takes: Sequence[str] = ("sizes",)

    def method(self, rig: BenchRig) -> str:
        """Describe the means from host to host."""
        effort = rig.effort
        return (
            "every version's scores of all images, ten or those of --inputs, are checked against onnxruntime's "
            f"(of the first alone where all would take longer than {effort.limit:g} s; error: norm-wise, {TOLERANCE:g} "
            "allowed); iterations: of the last image checked, whose checked run is the single one; more: on a GPU all, "
            f"or none where they would take over {MOST_SECONDS:g} s, with --quick or on a CPU until "
            f"{effort.seconds:g} s or {effort.samples} runs (--full: all); means, wall clock from an image in the "
            "host's memory to its scores there; layers: launches of version B, medians; pools: random maps"
        )

    def run(self, rig: BenchRig, choice: Choice, tell: Tell) -> tuple[Row, ...]:
        """Make the model, then every version. A size that VGG16 does not have is refused in the rows.

        Raises ModelError and InputError for a user's own model, or inputs, that it cannot run.
        """
        if choice.model:
            return tuple(_own_rows(choice.model, rig, choice, tell))
        rows: list[Row] = []
        for size in choice.sizes_or(SIZES, QUICK_SIZES):
            tell(0, len(VERSIONS), f"making VGG16 for {size}x{size}")
            with TemporaryDirectory(prefix="vgg16gpu-") as folder:
                try:
                    network = _made_network(Path(folder), size, rig, choice)
                except (ModelError, InputError) as error:  # or there is no onnxruntime to compare with
                    rows += Place(SEED, TABLE, str(size)).refused(VERSIONS, str(error))
                    continue
                rows += _rows(network, rig, tell)
        return tuple({row.key: row for row in rows}.values())  # two sizes may have a pool in common


def _rows(network: NetworkRows, rig: BenchRig, tell: Tell) -> Iterator[Row]:
    """Yield the versions, the causes, the layers of version B, the pools."""
    places = {name: Place(SEED, name, network.size) for name in (TABLE, CAUSES, LAYERS, POOLS)}
    yield from network.rows(places[TABLE], VERSIONS, tell)
    yield from network.rows(places[CAUSES], causes(), tell)
    tell(0, 1, f"{LAYERS} of version B, {network.size}")
    yield from layer_rows(network, places[LAYERS], rig)
    yield from pool_rows(network.given, places[POOLS])
    tell(1, 1, "done")


def _made(folder: Path, size: int) -> PlainModel:
    path = folder / f"vgg16-{size}.onnx"
    make_vgg(path, size=size)
    return plain_model(path)


def _made_network(folder: Path, size: int, rig: BenchRig, choice: Choice) -> NetworkRows:
    scales = _estimates(rig, choice) and not choice.quick and size > PROBE
    return NetworkRows(_made(folder, size), _made(folder, PROBE) if scales else None, rig, choice)


def _own_rows(path: Path, rig: BenchRig, choice: Choice, tell: Tell) -> Iterator[Row]:
    for size in choice.sizes or (None,):
        model = plain_model(path, choice.inputs, size)
        scales = _estimates(rig, choice) and work_of(model.graph, model.shape).flop > LARGE
        with TemporaryDirectory(prefix="vgg16gpu-") as folder:
            probe = _made(Path(folder), PROBE) if scales else None
            network = NetworkRows(model, probe, rig, choice)
            yield from network.rows(Place(SEED, OWN_TABLE, network.size), VERSIONS, tell, RUN_ANYWAY)


def _estimates(rig: BenchRig, choice: Choice) -> bool:
    return rig.device.facts.kind == "cpu" and not choice.full


EXPERIMENT = NetworkExperiment()

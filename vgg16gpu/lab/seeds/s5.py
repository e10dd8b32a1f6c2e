"""S5: the whole VGG16 from ONNX parameters to 1000 scores, on 3x244x244 inputs: A, B, and their causes as rungs C to E.

The model has random weights, which change neither work nor check; it is made for the run. Ten inputs, each so many
times, from host to host; theirs are means, so ours are means too. Version A's and B's kernels are the ladder's, where
each rung is described; the whole ladder is `vgg16gpu ladder`.

A user's own model (`Choice.model`) has rows of a table of its own, as nothing was published of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from vgg16gpu.engine import Engine
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.graph import Array
from vgg16gpu.lab.experiment import Choice, Row, Tell
from vgg16gpu.lab.measure import Measurement, Status
from vgg16gpu.lab.network import TOLERANCE, OnnxruntimeNet, Rounds, SequentialNet, measure_network, work_of
from vgg16gpu.lab.plain_model import PlainModel, plain_model
from vgg16gpu.lab.published import published
from vgg16gpu.lab.stand import Stand
from vgg16gpu.ladder.planned import EngineNet
from vgg16gpu.ladder.rung import Net, Setting
from vgg16gpu.ladder.rungs import LETTERS, RUNGS
from vgg16gpu.zoo.generate import make_vgg

SEED: Final = "S5"
TABLE: Final = "vgg16"
OWN_TABLE: Final = "own model"
SIZES, QUICK_SIZES = (244,), (32,)
PROBE: Final = 32  # VGG16's image size by which a CPU's times are estimated, where they would take too long
RUN_ANYWAY: Final = ("engine", "onnxruntime")  # variants that are run on a user's own model whatever it takes
LARGE: Final = 10**9  # FLOP of a user's own model from which on that is tried


@dataclass(frozen=True)
class Version:
    """A row of the table, or several."""

    method: str
    iterations: tuple[int, ...]
    open: Callable[[Setting], Net]
    variant: str
    note: str = ""


def _rung(letter: str) -> Callable[[Setting], Net]:
    return RUNGS[LETTERS.index(letter)].open


def _sequential(setting: Setting) -> Net:
    return SequentialNet(setting.graph, setting.shape)


def _onnxruntime(setting: Setting) -> Net:
    return OnnxruntimeNet(setting.path, setting.graph.input)


def _engine(setting: Setting) -> Net:
    return EngineNet(Engine(setting.path, device=setting.device_name, size=setting.size))


ENGINE_NOTE: Final = "vgg16gpu's own kernels, fp32; on Hopper from tensor cores, so above FFMA's roof"
VERSIONS: Final = (
    Version("cpu", (1,), _sequential, "sequential", "im2col and product in numpy, one thread of the host"),
    Version("version_a", (1, 5), _rung("A"), "ladder A"),
    Version("version_b", (1, 5, 500), _rung("B"), "ladder B"),
    Version("no_host", (5,), _rung("C"), "ladder C", "padding, bias and ReLU on the GPU"),
    Version("tree", (5,), _rung("D"), "ladder D", "a tree in place of thread 0"),
    Version("pixels", (5,), _rung("E"), "ladder E", "two-dimensional tiles"),
    Version("engine", (500,), _engine, "engine", ENGINE_NOTE),
    Version("onnxruntime_cpu", (500,), _onnxruntime, "onnxruntime", "on this host's CPU"),
)
HOSTS: Final = ("cpu", "onnxruntime_cpu")  # not on the device's roofline


@dataclass(frozen=True)
class NetworkExperiment:
    """The experiment, at every image size asked for."""

    name: str = SEED
    title: str = "The whole VGG16, two versions and what was wrong with them"
    teaches: str = "Where a sum is made, and who waits for whom, costs a network more than its arithmetic."

    takes: Sequence[str] = ("sizes",)

    def method(self, stand: Stand) -> str:
        """Means from host to host."""
        effort = stand.effort
        return (
            "every version's scores of all images, ten or those of --inputs, are checked against onnxruntime's "
            f"(of the first alone where all would take longer than {effort.limit:g} s; error: norm-wise, {TOLERANCE:g} "
            f"allowed); one iteration: the checked runs; more: images in turn until {effort.seconds:g} s or "
            f"{effort.samples} runs (--full: all of them); means, wall clock from an image in the host's memory "
            "to its scores there"
        )

    def run(self, stand: Stand, choice: Choice, tell: Tell) -> tuple[Row, ...]:
        """Make the model, then every version. A size that VGG16 does not have is refused in the rows.

        Raises ModelError and InputError for a user's own model, or inputs, that it cannot run.
        """
        if choice.model:
            return tuple(_own_rows(choice.model, stand, choice, tell))
        rows: list[Row] = []
        for size in choice.sizes_or(SIZES, QUICK_SIZES):
            tell(0, len(VERSIONS), f"making VGG16 for {size}x{size}")
            with TemporaryDirectory(prefix="vgg16gpu-") as folder:
                try:
                    network = _made_network(Path(folder), size, stand, choice)
                except (ModelError, InputError) as error:  # or there is no onnxruntime to compare with
                    rows += _refused(str(size), str(error))
                    continue
                rows += network.rows(tell)
        return tuple(rows)


def _runs(found: Rounds, images: int) -> str:
    """How many there were, where they are fewer than the row's name says."""
    times = found.measurement.compute
    few = times is not None and times.warm.samples < found.iterations * images
    return f"{times.warm.samples} runs of {found.iterations * images} (--full: all)" if times and few else ""


def _refused(size: str, reason: str) -> Iterator[Row]:
    refusal = Measurement(Status.REFUSED, reason)
    for version in VERSIONS:
        for count in version.iterations:
            yield _row(TABLE, size, version, Rounds(count, refusal))


def _row(table: str, size: str, version: Version, found: Rounds) -> Row:
    name = SEED, table, size, version.method, f"iterations={found.iterations}"
    ours = None if found.mean_s is None else 1e3 * found.mean_s
    return Row(*name, ours, published().get(name), variant=version.variant, measurement=found.measurement)


def _made(folder: Path, size: int) -> PlainModel:
    path = folder / f"vgg16-{size}.onnx"
    make_vgg(path, size=size)
    return plain_model(path)


def _made_network(folder: Path, size: int, stand: Stand, choice: Choice) -> _Network:
    scales = _estimates(stand, choice) and not choice.quick and size > PROBE
    return _Network(_made(folder, size), TABLE, _made(folder, PROBE) if scales else None, stand, choice)


def _own_rows(path: Path, stand: Stand, choice: Choice, tell: Tell) -> Iterator[Row]:
    for size in choice.sizes or (None,):
        model = plain_model(path, choice.inputs, size)
        scales = _estimates(stand, choice) and work_of(model.graph, model.shape).flop > LARGE
        with TemporaryDirectory(prefix="vgg16gpu-") as folder:
            probe = _made(Path(folder), PROBE) if scales else None
            yield from _Network(model, OWN_TABLE, probe, stand, choice).rows(tell)


def _estimates(stand: Stand, choice: Choice) -> bool:
    return stand.device.facts.kind == "cpu" and not choice.full


class _Network:
    """The versions on a model; where a run takes too long its time is that of `probe`, scaled."""

    def __init__(self, model: PlainModel, table: str, probe: PlainModel | None, stand: Stand, choice: Choice) -> None:
        self._stand, self._choice, self._table = stand, choice, table
        foreign = stand.device.foreign
        self._device_name = "cpu" if foreign is None else f"cuda:{foreign.ordinal}"
        self._size = "x".join(map(str, dict.fromkeys(model.shape[2:])))
        self._setting, self._x, self._expected = self._prepared(model)
        self._work = work_of(model.graph, model.shape)
        self._probe = self._prepared(probe) if probe else None

    def rows(self, tell: Tell) -> Iterator[Row]:
        for done, version in enumerate(VERSIONS):
            tell(done, len(VERSIONS), f"{self._table} {self._size} {version.method}")
            for found in self._estimated(version) or self._measured(version):
                yield self._described(version, found)
        tell(len(VERSIONS), len(VERSIONS), "done")

    def _prepared(self, model: PlainModel) -> tuple[Setting, Array, Array]:
        """What the versions run, the inputs, and their scores by onnxruntime."""
        expected = OnnxruntimeNet(model.path, model.graph.input).run(model.x)
        setting = Setting(model.path, model.graph, model.shape, self._stand.device, self._device_name)
        return setting, model.x, expected

    def _measured(self, version: Version) -> Sequence[Rounds]:
        opened = partial(version.open, self._setting)
        effort, full = self._stand.effort, self._choice.full
        return measure_network(opened, version.iterations, self._x, self._expected, effort, full=full)

    def _estimated(self, version: Version) -> Sequence[Rounds]:
        """What a CPU would take too long for, scaled up from a small image; nothing where it would not."""
        if self._probe is None or (self._table == OWN_TABLE and version.variant in RUN_ANYWAY):
            return ()
        setting, x, expected = self._probe
        opened = partial(version.open, setting)
        (found,) = measure_network(opened, (1,), x[:1], expected[:1], self._stand.effort, full=False)
        if found.mean_s is None:  # wrong, or not to be had: at the other size, too
            return [replace(found, iterations=count) for count in version.iterations]
        scale = self._work.flop / work_of(setting.graph, setting.shape).flop
        seconds, limit = found.mean_s * scale, self._stand.effort.limit
        if seconds <= limit:
            return ()
        reason = f"a run would take longer than {limit:g} s: that of VGG16 at {PROBE}x{PROBE}, scaled by FLOP (--full)"
        estimate = Measurement(Status.ESTIMATED, reason, estimate_s=seconds)
        return [Rounds(count, estimate, seconds) for count in version.iterations]

    def _described(self, version: Version, found: Rounds) -> Row:
        percent = None
        if found.mean_s is not None and version.method not in HOSTS:
            percent = self._stand.percent(self._work, found.mean_s)
        note = "; ".join(text for text in (version.note, _runs(found, len(self._x))) if text)
        return replace(
            _row(self._table, self._size, version, found), ours_percent=percent, problem=self._work, note=note
        )


EXPERIMENT = NetworkExperiment()

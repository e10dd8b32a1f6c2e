"""One benchmark: for each precision and batch check the scores, time ours and the peers in turns, then our layers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vgg16gpu.bench.admission import Admitted, WrongScoresError, admit, checked
from vgg16gpu.bench.measure.ceilings import measure_ceilings
from vgg16gpu.bench.measure.environment import environment, gpu_readings, worker_threads
from vgg16gpu.bench.measure.layers import EngineContender, LayerEffort, floors, measure_layers
from vgg16gpu.bench.measure.timing import (
    CPU_EFFORT,
    FROM_BATCH,
    GPU_EFFORT,
    Contender,
    Effort,
    LostError,
    Regime,
    Sustained,
    Times,
    Watch,
    device_method,
    measure_in_turns,
    measure_iterations,
    measure_sustained,
)
from vgg16gpu.bench.peers.base import Setting, has_tf32
from vgg16gpu.bench.peers.fleet import PeerProcesses
from vgg16gpu.bench.peers.remote import RemotePeer
from vgg16gpu.bench.records.findings import (
    Absent,
    BatchResult,
    BenchmarkConfig,
    BenchmarkEntry,
    Findings,
    Measured,
    Remarks,
)
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.quantised_file import rounds_values, without_rounding
from vgg16gpu.checks.testbench import STANDARD_INPUTS, standard_inputs
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import Error
from vgg16gpu.io.normalize import default_mean, default_std
from vgg16gpu.runtime.engine import Engine

SUSTAINED_SECONDS = {"cuda": 3.0, "cpu": 0.0}  # of load, by default
_LAYER_SHARE = 0.1  # of the seconds for a number, for one step; there are some twenty

Say = Callable[[str], None]

NOT_VERIFIED = "not verified: onnxruntime, which computes the references, is not installed (pip install onnxruntime)"
OTHER_NUMBERS = (
    "{what}: runs repeated on the device without a new input give other scores than a call; isolated and back to back "
    "times are of other numbers"
)


def run_benchmark(
    wanted: BenchmarkConfig, say: Say, before_timing: Callable[[Engine], None] = lambda _: None
) -> Findings:
    """Measure. `say` gets a line at every stage; `before_timing` may refuse, by an Error, the engine as it came out.

    What of ours gives wrong scores is not timed and named in `Findings.failures`, and so is a precision that fails once
    another one has been measured. Raises PeerError when no peer that was asked for is there, and what building an
    Engine raises.
    """
    remarks = Remarks()
    with PeerProcesses(wanted.against, remarks) as fleet:
        fleet.start()
        return _run(wanted, fleet, remarks, say, before_timing)


def _run(
    wanted: BenchmarkConfig, fleet: PeerProcesses, remarks: Remarks, say: Say, before_timing: Callable[[Engine], None]
) -> Findings:
    """Run the benchmark, beside peers whose frameworks are being imported."""
    graph = wanted.model.graph(outputs=wanted.outputs)
    wanted = replace(wanted, batches=wanted.batches or (graph.input.shape[0] or 1,))
    shape = resolve_input_shape(graph, wanted.batches[0], wanted.size)
    inputs = np.ascontiguousarray(graph.input.to_file(sample_inputs(shape[1:])))
    references = _references(wanted, graph, shape, inputs[: max(wanted.batches)], say)
    size = None if len(shape) != 4 or graph.input.shape[2:] == shape[2:] else (shape[2], shape[3])
    model = _Model(graph, shape, inputs, references)
    findings: Findings | None = None
    for precision in wanted.precisions:
        say(f"{precision}: building the engine")
        options: dict[str, Any] = {
            "device": wanted.device,
            "batch": wanted.batches,
            "size": size,
            "outputs": wanted.outputs,
            "kernels": wanted.kernels,
        }
        try:
            with Engine(wanted.model, precision=precision, **options) as engine:
                if findings is None:
                    before_timing(engine)
                    say("waiting for the peers' frameworks")
                    fleet.wait_until_ready()
                    findings = _begin(wanted, model, engine, remarks, say)
                _measure_precision(wanted, model, precision, engine, fleet, findings, say)
        except Error as error:
            if findings is None or not findings.batches:
                raise
            findings.failures.append(f"{precision}: {error}")
    assert findings is not None  # there is a precision, and its engine was built or has raised
    return findings


def sample_inputs(shape: tuple[int, ...]) -> Array:
    """Return ten inputs of a sample's `shape`: the testbench's pictures, or random numbers for another rank."""
    if len(shape) == 3:
        items = standard_inputs(shape, default_mean(shape[0]), default_std(shape[0]))
        return np.stack([item.array for item in items]).astype(np.float32)
    return np.random.default_rng(0).standard_normal((STANDARD_INPUTS, *shape)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Model:
    """What every precision is measured with."""

    graph: Graph  # simplified
    shape: tuple[int, ...]  # of the first batch
    inputs: Array
    references: Array | None


def _references(wanted: BenchmarkConfig, graph: Graph, shape: tuple[int, ...], inputs: Array, say: Say) -> Array | None:
    """Return onnxruntime's scores, computed before the engine's weights come: its session is gone by then.

    Of outputs that were asked for it is the first, a row for each input. None without onnxruntime.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    say("references from onnxruntime")
    file = wanted.model.file
    unrounded = without_rounding if rounds_values(file.model) else None  # as no precision rounds but int8
    if wanted.outputs is None:
        return Oracle(wanted.model.path, edit=unrounded, file=file).scores(inputs)
    name = graph.outputs[0]
    value = infer_shapes(graph, shape)[name]
    row = value[1:] if value[:1] == shape[:1] else value  # else it has no row for each input: then the batch is 1
    oracle = Oracle(wanted.model.path, [name], unrounded, file)
    return np.stack([oracle.values(x[None], [name])[name].reshape(-1)[: math.prod(row)] for x in inputs])


def _begin(wanted: BenchmarkConfig, model: _Model, engine: Engine, remarks: Remarks, say: Say) -> Findings:
    """Measure what does not depend on the precision."""
    say("measuring the ceilings of the device")
    kind = engine.device.facts.kind
    ceilings = measure_ceilings(engine.device)
    sustained = SUSTAINED_SECONDS[kind] if wanted.sustained is None else wanted.sustained
    findings = Findings(
        model.shape[1:],
        engine.device_choice,
        environment(engine.device),
        kind,
        ceilings,
        sustained,
        wanted.kernels,
        remarks=remarks,
    )
    if model.references is None:
        remarks.note(NOT_VERIFIED)
    findings.readings_before = gpu_readings(kind)
    return findings


def _measure_precision(
    wanted: BenchmarkConfig,
    model: _Model,
    precision: str,
    engine: Engine,
    fleet: PeerProcesses,
    findings: Findings,
    say: Say,
) -> None:
    findings.arithmetic[precision] = engine.plan.arithmetic
    say(f"{precision}: loading the peers")
    peers = fleet.open(_setting(wanted, model, precision, engine))
    bench = _Bench(engine, precision, model, peers, _effort(wanted, findings.kind), findings, say)
    for batch in sorted(set(wanted.batches)):
        try:
            findings.batches.append(bench.measure(batch))
        except WrongScoresError as error:
            findings.failures.append(str(error))
    for count in wanted.iterations:
        say(f"{precision}: {len(model.inputs)} inputs x {count} iterations")
        mean, summary = measure_iterations(engine.run, [x[None] for x in model.inputs], count)
        findings.iterations.append((precision, count, mean, summary))


def _setting(wanted: BenchmarkConfig, model: _Model, precision: str, engine: Engine) -> Setting:
    kind = engine.device.facts.kind
    ordinal = int(wanted.device.partition(":")[2] or 0)
    threads = worker_threads(engine.device) if kind == "cpu" else 0
    tf32 = has_tf32(kind, engine.device.facts.compute_capability, precision)
    return Setting(wanted.model.path, model.shape[1:], kind, ordinal, threads, precision, wanted.compiled, tf32)


def _effort(wanted: BenchmarkConfig, kind: str) -> Effort:
    effort = GPU_EFFORT if kind == "cuda" else CPU_EFFORT
    return replace(effort, repeats=wanted.repeats, seconds=wanted.seconds or effort.seconds)


@dataclass(frozen=True, eq=False)
class _Bench:
    """What every batch size of one precision is measured with."""

    engine: Engine
    precision: str
    model: _Model
    peers: Sequence[RemotePeer]
    effort: Effort
    findings: Findings
    say: Say

    def measure(self, batch: int) -> BatchResult:
        """Check ours and the peers' scores, time them in turns, then our layers. Raises WrongScoresError."""
        which = np.arange(batch) % len(self.model.inputs)
        x = np.ascontiguousarray(self.model.inputs[which])
        what = f"{self.precision}, batch {batch}"
        self.say(f"{what}: checking")
        ours = EngineContender(self.engine, x, self.precision)
        scores = ours.scores()
        references = self.model.references
        error = None
        if references is not None:
            rows = scores.reshape(batch, -1), references[which].reshape(batch, -1)
            error = checked(*rows, self.precision, what)
        if not ours.repeats(scores):
            self.findings.remarks.note(OTHER_NUMBERS.format(what=what))
        with ExitStack() as stack:
            admitted: list[Admitted] = [(ours, error)]
            for peer in self.peers:
                self.say(f"{what}: {peer.name} builds")
                admitted += admit(peer, x, scores, self.precision, stack, self.findings.remarks)
            entries, readings = self._time(admitted, batch, what)
            admitted.clear()
        self.say(f"{what}: layers")
        self.engine.run(x)  # steps are timed on real values
        program = next(program for program in self.engine.plan.programs if program.batch == batch)
        effort = LayerEffort(_LAYER_SHARE * self.effort.seconds, self.effort.pause)
        layers = measure_layers(self.engine, program, floors(self.findings.ceilings, self.precision), effort)
        return BatchResult(self.precision, batch, entries, layers, program.flop, readings)

    def _time(
        self, admitted: Sequence[Admitted], batch: int, what: str
    ) -> tuple[tuple[BenchmarkEntry, ...], Sequence[dict[str, str]]]:
        """Return the entries of all contenders that came through, and the cards' state after the cool regime."""
        contenders = [contender for contender, _ in admitted]
        self.say(f"{what}: {len(contenders)} contenders, cool")
        cool: dict[int, Times] = {}
        for i, times in enumerate(measure_in_turns(contenders, self.effort)):
            if isinstance(times, LostError):
                self._miss(contenders[i], batch, times)
            else:
                cool[i] = times
        readings = [dict(card) for card in gpu_readings(self.findings.kind)]
        sustained: dict[int, Sustained] = {}
        if self.findings.sustained_s and batch >= FROM_BATCH:
            self.say(f"{what}: sustained")
            sustained = self._sustained(contenders, cool, batch)
        entries = tuple(
            BenchmarkEntry(c.name, c.variant, error, c.unchecked, _times(cool[i], sustained.get(i)), c.tf32)
            for i, (c, error) in enumerate(admitted)
            if i in cool
        )
        return entries, readings

    def _sustained(
        self, contenders: Sequence[Contender], cool: Mapping[int, Times], batch: int
    ) -> dict[int, Sustained]:
        """Measure the fastest variants under load; return them by their place among the contenders."""
        chosen = _fastest(contenders, cool)
        watch = Watch(self.findings.kind)
        found = measure_sustained([contenders[i] for i in chosen], self.findings.sustained_s, watch)
        sustained: dict[int, Sustained] = {}
        for i, times in zip(chosen, found, strict=True):
            if isinstance(times, LostError):
                self._miss(contenders[i], batch, times)
            elif times is not None:
                sustained[i] = times
        return sustained

    def _miss(self, contender: Contender, batch: int, error: LostError) -> None:
        absent = Absent(contender.name, str(error), self.precision, batch, output=error.output)
        self.findings.remarks.miss(absent)


def _fastest(contenders: Sequence[Contender], cool: Mapping[int, Times]) -> list[int]:
    """Return the fastest variant of each name on the device, its TF32 apart, ours first; none that is host to host."""
    best: dict[tuple[str, bool], tuple[float, int]] = {}
    for i, times in cool.items():
        contender = contenders[i]
        if method := device_method(contender):
            candidate = (times[method].median_s, i)
            key = contender.name, contender.tf32
            best[key] = min(best.get(key, candidate), candidate)
    return [i for _, i in best.values()]


def _times(cool: Times, sustained: Sustained | None) -> tuple[Measured, ...]:
    times = [Measured(Regime.COOL, method, summary) for method, summary in cool.items()]
    if sustained is not None:
        times.append(Measured(Regime.SUSTAINED, sustained.method, sustained.summary, sustained.gpu))
    return tuple(times)

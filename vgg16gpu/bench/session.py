"""One benchmark: check the scores, then time ours and the peers in turns, then our layers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vgg16gpu.accuracy import SCORE_TOLERANCE, score_error
from vgg16gpu.bench.ceilings import Ceilings, measure_ceilings
from vgg16gpu.bench.environment import environment, gpu_readings, worker_threads
from vgg16gpu.bench.layers import LayerTime, measure_layers
from vgg16gpu.bench.ours import EngineContender
from vgg16gpu.bench.peers import Peer, PeerError, Setting, open_peer
from vgg16gpu.bench.timing import (
    CPU_EFFORT,
    GPU_EFFORT,
    Contender,
    Effort,
    Summary,
    Times,
    measure_in_turns,
    measure_iterations,
)
from vgg16gpu.engine import Engine
from vgg16gpu.errors import Error
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.graph import Array
from vgg16gpu.normalise import default_mean, default_std
from vgg16gpu.prepare import Request, load_graph
from vgg16gpu.reference import Oracle
from vgg16gpu.testbench import STANDARD_INPUTS, standard_inputs

# A peer must compute the same, not as precisely: Winograd convolutions come to 2e-5, TF32 goes beyond 1e-3.
PEER_TOLERANCE = 1e-4

Say = Callable[[str], None]

NOT_VERIFIED = "not verified: onnxruntime, which computes the references, is not installed (pip install onnxruntime)"


class WrongScoresError(Error):
    """Our scores are not the reference's: their times would mean nothing."""


@dataclass(frozen=True)
class Wanted:
    """What to measure."""

    path: Path
    device: str = "auto"
    precision: str = "fp32"
    size: tuple[int, int] | None = None
    batches: tuple[int, ...] = ()  # empty: the model's own, else 1
    iterations: tuple[int, ...] = ()
    repeats: int | None = None
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One way to run one batch size. `error` is against onnxruntime for ours, else against ours; None: unknown."""

    name: str
    variant: str
    error: float | None
    times: Times


@dataclass(frozen=True)
class BatchResult:
    """Everything measured with one batch size; ours is the first entry."""

    batch: int
    entries: tuple[Entry, ...]
    layers: tuple[LayerTime, ...]
    flop: int
    readings: Sequence[Mapping[str, str]]  # of the cards, right after the timing


@dataclass
class Findings:
    """What a benchmark found."""

    input_shape: tuple[int, ...]  # of one sample
    device_choice: str
    environment: Mapping[str, Any]
    kind: str
    ceilings: Ceilings
    batches: list[BatchResult] = field(default_factory=list)
    iterations: dict[int, tuple[float, Summary]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    readings_before: Sequence[Mapping[str, str]] = ()


def run_benchmark(wanted: Wanted, say: Say, before_timing: Callable[[Engine], None] = lambda _: None) -> Findings:
    """Measure. `say` gets a line at every stage; `before_timing` may refuse, by an Error, the engine as it came out.

    Raises WrongScoresError when our scores are wrong, PeerError when no peer that was asked for is there, and what
    building an Engine raises.
    """
    graph = load_graph(Request(wanted.path, precision=wanted.precision))
    wanted = replace(wanted, batches=wanted.batches or (graph.input.shape[0] or 1,))
    shape = resolve_input_shape(graph, wanted.batches[0], wanted.size)
    inputs = sample_inputs(shape[1:])
    references = _references(wanted, inputs[: max(wanted.batches)], say)
    size = None if len(shape) != 4 or graph.input.shape[2:] == shape[2:] else (shape[2], shape[3])
    say("building the engine")
    with (
        Engine(
            wanted.path, device=wanted.device, precision=wanted.precision, batch=wanted.batches, size=size
        ) as engine,
        ExitStack() as stack,
    ):
        before_timing(engine)
        peers, notes = _open_peers(wanted, engine, stack)
        say("measuring the ceilings of the device")
        facts = engine.device.facts
        findings = Findings(
            shape[1:], engine.device_choice, environment(engine.device), facts.kind, measure_ceilings(engine.device)
        )
        findings.notes += [*notes, *([] if references is not None else [NOT_VERIFIED])]
        findings.readings_before = gpu_readings(facts.kind)
        effort = replace(GPU_EFFORT if facts.kind == "cuda" else CPU_EFFORT, repeats=wanted.repeats)
        bench = _Bench(engine, inputs, references, peers, effort, findings)
        for batch in sorted(set(wanted.batches)):
            say(f"batch {batch}")
            findings.batches.append(bench.measure(batch))
        findings.iterations = _iterations(engine, wanted, inputs, say)
    return findings


def sample_inputs(shape: tuple[int, ...]) -> Array:
    """Ten inputs of one sample's `shape`: the testbench's structured pictures, or random numbers for another rank."""
    if len(shape) == 3:
        items = standard_inputs(shape, default_mean(shape[0]), default_std(shape[0]))
        return np.stack([item.array for item in items]).astype(np.float32)
    return np.random.default_rng(0).standard_normal((STANDARD_INPUTS, *shape)).astype(np.float32)


def _references(wanted: Wanted, inputs: Array, say: Say) -> Array | None:
    """The scores that onnxruntime gives, before the engine's weights come: its session is gone by then."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    say("references from onnxruntime")
    return Oracle(wanted.path).scores(inputs)


def _open_peers(wanted: Wanted, engine: Engine, stack: ExitStack) -> tuple[list[Peer], list[str]]:
    facts = engine.device.facts
    ordinal = int(wanted.device.partition(":")[2] or 0)
    threads = worker_threads(engine.device) if facts.kind == "cpu" else 0
    setting = Setting(wanted.path, engine.graph, facts.kind, ordinal, threads)
    peers: list[Peer] = []
    notes: list[str] = []
    for name in wanted.against:
        try:
            peer = open_peer(name, setting)
        except PeerError as error:
            notes.append(str(error))
            continue
        stack.callback(peer.close)
        peers.append(peer)
        notes += peer.notes
    if wanted.against and not peers:
        raise PeerError("; ".join(notes))
    return peers, notes


@dataclass(frozen=True, eq=False)
class _Bench:
    """What every batch size is measured with."""

    engine: Engine
    inputs: Array
    references: Array | None
    peers: Sequence[Peer]
    effort: Effort
    findings: Findings

    def measure(self, batch: int) -> BatchResult:
        """Check ours and the peers' scores, time them in turns, then our layers."""
        which = np.arange(batch) % len(self.inputs)
        x = np.ascontiguousarray(self.inputs[which])
        ours = EngineContender(self.engine, x)
        scores = ours.scores()
        error = None
        if self.references is not None:
            error = _checked(scores, self.references[which], batch)
        with ExitStack() as stack:
            admitted: list[tuple[Contender, float | None]] = [(ours, error)]
            for peer in self.peers:
                admitted += _admitted(peer, x, scores, stack, self.findings.notes)
            times = measure_in_turns([contender for contender, _ in admitted], self.effort)
            readings = gpu_readings(self.findings.kind)
            entries = tuple(Entry(c.name, c.variant, e, t) for (c, e), t in zip(admitted, times, strict=True))
            admitted.clear()
        self.engine.run(x)  # steps are timed on real values
        program = next(program for program in self.engine.plan.programs if program.batch == batch)
        layers = measure_layers(self.engine, program, self.findings.ceilings)
        return BatchResult(batch, entries, layers, sum(step.flop for step in program.steps), readings)


def _checked(scores: Array, references: Array, batch: int) -> float:
    error = float(score_error(scores, references).max())
    if not error <= SCORE_TOLERANCE:
        raise WrongScoresError(
            f"batch {batch}: the scores differ from onnxruntime's by {error:.2e} of their maximum, at most "
            f"{SCORE_TOLERANCE:g} is right; nothing is timed (`python -m vgg16gpu testbench --layers` shows where)"
        )
    return error


def _admitted(
    peer: Peer, x: Array, scores: Array, stack: ExitStack, notes: list[str]
) -> list[tuple[Contender, float | None]]:
    """The contenders of a peer that compute what we do, and their errors; a note for each that does not."""
    admitted: list[tuple[Contender, float | None]] = []
    try:
        for contender in stack.enter_context(peer.contenders(x)):
            error = float(score_error(contender.scores().reshape(scores.shape), scores).max())
            if error <= PEER_TOLERANCE:
                admitted.append((contender, error))
            else:
                notes.append(
                    f"{contender.name} ({contender.variant}) at batch {len(x)} differs from ours by {error:.2e}, "
                    f"more than {PEER_TOLERANCE:g}: not compared"
                )
    except Exception as error:  # a framework raises what it likes, out of memory for one
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        notes.append(f"{type(peer).__name__.removesuffix('Peer').lower()} at batch {len(x)}: {reason}: not compared")
    return admitted


def _iterations(engine: Engine, wanted: Wanted, inputs: Array, say: Say) -> dict[int, tuple[float, Summary]]:
    found = {}
    for iterations in wanted.iterations:
        say(f"{len(inputs)} inputs x {iterations} iterations")
        found[iterations] = measure_iterations(engine.run, [x[None] for x in inputs], iterations)
    return found

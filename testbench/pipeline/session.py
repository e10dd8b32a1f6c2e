"""One benchmark of the road from a folder to rows: whole runs and other processes first, then each stage by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testbench.pipeline.answer_stages import measure_answers
from testbench.pipeline.ceilings import verdict
from testbench.pipeline.content import Findings
from testbench.pipeline.device_stages import (
    first_images,
    measure_computing,
    measure_resizing,
    measure_uploading,
)
from testbench.pipeline.gpu_decoding import measure_gpu_decoding
from testbench.pipeline.loading import filled_slots, measure_loading, memory_nbytes
from testbench.pipeline.memory import measure_memory
from testbench.pipeline.others import measure_others
from testbench.pipeline.process_loading import BY_PROCESSES, measure_process_loading
from testbench.pipeline.processes import measure_processes
from testbench.pipeline.wanted import Work
from testbench.pipeline.whole_runs import run_whole
from vgg16gpu.bench.measure.environment import environment, gpu_readings
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.pictures.choices import CPU, GPU
from vgg16gpu.runtime.answers.folder import fit_for, resizes_on_device
from vgg16gpu.runtime.engine import Engine

SLOTS: Final = 4  # that lie full in pinned memory, to be uploaded and resized again and again

Say = Callable[[str], None]


def run_pipeline(work: Work, say: Say) -> Findings:
    """Measure; `say` gets a line at every stage. Raises what `infer` and an Engine raise, and where nothing is read.

    The device is this process's own only once all other processes have ended.
    """
    findings = Findings(usable_cores())
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as name:
        folder = Path(name)
        _measure_processes(work, findings, folder, say)
        for run in findings.of_each_precision:
            say(f"{run.precision}: building the engine")
            with _engine(work, run.precision, run.batch) as engine:
                if run is findings.runs[0]:
                    _measure_shared(work, engine, findings, folder, say)
                say(f"{run.precision}: computing")
                images = first_images(work, engine.program.batch)
                findings.stages.append(measure_computing(engine, images, work.wanted.seconds, work.wanted.repeats))
    kind = findings.environment["device"]["kind"]
    findings.verdicts = [verdict(findings.stages, run.speed, kind) for run in findings.runs]
    return findings


def _measure_processes(work: Work, findings: Findings, folder: Path, say: Say) -> None:
    """What has the device to itself: whole runs, peers; and decoding in processes, which has the cores to itself."""
    wanted = work.wanted
    for precision in wanted.precisions:
        for decode in wanted.decode:
            findings.runs.append(run_whole(work, precision, decode, folder, say))
    findings.memory = measure_memory(work, wanted.precisions[0], wanted.decode[0], folder, say)
    if wanted.against:
        for run in findings.of_each_precision:
            measure_others(work, run, findings.cores, findings.others, say)
    if CPU in wanted.decode:
        as_they_are = _resizes_on_device(work, findings.runs[0].kind)
        if as_they_are:
            say("decoding, by the processes of a run")
            findings.stages += [stage for stage in [measure_process_loading(work)] if stage]
        say("decoding, a process a core")
        findings.stages.append(measure_processes(work, findings.cores, as_they_are=as_they_are))


def _measure_shared(work: Work, engine: Engine, findings: Findings, folder: Path, say: Say) -> None:
    """What is the same in all precisions."""
    device = engine.device
    findings.environment, findings.gpu_before = environment(device), gpu_readings(device.facts.kind)
    if CPU in work.wanted.decode:
        _measure_cpu_decoding(work, device, findings, say)
    if GPU in work.wanted.decode:
        findings.stages += measure_gpu_decoding(work, engine, say)
    say("ranking and writing")
    findings.stages += measure_answers(work, engine, first_images(work, engine.program.batch), folder)


def _measure_cpu_decoding(work: Work, device: Device, findings: Findings, say: Say) -> None:
    """Everything up to images of the network's size, where threads decode."""
    kind, cores, repeats = device.facts.kind, findings.cores, work.wanted.repeats
    on_device = _resizes_on_device(work, kind)
    memory = device.pinned(memory_nbytes(work, cores))
    try:
        by_threads = not any(stage.stage == BY_PROCESSES for stage in findings.stages)
        counts = (on_device,) if by_threads else ()
        findings.stages[:0] = measure_loading(work, cores, memory, counts=counts, say=say)
        say("uploading")
        slots = filled_slots(work, memory, SLOTS, as_they_are=on_device)
        findings.stages.append(measure_uploading(device, slots, repeats))
        fit = fit_for(work.spec) if on_device else None
        if fit:
            say("resizing")
            findings.stages.append(measure_resizing(device, slots, fit, repeats))
    finally:
        device.unpin(memory)


def _engine(work: Work, precision: str, batch: int) -> Engine:
    """As a whole run has built it."""
    wanted, preprocess = work.wanted, work.preprocess
    return Engine(
        wanted.model,
        device=wanted.device,
        precision=precision,
        kernels=wanted.kernels,
        batch=batch,
        size=wanted.size,
        mean=preprocess.unit_mean,
        std=preprocess.unit_std,
    )


def _resizes_on_device(work: Work, kind: str) -> bool:
    return resizes_on_device(kind, work.listing) and fit_for(work.spec) is not None

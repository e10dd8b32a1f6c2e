"""A climb as plain data: what the JSON file holds, and what table and chart are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.measure.timing import Summary
from vgg16gpu.bench.records.record import model_identity
from vgg16gpu_lab.ladder.climb import PATIENCE, SECONDS, TOLERANCES, WARM_UP, Outcome, gains
from vgg16gpu_lab.ladder.rung import Setting
from vgg16gpu_lab.ladder.rungs import RUNGS

SCHEMA: Final = 1
Content = dict[str, Any]
PRECISIONS: Final = tuple(dict.fromkeys(rung.precision for rung in RUNGS))

METHOD = (
    "wall clock from an image in the host's memory to its scores there, batch 1; a checked run first, then "
    f"{WARM_UP:g} s of untimed ones, then {SECONDS:g} s of timed ones; a checked run of {PATIENCE:g} s "
    "or more is the only sample"
)
BOUNDS = (
    "norm-wise, of the scores against onnxruntime's; a rung with more than "
    f"{', '.join(f'{TOLERANCES[name]:g} ({name})' for name in PRECISIONS)} is wrong and gets no time. The bound of "
    "int8 is for int8 alone: it tells a kernel that works from one that does not, and is no agreement"
)
PREDICTIONS = (
    "gains over the rung before, for an H200 at 224x224, written down before the rung's first run there; only those of "
    "the engine's FFMA kernels and from wgmma on came when times of theirs were known"
)


def content(setting: Setting, device_choice: str, outcomes: Sequence[Outcome], reference: Summary) -> Content:
    """Return everything, ready for `json.dumps`. Times are seconds."""
    facts = setting.device.facts
    return {
        "schema": SCHEMA,
        "model": model_identity(setting.model.path, setting.shape),
        "device": {"kind": facts.kind, "name": facts.name},
        "device_choice": device_choice,
        "environment": environment(setting.device),
        "inputs": None if setting.inputs is None else len(setting.inputs),  # a user's own: how many
        "method": METHOD,
        "bounds": BOUNDS,
        "predictions": PREDICTIONS,
        "onnxruntime": {"name": "onnxruntime, CPU", **asdict(reference)},
        "rungs": [_rung(outcome, gain) for outcome, gain in zip(outcomes, map(asdict, gains(outcomes)), strict=True)],
    }


def _rung(outcome: Outcome, gain: Content) -> Content:
    rung = outcome.rung
    return {
        **{name: getattr(rung, name) for name in ("letter", "name", "idea", "source", "precision", "reason", "note")},
        "predicted": rung.predicted,
        "published_ms": rung.published_ms,
        "status": outcome.status,
        "why": outcome.why,
        "error": outcome.error,
        "tolerance": TOLERANCES[rung.precision],
        "times": asdict(outcome.times) if outcome.times else None,
        "on_device": asdict(outcome.device) if outcome.device else None,
        "gain": gain,
    }

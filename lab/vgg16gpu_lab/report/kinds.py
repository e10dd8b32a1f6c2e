"""What a JSON file is a record of: told by what it holds, whatever it is called."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from vgg16gpu_lab.claims.records import SEEDS
from vgg16gpu_lab.experiments.comparison import NAME as COMPARISON

EXPERIMENTS: Final = (*SEEDS, COMPARISON)


class Kind(Enum):
    """By what a record of it is written."""

    LADDER = "ladder"
    BENCHMARK = "bench"
    PIPELINE = "testbench.pipeline"
    LAB = "lab run"
    USAGE = "lab list --kernels"
    PROFILE = "lab profile"
    TESTBENCH = "testbench"
    TESTS = "the tests"
    CONFORMANCE = "tests.conformance.suite"
    FUZZ = "tests.fuzz"
    STRESS = "tests.stress.promises"


# What records of all versions have, and nothing else does.
_KEYS: Final = {
    Kind.LADDER: ("rungs", "onnxruntime", "predictions"),
    Kind.BENCHMARK: ("methods", "verification", "ceilings", "batches"),
    Kind.PIPELINE: ("pipeline", "stages", "runs", "peers", "verdicts"),
    Kind.LAB: ("experiment", "teaches", "rows"),
    Kind.USAGE: ("capability", "nvcc", "kernels"),
    Kind.PROFILE: ("variant", "problem", "readings", "kernels"),
    Kind.TESTBENCH: ("inputs_passed", "inputs", "worst_error"),
    Kind.TESTS: ("tests", "exit_status"),
    Kind.CONFORMANCE: ("onnx", "must", "totals", "ops"),
    Kind.FUZZ: ("cases", "compared", "verdicts"),
}

# How the files are called in what this package writes or advises: one that is called so has to be a record.
_NAMES: Final = (
    *("bench", "pipeline", "ladder", "conformance", "tests", "sanitize", "fuzz", "stress"),
    *("usage-", "profile-"),
)


def kind_of(content: Mapping[str, Any]) -> Kind | None:
    """Return which kind of record it is; None for what is none that the page shows."""
    for kind, keys in _KEYS.items():
        if all(key in content for key in keys):
            return None if kind is Kind.LAB and content["experiment"] not in EXPERIMENTS else kind
    parts = (part for part in content.values() if isinstance(part, dict))
    is_stress = "failures" in content and any("rows" in part and "seconds" in part for part in parts)
    return Kind.STRESS if is_stress else None


def is_called_a_record(name: str) -> bool:
    """Return whether a file's name, without its ending, is one that this package gives to records."""
    return name in EXPERIMENTS or name.startswith((*_NAMES, "testbench"))

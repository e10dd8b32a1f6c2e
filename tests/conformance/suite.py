"""The conformance suite of the installed onnx package, run by its own runner on this engine: a table op by op.

    python -m tests.conformance.suite [--device CPU] [--must FILE] [--match PATTERN] [--jobs N] [--output FILE]

passed: every output is right in shape, element type and value, twice with the same bits. refused: the engine says that
it does not support the model. failed: a wrong answer, or any other exception. "no kernel" counts the passed tests whose
run launched nothing, because the answer follows from shapes and constants. Nothing is downloaded: the whole models are
those that onnx ships without weights.

The record has the totals, the counts of each op, the passed tests with the kernel launches of a run, the refused ones
by cause, the failed ones in full; in an order that lets two records be compared line by line.

Exit code 1 when a test failed, or one of the must list did not pass.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.backend.test
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.cli.common.show import add_row, console, heading, progress, table
from vgg16gpu.devices import open_device
from vgg16gpu.runtime import onnx_backend

MUST: Final = Path(__file__).with_name("must.txt")
KINDS: Final = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
VERDICTS: Final = ("passed", "refused", "failed")
_LIGHT: Final = "onnx/backend/test/data/light/"
_NODE: Final = re.compile(r"(\S+) '.*' \(opset \w+\): ")  # how a refusal begins that is about a node


@dataclass(frozen=True)
class Outcome:
    """What became of a test. `launches`: of its second run; None unless it passed."""

    name: str
    kind: str
    op: str
    verdict: str
    reason: str = ""
    launches: int | None = None
    seconds: float = 0.0


class Recorder(Backend):
    """The engine's backend; knows how many kernels the last run launched, and that it gives the same bits twice."""

    launches: int | None = None
    supports_device = onnx_backend.supports_device

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> _RecordedRep:
        """The model, made ready."""
        cls.launches = None
        return _RecordedRep(onnx_backend.prepare(model, device, **kwargs))


@dataclass(frozen=True)
class _RecordedRep(BackendRep):
    rep: onnx_backend.VggBackendRep

    def run(self, inputs: onnx_backend.Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """Run twice: the first run also builds, which launches kernels of its own."""
        first = self.rep.run(inputs, **kwargs)
        counters = self.rep.session.device.counters
        before = counters.launches
        second = self.rep.run(inputs, **kwargs)
        Recorder.launches = counters.launches - before
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), "two runs give different bits")
        return second


@cache
def cases() -> Mapping[str, TestCase]:
    """Every test of the suite by name. Some are computed as they are collected: that takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, about the edge cases that are tested
        return {case.name: case for kind in KINDS for case in load_model_tests(kind=kind)}


def model_of(case: TestCase) -> onnx.ModelProto:
    """The model of a test."""
    if case.model is not None:
        return case.model
    if case.model_dir is not None:
        return onnx.load(Path(case.model_dir) / "model.onnx", load_external_data=False)
    if not (case.url or "").startswith(_LIGHT):
        raise ValueError(f"{case.name} would have to be downloaded")
    return onnx.load(Path(onnx.__file__).parents[1] / str(case.url))


def operator(case: TestCase) -> str:
    """The row that a test is counted in: its only op, or the op that is spelled out in others, or what kind it is."""
    base = cases().get(case.name.partition("_expanded")[0])
    if base is not None and base is not case:
        return operator(base)
    types = {node.op_type for node in model_of(case).graph.node} - {"Constant"}
    return types.pop() if len(types) == 1 else "Constant" if not types else f"(several: {case.kind})"


@cache
def _tests(device: str) -> Mapping[str, unittest.TestCase]:
    """The runner's tests for a device by the name of the case."""
    cases()  # with its warnings
    suffix = f"_{device.lower().partition(':')[0]}"
    classes = onnx.backend.test.BackendTest(Recorder, __name__).test_cases.values()
    methods = [(made, name) for made in classes for name in vars(made) if name.endswith(suffix)]
    return {name.removesuffix(suffix): made(name) for made, name in methods}


def outcome(name: str, device: str) -> Outcome:
    """Run one test with the suite's own runner."""
    case, result, started = cases()[name], unittest.TestResult(), time.perf_counter()
    Recorder.launches = None
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _tests(device)[name].run(result)
    seconds = time.perf_counter() - started
    made = partial(Outcome, name, case.kind, operator(case), seconds=round(seconds, 4))
    for bad in (*result.errors, *result.failures):
        return made("failed", bad[1].strip())
    for _, reason in result.skipped:
        return made("refused", reason)
    return made("passed", launches=Recorder.launches)


def outcomes(names: Sequence[str], device: str, jobs: int) -> Iterator[Outcome]:
    """Run tests in so many processes, or in this one if `jobs` is 0. A test whose process dies has failed."""
    if jobs == 0:
        yield from (outcome(name, device) for name in names)
        return
    left = list(names)
    while left:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            try:
                for found in pool.map(outcome, tuple(left), [device] * len(left)):
                    left.remove(found.name)
                    yield found
            except BrokenProcessPool:
                if jobs == 1:  # results come in order: it was this one
                    case = cases()[left.pop(0)]
                    yield Outcome(case.name, case.kind, operator(case), "failed", "its process died")
                jobs = 1


def must_list(path: Path) -> tuple[str, ...]:
    """The names of tests in a file, one a line."""
    return tuple(path.read_text().split())


def broken(found: Sequence[Outcome], must: Sequence[str]) -> list[str]:
    """A line for each test that failed, or is in `must` and did not pass."""
    lines = [f"{item.name} ({item.op}) failed: {_last_line(item.reason)}" for item in found if item.verdict == "failed"]
    verdicts = {item.name: item for item in found}
    for name in must:
        item = verdicts.get(name)
        if item is None:
            lines.append(f"{name} must pass, and is not in the suite of onnx {onnx.__version__}")
        elif item.verdict == "refused":
            lines.append(f"{name} ({item.op}) must pass, and is refused: {_last_line(item.reason)}")
    return lines


def cause(reason: str) -> str:
    """Why a model is refused: operators and reasons, without the names in the model and without what is supported."""
    text = reason.removeprefix("the model in memory: ").partition("; supported operators: ")[0]
    lines = [line.strip() for line in text.splitlines() if not line.endswith(" nodes are not supported:")]
    operators: dict[str, set[str]] = {}
    for line in lines:
        node = _NODE.match(line)
        why = re.sub(r" '[^']*'", "", line[node.end() :] if node else line)
        operators.setdefault(why, set()).update(node.groups() if node else ())
    named = [f"{', '.join(sorted(ops))}: {why}" if ops else why for why, ops in operators.items()]
    return " | ".join(sorted(named))


def summary(found: Sequence[Outcome], must: Sequence[str]) -> dict[str, Any]:
    """What a record keeps of the outcomes, in an order that does not depend on the order of the tests."""
    by_name, totals = sorted(found, key=lambda item: item.name), Counter(item.verdict for item in found)
    passed = {item.name: item.launches for item in by_name if item.verdict == "passed"}
    refused: dict[str, list[str]] = {}
    for item in by_name:
        if item.verdict == "refused":
            refused.setdefault(cause(item.reason), []).append(item.name)
    return {
        "totals": {verdict: totals[verdict] for verdict in VERDICTS},
        "must": {"listed": len(must), "passed": len(passed.keys() & set(must))},
        "failed": {item.name: item.reason for item in by_name if item.verdict == "failed"},
        "ops": {op: dict(sorted(counts.items())) for op, counts in sorted(_counts(found).items())},
        "launches_of_passed": passed,
        "refused_by_cause": dict(sorted(refused.items())),
    }


def show(found: Sequence[Outcome], title: str) -> None:
    """The table op by op on stdout: first the ops of which something passed or failed."""
    screen, counts = console(), _counts(found)
    still = Counter(item.op for item in found if item.launches == 0)
    heading(screen, title)
    result = table(["op", *VERDICTS, "no kernel"], right=[*VERDICTS, "no kernel"])
    for op in sorted(counts, key=lambda op: (counts[op]["refused"] == counts[op].total(), op)):
        style = "red" if counts[op]["failed"] else None
        add_row(result, op, *(counts[op][verdict] for verdict in VERDICTS), still[op], style=style)
    total = sum(counts.values(), Counter[str]())
    result.add_section()
    add_row(result, "all", *(total[verdict] for verdict in VERDICTS), still.total())
    screen.print(result)
    names = ", ".join(item.name for item in found if item.launches == 0)
    screen.print(f"passed without a kernel: {names or 'none'}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, print the table, write the record; 1 if a test failed or one that must pass did not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.suite", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", default="CPU", help="CPU, CUDA or CUDA:N.")
    parser.add_argument("--must", type=Path, default=MUST, help="Names of the tests that must pass.")
    parser.add_argument("--match", type=re.compile, help="Only tests whose name this pattern is found in.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes; 0: none beside this one.")
    parser.add_argument("--output", type=Path, help="Write a record of every test as JSON.")
    options = parser.parse_args(arguments)
    device, choice = open_device(options.device.lower())
    where = {"device_choice": choice, **environment(device)}
    device.close()
    chosen = [name for name in cases() if options.match is None or options.match.search(name)]
    must = [name for name in must_list(options.must) if options.match is None or options.match.search(name)]
    started = time.perf_counter()
    found = _run(chosen, options.device, options.jobs)
    seconds = time.perf_counter() - started
    show(found, f"onnx {onnx.__version__} on {choice} ({seconds:.0f} s)")
    failures = broken(found, must)
    if options.output:
        about = {"match": options.match and options.match.pattern, "seconds": round(seconds, 1), "environment": where}
        _write(options.output, {"passed": not failures, "failures": failures, **about, **summary(found, must)})
    for failure in failures:
        print(f"FAIL: {failure}")
    return int(bool(failures))


def _run(names: Sequence[str], device: str, jobs: int) -> list[Outcome]:
    """Every outcome, with a progress bar. The runner keeps inputs of whole models in a folder that goes again."""
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        os.environ["ONNX_MODELS"] = folder
        return list(bar.track(outcomes(names, device, jobs), len(names), description="conformance"))


def _write(path: Path, results: Mapping[str, Any]) -> None:
    write(path, {"what": "the conformance suite of ONNX", "onnx": onnx.__version__, **results})


def _counts(found: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """How many tests of each op passed, were refused and failed."""
    counts: dict[str, Counter[str]] = {}
    for item in found:
        counts.setdefault(item.op, Counter())[item.verdict] += 1
    return counts


def _last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]


if __name__ == "__main__":
    sys.exit(main())

"""What becomes of one hostile file: loaded, run where it is accepted, compared with onnxruntime."""

from __future__ import annotations

import math
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tests.fuzz.cases import Case, case
from tests.fuzz.seeds import furnish
from vgg16gpu.checks.onnxruntime_session import import_onnxruntime, open_session
from vgg16gpu.compiler.declared import Declared
from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.graph.passes import simplify
from vgg16gpu.compiler.onnx.folding.budget import BASE_MEMORY
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.devices import open_device
from vgg16gpu.errors import Error
from vgg16gpu.runtime.session import Session

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

REFUSED, REFUSED_RUN, AGREES = "refused", "refused when run", "agrees with onnxruntime"
LARGE, NO_JUDGE, UNSTABLE = "accepted, too large to run", "run, refused by onnxruntime", "run, no stable answer"
CRASH, HANG, OUTSIDE, WRONG = "crash", "hang", "read outside of the folder", "wrong answer"
VERDICTS: Final = (REFUSED, REFUSED_RUN, LARGE, NO_JUDGE, UNSTABLE, AGREES, CRASH, HANG, OUTSIDE, WRONG)
FAILURES: Final = (CRASH, HANG, OUTSIDE, WRONG)

# What a worker is doing, and for how many seconds it may. Compilers and onnxruntime are not what is tested here.
LOADING, RUNNING, COMPILING, JUDGING, MAKING = STAGES = range(5)
LOAD_NBYTES: Final = BASE_MEMORY + (256 << 20)  # that loading may map beyond what the process has
RUN_NBYTES: Final = 2 << 30
MAX_ELEMENTS: Final = 1 << 18  # in all values of a model that is run
MAX_OPS: Final = 1000  # the same
STABLE: Final = 1e-4  # so little may an answer change when an input changes by 1e-6 of itself
OPEN_DIM: Final = 2  # where a model leaves a dimension of an input open


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `reason`: its class. `report`: all that is known of a failure."""

    number: int
    verdict: str
    reason: str = ""
    report: str = ""


def work(pipe: Connection, state: Any, folder: Path, seed: int, numbers: range) -> None:
    """The life of a worker process: an `Outcome` for each number into the pipe.

    state: four numbers that the parent reads: the case, the stage, since when, and the processor's time until then.
    """
    with Examiner(folder, seed, state) as examiner:
        for number in numbers:
            pipe.send((examiner.examine(number), peak_nbytes()))
    pipe.close()


def peak_nbytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Examiner:
    """Examines cases one after the other in `folder`, which it makes. Limits the memory of the whole process."""

    def __init__(self, folder: Path, seed: int, state: Any) -> None:
        furnish(folder)
        self._model = folder / "model" / "model.onnx"
        self._seed = seed
        self._state = state
        self._device, _ = open_device("cpu")
        import_onnxruntime()  # now: what it opens then is not read by a model
        self._build = self._device.build
        self._device.build = self._compile  # type: ignore[method-assign]
        self._pages = os.open("/proc/self/statm", os.O_RDONLY)

    def __enter__(self) -> Examiner:
        return self

    def __exit__(self, *_: object) -> None:
        limit_memory(None)
        os.close(self._pages)
        self._device.close()

    def examine(self, number: int) -> Outcome:
        """Load, run, compare. Anything but an Error is a crash."""
        self._enter(MAKING, number)
        damaged = case(number, self._seed)
        self._model.write_bytes(damaged.data)
        try:
            with opened_files() as opened:
                outcome = self._load_and_run(damaged)
            if strange := [path for path in opened if not self._may_open(path)]:
                return self._failure(number, OUTSIDE, strange[0], f"opened {', '.join(strange)}")
            return outcome
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
            return self._failure(number, CRASH, f"{type(error).__name__} at {where}", traceback.format_exc())
        finally:
            self._enter(MAKING, number)

    def _load_and_run(self, damaged: Case) -> Outcome:
        self._enter(LOADING, damaged.number)
        try:
            graph = simplify(load(self._model))
            with Session(self._model, self._device) as session:
                inputs = _inputs(session.inputs, damaged.seed.inputs)
                shapes = infer_shapes(graph, {value.name: inputs[value.name].shape for value in graph.inputs})
                if len(graph.ops) > MAX_OPS or sum(map(math.prod, shapes.values())) > MAX_ELEMENTS:
                    return Outcome(damaged.number, LARGE)
                self._enter(RUNNING)
                outputs = session.run(inputs)
        except Error as error:
            verdict = REFUSED_RUN if self._state[1] == RUNNING else REFUSED
            return Outcome(damaged.number, verdict, reason_class(str(error), self._model))
        return self._judge(damaged, inputs, dict(zip(session.outputs, outputs, strict=True)))

    def _judge(self, damaged: Case, inputs: Arrays, results: Mapping[Declared, npt.NDArray[Any]]) -> Outcome:
        self._enter(JUDGING)
        number, tolerance = damaged.number, damaged.seed.tolerance
        # Where a model does not say the type of an output, any will do.
        outputs = {value.name: array for value, array in results.items()}
        untyped = {value.name for value in results if value.dtype is None}
        try:
            judge = _opened_judge(self._model)
            expected = dict(zip(outputs, judge.run(list(outputs), dict(inputs)), strict=True))
            nearby = {name: _moved(array) for name, array in inputs.items()}
            moved = dict(zip(outputs, judge.run(list(outputs), nearby), strict=True))
        except Exception as error:
            return Outcome(number, NO_JUDGE, reason_class(str(error), self._model))
        for name in untyped:
            outputs[name] = outputs[name].astype(expected[name].dtype)
        problems = [
            f"{name}: {problem}"
            for name in outputs
            if (problem := difference(outputs[name], expected[name], tolerance))
        ]
        if not problems:
            return Outcome(number, AGREES)
        if not all(_is_stable(expected[name], moved[name]) for name in outputs) or not self._stays_finite(inputs):
            return Outcome(number, UNSTABLE)
        return self._failure(number, WRONG, reason_class(problems[0], self._model), "\n".join(problems))

    def _stays_finite(self, inputs: Arrays) -> bool:
        """Whether no weight, and no value inside the judge, is NaN or infinite: engines differ in what they do then."""
        model = onnx.load(self._model, load_external_data=False)
        weights = [numpy_helper.to_array(tensor, str(self._model.parent)) for tensor in model.graph.initializer]
        names = {name for node in model.graph.node for name in node.output if name}
        names -= {output.name for output in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
        path = self._model.with_name("judged.onnx")
        path.write_bytes(model.SerializeToString())
        values = [*weights, *_opened_judge(path).run(None, dict(inputs))]
        return all(np.isfinite(value).all() for value in values if value.dtype.kind == "f")

    def _failure(self, number: int, verdict: str, reason: str, report: str) -> Outcome:
        return Outcome(number, verdict, reason, f"{', '.join(case(number, self._seed).changes)}\n{report}")

    def _enter(self, stage: int, number: int | None = None) -> None:
        """Tell the parent what comes now, and allow as much memory as that may take."""
        if number is not None:
            self._state[0] = number
        self._state[1:4] = stage, time.monotonic(), time.process_time()
        allowed = {LOADING: LOAD_NBYTES, RUNNING: RUN_NBYTES}.get(stage)
        limit_memory(None if allowed is None else self._mapped_nbytes() + allowed)

    def _mapped_nbytes(self) -> int:
        return int(os.pread(self._pages, 100, 0).split()[0]) * resource.getpagesize()

    def _compile(self, kernels: Any) -> None:
        before = int(self._state[1])
        self._enter(COMPILING)
        try:
            with opened_files():  # those of the compiler are its own
                self._build(kernels)
        finally:
            self._enter(before)

    def _may_open(self, path: str) -> bool:
        """Whether a file is the model's, or Python's own: modules are imported when they are first needed."""
        return is_pythons_own(path) or Path(path).resolve().is_relative_to(self._model.parent)


def is_pythons_own(path: str) -> bool:
    """Return whether a file is a module's, also one that is compiled just now."""
    real = Path(path).resolve()
    return real.suffix in (".py", ".pyc", ".so") or real.parent.name == "__pycache__"


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float) -> str:
    """What is wrong with an output; nothing if it is within `tolerance`, a part of the largest value."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance * scale)
    if same.all():
        return ""
    place = tuple(map(int, np.argwhere(~same)[0]))
    return f"{np.count_nonzero(~same)} of {same.size} values differ, at {place} {a[place]!r} instead of {b[place]!r}"


def reason_class(message: str, model: Path) -> str:
    """A message without what differs from file to file."""
    text = (message.strip().splitlines() or [""])[0 if "\n" not in message.strip() else 1].strip()
    text = text.replace(f"{model}: ", "").replace(str(model), "model")
    return re.sub(r"-?\b[\d.]+(e[+-]?\d+)?\b", "#", re.sub(r"'[^']*'", "'...'", text))[:120]


_opened: list[str] | None = None


@cache
def _watch() -> None:
    """Begin to see what is opened. A hook cannot be taken away, so there is one."""

    def hook(event: str, arguments: Sequence[Any]) -> None:
        if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes):
            _opened.append(os.fsdecode(arguments[0]))

    sys.addaudithook(hook)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Every file that Python opens meanwhile."""
    global _opened  # noqa: PLW0603 - what the hook writes to
    _watch()
    before, _opened = _opened, []
    try:
        yield _opened
    finally:
        _opened = before


def _opened_judge(model: Path) -> Any:
    return open_session(model, threads=1, optimise=False, arena=False, quiet=True)


def _inputs(declared: Sequence[Declared], valid: Arrays) -> dict[str, npt.NDArray[Any]]:
    """The seed's own inputs where they still fit, else others of the declared shapes."""
    random = np.random.default_rng(0)
    inputs = {}
    for value in declared:
        given = valid.get(value.name)
        if given is not None and given.dtype == value.dtype and value.fits(given.shape):
            inputs[value.name] = given
            continue
        shape = tuple(OPEN_DIM if dim is None else dim for dim in value.shape or ())
        size = math.prod(shape) if min(shape, default=0) >= 0 else 0
        random_values = random.uniform(-1, 1, shape if size <= MAX_ELEMENTS and size else (0,))
        inputs[value.name] = random_values.astype(value.dtype)
    return inputs


def _moved(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array * array.dtype.type(1 + 1e-6) if array.dtype.kind == "f" else array


def _is_stable(expected: npt.NDArray[Any], moved: npt.NDArray[Any]) -> bool:
    """Whether the judge's own answer is finite, and a small change of the input changes it as little."""
    if expected.dtype.kind != "f":
        return np.array_equal(expected, moved)
    return bool(np.isfinite(expected).all()) and not difference(moved, expected, STABLE)


def limit_memory(nbytes: int | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard if nbytes is None else nbytes, hard))

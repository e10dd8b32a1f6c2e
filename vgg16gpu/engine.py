"""The public face: an ONNX file and a device in, scores out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Counters
from vgg16gpu.errors import InputError
from vgg16gpu.graph import Array
from vgg16gpu.prepare import Request, load_graph, plan_graph
from vgg16gpu.program import Program
from vgg16gpu.resident import ResidentPlan, check_memory

Images: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Timings:
    """Seconds that building the engine took."""

    load: float  # reading and simplifying the model, opening the device, planning
    compile: float  # kernels: compiling, or loading from the cache
    upload: float  # weights to the device


class Engine:
    """VGG-family inference from an ONNX file.

    Everything is decided, compiled and allocated here; `run` copies in, launches, copies out. Use as a context manager,
    or call `close`. Several threads may share an engine; their calls take turns. After a fork build a new one.

    model: the ONNX file.
    device: "auto", "cpu", "cuda" or "cuda:N".
    precision: "fp32".
    batch: one size or several; a run of any number of images is made of them.
    size: image size (side, or height and width) for a model that leaves it open.
    outputs: names of ONNX values to return instead of the model's outputs.
    mean, std: per channel, of bytes / 255, for uint8 inputs; ImageNet's for 3 channels, else none.
    allow_nonfinite: accept NaN and Inf in inputs.
    keep_values: keep every intermediate value for `read_values`.

    Raises ModelError, InputError, DeviceError, KernelError.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        precision: str = "fp32",
        batch: int | Sequence[int] = 1,
        size: int | tuple[int, int] | None = None,
        outputs: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        allow_nonfinite: bool = False,
        keep_values: bool = False,
    ) -> None:
        request = Request(model, batch, size, outputs, precision, mean, std, keep_values)
        started = time.perf_counter()
        self.graph = load_graph(request)
        self.device, self.device_choice = open_device(device)
        self._resident: ResidentPlan | None = None
        self._lock = threading.Lock()
        self._allow_nonfinite = allow_nonfinite
        self._keeps_values = keep_values
        self._last_batch: int | None = None
        try:
            self.plan = plan_graph(self.graph, request, self.device.facts)
            check_memory(self.plan, self.device)
            planned = time.perf_counter()
            self.device.build(self.plan.kernels)
            compiled = time.perf_counter()
            self._resident = ResidentPlan(self.plan, self.device)
        except BaseException:
            self.close()
            raise
        self.timings = Timings(planned - started, compiled - planned, time.perf_counter() - compiled)
        self._at_build = Counters(**vars(self.device.counters))

    @property
    def program(self) -> Program:
        """What a run of the largest batch size does; prints as a table."""
        return self.plan.programs[-1]

    @property
    def counters(self) -> Counters:
        """What runs have done on the device since the engine was built."""
        return self.device.counters.since(self._at_build)

    @property
    def resident(self) -> ResidentPlan:
        """The plan on the device, for measurements. Raises InputError once the engine is closed."""
        if self._resident is None:
            raise InputError("the engine is closed; build a new one")
        return self._resident

    def run(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> Array | tuple[Array, ...]:
        """Outputs for N inputs: float32 in the model's shape, or uint8 (N, H, W, C) to be normalised on the device.

        `x` may be a dict from the input's name. Returns one array, or a tuple for several outputs, with N rows each.
        Bits do not depend on how N splits into batches, on the position in a batch or on the neighbours.
        Raises InputError for a wrong shape or type, and for NaN or Inf unless they are allowed.
        """
        images = self._checked(x)
        outputs, bad = [], []
        with self._lock:
            for first, batch in self._batches(len(images)):
                arrays, flags = self.resident.run(batch, images[first : first + batch])
                outputs.append(arrays)
                bad += [first + int(i) for i in np.flatnonzero(flags)]
                self._last_batch = batch
        if bad and not self._allow_nonfinite:
            which = ", ".join(map(str, bad[:8])) + " ..." * (len(bad) > 8)
            raise InputError(
                f"input {which} of {len(images)} (counted from 0) "
                "holds NaN or Inf; clean the data, or allow them (allow_nonfinite=True, --allow-nonfinite)"
            )
        results = tuple(np.concatenate(arrays) for arrays in zip(*outputs, strict=True))
        return results[0] if len(results) == 1 else results

    def read_values(self) -> Iterator[tuple[tuple[str, ...], Array]]:
        """Every value of the last batch that ran, with the ONNX names that its step computed (the last is the value's).

        Arrays have the ONNX shape for the batch size that ran; each is read when it is asked for, so finish before the
        next run. Raises InputError without `keep_values=True`, and before the first run.
        """
        if not self._keeps_values:
            raise InputError("intermediate values are not kept; build the engine with keep_values=True")
        program = next((program for program in self.plan.programs if program.batch == self._last_batch), None)
        if program is None:
            raise InputError("there are no values before the first run; call run")
        return self._values(program)

    def _values(self, program: Program) -> Iterator[tuple[tuple[str, ...], Array]]:
        names = {op.y: op.names for op in self.graph.ops}
        for value in program.values:
            with self._lock:
                array = self.resident.read(value)
            yield names.get(value.name, (value.name,)), array

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        with self._lock:
            resident, self._resident = self._resident, None
            try:
                if resident:
                    resident.close()
            finally:
                self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, count: int) -> Iterator[tuple[int, int]]:
        """(first image, batch size): the largest size while it fits, then the smallest that holds the rest."""
        sizes = [program.batch for program in self.plan.programs]
        first = 0
        while first < count:
            batch = next((size for size in sizes if size >= count - first), sizes[-1])
            yield first, batch
            first += batch

    def _checked(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> Images:
        slot = self.program.input
        if isinstance(x, Mapping):
            if set(x) != {slot.name}:
                raise InputError(f"inputs {sorted(map(str, x))}: this model has one input, '{slot.name}'")
            x = x[slot.name]
        images = _as_array(x)
        expected = {"float32": slot.shape[1:]}
        if "uint8" in slot.steps:
            expected["uint8"] = (*slot.shape[2:], slot.shape[1])
        if images.shape[1:] != expected.get(images.dtype.name) or images.ndim == 0 or len(images) == 0:
            accepted = " or ".join(f"{name} (N, {', '.join(map(str, shape))})" for name, shape in expected.items())
            found = f"{images.dtype} {images.shape}"
            remedy = "" if images.dtype.name in expected else "; convert it with x.astype(np.float32)"
            raise InputError(f"input '{slot.name}' is {found}; this model takes {accepted}, N >= 1{remedy}")
        return images


def _as_array(x: npt.ArrayLike) -> npt.NDArray[Any]:
    """`x` as an array in this machine's byte order. Raises InputError for what is none, or hides some of its values."""
    if isinstance(x, np.ma.MaskedArray):
        raise InputError("the input is a masked array; say what stands in the masked places: x.filled(value)")
    try:
        array = np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"the input is not an array: {error}") from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)

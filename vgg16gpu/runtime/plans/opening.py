"""What an engine takes, decided when it is built: images of one size, or of any."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import WeakSet

from vgg16gpu.compiler.choices import MAX_BATCH
from vgg16gpu.compiler.compile import SizePlanner
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import fixed_size, open_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.shown import shown
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.runtime.arrays import InputForm

if TYPE_CHECKING:
    from vgg16gpu.runtime.plans.sizes import DynamicShapes, EnginePlans

Size: TypeAlias = int | tuple[int, int] | Literal["any"] | None
ANY: Final = "any"

_warned: Final[WeakSet[Model]] = WeakSet()


@dataclass(frozen=True)
class Timings:
    """Seconds that building the engine took."""

    load: float  # reading and simplifying the model, opening the device, planning
    compile: float  # kernels: compiling, or loading from the cache
    upload: float  # weights to the device


def sides_of(size: Size) -> int | tuple[int, int] | None:
    """The image size that is planned first; None: the model's own, or the usual one. Raises InputError."""
    if not isinstance(size, str):
        return size
    if size != ANY:
        raise InputError(f"size {shown(size)}: give one number of pixels, height and width, or '{ANY}'")
    return None


def check_memory_bound(memory: Any) -> None:
    """Raise InputError for what is neither a number of bytes nor None."""
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        raise InputError(f"memory {shown(memory)}: give a number of bytes, or None for half of what is free")


def check_batch(batch: Any) -> None:
    """Raise InputError for what is no number of images that are computed at once."""
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise InputError(f"batch {shown(batch)}: give a number from 1 to {MAX_BATCH}")


def warn_of_random_weights(model: Model) -> None:
    """Warn the caller of the caller, once for each model, where its metadata says that its weights are random."""
    if model.is_random and model not in _warned:
        _warned.add(model)
        warnings.warn(
            f"{model.name} has random weights, by which a loss means little; give trained ones: 'torchvision/vgg16' "
            "(torch hub's file), a .pth file, a module, or an ONNX file",
            stacklevel=3,
        )


def kept_plans(
    model: Model, planner: SizePlanner, device: Device, size: Size, memory: Any, *, gradient: bool
) -> tuple[EnginePlans | None, DynamicShapes | None]:
    """Where plans are kept, and what plans sizes as they come; None where an engine has one plan, or one size.

    size: as it is asked for. memory: bytes, or None. Raises ModelError for "any" of a model that fixes its size, and
    InputError.
    """
    check_memory_bound(memory)
    is_any = _takes_any(model, planner, size)
    if not is_any and not gradient:
        return None, None
    from vgg16gpu.runtime.plans.plan_cache import PlanCache  # noqa: PLC0415 - an engine of one plan does without

    kept: EnginePlans = PlanCache(device, memory)
    if not is_any:
        return kept, None
    from vgg16gpu.runtime.plans.sizes import DynamicShapes  # noqa: PLC0415 - a model of one size does without

    return kept, DynamicShapes(planner, kept)


def _takes_any(model: Model, planner: SizePlanner, size: Size) -> bool:
    """Return whether images of any size are taken. Raises ModelError for "any" of a model that fixes its size."""
    if size is not None and not isinstance(size, str):
        return False
    if planner.graph.input.is_open_in_size:
        return True
    if size is None:
        return False
    why = fixed_size(planner.graph) if len(planner.graph.input.shape) == 4 else "it takes rows; leave size out"
    raise ModelError(f"{model.name}: does not take images of any size: {why}")


def form_of(graph: Graph, program: LaunchPlan, *, is_any: bool) -> InputForm:
    """What inputs must be. program: that of the size that an engine is built for."""
    shape = program.input.shape
    if is_any:
        return InputForm.of_any_size(graph.input, program, (None, shape[1], *open_shape(graph)[2:]))
    if len(shape) != 4:
        return InputForm.of(graph.input, program)
    built = f"the engine is built for {shape[2]}x{shape[3]}; without size it takes any that the model fits"
    why_fixed = (lambda: built) if graph.input.is_open_in_size else partial(fixed_size, graph)
    return InputForm.of(graph.input, program, why_fixed)

"""Any supported model on given arrays: planned once for each set of shapes and whole numbers, then kept.

`Engine` is for images and speed: one input, batch sizes known beforehand. A session takes what ONNX allows: several
inputs, weights among them, of any rank, and whole numbers that say what shapes things have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
from onnx import TensorProto

from vgg16gpu.compiler.declared import Declared
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.graph.passes import simplify
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.compiler.onnx.file import OnnxFile, element_type
from vgg16gpu.compiler.onnx.initializers import initializer_names
from vgg16gpu.compiler.onnx.load import Loaded, load_model
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.shown import printable
from vgg16gpu.runtime.arrays import as_array
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.plans.plan_cache import PlanCache

AnyArray: TypeAlias = npt.NDArray[Any]

CAPACITY: Final = 8  # plans that a session keeps on the device
_DTYPES: Final[Mapping[int, np.dtype[Any] | None]] = {
    TensorProto.UNDEFINED: None,
    **{onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)): np.dtype(name) for name in ("float32", "float16")},
    **{onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)): np.dtype(kind) for kind in "?bhilBHIL"},
}


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A model made ready for inputs of one form: outputs that the kernels compute, and those that are known."""

    known: Mapping[str, AnyArray]
    computed: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    executor: Executor | None = None
    is_busy: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes on the device that nobody else uses."""
        return self.executor.plan.activations_nbytes if self.executor else 0

    def run(self, floats: Mapping[str, Array]) -> dict[str, AnyArray]:
        """Every output by name."""
        outputs = dict(self.known)
        if self.executor:
            arrays = self.executor.run_once({name: floats[name] for name in self.inputs})
            outputs.update(zip(self.computed, arrays, strict=True))
        return outputs

    @property
    def second_passes(self) -> int:
        return self.executor.second_passes if self.executor else 0

    def close(self) -> None:
        if self.executor:
            self.executor.close()


class Session(Closing):
    """A model and a device. Use as a context manager, or call `close`. Threads take turns.

    model: the ONNX file ("digits": the small net in the package), its bytes, what onnx.load returns, a VGG of torch
        (see `Model.from_torch`), or a Model.
    device: "auto", "cpu", "cuda" or "cuda:N"; or a device that is open, and stays so.

    Raises ModelError for what is no model, or has inputs or outputs other than tensors of float32, float16, whole
    numbers and bool; DeviceError. What the operators need is looked at once shapes are known, by `check` and `run`.
    """

    def __init__(self, model: ModelSource, device: str | Device = "auto") -> None:
        self._file = Model.of(model).file
        self.inputs, self.outputs = _declared_inputs(self._file), _declared_outputs(self._file)
        # Numbers that launches take by value: like whole numbers, they are known when a plan is made.
        self._fixed = {node.input[2] for node in self._file.model.graph.node if _has_pad_value(node)}
        self._lock = threading.Lock()
        self._owns_device = isinstance(device, str)
        self.device = open_device(device)[0] if isinstance(device, str) else device
        self._prepared: PlanCache[object, _Prepared] = PlanCache(self.device, plans=CAPACITY)
        self._closed = False

    def check(self) -> None:
        """Raise ModelError now for what `run` would refuse, as far as the model says its shapes itself."""
        shapes = {value.name: value.shape for value in self.inputs if self._runs(value)}
        given = {name: tuple(dim for dim in shape or (None,) if dim is not None) for name, shape in shapes.items()}
        if len(shapes) == len(self.inputs) and given == shapes:
            _load(self._file, {}, given)

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> tuple[AnyArray, ...]:
        """The model's outputs, in its order, in the element types that it declares.

        `inputs`: an array for each of `self.inputs`, of the declared element type. Floats are computed with on the
        device, NaN and infinities too. Whole numbers, bools and the value of Pad become constants of the graph. The
        first run on other shapes or other constants plans and compiles; the last 8 such plans are kept, fewer if they
        take more than half of the memory that was free. Weights that plans share lie on the device once.
        Raises InputError for missing, unknown or wrong inputs; ModelError for what is not supported, or does not fit
        these shapes; DeviceError and KernelError.
        """
        arrays = self._checked(inputs)
        running = {value.name for value in self.inputs if self._runs(value)}
        floats = {name: array.astype(np.float32, copy=False) for name, array in arrays.items() if name in running}
        bound = {name: array for name, array in arrays.items() if name not in running}
        with self._lock:
            if self._closed:
                raise InputError("the session is closed; open a new one")
            outputs = self._prepare(floats, bound).run(floats)
        return tuple(_typed(outputs[value.name], value) for value in self.outputs)

    def close(self) -> None:
        """Free what the session has on the device. Safe to call twice."""
        with self._lock:
            self._closed = True
            try:
                self._prepared.close()
            finally:
                if self._owns_device:
                    self.device.close()

    def _runs(self, value: Declared) -> bool:
        """Return whether an input is computed with on the device; the others become constants of the graph."""
        return value.is_float and value.name not in self._fixed

    def _checked(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, AnyArray]:
        names = [value.name for value in self.inputs]
        if set(inputs) != set(names):
            raise InputError(
                f"inputs {_listed(inputs)} are given; this model takes {_listed(names)}, one array for each"
            )
        return {value.name: _as_declared(inputs[value.name], value) for value in self.inputs}

    def _prepare(self, floats: Mapping[str, Array], bound: Mapping[str, AnyArray]) -> _Prepared:
        """What the model becomes for these shapes and whole numbers: made now, or kept from before."""
        shapes = {name: array.shape for name, array in floats.items()}
        key = (*shapes.items(), *((name, array.shape, array.tobytes()) for name, array in bound.items()))
        return self._prepared.find(key) or self._prepared.keep(key, self._made_ready(shapes, bound))

    def _made_ready(self, shapes: Mapping[str, Shape], bound: Mapping[str, AnyArray]) -> _Prepared:
        loaded = _load(self._file, bound, shapes)
        known: dict[str, AnyArray] = dict(loaded.constants)
        graph = loaded.graph
        if graph:
            sizes = infer_shapes(graph, {value.name: shapes[value.name] for value in graph.inputs})
            known |= {name: np.empty(sizes[name], np.float32) for name in graph.outputs if 0 in sizes[name]}
            graph = without_empty(graph, sizes)
        for value in self.outputs:
            if value.name not in known and not value.is_float:
                raise self._file.error(
                    f"output '{value.name}' is declared as {value.dtype}, and computed in float32; export the model "
                    "with float outputs"
                )
        if graph is None:
            return _Prepared(known)
        graph = simplify(graph)
        used = tuple(value.name for value in graph.inputs)
        taken = {name: shapes[name] for name in used}
        plan = make_plan(graph, self.device.facts, taken)
        what = "the model on " + ", ".join(f"'{printable(name)}' {shape}" for name, shape in taken.items())
        return _Prepared(known, graph.outputs, used, self._prepared.load(plan, what))


def without_empty(graph: Graph, sizes: Mapping[str, Shape]) -> Graph | None:
    """The graph without outputs that have no elements, and without all that only they need; None if nothing is left.

    `sizes`: the shape of every value. Raises ModelError when another output is computed from a value without elements.
    """
    outputs = tuple(name for name in graph.outputs if 0 not in sizes[name])
    needed, ops = set(outputs), []
    for op in reversed(graph.ops):
        if op.y in needed:
            needed.update(op.operands)
            ops.append(op)
    for name in sorted(needed):
        if 0 in sizes[name]:
            raise ModelError(f"value '{name}' has shape {sizes[name]}, without elements, and is computed with")
    inputs = [value for value in graph.inputs if value.name in needed]
    if not outputs:
        return None
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return Graph(inputs[0], tuple(reversed(ops)), outputs, tuple(inputs[1:]), constants)


def _has_pad_value(node: onnx.NodeProto) -> bool:
    return node.op_type == "Pad" and len(node.input) > 2 and bool(node.input[2])


def _load(file: OnnxFile, bound: Mapping[str, AnyArray], shapes: Mapping[str, Shape]) -> Loaded:
    return load_model(file, bound=bound, shapes=shapes)


def _declared_inputs(file: OnnxFile) -> tuple[Declared, ...]:
    graph = file.model.graph
    weights = initializer_names(graph)
    found = tuple(_declared(file, "input", value) for value in graph.input if value.name not in weights)
    untyped = next((value for value in found if value.dtype is None), None)
    if untyped:
        raise file.error(f"input '{untyped.name}' is declared without an element type; export the model again")
    return found


def _declared_outputs(file: OnnxFile) -> tuple[Declared, ...]:
    return tuple(_declared(file, "output", value) for value in file.model.graph.output)


def _declared(file: OnnxFile, role: str, value: onnx.ValueInfoProto) -> Declared:
    kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
    if kind not in ("tensor_type", None):
        raise file.error(f"{role} '{value.name}' is a {kind.removesuffix('_type')}; only tensors are supported")
    if tensor.elem_type not in _DTYPES:
        raise file.error(
            f"{role} '{value.name}' has element type {element_type(tensor.elem_type)}; float32, float16, whole "
            "numbers and bool are supported, export the model in float32"
        )
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return Declared(value.name, _DTYPES[tensor.elem_type], shape if tensor.HasField("shape") else None)


def _as_declared(given: npt.ArrayLike, declared: Declared) -> AnyArray:
    is_array = isinstance(given, np.ndarray)  # of numpy: its byte order is the model's, or it is refused
    found = given if is_array else as_array(given, f"input '{declared.name}'", str(declared.dtype))
    array = np.ascontiguousarray(found).reshape(np.shape(found))  # ascontiguousarray makes vectors of scalars
    if array.dtype != declared.dtype or not declared.fits(array.shape):
        dims = ", ".join("any" if dim is None else str(dim) for dim in declared.shape or ())
        wanted = f"{declared.dtype} ({dims})" if declared.shape is not None else f"{declared.dtype} of any shape"
        raise InputError(f"input '{declared.name}' is {array.dtype} {array.shape}; this model takes {wanted}")
    return array


def _typed(array: AnyArray, declared: Declared) -> AnyArray:
    with np.errstate(over="ignore"):  # beyond float16: infinite, as ONNX has it
        return np.array(array, declared.dtype or array.dtype)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{printable(name)}'" for name in sorted(map(str, names))) or "none"

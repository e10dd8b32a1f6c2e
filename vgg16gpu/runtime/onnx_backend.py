"""The engine behind the interface that ONNX defines for backends: onnx.backend.base.

    import vgg16gpu.onnx_backend as backend
    scores, = backend.run_model(onnx.load("vgg16.onnx"), [images], device="CUDA")

Inputs are positional, in the model's order, without the weights that a model may declare as inputs. "CPU" is the cpu
device, "CUDA" and "CUDA:N" a GPU; each is opened once in a process. A model that is not supported raises RefusedError,
which is a ModelError and a unittest.SkipTest: the runner of onnx.backend.test counts it as skipped.
"""

from __future__ import annotations

import atexit
import re
import threading
import unittest
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.shape_inference
from onnx.backend.base import Backend, BackendRep, namedtupledict

from vgg16gpu.compiler.model import ModelSource
from vgg16gpu.compiler.onnx.load import IR_VERSIONS, OPSETS
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError, Error, InputError, ModelError
from vgg16gpu.io.shown import shown
from vgg16gpu.runtime.session import AnyArray, Session

Inputs: TypeAlias = npt.ArrayLike | Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike]

_turn: Final = threading.Lock()  # models share devices, which take one call at a time
_dropped: Final[deque[Session]] = deque()  # nobody holds their models any more


class RefusedError(ModelError, unittest.SkipTest):
    """The model is not supported. The message says what of it, and what to do."""


class VggBackendRep(BackendRep):
    """A model ready to run. What it has on the device goes with it."""

    def __init__(self, model: ModelSource, device: Device) -> None:
        """Raises RefusedError."""
        with _refusing():
            self.session = Session(model, device)
            self.session.check()
        self._names = [value.name for value in self.session.inputs]
        self._outputs = namedtupledict("Outputs", [value.name for value in self.session.outputs])
        weakref.finalize(self, _drop, self.session).atexit = False

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[AnyArray, ...]:
        """The outputs, a tuple that can also be asked by name.

        `inputs`: an array for each input in a list or tuple, or by name, or the only one by itself. Raises
        RefusedError, as some things show only when shapes are known; InputError for inputs that are not the model's.
        """
        del kwargs
        arrays = self._by_name(inputs)
        with _in_turn(), _refusing():
            outputs: tuple[AnyArray, ...] = self._outputs(*self.session.run(arrays))
        return outputs

    def _by_name(self, inputs: Inputs) -> Mapping[str, npt.ArrayLike]:
        if isinstance(inputs, Mapping):
            return inputs
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(arrays) != len(self._names):
            raise InputError(f"{len(arrays)} inputs are given; this model takes {len(self._names)}: {self._names}")
        return dict(zip(self._names, arrays, strict=True))


class VggBackend(Backend):
    """What this module offers, as a class."""

    @classmethod
    def is_compatible(cls, model: ModelSource, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the model would run, as far as it says itself which shapes its inputs have."""
        try:
            cls.prepare(model, device, **kwargs)
        except RefusedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelSource, device: str = "CPU", **kwargs: Any) -> VggBackendRep:
        """A model to be run again and again. Further keywords are ignored.

        Raises RefusedError for a model that is not supported, DeviceError for a device that is not there.
        """
        del kwargs
        with _in_turn():
            return VggBackendRep(model, _device(device))

    @classmethod
    def run_model(cls, model: ModelSource, inputs: Inputs, device: str = "CPU", **kwargs: Any) -> tuple[AnyArray, ...]:
        """The outputs of a model that is run once. Raises what `prepare` and `VggBackendRep.run` raise."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Inputs,
        device: str = "CPU",
        outputs_info: Sequence[tuple[npt.DTypeLike, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[AnyArray, ...]:
        """The outputs of one node. `outputs_info`: element type and shape of each, which else are inferred.

        opset_version: of the operator; the newest that is supported, if not given. Raises as `run_model`.
        """
        arrays: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        model = _node_model(node, [np.asarray(array) for array in arrays], outputs_info, kwargs.get("opset_version"))
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether this device is there and works."""
        try:
            _device(device)
        except DeviceError:
            return False
        return True


is_compatible = VggBackend.is_compatible
prepare = VggBackend.prepare
run_model = VggBackend.run_model
run_node = VggBackend.run_node
supports_device = VggBackend.supports_device


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise RefusedError(str(error)) from error


def _device(name: str) -> Device:
    """The device that ONNX calls `name`. Raises DeviceError."""
    found = re.fullmatch(r"(CPU|CUDA(:\d+)?)", name)
    if not found:
        raise DeviceError(f"unknown device {shown(name)}; accepted: CPU, CUDA, CUDA:N (N the number of a GPU)")
    return _opened(name.lower())


@cache
def _opened(name: str) -> Device:
    device, _ = open_device(name)
    atexit.register(device.close)
    return device


@contextmanager
def _in_turn() -> Iterator[None]:
    try:
        with _turn:
            yield
    finally:
        _close_dropped()


def _drop(session: Session) -> None:
    """Close it as soon as no call is under way: the garbage collector may come in the midst of one."""
    _dropped.append(session)
    _close_dropped()


def _close_dropped() -> None:
    while _dropped and _turn.acquire(blocking=False):
        try:
            while _dropped:
                with suppress(Error):  # a device that is out of order says so in the next run
                    _dropped.popleft().close()
        finally:
            _turn.release()


def _node_model(
    node: onnx.NodeProto,
    arrays: Sequence[AnyArray],
    outputs_info: Sequence[tuple[npt.DTypeLike, tuple[int, ...]]] | None,
    opset: int | None,
) -> onnx.ModelProto:
    """A model of this node alone. Inputs and outputs with no name are left out, as are their arrays."""
    names = [name for name in node.input if name]
    if len(arrays) != len(names):
        raise InputError(f"{len(arrays)} inputs are given; {node.op_type} '{node.name}' takes {len(names)}: {names}")
    inputs = [_value(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)]
    results = [name for name in node.output if name]
    if outputs_info is None:
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
    else:
        outputs = [_value(name, dtype, shape) for name, (dtype, shape) in zip(results, outputs_info, strict=False)]
    graph = onnx.helper.make_graph([node], node.op_type, inputs, outputs)
    imports = [onnx.helper.make_opsetid(node.domain, opset or OPSETS[-1])]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSIONS[-1])
    return onnx.shape_inference.infer_shapes(model)


def _value(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

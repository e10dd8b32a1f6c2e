"""onnxruntime as the judge: the scores of a model, and any value inside it, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from vgg16gpu.checks.onnxruntime_session import first_line, open_session
from vgg16gpu.checks.quantised_file import Edit
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.onnx.file import OnnxFile, open_onnx
from vgg16gpu.compiler.onnx.wire import CODED, INSIDE
from vgg16gpu.errors import ModelError


class Oracle:
    """A model in onnxruntime, CPU, its own default optimisations.

    With `values` the model runs with these inner ONNX values as further outputs (which keeps onnxruntime from fusing
    across them). `edit`: what is changed in it (see `quantised_file.py`). `file`: the model, where it is open already.
    Raises Error when onnxruntime is missing and ModelError when it refuses the model.
    """

    def __init__(
        self,
        model: Path,
        values: Sequence[str] = (),
        edit: Edit | None = None,
        file: OnnxFile | None = None,
    ) -> None:
        is_onnx = file is None or file.is_onnx
        changed = _changed(file or open_onnx(model), values, edit) if values or edit or not is_onnx else None
        try:
            self._session = open_session(changed or model, weights_folder=model.resolve().parent if changed else None)
        except ModelError as error:
            raise ModelError(f"{model}: {error}") from error
        self._model = model
        self._input = self._session.get_inputs()[0]
        self._output = self._session.get_outputs()[0].name

    def scores(self, x: Array) -> Array:
        """Compute the first output for (N, ...) inputs, in the model's own batch size, or one by one."""
        return np.concatenate([self._scores(part)[:count] for part, count in self._parts(x)])

    def values(self, x: Array, names: Sequence[str]) -> Mapping[str, Array]:
        """Compute values of the model for one (1, ...) input, by ONNX name, of the names given at construction."""
        part, _ = self._parts(x[:1])[0]
        return dict(zip(names, self._run(list(names), part), strict=True))

    def _scores(self, x: Array) -> Array:
        (scores,) = self._run([self._output], x)
        if scores.shape[:1] != x.shape[:1]:
            raise ModelError(
                f"{self._model}: onnxruntime's output '{self._output}' has shape {scores.shape} for {len(x)} inputs; "
                "one row for each is needed"
            )
        return scores

    def _parts(self, x: Array) -> list[tuple[Array, int]]:
        """Return batches that the model takes, the last filled with zeros, each with the number of its real rows."""
        fixed = self._input.shape[0]
        size = fixed if isinstance(fixed, int) else 1
        parts = []
        for first in range(0, len(x), size):
            part = x[first : first + size]
            missing = np.zeros((size - len(part), *x.shape[1:]), np.float32)
            parts.append((np.concatenate([part, missing]), len(part)))
        return parts

    def _run(self, names: list[str], x: Array) -> list[Array]:
        try:
            return list(self._session.run(names, {self._input.name: x}))
        except Exception as error:
            raise ModelError(f"{self._model}: onnxruntime cannot run the model: {first_line(error)}") from error


def _changed(file: OnnxFile, names: Sequence[str], edit: Edit | None) -> bytes:
    """Return the model edited or with further outputs; weights stay in its file, as external data.

    One that was made of arrays has no such file, and comes with its weights.
    """
    model = onnx.ModelProto()
    if file.is_onnx:
        model.CopyFrom(file.model)
    else:
        model.ParseFromString(bytes(file.content))
    if edit:
        edit(model, file.array)
    _point_at_file(model.graph.initializer, file)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):  # onnxruntime takes external data for initializers only
                attribute.t.CopyFrom(numpy_helper.from_array(file.array(attribute.t), attribute.t.name))
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    return bytes(model.SerializeToString())


def _point_at_file(tensors: Any, file: OnnxFile) -> None:
    """Refer to large raw data in the model file as external data; decode what is coded otherwise."""
    for tensor in tensors:
        entries = {entry.key: entry for entry in tensor.external_data}
        if "location" not in entries or entries["location"].value != INSIDE:
            continue
        if entries["field"].value in CODED:
            tensor.CopyFrom(numpy_helper.from_array(file.array(tensor), tensor.name))
            continue
        entries["location"].value = file.path.name
        tensor.external_data.remove(entries["field"])  # onnxruntime takes no key that it does not know

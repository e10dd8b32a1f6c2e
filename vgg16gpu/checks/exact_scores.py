"""Scores in float64, by onnx's own reference evaluator: who is right where two float32 libraries differ by rounding.

It shares nothing with the compiler or the kernels. It is slow, so it is asked of few inputs.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.onnx.file import OnnxFile
from vgg16gpu.errors import ModelError

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def exact_scores(file: OnnxFile, x: Array) -> Array:
    """Return the first output of a model for an input (1, ...), computed in float64 throughout.

    Raises ModelError for a model that the evaluator cannot compute so.
    """
    try:
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - it loads every operator of ONNX

        evaluator = ReferenceEvaluator(_in_float64(file))
        name = evaluator.input_names[0]
        (scores, *_) = evaluator.run(None, {name: x.astype(np.float64)})
    except Exception as error:  # it is written in Python, and raises what numpy does
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{file.path}: its scores in float64 are not known: {reason}") from error
    return np.asarray(scores)


def _in_float64(file: OnnxFile) -> onnx.ModelProto:
    """The model with float64 in place of float32 and float16: weights, constants, and what is cast."""
    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(_tensor(file, tensor))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del model.graph.value_info[:]
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                attribute.t.CopyFrom(_tensor(file, attribute.t))
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
    return model


def _tensor(file: OnnxFile, tensor: TensorProto) -> TensorProto:
    array = file.array(tensor)
    wide = array.astype(np.float64) if tensor.data_type in _FLOATS else array
    return numpy_helper.from_array(np.ascontiguousarray(wide).reshape(array.shape), tensor.name)

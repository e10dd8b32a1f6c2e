"""TensorRT as a contender, through its Python package and torch's tensors: an engine built from the ONNX file.

fp32 without TF32 and, where the card has it, with; fp16 and bf16 allow TensorRT these types, it decides where it uses
them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorrt

from vgg16gpu.bench.measure.timing import Contender
from vgg16gpu.bench.peers.base import PeerError, RunMethod, Setting
from vgg16gpu.compiler.graph.ops import Array

_FLAGS = {"fp16": "FP16", "bf16": "BF16"}


class TensorrtPeer:
    """One engine for each batch size; torch holds the buffers, captures a graph and reads the clock."""

    notes: Sequence[str] = ()

    def __init__(self, setting: Setting) -> None:
        if setting.kind != "cuda":
            raise PeerError("tensorrt runs on NVIDIA GPUs alone: not compared")
        if importlib.util.find_spec("torch") is None:
            raise PeerError("tensorrt is measured through torch, which is not installed (pip install torch)")
        self._setting = setting
        self._logger = tensorrt.Logger(tensorrt.Logger.ERROR)

    def ways(self, x: Array) -> Sequence[RunMethod]:
        """Return a CUDA graph for each arithmetic."""
        arithmetics = {False: ", no TF32" if self._setting.precision == "fp32" else ""}
        if self._setting.tf32:
            arithmetics[True] = ", TF32"
        return [
            RunMethod(f"CUDA graph{text}", partial(self._contender, x, f"CUDA graph{text}", tf32))
            for tf32, text in arithmetics.items()
        ]

    def release(self) -> None:
        """Do nothing: nothing outlives its contenders."""

    def close(self) -> None:
        """Do nothing: nothing outlives its contenders."""

    def _contender(self, x: Array, variant: str, tf32: bool) -> Contender:
        import torch  # noqa: PLC0415 - not installed everywhere

        from vgg16gpu.bench.peers.torch import TensorContender, captured, torch_device  # noqa: PLC0415 - imports torch

        device = torch_device(self._setting)
        with torch.cuda.device(device):
            engine = self._engine(x, tf32)
            context = engine.create_execution_context()
            names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)][:2]  # input, first output
            inp = torch.from_numpy(x).to(device)
            context.set_input_shape(names[0], tuple(x.shape))
            out = torch.empty(tuple(context.get_tensor_shape(names[1])), device=device)
            for name, tensor in zip(names, (inp, out), strict=True):
                context.set_tensor_address(name, tensor.data_ptr())

            def net(_: Any) -> Any:
                context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
                return out

            run, output = captured(net, inp)
        return TensorContender("tensorrt", variant, x, inp, run, output, tf32=tf32, keeps=(engine, context))

    def _engine(self, x: Array, tf32: bool) -> Any:
        builder = tensorrt.Builder(self._logger)
        network = builder.create_network(0)
        parser = tensorrt.OnnxParser(network, self._logger)
        if not parser.parse_from_file(str(self._setting.path)):
            raise PeerError(f"tensorrt refuses the model: {parser.get_error(0)}")
        network.get_input(0).shape = tuple(x.shape)
        config = builder.create_builder_config()
        if not tf32:  # it is on by default
            config.clear_flag(tensorrt.BuilderFlag.TF32)
        if flag := _FLAGS.get(self._setting.precision):
            config.set_flag(getattr(tensorrt.BuilderFlag, flag))
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise PeerError("tensorrt cannot build an engine: not compared")
        return tensorrt.Runtime(self._logger).deserialize_cuda_engine(plan)

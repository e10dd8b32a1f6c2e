"""`Features`: what layers of a model make of images, as a module that losses can be made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.errors import InputError
from vgg16gpu.pytorch.second_derivative import once
from vgg16gpu.runtime.engine import Engine

DIFFERENTIABLE = "fp32"


class Features(nn.Module):
    """Layers of a model as a torch module, differentiable in its input; the weights are frozen.

    model: as for `Engine`. layers: names as for `Engine(outputs=...)`, say "relu3_3"; one name or several.
    precision: as for `Engine`; gradients are there in "fp32". batch: sizes that engines are built for; any number of
    images is cut into these.

    `forward` takes (N, C, H, W) tensors of any float type, normalised as the model wants it, of any size that the model
    fits, and gives a float32 tensor for each layer, in their order, as a tuple; of one name the tensor itself. Tensors
    on the CPU are computed by our kernels on the CPU, those on a GPU there: an engine for each device is built when the
    first tensor of it comes. `backward` gives the gradient in the element type of the input; a second derivative is
    refused. It runs on the host's side of the engine: tensors on a GPU are copied there and back for it.

    Call `close` to free what lies on devices. Raises ModelError, InputError, DeviceError, KernelError as `Engine` does.
    """

    def __init__(
        self,
        model: ModelSource,
        layers: str | Sequence[str],
        precision: str = DIFFERENTIABLE,
        *,
        batch: int | Sequence[int] = 1,
    ) -> None:
        super().__init__()
        self.layers = (layers,) if isinstance(layers, str) else tuple(layers)
        self.precision = precision
        self._is_single = isinstance(layers, str)
        self._model = Model.of(model)
        self._model.graph(precision, self.layers)  # what is wrong with names is said now
        self._batch = batch
        self._engines: dict[str, Engine] = {}

    def extra_repr(self) -> str:
        """What torch shows of it."""
        return f"{self._model.name}, layers {', '.join(self.layers)}, {self.precision}"

    def forward(self, x: torch.Tensor) -> Any:
        """The layers' values for images (N, C, H, W)."""
        if not x.is_floating_point():
            raise InputError(f"the input is {x.dtype}; give floats, normalised as the model wants it: x.float() / 255")
        if x.requires_grad and torch.is_grad_enabled() and self.precision != DIFFERENTIABLE:
            raise InputError(
                f"the input requires a gradient, which is computed in fp32, and precision is {self.precision}; use "
                "precision='fp32', or torch.no_grad()"
            )
        found = _Run.apply(x, self._engine(x.device))
        return found[0] if self._is_single else found

    def close(self) -> None:
        """Free what lies on devices; the next call builds it anew. Safe to call twice."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _engine(self, device: torch.device) -> Engine:
        name = "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
        if name not in self._engines:
            self._engines[name] = Engine(
                self._model,
                device=name,
                outputs=self.layers,
                precision=self.precision,
                batch=self._batch,
                gradient=self.precision == DIFFERENTIABLE,
            )
        return self._engines[name]


class _Run(torch.autograd.Function):
    """A run of an engine, and its vector-Jacobian product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, engine: Engine) -> tuple[torch.Tensor, ...]:
        ctx.engine = engine
        ctx.save_for_backward(x)
        given = x.detach().float().contiguous()
        if x.device.type == "cpu":
            found = engine.run(given.numpy())
            return tuple(map(torch.from_numpy, found if isinstance(found, tuple) else (found,)))
        arrays: Any = engine.run(given)
        return tuple(map(torch.from_dlpack, arrays if isinstance(arrays, tuple) else (arrays,)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        cotangents = [gradient.detach().float().cpu().numpy() for gradient in gradients]
        found = ctx.engine.vjp(x.detach().float().cpu().contiguous().numpy(), cotangents)
        return once(torch.from_numpy(found).to(x.device, x.dtype), x), None

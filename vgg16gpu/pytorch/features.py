"""`Features`: what layers of a model make of images, as a module that losses can be made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.compiler.compile import batch_sizes
from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.graph.input_size import least_sides, require_image_size
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.pytorch import operators
from vgg16gpu.pytorch.module import KernelModule
from vgg16gpu.pytorch.scaling import TORCH, check_precision, chosen, under_autocast
from vgg16gpu.pytorch.tensors import (
    current_stream,
    is_traced,
    name_of,
    on_host,
    require_floats,
    require_recorded,
    taken,
    view,
)
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.plans import gradients
from vgg16gpu.runtime.plans.opening import check_memory_bound

DIFFERENTIABLE: Final = gradients.PRECISIONS
_STORED: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
_KEPT: Final = 256  # shapes of images
_OF_IMAGES: Final = 4  # dimensions


class Features(KernelModule):
    """Layers of a model as a torch module, differentiable in its input; the weights are frozen.

    model: as for `Engine`. layers: names as for `Engine(outputs=...)`, say "relu3_3"; one name or several.
    precision: "torch", that of torch's own convolutions at each call (see `PerceptualLoss`), or as for `Engine`;
    gradients are there in all but "int8". batch: sizes that engines are built for; any number of images is cut into
    these. memory: as for `Engine`, of each engine, gradients included.

    `forward` takes (N, C, H, W) tensors of any float type and any strides, normalised as the model wants it, of any
    size that the model fits, and gives a tensor for each layer, in their order, as a tuple; of one name the tensor
    itself. N may be 0, there and back. Tensors on the CPU are computed by our kernels on the CPU, to float32; those on
    a GPU there, to float32, float16 or bfloat16 as the precision or autocast says, channels_last: what the kernels
    store. Without autocast "torch" gives float32. Engines for each device and precision are built when needed.
    `backward` gives the gradient in the element type of the input; a second derivative is refused. It
    computes the values once more. NaN in an image becomes NaN in what reads it, as in torch's layers.

    On a GPU the work goes on the current stream, and nobody waits for it: an image for which `Engine.run` would raise
    in fp16, as its values leave the range, has NaN in its rows, and `check` raises it. One may capture it in a CUDA
    graph once it has run for the same size before, and `torch.compile` keeps it in one graph.

    Call `close` to free what lies on devices. Raises ModelError, InputError, DeviceError, KernelError as `Engine` does.
    """

    def __init__(
        self,
        model: ModelSource,
        layers: str | Sequence[str],
        precision: str = TORCH,
        *,
        batch: int | Sequence[int] = 1,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        names: Any = layers  # what are none, the model's graph refuses
        self.layers = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
        self.precision = precision
        self._is_single = isinstance(layers, str)
        self._model = Model.of(model)
        check_precision(precision, PRECISIONS)
        # What is wrong with names is said now.
        self._graph = self._model.graph("fp32" if precision == TORCH else precision, self.layers)
        item = self._graph.input
        self._file_shape = item.in_file((*item.shape[:2], None, None) if item.is_open_in_size else item.shape)
        self._channel_axis = -1 if item.channels_last else 1
        self._least = least_sides(self._graph) if len(item.shape) == _OF_IMAGES else None
        check_memory_bound(memory)
        batch_sizes(batch)
        self._batch, self._memory = batch, memory
        self._engines: dict[tuple[torch.device, str], Engine] = {}
        self._shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self._handle = operators.register(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the model and the options, and name the layers anew."""
        super().__setstate__(state)
        self._graph = self._model.graph("fp32" if self.precision == TORCH else self.precision, self.layers)

    def extra_repr(self) -> str:
        """What torch shows of it."""
        return f"{self._model.name}, layers {', '.join(self.layers)}, {self.precision}"

    def forward(self, x: torch.Tensor) -> Any:
        """The layers' values for images (N, C, H, W)."""
        needs_operator = is_traced()
        (require_recorded if needs_operator else require_floats)(x, "the input")
        self._require_shape(x)
        self.require_size(x)
        wants_gradient = x.requires_grad and torch.is_grad_enabled()
        if wants_gradient and not self._is_differentiable:
            raise InputError(
                f"the input requires a gradient, which is computed in {', '.join(DIFFERENTIABLE)}, and precision is "
                f"{self.precision}; use one of these, or torch.no_grad()"
            )
        # As an operator of torch's it costs tens of microseconds, which only compilers and gradients need.
        precision = under_autocast(self.precision, x.device.type)
        if needs_operator or wants_gradient:
            found = operators.features(x, self._handle, precision)
        else:
            found = self.values(x, precision)
        return found[0] if self._is_single else tuple(found)

    def check(self) -> None:
        """Wait for what runs on GPUs, and raise what was wrong with it since the last check: `Engine.check`."""
        for engine in self._engines.values():
            engine.check()

    def close(self) -> None:
        """Free what lies on devices; the next call builds it anew. Safe to call twice."""
        while self._engines:
            self._engines.popitem()[1].close()

    def empty(self, x: torch.Tensor, precision: str) -> list[torch.Tensor]:
        """Tensors for the values of these images: their shapes, element type and order.

        precision: here and below, as `under_autocast` has it.
        """
        shapes = self._output_shapes(tuple(x.shape))
        if x.device.type == "cpu":
            return [x.new_empty(dims, dtype=torch.float32) for dims in shapes]
        dtype = _STORED.get(precision, torch.float32)
        return [
            torch.empty(
                dims,
                dtype=dtype,
                device=x.device,
                memory_format=torch.channels_last if len(dims) == 4 else torch.contiguous_format,
            )
            for dims in shapes
        ]

    def _output_shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Of the layers' values. Kept, but where a compiler leaves a size open: it would keep a graph for each size."""
        is_open = not all(isinstance(dim, int) for dim in shape)
        if not is_open and shape in self._shapes:
            return self._shapes[shape]
        try:
            found = infer_shapes(self._graph, shape)
        except ModelError:
            self._require_fit(shape)
            raise
        shapes = [found[name] for name in self._graph.outputs]
        if not is_open:
            if len(self._shapes) >= _KEPT:
                self._shapes.clear()
            self._shapes[shape] = shapes
        return shapes

    def values(self, x: torch.Tensor, precision: str) -> list[torch.Tensor]:
        """The layers' values, without a way back."""
        engine, given = self._engine(x.device, precision), x.detach()
        if x.device.type == "cpu":
            found: Any = engine.run(on_host(given))
            return list(map(torch.from_numpy, found if isinstance(found, tuple) else (found,)))
        given = taken(given)
        out = tuple(self.empty(x, precision))
        engine.run(view(given), out=tuple(map(view, out)), stream=current_stream(x.device), wait=False)
        return list(out)

    def gradient(self, x: torch.Tensor, precision: str, cotangents: Sequence[torch.Tensor]) -> torch.Tensor:
        """The gradient to x of the values, each weighted by its cotangent."""
        engine = self._engine(x.device, precision)
        if x.device.type == "cpu":
            return torch.from_numpy(engine.vjp(on_host(x), list(map(on_host, cotangents)))).to(x.dtype)
        found = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        given, *slopes = (taken(y.detach()) for y in (x, *cotangents))
        engine.vjp(view(given), list(map(view, slopes)), out=view(found), stream=current_stream(x.device), wait=False)
        return found.to(x.dtype)

    def require_size(self, x: torch.Tensor) -> None:
        """Raise InputError for images that are smaller than the model takes them; others of a wrong shape may pass.

        A compiler that records calls keeps two comparisons; an operator that raised would be its own error there.
        """
        if self._least is None or not self._is_shaped(x):
            return
        first = 1 if self._channel_axis < 0 else 2
        if x.shape[first] < self._least[0] or x.shape[first + 1] < self._least[1]:
            self._require_fit(tuple(x.shape))

    @torch.compiler.disable  # it ends in an error nearly always, and no compiler follows the shapes of our graph
    def _require_fit(self, shape: tuple[int, ...]) -> None:
        """Raise InputError for images of a size that the model does not fit."""
        if len(shape) == _OF_IMAGES:
            require_image_size(self._graph, *map(int, shape[1:3] if self._channel_axis < 0 else shape[2:]))

    def _is_shaped(self, x: torch.Tensor) -> bool:
        """Return whether images have the model's rank and number of channels."""
        wanted = self._file_shape
        return x.dim() == len(wanted) and wanted[self._channel_axis] in (None, x.shape[self._channel_axis])

    def _require_shape(self, x: torch.Tensor) -> None:
        """Raise InputError for another rank or another number of channels than the model's."""
        if self._is_shaped(x):
            return
        wanted = self._file_shape
        letters = "NHWC" if self._graph.input.channels_last else "NCHW"
        dims = ", ".join(str(dim or letter) for dim, letter in zip(wanted, letters, strict=False))
        batch = "; one image is a batch, too: x[None]" if x.dim() == len(wanted) - 1 else ""
        raise InputError(
            f"the input is {x.dtype} {tuple(x.shape)}; give floats ({dims}), normalised as the model wants it{batch}"
        )

    @property
    def _is_differentiable(self) -> bool:
        return self.precision == TORCH or self.precision in DIFFERENTIABLE

    def _engine(self, device: torch.device, asked: str | None = None) -> Engine:
        """Return the engine of a device. asked: as `under_autocast` has it; None: what it is now."""
        precision = chosen(self.precision, asked, device)
        found = self._engines.get((device, precision))
        if found is None:
            found = self._engines[device, precision] = Engine(
                self._model,
                device=name_of(device),
                outputs=self.layers,
                precision=precision,
                batch=self._batch,
                memory=self._memory,
                gradient=self._is_differentiable,
                allow_nonfinite=True,  # as torch's layers do, and as runs on a GPU do that nobody waits for
            )
        return found

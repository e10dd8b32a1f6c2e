"""Who computes LPIPS with its gradient, and how, as calls without arguments: for `measure.lpips_step`.

A step has a fresh target: features of both pictures are computed in it. The distance is that of `LossEngine`'s "unit",
the mean over the images; pictures are float32, and so is the gradient to the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from testbench.measure.perceptual_ways import FORMATS, LOSS, Case, torch_outputs
from testbench.measure.torch_calls import Call, captured
from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.pytorch import PerceptualLoss

Calls: TypeAlias = Mapping[str, Callable[[], Call]]  # by their form; each is made when it is its turn
Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LAYERS: Final = ("relu1_2", "relu2_2", "relu3_3", "relu4_3", "relu5_3")
PRECISIONS: Final = ("bf16", "fp16", "fp32")
EAGER, GRAPH = "eager", "CUDA graph"
COMPILED, COMPILED_GRAPH = "compiled", "compiled, graph"
BOTH, BOTH_GRAPH = "both gradients", "both gradients, graph"
FORMS: Final = (EAGER, GRAPH, COMPILED, COMPILED_GRAPH, BOTH, BOTH_GRAPH)
OURS, TORCH = "vgg16gpu", "torch"
_EPSILON: Final = 1e-8  # of a pixel's squared length


@dataclass(frozen=True)
class Arithmetic:
    """How torch computes: float32 convolutions in TF32 or not, or bfloat16 where autocast has it.

    bound: how far a gradient may be from strict float32's, norm-wise, before something must be wrong: a ReLU or a pool
    chooses otherwise where two values are nearly equal.
    """

    name: str
    bound: float
    tf32: bool = False
    autocast: bool = False
    compiles: bool = True


AS_IT_COMES: Final = Arithmetic("as it comes (TF32)", 0.3, tf32=True)
AUTOCAST: Final = Arithmetic("autocast bf16", 0.6, autocast=True)
STRICT: Final = Arithmetic("strict float32", 2e-2, compiles=False)
ARITHMETICS: Final = (AS_IT_COMES, AUTOCAST, STRICT)
_BOUNDS: Final = {"bf16": 0.6, "fp16": 0.3, "fp32": 2e-2}  # of ours, as those of torch's arithmetics


@dataclass(frozen=True)
class Way:
    """One that computes: its name, its order of memory ("" if there is one alone), and what opens its calls."""

    by: str
    order: str
    bound: float
    open: Callable[[Case], AbstractContextManager[Calls]]


def case_of(model: Model, device: str, count: int, size: int) -> Case:
    """Return the case of float32 pictures, `count` of `size` pixels a side."""
    return Case(model, LAYERS, device, "fp32", LOSS, count, size)


def ours() -> list[Way]:
    """Return our ways, by precision."""
    return [Way(f"{OURS} {name}", "", _BOUNDS[name], partial(_ours, precision=name)) for name in PRECISIONS]


def torchs() -> list[Way]:
    """Return torch's ways launch by launch, in both orders of memory."""
    return [_torch_way(arithmetic, order) for arithmetic in ARITHMETICS for order in FORMATS]


def compiled(order: str) -> list[Way]:
    """Return torch's ways by torch.compile in an order of memory."""
    return [_torch_way(arithmetic, order, compiles=True) for arithmetic in ARITHMETICS if arithmetic.compiles]


def weights_of(case: Case) -> dict[str, Array]:
    """Return the weights of channels by the layers' names."""
    return dict(zip(LAYERS, _weights(case), strict=True))


def loss_in_float64(case: Case) -> Loss:
    """Return LPIPS by torch's operators in float64, with a gradient to both pictures."""
    return _lpips(case, "NCHW", torch.float64, to_both=True)


@contextmanager
def loss_of_torch(case: Case, arithmetic: Arithmetic) -> Iterator[Loss]:
    """Open LPIPS by torch's operators in an arithmetic, with a gradient to both pictures."""
    context = _arranged(case, arithmetic)
    loss = _lpips(case, "NCHW", to_both=True)

    def computed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with context():
            return loss(x, y)

    yield computed


def exact_gradient(case: Case) -> torch.Tensor:
    """Return the gradient by torch's operators in strict float32, (N, C, H, W)."""
    with _torchs(case, arithmetic=STRICT, order="NCHW", compiles=False) as calls:
        gradient: torch.Tensor = calls[EAGER]()()[1]
    return gradient


def _torch_way(arithmetic: Arithmetic, order: str, *, compiles: bool = False) -> Way:
    opened = partial(_torchs, arithmetic=arithmetic, order=order, compiles=compiles)
    return Way(f"{TORCH} {arithmetic.name}", order, arithmetic.bound, opened)


@contextmanager
def _ours(case: Case, *, precision: str) -> Iterator[Calls]:
    x, y = case.images(0).requires_grad_(), case.images(1)
    weights = weights_of(case)
    made = PerceptualLoss(case.model, weights, distance="unit", precision=precision, batch=case.count)
    with closing(made) as module:
        both = _forms(case, _step(module, x, y.clone().requires_grad_(), both=True), BOTH, BOTH_GRAPH)
        yield {**_forms(case, _step(module, x, y)), **both}
        module.check()


@contextmanager
def _torchs(case: Case, *, arithmetic: Arithmetic, order: str, compiles: bool) -> Iterator[Calls]:
    context = _arranged(case, arithmetic)
    x, y = (case.images(seed).to(memory_format=FORMATS[order]) for seed in (0, 1))
    loss = _lpips(case, order)
    try:
        step = _step(torch.compile(loss) if compiles else loss, x.requires_grad_(), y, context)
        yield _forms(case, step, *((COMPILED, COMPILED_GRAPH) if compiles else (EAGER, GRAPH)))
    finally:
        if compiles:
            torch._dynamo.reset()


def _arranged(case: Case, arithmetic: Arithmetic) -> Callable[[], Any]:
    """Set torch to compute in an arithmetic, and return the context of its calls."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = arithmetic.tf32
    torch.backends.cuda.matmul.allow_tf32 = False  # as it comes, too
    kind = torch.device(case.device).type
    return partial(torch.autocast, kind, torch.bfloat16) if arithmetic.autocast else nullcontext


def _step(
    loss: Loss, x: torch.Tensor, y: torch.Tensor, context: Callable[[], Any] = nullcontext, *, both: bool = False
) -> Call:
    """Return the step: the loss, computed within `context`, and its gradient to x, or to both."""

    def step() -> tuple[torch.Tensor, ...]:
        with context():
            value = loss(x, y)
        return value, *torch.autograd.grad(value, (x, y) if both else (x,))

    return step


def _forms(case: Case, step: Call, launched: str = EAGER, replayed: str = GRAPH) -> Calls:
    """Return the step as it is and, on a GPU, as a CUDA graph."""
    found: dict[str, Callable[[], Call]] = {launched: lambda: step}
    if case.device != "cpu":
        found[replayed] = partial(captured, step)
    return found


def _lpips(case: Case, order: str, dtype: torch.dtype = torch.float32, *, to_both: bool = False) -> Loss:
    """Return LPIPS by torch's operators, as it is written for training; to_both: with a gradient to the target."""
    net = torch_outputs(case.graph, case.device, dtype, FORMATS[order])
    weights = [torch.from_numpy(weight).to(case.device, dtype).view(1, -1, 1, 1) for weight in _weights(case)]

    def unit(features: torch.Tensor) -> torch.Tensor:
        features = features.to(dtype)
        return features / torch.sqrt(_EPSILON + features.square().sum(1, keepdim=True))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with nullcontext() if to_both else torch.no_grad():
            goals = net(y)
        triples = zip(net(x), goals, weights, strict=True)
        terms = [((unit(a) - unit(b)).square() * weight).sum(1).mean((1, 2)) for a, b, weight in triples]
        return torch.stack(terms).sum(0).mean()

    return loss


def _weights(case: Case) -> list[Array]:
    """Return a weight for each channel of each layer, none negative, as LPIPS has them."""
    shapes = infer_shapes(case.graph, (case.count, 3, case.size, case.size))
    random = np.random.default_rng(0)
    channels = (shapes[name][1] for name in case.graph.outputs)
    return [(random.random(count) / count).astype(np.float32) for count in channels]

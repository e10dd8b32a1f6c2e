"""Who computes features and perceptual losses, and how, each as a call without arguments: for `measure.perceptual`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from testbench.measure.torch_calls import Call, captured
from vgg16gpu import Engine, LossEngine
from vgg16gpu.bench.peers import torch_net
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.pytorch import Features, PerceptualLoss
from vgg16gpu.pytorch.features import DIFFERENTIABLE

Net: TypeAlias = Callable[[torch.Tensor], list[torch.Tensor]]
FEATURES, LOSS = "features", "loss"
DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMATS: Final = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Case:
    """What is computed: `count` images of `size` pixels a side, their layers' values or the loss and its gradient."""

    model: Model
    layers: tuple[str, ...]
    device: str
    precision: str
    task: str
    count: int
    size: int

    @property
    def graph(self) -> Graph:
        """The network up to the last layer."""
        return self.model.graph("fp32", self.layers)

    def images(self, seed: int) -> torch.Tensor:
        """The same numbers for everybody, (N, C, H, W)."""
        shape = (self.count, 3, self.size, self.size)
        made = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return torch.from_numpy(made).to(self.device, DTYPES[self.precision])


# ---- Ours


def ours(case: Case) -> Generator[tuple[str, Call]]:
    """Our ways; what a way holds on the device goes before the next."""
    if case.task == FEATURES:
        yield from _our_features(case)
    elif case.precision in DIFFERENTIABLE:
        yield from _our_loss(case)


def _our_features(case: Case) -> Generator[tuple[str, Call]]:
    x = case.images(0)
    module = Features(case.model, case.layers, case.precision, batch=case.count)
    with torch.no_grad():
        yield "vgg16gpu, Features", lambda: module(x)
        if case.device != "cpu":
            yield "vgg16gpu, Features, CUDA graph", captured(lambda: module(x))
    module.close()
    options: Any = {"device": case.device, "precision": case.precision, "batch": case.count, "outputs": case.layers}
    with Engine(case.model, **options, size=case.size) as engine:
        given: Any = x.float().numpy() if case.device == "cpu" else x
        yield "vgg16gpu, Engine.run", lambda: engine.run(given)


def _our_loss(case: Case) -> Generator[tuple[str, Call]]:
    x, y = case.images(0).requires_grad_(), case.images(1)
    weights = dict.fromkeys(case.layers, 1.0)
    module = PerceptualLoss(case.model, weights, precision=case.precision, batch=case.count)
    targets = module.targets(y)

    def step() -> Any:
        loss = module(x, targets)
        return loss, *torch.autograd.grad(loss, x)

    yield "vgg16gpu, PerceptualLoss", step
    if case.device != "cpu":
        yield "vgg16gpu, PerceptualLoss, CUDA graph", captured(step)
    module.close()
    with LossEngine(case.model, weights, device=case.device, precision=case.precision, batch=case.count) as engine:
        given: Any = (x.detach().float().numpy(), y.float().numpy()) if case.device == "cpu" else (x.detach(), y)
        found = engine.targets(given[1])
        yield "vgg16gpu, LossEngine", lambda: engine.value_and_gradient(given[0], found)


# ---- torch


def torchs(case: Case, *, tf32: bool = False, compiles: bool = False) -> Generator[tuple[str, Call]]:
    """Torch's ways: both orders of memory, launch by launch, as a CUDA graph, or compiled.

    tf32: products of float32 may be TF32.
    """
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    suffix = ", TF32" if tf32 else ""
    for order, memory_format in FORMATS.items():
        net = torch_outputs(case.graph, case.device, DTYPES[case.precision], memory_format)
        call = _torch_call(case, net, memory_format, compiles=compiles)
        if compiles:
            yield f"torch, compiled, {order}{suffix}", call
            continue
        yield f"torch, {order}{suffix}", call
        if case.device != "cpu":
            yield f"torch, {order}, CUDA graph{suffix}", captured(call)


def torch_outputs(
    graph: Graph, device: str | torch.device, dtype: torch.dtype, memory_format: torch.memory_format
) -> Net:
    """A graph by torch's operators, its weights on a device, in an element type and an order of memory."""

    def placed(array: Array) -> torch.Tensor:
        weight = torch_net.tensor(array).to(device, dtype)
        return weight.to(memory_format=memory_format) if weight.ndim == 4 else weight

    return torch_net.outputs(graph, placed)


def _torch_call(case: Case, net: Net, memory_format: torch.memory_format, *, compiles: bool) -> Call:
    x = case.images(0).to(memory_format=memory_format)
    if case.task == FEATURES:
        features = torch.compile(net, mode="max-autotune") if compiles else net

        def forward() -> Any:
            with torch.no_grad():
                return features(x)

        return forward
    with torch.no_grad():
        targets = [y.clone() for y in net(case.images(1).to(memory_format=memory_format))]
    x.requires_grad_()

    def total(x: torch.Tensor) -> torch.Tensor:
        terms = [torch.nn.functional.mse_loss(a.float(), b.float()) for a, b in zip(net(x), targets, strict=True)]
        return torch.stack(terms).sum()

    loss = torch.compile(total, mode="max-autotune") if compiles else total

    def step() -> Any:
        value = loss(x)
        return value, *torch.autograd.grad(value, x)

    return step


# ---- JAX


def jaxs(case: Case, *, tf32: bool = False) -> Generator[tuple[str, Call]]:
    """JAX's way, compiled by XLA, maps in NHWC."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax  # noqa: PLC0415 - where JAX is measured
    import jax.numpy as jnp  # noqa: PLC0415

    from vgg16gpu.bench.peers import jax_net  # noqa: PLC0415

    weights = jax.device_put(jax_net.parameters(case.graph, (3, case.size, case.size), case.precision))
    network = jax_net.outputs(case.graph, strict=not tf32)

    def placed(seed: int) -> Any:
        return jnp.asarray(jax_net.to_nhwc(case.images(seed).float().cpu().numpy()), jax_net.TYPES[case.precision])

    x = placed(0)
    if case.task == FEATURES:
        call = jax.jit(network)
        yield f"JAX{', TF32' if tf32 else ''}", lambda: jax.block_until_ready(call(weights, x))
        return
    targets = jax.jit(network)(weights, placed(1))

    def total(x: Any) -> Any:
        pairs = zip(network(weights, x), targets, strict=True)
        return sum(jnp.mean((a.astype(jnp.float32) - b.astype(jnp.float32)) ** 2) for a, b in pairs)

    step = jax.jit(jax.value_and_grad(total))
    yield f"JAX{', TF32' if tf32 else ''}", lambda: jax.block_until_ready(step(x))

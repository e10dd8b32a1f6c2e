"""Losses on a device: plans that compute targets, losses, and losses with their gradients, by the shape of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vgg16gpu.compiler.graph.loss import Term, loss_graph, target_graph
from vgg16gpu.compiler.graph.ops import Array, Graph, Shape
from vgg16gpu.devices.base import Device
from vgg16gpu.runtime.on_device.direct import Verdict
from vgg16gpu.runtime.on_device.views import DeviceView
from vgg16gpu.runtime.plans.gradients import gradient_options
from vgg16gpu.runtime.plans.prepared import PreparedPrograms, Wanted


class _Key(NamedTuple):
    """What a program is for: targets of some terms (their numbers), or the loss of all (None)."""

    shape: Shape
    terms: tuple[int, ...] | None
    gradient: bool


class Losses:
    """Losses of batches by a graph whose outputs are features. One thread at a time; close it.

    The weights lie on the device once for all programs.
    """

    def __init__(
        self,
        graph: Graph,
        terms: Sequence[Term],
        device: Device,
        precision: str = "fp32",
        kernels: str = "auto",
        samples: Callable[[Shape], Array] | None = None,
    ) -> None:
        """samples: as for `PreparedPrograms`. Raises ModelError for int8."""
        options = gradient_options(precision, kernels)
        self._graph, self._terms, self._precision = graph, tuple(terms), precision
        self._programs: PreparedPrograms[_Key] = PreparedPrograms(device, options, samples, self._wanted)

    def targets(self, x: Array, terms: tuple[int, ...]) -> tuple[Array, ...]:
        """What images are as targets of some terms. Raises ModelError, DeviceError and KernelError."""
        return self._programs.run(_Key(x.shape, terms, False), {self._graph.input.name: x}, len(x))

    def loss(self, x: Array, targets: Sequence[Array], *, gradient: bool) -> tuple[Array, ...]:
        """The loss of each image, (N,), and, if wanted, its gradient to x. Raises as `targets`."""
        key = _Key(x.shape, None, gradient)
        names = self._programs.at(key).wanted.others
        given = {self._graph.input.name: x, **dict(zip(names, targets, strict=True))}
        return self._programs.run(key, given, len(x))

    def targets_on_device(
        self,
        x: DeviceView,
        terms: tuple[int, ...],
        outs: Sequence[DeviceView],
        verdict: Verdict | None,
        *,
        singly: bool,
    ) -> None:
        """As `targets`, for arrays on the device; they go to `outs`. verdict, singly: as for `PlacedRuns.run`."""
        key = _Key(x.shape, terms, False)
        self._programs.run_on_device(key, {self._graph.input.name: x}, outs, verdict, singly=singly)

    def loss_on_device(
        self,
        x: DeviceView,
        targets: Sequence[DeviceView],
        outs: Sequence[DeviceView],
        verdict: Verdict | None,
        *,
        singly: bool,
    ) -> None:
        """As `loss`, for arrays on the device; outs: for the losses and, if it is wanted, their gradient."""
        key = _Key(x.shape, None, len(outs) > 1)
        names = self._programs.at(key).wanted.others
        given = {self._graph.input.name: x, **dict(zip(names, targets, strict=True))}
        self._programs.run_on_device(key, given, outs, verdict, singly=singly)

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._programs.close()

    def _wanted(self, key: _Key) -> Wanted:
        inputs = {self._graph.input.name: key.shape}
        if key.terms is not None:
            graph, targets = target_graph(self._graph, [self._terms[i] for i in key.terms], key.shape), {}
        else:
            found = loss_graph(self._graph, self._terms, key.shape, gradient=key.gradient, precision=self._precision)
            graph, targets = found.graph, dict(found.targets)
        return Wanted(graph, {**inputs, **targets}, f"the loss of a batch of shape {key.shape}")

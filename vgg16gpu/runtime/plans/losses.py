"""Losses on a device: plans that compute targets, losses, and losses with their gradients, by the shape of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vgg16gpu.compiler.graph.loss import Term, loss_graph, target_graph
from vgg16gpu.compiler.graph.ops import Array, Graph, Shape
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.direct import Verdict
from vgg16gpu.runtime.on_device.placed import PlacedRuns
from vgg16gpu.runtime.on_device.views import DeviceView
from vgg16gpu.runtime.plans.gradients import gradient_options
from vgg16gpu.runtime.plans.kept import KeptPlans


class _Prepared(NamedTuple):
    """A program on the device."""

    executor: Executor
    placed: PlacedRuns
    targets: tuple[str, ...] = ()  # further inputs, in the order of the terms
    is_busy: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without weights."""
        return self.executor.plan.activations_nbytes

    def close(self) -> None:
        """Give back what it has on the device."""
        self.executor.close()


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
        self, graph: Graph, terms: Sequence[Term], device: Device, precision: str = "fp32", kernels: str = "auto"
    ) -> None:
        """Raises ModelError for int8."""
        self._options = gradient_options(precision, kernels)
        self._graph, self._terms, self._device = graph, tuple(terms), device
        self._kept: KeptPlans[_Key, _Prepared] = KeptPlans(device)

    def targets(self, x: Array, terms: tuple[int, ...]) -> tuple[Array, ...]:
        """What images are as targets of some terms. Raises ModelError, DeviceError and KernelError."""
        return self._at(_Key(x.shape, terms, False)).executor.run_once({self._graph.input.name: x})

    def loss(self, x: Array, targets: Sequence[Array], *, gradient: bool) -> tuple[Array, ...]:
        """The loss of each image, (N,), and, if wanted, its gradient to x. Raises as `targets`."""
        prepared = self._at(_Key(x.shape, None, gradient))
        given = dict(zip(prepared.targets, targets, strict=True))
        return prepared.executor.run_once({self._graph.input.name: x, **given})

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
        prepared = self._at(_Key(x.shape, terms, False))
        prepared.placed.run({self._graph.input.name: x}, outs, verdict, singly=singly)

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
        prepared = self._at(_Key(x.shape, None, len(outs) > 1))
        given = dict(zip(prepared.targets, targets, strict=True))
        prepared.placed.run({self._graph.input.name: x, **given}, outs, verdict, singly=singly)

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._kept.close()

    def _at(self, key: _Key) -> _Prepared:
        if kept := self._kept.find(key):
            return kept
        inputs = {self._graph.input.name: key.shape}
        if key.terms is not None:
            graph, targets = target_graph(self._graph, [self._terms[i] for i in key.terms], key.shape), {}
        else:
            precision = self._options.precision
            found = loss_graph(self._graph, self._terms, key.shape, gradient=key.gradient, precision=precision)
            graph, targets = found.graph, dict(found.targets)
        plan = make_plan(graph, self._device.facts, {**inputs, **targets}, self._options)
        executor = self._kept.load(plan, f"the loss of a batch of shape {key.shape}")
        return self._kept.keep(key, _Prepared(executor, PlacedRuns(executor), tuple(targets)))

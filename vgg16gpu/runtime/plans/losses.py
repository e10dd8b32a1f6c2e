"""Losses between features, as programs with their gradients: what is compared, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.loss import Kind, Term, loss_graph, pair_graph, target_graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.op_kernels.general.feature_loss import target_elements
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.numbers import finite_numbers
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import DType
from vgg16gpu.runtime.on_device.graph_cache import BoundCall, can_be_read
from vgg16gpu.runtime.on_device.runner import ErrorSink
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.outputs import check_flags
from vgg16gpu.runtime.plans.gradients import gradient_options
from vgg16gpu.runtime.plans.plan_cache import PlanCache
from vgg16gpu.runtime.plans.prepared import ProgramCache, ProgramSpec

Weight: TypeAlias = float | npt.ArrayLike
Distance: TypeAlias = Literal["squared", "absolute", "unit"]
DISTANCES: Final = ("squared", "absolute", "unit")


@dataclass(frozen=True, eq=False)
class FeatureComparison:
    """What is compared: the layers' names, the graph whose outputs they are, and the terms, style last."""

    names: tuple[str, ...]
    graph: Graph
    content: tuple[Term, ...]
    style: tuple[Term, ...]

    @classmethod
    def of(
        cls, model: Model, layers: Mapping[str, Weight] | None, style: Mapping[str, float] | None, distance: Distance
    ) -> Self:
        """The arguments mean what they mean for `LossEngine`. Raises InputError and ModelError."""
        if distance not in DISTANCES:
            raise InputError(f"distance {shown(distance)} is not known; accepted: {', '.join(DISTANCES)}")
        compared, styled = _weights("layers", layers), _weights("style", style)
        names = tuple(dict.fromkeys((*compared, *styled)))
        if not names:
            raise InputError("there is nothing to compare; give layers or style, a weight by the name of each layer")
        made = cls(
            names,
            model.graph("fp32", names),
            tuple(_term(names.index(name), distance, weight, name) for name, weight in compared.items()),
            tuple(_term(names.index(name), "gram", weight, name) for name, weight in styled.items()),
        )
        batch = made.graph.input.shape[0] or 1
        loss_graph(made.graph, made.terms, resolve_input_shape(made.graph, batch), gradient=True)
        return made

    @property
    def terms(self) -> tuple[Term, ...]:
        """All of them, in the order of their targets."""
        return (*self.content, *self.style)

    def check_targets(self, given: Sequence[tuple[str, Shape]], shapes: Sequence[Shape], of: Shape) -> None:
        """Raise InputError for other targets than images of shape `of` have. given: types and shapes."""
        if len(given) != len(self.terms):
            raise InputError(f"{len(given)} targets are given, and {len(self.terms)} are compared; use targets(...)")
        for (element_type, found), wanted, term in zip(given, shapes, self.terms, strict=True):
            if "float" not in element_type or found not in (wanted, (1, *wanted[1:])):
                raise InputError(
                    f"the target of '{self.names[term.output]}' is {element_type} {found}; for images of shape {of} "
                    f"it is float32 {wanted}, or one for all; use targets(...)"
                )


def _weights(what: str, given: Any) -> dict[str, Any]:
    """Layers with their weights. Raises InputError for a list of names, say."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return dict(given)
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple | set) else []
    example = {name: 1.0 for name in names[:2] if isinstance(name, str)} or {"relu3_3": 1.0}
    raise InputError(f"{what} is {shown(given)}; give a weight by the name of each layer, as {example}")


def _term(output: int, kind: Kind, weight: Any, name: str) -> Term:
    """Raises InputError for a weight that is none."""
    given = finite_numbers(weight)
    if given is not None:
        with np.errstate(over="ignore"):  # looked for below
            found = given.astype(np.float32)
        if np.isfinite(found).all() and found.ndim == 0:
            return Term(output, kind, float(found))
        if np.isfinite(found).all() and found.ndim == 1 and kind == "unit":
            return Term(output, kind, 1.0, found)
    wanted = "a finite number, or one for each channel" if kind == "unit" else "a finite number"
    raise InputError(f"the weight of '{name}' is {shown(weight)}; give {wanted}")


_KEPT: Final = 256  # shapes of images


class _Key(NamedTuple):
    """What a program computes: targets of some terms, or a loss of all, against targets or against other images.

    gradients: of how many, x first. given: what targets are made of that are read where a caller has them; None where
    they are taken in. share: how many images divide the loss of each.
    """

    kind: Literal["targets", "loss", "pair"]
    shape: Shape
    terms: tuple[int, ...] = ()
    gradients: int = 0
    given: tuple[DType, ...] | None = None
    share: int = 1


Enqueued: TypeAlias = tuple[tuple[_Key, BoundCall], ...]  # of each batch the program, and its launches


class Losses:
    """Losses of batches by a graph whose outputs are features. One thread at a time; close it.

    The weights lie on the device once for all programs. memory: bytes of programs and weights, as for `PlanCache`. A
    batch for whose program there is no room is cut into halves, and these.
    """

    def __init__(
        self,
        graph: Graph,
        terms: Sequence[Term],
        device: Device,
        precision: str,
        kernels: str,
        samples: Callable[[Shape], Array] | None,
        memory: int | None = None,
    ) -> None:
        """samples: as for `ProgramCache`. Raises ModelError for int8."""
        options = gradient_options(precision, kernels)
        self._graph, self._terms, self._precision = graph, tuple(terms), precision
        self._programs: ProgramCache[_Key] = ProgramCache(
            device, options, samples, self._wanted, PlanCache(device, memory)
        )
        self._is_whole = graph.input.shape[0] is not None  # a batch has the size that the file says
        self._readable = tuple(
            (DType.F32,) if term.kind == "gram" else target_elements(precision) for term in self._terms
        )
        self._stored: dict[Shape, tuple[DType, ...]] = {}  # what the targets of a term are best made of

    def targets(self, x: Array, terms: tuple[int, ...]) -> tuple[Array, ...]:
        """What images are as targets of some terms. Raises ModelError, DeviceError and KernelError."""
        found = self._on_host(_Key("targets", x.shape, terms), (x,))
        return tuple(_channels_last(array) if array.ndim == 4 else array for array in found)

    def loss(self, x: Array, targets: Sequence[Array], *, gradient: bool, share: int = 1) -> tuple[Array, ...]:
        """The loss of each image, (N,), over `share`, and, if wanted, its gradient to x. Raises as `targets`."""
        return self._on_host(_Key("loss", x.shape, gradients=int(gradient), share=share), (x, *targets))

    def compare(self, x: Array, y: Array, gradients: int, *, share: int = 1) -> tuple[Array, ...]:
        """The loss of images against others, (N,), over `share`, and the gradients to so many of both; as `loss`."""
        return self._on_host(_Key("pair", x.shape, gradients=gradients, share=share), (x, y))

    def targets_on_device(
        self,
        x: StridedView,
        terms: tuple[int, ...],
        outs: Sequence[StridedView],
        verdict: ErrorSink | None,
        *,
        singly: bool,
    ) -> Enqueued:
        """As `targets`, for arrays on the device; they go to `outs`. verdict, singly: as for `DeviceRunner.enqueue`."""
        return self._on_device(_Key("targets", x.shape, terms), (x,), outs, verdict, singly)

    def loss_on_device(
        self,
        x: StridedView,
        targets: Sequence[StridedView],
        outs: Sequence[StridedView],
        verdict: ErrorSink | None,
        *,
        singly: bool,
        share: int = 1,
    ) -> Enqueued:
        """As `loss`, for arrays on the device; outs: for the losses and, if it is wanted, their gradient.

        Targets are read where they lie, if the kernels can read all of them there; else they are taken in first.
        """
        key = _Key("loss", x.shape, gradients=len(outs) - 1, share=share)
        return self._on_device(key, (x, *targets), outs, verdict, singly)

    def compare_on_device(
        self,
        x: StridedView,
        y: StridedView,
        outs: Sequence[StridedView],
        verdict: ErrorSink | None,
        *,
        singly: bool,
        share: int = 1,
    ) -> Enqueued:
        """As `compare`, for arrays on the device; outs: for the losses and the gradients that are wanted."""
        key = _Key("pair", x.shape, gradients=len(outs) - 1, share=share)
        return self._on_device(key, (x, y), outs, verdict, singly)

    def stored(self, shape: Shape) -> tuple[DType, ...]:
        """What targets of images of this shape are best made of: a map of what the loss stores its features as.

        Fewer bytes then hold what the features themselves can be told apart by. Raises ModelError.
        """
        if self._precision == "fp32":
            return (DType.F32,) * len(self._terms)
        if shape not in self._stored:
            if len(self._stored) >= _KEPT:
                self._stored.clear()
            _, plan = self._programs.planned(_Key("loss", shape, gradients=1))
            elements = {value.name: value.element for value in plan.programs[0].values}
            features = [self._graph.outputs[term.output] for term in self._terms]
            self._stored[shape] = tuple(
                elements[name] if elements.get(name) in readable else DType.F32
                for name, readable in zip(features, self._readable, strict=True)
            )
        return self._stored[shape]

    def repeat(self, enqueued: Enqueued) -> bool:
        """Enqueue once more what either has enqueued on the device; False where some of it is no longer kept."""
        if not all(call.is_whole for _, call in enqueued):
            return False
        for key, call in enqueued:
            if kept := self._programs.find(key):
                kept.runner.touch(call)
            call.launches[0]()
        return True

    @property
    def nbytes(self) -> int:
        """Bytes on the device, with weights."""
        return self._programs.nbytes

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._programs.close()

    def _on_host(self, key: _Key, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Run a program, or that of fewer images several times, on arrays on the host, the images first."""
        if pieces := self._pieces(key):
            cut = [[array[rows] for array in inputs] for rows in pieces]
            parts = [self._on_host(key._replace(shape=part[0].shape), part) for part in cut]
            return tuple(map(np.concatenate, zip(*parts, strict=True)))
        prepared = self._programs.at(key)
        return prepared.executor.run_once(dict(zip(prepared.wanted.shapes, inputs, strict=True)))

    def _on_device(
        self,
        key: _Key,
        inputs: Sequence[StridedView],
        outs: Sequence[StridedView],
        verdict: ErrorSink | None,
        singly: bool,
    ) -> Enqueued:
        """Enqueue the same for arrays on the device, whose results go to `outs`."""
        if key.kind == "loss":
            key = key._replace(given=self._readable_elements(inputs[1:]))
        if pieces := self._pieces(key):
            done: Enqueued = ()
            for rows in pieces:
                part, into = ([view.rows(rows.start, rows.stop) for view in views] for views in (inputs, outs))
                here = verdict and verdict._replace(first=verdict.first + rows.start)
                done += self._on_device(key._replace(shape=part[0].shape), part, into, here, singly)
            return done
        prepared = self._programs.at(key)
        if key.kind == "targets":
            values = prepared.executor.plan.programs[0].outputs
            outs = [_as_map(out, value.shape) for out, value in zip(outs, values, strict=True)]
        if verdict:
            return ((key, prepared.runner.enqueue(key.shape[0], inputs, outs, verdict, singly=singly)),)
        check_flags([prepared.runner.run(key.shape[0], inputs, outs)], allows_nonfinite=True)
        return ()

    def _readable_elements(self, targets: Sequence[StridedView]) -> tuple[DType, ...] | None:
        """Return what targets are made of, if the kernels can read all of them where they lie; else None."""
        can_be = all(
            target.element in readable and can_be_read(target)
            for target, readable in zip(targets, self._readable, strict=True)
        )
        return tuple(target.element for target in targets) if can_be else None

    def _pieces(self, key: _Key) -> list[slice]:
        """What the batch of a program is cut into, as there is no room for it; nothing where there is."""
        count, *sample = key.shape
        if self._is_whole:
            return []
        rows = self._programs.fitting(count, lambda rows: key._replace(shape=(rows, *sample)))
        return [slice(first, first + rows) for first in range(0, count, rows)] if rows < count else []

    def _wanted(self, key: _Key) -> ProgramSpec:
        inputs, what = {self._graph.input.name: key.shape}, f"the loss of a batch of shape {key.shape}"
        if key.kind == "targets":
            graph = target_graph(self._graph, [self._terms[i] for i in key.terms], key.shape)
            return ProgramSpec(graph, inputs, what)
        terms = [replace(term, weight=term.weight / key.share) for term in self._terms]
        if key.kind == "pair":
            made = pair_graph(self._graph, terms, key.shape, gradients=key.gradients, precision=self._precision)
            return ProgramSpec(made, {**inputs, made.others[0].name: key.shape}, what)
        found = loss_graph(self._graph, terms, key.shape, gradient=key.gradients > 0, precision=self._precision)
        given = dict(zip(found.targets, key.given, strict=True)) if key.given else {}
        return ProgramSpec(found.graph, {**inputs, **found.targets}, what, given=given)


def _as_map(target: StridedView, shape: Shape) -> StridedView:
    """Where a target lies, (N, H*W, C), as the map of this shape that it holds; a Gram matrix as it is."""
    if len(shape) != 4:
        return target
    rows, pixels, channels = target.strides
    strides = (rows, channels, shape[3] * pixels, pixels)
    return replace(target, shape=(target.shape[0], *shape[1:]), strides=strides)


def _channels_last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)).reshape(array.shape[0], -1, array.shape[1])

"""Losses between features, as programs with their gradients: what is compared, and the program of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.loss import Kind, Term, loss_graph, pair_graph, target_graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.numbers import finite_numbers
from vgg16gpu.io.shown import shown
from vgg16gpu.program.types import DType
from vgg16gpu.runtime.on_device.graph_cache import BoundCall
from vgg16gpu.runtime.plans.gradients import gradient_options
from vgg16gpu.runtime.plans.plan_cache import PlanCache
from vgg16gpu.runtime.plans.program_cache import ProgramCache, ProgramSpec

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


LossKind: TypeAlias = Literal["targets", "loss", "pair"]


class LossKey(NamedTuple):
    """What a program computes: targets of some terms, or a loss of all, against targets or against other images.

    gradients: of how many, x first. given: what targets are made of that are read where a caller has them; None where
    they are taken in. share: how many images divide the loss of each.
    """

    kind: LossKind
    shape: Shape
    terms: tuple[int, ...] = ()
    gradients: int = 0
    given: tuple[DType, ...] | None = None
    share: int = 1


Enqueued: TypeAlias = tuple[tuple[LossKey, BoundCall], ...]  # of each batch the program, and its launches


def loss_programs(
    compared: FeatureComparison,
    device: Device,
    precision: str,
    kernels: str,
    samples: Callable[[Shape], Array] | None,
    memory: int | None = None,
) -> ProgramCache[LossKey]:
    """Return the programs of a loss, whose weights are on the device once for all of them.

    samples: as for `ProgramCache`. memory: bytes of programs and weights, as for `PlanCache`. Raises ModelError for
    int8.
    """
    options = gradient_options(precision, kernels)
    return ProgramCache(device, options, samples, partial(_spec, compared, precision), PlanCache(device, memory))


def _spec(compared: FeatureComparison, precision: str, key: LossKey) -> ProgramSpec:
    """Return what the program of a key is."""
    features, what = compared.graph, f"the loss of a batch of shape {key.shape}"
    inputs = {features.input.name: key.shape}
    if key.kind == "targets":
        return ProgramSpec(target_graph(features, [compared.terms[i] for i in key.terms], key.shape), inputs, what)
    terms = [replace(term, weight=term.weight / key.share) for term in compared.terms]
    if key.kind == "pair":
        made = pair_graph(features, terms, key.shape, gradients=key.gradients, precision=precision)
        return ProgramSpec(made, {**inputs, made.others[0].name: key.shape}, what)
    found = loss_graph(features, terms, key.shape, gradient=key.gradients > 0, precision=precision)
    given = dict(zip(found.targets, key.given, strict=True)) if key.given else {}
    return ProgramSpec(found.graph, {**inputs, **found.targets}, what, given=given)

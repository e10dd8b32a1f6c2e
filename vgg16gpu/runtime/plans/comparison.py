"""What a loss compares: layers, by which distance, with which weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.loss import Kind, Term, loss_graph
from vgg16gpu.compiler.graph.ops import Graph, Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.io.numbers import finite_numbers
from vgg16gpu.io.shown import shown

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

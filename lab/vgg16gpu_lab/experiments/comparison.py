"""Variants side by side on problems of one's own: what `lab run NAME` runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from vgg16gpu_lab.experiment import Case, CaseExperiment, Choice
from vgg16gpu_lab.measure.baseline import CUDNN
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Variant

NAME = "comparison"
SIZES, QUICK = (512,), (64,)


@dataclass(frozen=True)
class Shape:
    """What else there is to a problem."""

    batch: int = 1
    kernel: int = 3
    padding: int | None = None  # None: the output is as large as the image, at stride 1 and with an odd kernel


def comparison(compared: Sequence[Variant], shape: Shape) -> CaseExperiment:
    """Return an experiment of these variants, with their conversions, and cuDNN."""
    return CaseExperiment(
        NAME,
        "Variants side by side",
        " ".join(variant.teaches for variant in compared) if len(compared) == 1 else "One problem, several ways.",
        lambda choice: tuple(_cases(compared, shape, choice)),
    )


def _cases(compared: Sequence[Variant], shape: Shape, choice: Choice) -> Iterator[Case]:
    padding = shape.kernel // 2 if shape.padding is None else shape.padding
    sizes = choice.sizes_or(SIZES, QUICK)
    values = product(sizes, choice.strides or (1,), choice.channels or (3,), choice.outputs or (16,))
    for size, stride, channels, outputs in values:
        problem = Problem(shape.batch, channels, size, size, outputs, shape.kernel, stride, padding)
        text = f"{channels}->{outputs} kernel={shape.kernel} stride={stride} padding={padding} batch={shape.batch}"
        for variant in compared:
            for parameters in _parameters(variant, choice):
                method = " ".join([variant.name, *(f"{name}={value}" for name, value in parameters.items())])
                yield Case("problems", str(size), method, text, problem, variant.name, parameters, "total")
        yield Case("problems", str(size), CUDNN, text, problem, CUDNN)


def _parameters(variant: Variant, choice: Choice) -> list[dict[str, int]]:
    return [{"block": block} for block in choice.blocks] if "block" in variant.parameters and choice.blocks else [{}]

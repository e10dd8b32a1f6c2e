"""Measure how far LPIPS and its gradients are from float64: ours in each precision, torch in each of its arithmetics.

    python -m testbench.measure.lpips_digits MODEL.onnx [--device cuda] [--pairs 20] [--size 128] [--output FILE]

Pairs of pictures: uniform noise, and that plus a fifth of another. The layers, weights and the distance are those of
`lpips_step`; float64 is torch's own. A value's distance is relative, a gradient's norm-wise, to either picture. What is
shown is the median over the pairs and the largest. cuDNN tries its algorithms. Exit code 1 where ours in fp32 is
further off than the bounds below, or in fp16 more than `TF32_RATIO` times as far as torch's TF32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from testbench.measure import lpips_ways
from testbench.measure.perceptual_ways import Case
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.pytorch import PerceptualLoss

TF32_RATIO: Final = 1.1
VALUE, GRADIENT, LARGEST_GRADIENT = 1e-6, 1e-5, 2e-2  # of fp32; ReLUs and pools of single pairs flip
STRICT, TF32 = "torch strict float32", "torch as it comes (TF32)"
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print a line for each way; 1 if ours is further off than it may be."""
    parser = argparse.ArgumentParser(prog="python -m testbench.measure.lpips_digits", description="Digits of LPIPS.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--size", type=int, default=128, help="pixels a side")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    case = lpips_ways.case_of(Model(options.model), options.device, 1, options.size)
    exact = lpips_ways.loss_in_float64(case)
    pairs = [_pair(seed, options.size, options.device) for seed in range(options.pairs)]
    right = [_found(exact, x.double(), y.double()) for x, y in pairs]
    ways = {}
    for name, opened in _ways(case):
        with opened as loss:
            found = [_found(loss, x, y) for x, y in pairs]
        ways[name] = _distances(found, right)
        print(
            f"{name:28} value {ways[name]['value']:.1e}, gradient {ways[name]['gradient']:.1e}, "
            f"at most {ways[name]['largest_gradient']:.1e}"
        )
    faults = _faults(ways) if options.device == "cuda" else []  # elsewhere all of ours are float32
    content: Record = {"what": __doc__, "model": options.model.name, "pairs": options.pairs, "size": options.size}
    with closing(open_device(options.device).device) as device:
        content |= {"digits": ways, "faults": faults, "environment": environment(device)}
    if options.output:
        write(options.output, content)
    print(*faults, sep="\n")
    return int(bool(faults))


def _pair(seed: int, size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    y, other = (torch.rand(1, 3, size, size, generator=random) for _ in range(2))
    return (y + 0.2 * other).to(device), y.to(device)


def _ways(case: Case) -> Iterator[tuple[str, Any]]:
    """Yield the name of each way, and what opens its loss."""
    weights = lpips_ways.weights_of(case)
    for precision in lpips_ways.PRECISIONS:
        make = partial(PerceptualLoss, case.model, weights, distance="unit", precision=precision, batch=1)
        yield f"{lpips_ways.OURS} {precision}", closing(make())
    for arithmetic in lpips_ways.ARITHMETICS:
        yield f"torch {arithmetic.name}", lpips_ways.loss_of_torch(case, arithmetic)


def _found(loss: Loss, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Return the loss and its gradients to both, as float64."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    value = loss(x, y)
    return [value.detach().double(), *(each.double() for each in torch.autograd.grad(value, (x, y)))]


def _distances(found: Sequence[Any], right: Sequence[Any]) -> Record:
    """Return the medians over pairs, and the largest of a gradient."""
    values = [float(abs(ours[0] - other[0]) / abs(other[0])) for ours, other in zip(found, right, strict=True)]
    gradients = [
        float(torch.linalg.vector_norm(ours[k] - other[k]) / torch.linalg.vector_norm(other[k]))
        for ours, other in zip(found, right, strict=True)
        for k in (1, 2)
    ]
    return {"value": median(values), "gradient": median(gradients), "largest_gradient": max(gradients)}


def _faults(ways: dict[str, Record]) -> list[str]:
    """Name what is further off than it may be."""
    bounds = {f"{lpips_ways.OURS} fp32": {"value": VALUE, "gradient": GRADIENT, "largest_gradient": LARGEST_GRADIENT}}
    tf32 = {key: TF32_RATIO * ways[TF32][key] for key in ("value", "gradient")}
    bounds[f"{lpips_ways.OURS} fp16"] = tf32
    return [
        f"{name}: {key} {ways[name][key]:.2e} off, and {most:.2e} may be"
        for name, each in bounds.items()
        for key, most in each.items()
        if not ways[name][key] <= most
    ]


if __name__ == "__main__":
    sys.exit(main())

"""How far the gradient of a whole network is from float64's, beside torch's in the same precision.

    python -m testbench.measure.gradient_errors MODEL.onnx [--images 20] [--device cuda] [--output FILE]

For each image the gradient of the score of its best class to the image, by `Engine.vjp` and by torch's operators; the
distance is the norm of the difference from torch's in float64, by the norm of that. ReLUs and pools choose by what was
computed before them, so every arithmetic is far from float64 in some images: medians are compared. Exit code 1 where
the median of ours is larger than torch's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from testbench.measure.perceptual_ways import DTYPES, torch_outputs
from vgg16gpu import Engine
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.io.normalize import default_mean, default_std
from vgg16gpu.io.synthetic import typical_inputs

_SEED: Final = 18

Gradient = Callable[[Array, int], Array]  # of the score of a class, to (1, C, H, W)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, write, print medians; 1 if one of ours is larger than torch's."""
    options = _options(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = Model(options.model)
    graph = model.graph()
    sample = tuple(int(side or 0) for side in (graph.input.shape or ())[1:])
    x = typical_inputs(options.images, sample, default_mean(sample[0]), default_std(sample[0]), _SEED)
    scores, exact = _torchs(model, torch.float64, options.device)
    classes = [int(scores(image[None]).argmax()) for image in x]
    right = [exact(image[None], best) for image, best in zip(x, classes, strict=True)]
    found: dict[str, dict[str, Any]] = {}
    for precision, dtype in DTYPES.items():
        with Engine(model, device=options.device, precision=precision, gradient=True) as engine:
            ours = _errors(_ours(engine), x, classes, right)
        torchs = _errors(_torchs(model, dtype, options.device)[1], x, classes, right)
        found[precision] = {"vgg16gpu": ours, "torch": torchs}
    with closing(open_device(options.device).device) as device:
        told = environment(device)
    if options.output:
        write(options.output, {"what": __doc__, "environment": told, "images": len(x), "distances": found})
    for precision, ways in found.items():
        print(precision + ": " + ", ".join(f"{name} {np.median(errors):.3g}" for name, errors in ways.items()))
    return int(any(np.median(ways["vgg16gpu"]) > np.median(ways["torch"]) for ways in found.values()))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbench.measure.gradient_errors", description="Gradients.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu")
    parser.add_argument("--output", type=Path, help="write all distances as JSON")
    return parser.parse_args(arguments)


def _ours(engine: Engine) -> Gradient:
    def gradient(x: Array, best: int) -> Array:
        cotangent = np.zeros(engine.program.outputs[0].shape, np.float32)
        cotangent[0, best] = 1
        return np.asarray(engine.vjp(x, cotangent))

    return gradient


def _torchs(model: Model, dtype: torch.dtype, device: str) -> tuple[Callable[[Array], Array], Gradient]:
    """The scores, and the gradient of one of them."""
    net = torch_outputs(model.graph(), device, dtype, torch.contiguous_format)

    def scores(x: Array) -> Array:
        with torch.no_grad():
            (y,) = net(torch.from_numpy(x).to(device, dtype))
        return np.asarray(y.double().cpu().numpy())

    def gradient(x: Array, best: int) -> Array:
        given = torch.from_numpy(x).to(device, dtype).requires_grad_()
        (y,) = net(given)
        (found,) = torch.autograd.grad(y[0, best], given)
        return np.asarray(found.double().cpu().numpy())

    return scores, gradient


def _errors(gradient: Gradient, x: Array, classes: Sequence[int], right: Sequence[Array]) -> list[float]:
    """Norm-wise, of each image."""
    found = [gradient(image[None], best).astype(np.float64) for image, best in zip(x, classes, strict=True)]
    return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, right, strict=True)]


if __name__ == "__main__":
    sys.exit(main())

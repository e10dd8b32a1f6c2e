"""Every layer's error against float64, beside cuDNN's in strict float32 on the same data; exit 1 if ours is larger.

    python -m testbench.measure.layer_errors MODEL.onnx [--precision fp32] [--batch N] [--images N] [--output FILE]

Needs a GPU and torch.

Our engine runs pictures, a batch at a time, and keeps every value. Each convolution and fully connected layer is then
judged alone: from the input that it had, torch computes the layer in float64, and cuDNN (cuBLAS) in float32 without
TF32. Errors are norm-wise, ||y - r|| / ||r||: of the whole layer, and of every output channel over all images and
pixels. Channels that ReLU leaves fewer than 32 values are not judged alone: the error of a few small values is chance.
The bias is <y - r, r> / <r, r>: that much of all values at once, which later layers do not average out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from testbench.measure.torch_layers import apply
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.graph.ops import Conv, Gemm
from vgg16gpu.io.normalize import default_mean, default_std
from vgg16gpu.io.synthetic import TESTBENCH_SEED, typical_inputs
from vgg16gpu.runtime.engine import Engine

Tensor: TypeAlias = Any
MIN_VALUES = 32  # of a channel that is judged alone
SLACK = 1.02  # two float32 sums of the same length differ by that much in their error, from data to data


@dataclass(frozen=True)
class LayerErrors:
    """One layer: ours, and the library's in strict float32."""

    name: str
    reduction: int  # products in a sum
    layer: float
    library_layer: float
    bias: float  # the part of the layer's own values that ours has too much
    worst_channel: float
    library_worst_channel: float
    channels_above: int  # output channels whose error is larger than the library's largest
    channels_worse: int  # output channels whose error is larger than the library's of the same channel
    channels: int  # that are judged

    @property
    def passed(self) -> bool:
        """Ours is no worse, as a whole and in its worst channel."""
        return self.layer <= SLACK * self.library_layer and self.worst_channel <= SLACK * self.library_worst_channel


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each layer; 1 if one is worse than the library's."""
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.layer_errors", description="Layer errors against float64."
    )
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--output", help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with Engine(
        options.model,
        device="cuda",
        precision=options.precision,
        kernels=options.kernels,
        batch=options.batch,
        keep_values=True,
    ) as engine:
        rows = measure(engine, options.images)
        where = environment(engine.device)
    for row in rows:
        mark = "" if row.passed else "  WORSE"
        print(
            f"{row.name[:34]:34} K {row.reduction:5}  layer {row.layer:.2e} ({row.library_layer:.2e}), "
            f"bias {row.bias:+.1e}  "
            f"worst channel {row.worst_channel:.2e} ({row.library_worst_channel:.2e}), "
            f"{row.channels_above} of {row.channels} above, {row.channels_worse} worse than in cuDNN{mark}"
        )
    failed = options.precision == "fp32" and not all(row.passed for row in rows)
    if options.output:
        record = {
            "what": "norm-wise error of every layer against float64, beside torch's strict float32 on the same input",
            "model": options.model,
            "precision": options.precision,
            "kernels": options.kernels,
            "batch": options.batch,
            "images": options.images,
            "environment": where,
            "passed": not failed,
            "layers": [{**asdict(row), "passed": row.passed} for row in rows],
        }
        write(Path(options.output), record)
    return int(failed)


@dataclass
class Squares:
    """Sums of squares over what was seen of a layer, by output channel."""

    exact: Tensor = 0.0
    ours: Tensor = 0.0  # of the differences
    library: Tensor = 0.0
    along: float = 0.0  # ours times exact
    values: Tensor = 0  # that are not zero

    def add(self, exact: Tensor, ours: Tensor, library: Tensor) -> None:
        """Count a batch."""
        across = (0, *range(2, exact.dim()))
        self.exact += (exact**2).sum(dim=across)
        self.ours += ((ours - exact) ** 2).sum(dim=across)
        self.library += ((library - exact) ** 2).sum(dim=across)
        self.along += float(((ours - exact) * exact).sum())
        self.values += (exact != 0).sum(dim=across)

    def errors(self, op: Conv | Gemm) -> LayerErrors:
        """What they come to."""
        judged = self.values >= MIN_VALUES
        mine, theirs = ((part[judged] / self.exact[judged]).sqrt() for part in (self.ours, self.library))
        size = self.exact.sum()
        return LayerErrors(
            name=op.names[0],
            reduction=int(op.weight[0].size),
            layer=float((self.ours.sum() / size).sqrt()),
            library_layer=float((self.library.sum() / size).sqrt()),
            bias=self.along / float(size),
            worst_channel=float(mine.max()),
            library_worst_channel=float(theirs.max()),
            channels_above=int((mine > SLACK * theirs.max()).sum()),
            channels_worse=int((mine > SLACK * theirs).sum()),
            channels=len(mine),
        )


def measure(engine: Engine, images: int) -> list[LayerErrors]:
    """The errors of every convolution and fully connected layer, from runs on pictures."""
    batch, *shape = engine.program.input.shape
    x = typical_inputs(images, tuple(shape), default_mean(shape[0]), default_std(shape[0]), TESTBENCH_SEED)
    layers = [op for op in engine.graph.ops if isinstance(op, Conv | Gemm)]
    squares = [Squares() for _ in layers]
    for first in range(0, images, batch):
        part = np.resize(x[first : first + batch], (batch, *shape))
        engine.run(part)
        values = {names[-1]: array for names, array in engine.read_values()} | {engine.graph.input.name: part}
        for op, seen in zip(layers, squares, strict=True):
            inputs = torch.from_numpy(values[op.x]).cuda()
            exact = apply(op, inputs.double(), torch.float64)
            ours = torch.from_numpy(values[op.y]).cuda().double().reshape(exact.shape)
            seen.add(exact, ours, apply(op, inputs, torch.float32).double())
    return [seen.errors(op) for op, seen in zip(layers, squares, strict=True)]


if __name__ == "__main__":
    sys.exit(main())

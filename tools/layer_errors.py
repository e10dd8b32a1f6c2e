"""Every layer's error against float64, beside cuDNN's in strict float32 on the same data; exit 1 if ours is larger.

`python tools/layer_errors.py MODEL.onnx [--precision fp32] [--batch N] [--output FILE]`. Needs a GPU and torch.

Our engine runs pictures and keeps every value. Each convolution and fully connected layer is then judged alone: from
the input that it had, torch computes the layer in float64, and cuDNN (cuBLAS) in float32 without TF32. Errors are
norm-wise, ||y - r|| / ||r||: of the whole layer, and of every output channel over all images and pixels. The bias is
<y - r, r> / <r, r>: that much of all values at once, which later layers do not average out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from vgg16gpu.bench.environment import environment
from vgg16gpu.engine import Engine
from vgg16gpu.graph import MAX_POOL_2X2, Conv, Gemm
from vgg16gpu.normalise import default_mean, default_std
from vgg16gpu.zoo.samples import TESTBENCH_SEED, typical_inputs

Tensor: TypeAlias = Any
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
    channels: int

    @property
    def passed(self) -> bool:
        """Ours is no worse, as a whole and in its worst channel."""
        return self.layer <= SLACK * self.library_layer and self.worst_channel <= SLACK * self.library_worst_channel


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each layer; 1 if one is worse than the library's."""
    parser = argparse.ArgumentParser(prog="tools/layer_errors.py", description="Layer errors against float64.")
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--batch", type=int, default=4)
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
        rows = list(measure(engine))
        where = environment(engine.device)
    for row in rows:
        mark = "" if row.passed else "  WORSE"
        print(
            f"{row.name[:34]:34} K {row.reduction:5}  layer {row.layer:.2e} ({row.library_layer:.2e}), "
            f"bias {row.bias:+.1e}  "
            f"worst channel {row.worst_channel:.2e} ({row.library_worst_channel:.2e}), "
            f"{row.channels_above} of {row.channels} above{mark}"
        )
    failed = options.precision == "fp32" and not all(row.passed for row in rows)
    if options.output:
        record = {
            "what": "norm-wise error of every layer against float64, beside torch's strict float32 on the same input",
            "model": options.model,
            "precision": options.precision,
            "kernels": options.kernels,
            "batch": options.batch,
            "environment": where,
            "passed": not failed,
            "layers": [{**asdict(row), "passed": row.passed} for row in rows],
        }
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def measure(engine: Engine) -> Iterator[LayerErrors]:
    """The errors of every convolution and fully connected layer, from a run on pictures."""
    shape = engine.program.input.shape
    x = typical_inputs(shape[0], shape[1:], default_mean(shape[1]), default_std(shape[1]), TESTBENCH_SEED)
    engine.run(x)
    values = {names[-1]: array for names, array in engine.read_values()} | {engine.graph.input.name: x}
    for op in engine.graph.ops:
        if isinstance(op, Conv | Gemm):
            inputs = torch.from_numpy(values[op.x]).cuda()
            exact = _apply(op, inputs.double(), torch.float64)
            ours = torch.from_numpy(values[op.y]).cuda().double().reshape(exact.shape)
            library = _apply(op, inputs, torch.float32).double()
            mine, theirs = _errors(ours, exact), _errors(library, exact)
            yield LayerErrors(
                name=op.names[0],
                reduction=int(op.weight[0].size),
                layer=mine[0],
                library_layer=theirs[0],
                bias=float(((ours - exact) * exact).sum() / (exact**2).sum()),
                worst_channel=float(mine[1].max()),
                library_worst_channel=float(theirs[1].max()),
                channels_above=int((mine[1] > theirs[1].max()).sum()),
                channels=len(mine[1]),
            )


def _apply(op: Conv | Gemm, x: Tensor, dtype: Any) -> Tensor:
    weight = torch.from_numpy(np.ascontiguousarray(op.weight)).cuda().to(dtype)
    bias = None if op.bias is None else torch.from_numpy(op.bias).cuda().to(dtype)
    if isinstance(op, Gemm):
        y = functional.linear(x.flatten(1), weight, bias)
    else:
        pads = op.window.pads
        padded = functional.pad(x, (pads.left, pads.right, pads.top, pads.bottom))
        y = functional.conv2d(padded, weight, bias, stride=op.window.strides)
    y = functional.relu(y) if op.relu else y
    return functional.max_pool2d(y, MAX_POOL_2X2.kernel) if isinstance(op, Conv) and op.pool else y


def _errors(y: Tensor, exact: Tensor) -> tuple[float, Tensor]:
    """The error of the layer, and of each output channel that is not zero."""
    across = (0, *range(2, y.dim()))
    difference, size = ((t**2).sum(dim=across) for t in (y - exact, exact))
    alive = size > 0
    return float((difference.sum() / size.sum()).sqrt()), (difference[alive] / size[alive]).sqrt().cpu()


if __name__ == "__main__":
    sys.exit(main())

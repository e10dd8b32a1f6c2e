"""An image is changed until a network sees in it what it sees in another: our loss and gradient beside torch's own.

    python -m testbench.measure.optimise MODEL.onnx PICTURE [--steps 300] [--decay] [--drawn FILE.png] [--output FILE]

From the same noise Adam takes the same number of steps on the sum of four layers' mean squared differences, once with
`PerceptualLoss` and once with torch's operators, in float32 and bfloat16; the image itself is float32. Where each of
them ends is judged by torch's loss in float32. Steps like these enlarge the last bits of a gradient, so torch takes
them in other ways too: with maps in NHWC, and in float64. Exit code 1 where our end is further from torch's in the same
precision than `WITHIN` and than the ends of torch's ways in float32 and float64 are from each other. With `--decay`
steps become smaller along half a cosine, so that the end does not hang on the last of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

from testbench.measure.perceptual import LAYERS
from testbench.measure.perceptual_ways import DTYPES, torch_outputs
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.pytorch import PerceptualLoss

WITHIN: Final = {"fp32": 0.01, "bf16": 0.03}  # of torch's loss
TORCH: Final = "torch"
RATE: Final = 0.05  # of Adam, at first

Loss = Callable[[torch.Tensor], torch.Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the steps, print where they end; 1 if ours end too far from torch's."""
    options = _options(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    model = Model(options.model)
    with Image.open(options.picture) as picture:
        target = _normalised(picture).to(options.device)
    exact = _torchs(model, torch.float32, target)
    ends, drawn = list[dict[str, Any]](), [target]
    for precision in WITHIN:
        for name, loss in _losses(model, precision, target):
            seconds, image = _optimised(loss, target, options.steps, decays=options.decay)
            value = float(exact(image))
            ends.append({"way": name, "precision": precision, "loss": value, "seconds": seconds})
            drawn.append(image)
    content = _content(ends, float(exact(_noise(target))), options)
    if options.output:
        write(options.output, content)
    if options.drawn:
        _row(drawn).save(options.drawn)
    for end in ends:
        print(f"{end['precision']} {end['way']:20} {end['loss']:.6g} after {end['seconds']:.2f} s")
    print("ours by torch's: " + ", ".join(f"{name} {ratio:.5f}" for name, ratio in content["ratios"].items()))
    print(f"torch's own ways in float32 and float64: up to {content['spread']:.2%} apart")
    far = (abs(ratio - 1) > max(WITHIN[name], content["spread"]) for name, ratio in content["ratios"].items())
    return int(any(far))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbench.measure.optimise", description="Steps on a loss.")
    parser.add_argument("model", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--decay", action="store_true", help="steps become smaller, the last one nothing")
    parser.add_argument("--drawn", type=Path, metavar="FILE.png", help="the picture, and what became of the noise")
    parser.add_argument("--output", type=Path, help="write where they ended as JSON")
    return parser.parse_args(arguments)


def _losses(model: Model, precision: str, target: torch.Tensor) -> Iterator[tuple[str, Loss]]:
    with closing(PerceptualLoss(model, dict.fromkeys(LAYERS, 1.0), precision=precision)) as ours:
        yield "vgg16gpu", _beside(ours, ours.targets(target))
    yield TORCH, _torchs(model, DTYPES[precision], target)
    if precision == "fp32":
        nhwc = target.to(memory_format=torch.channels_last)
        yield f"{TORCH}, channels_last", _torchs(model, torch.float32, nhwc)
        yield f"{TORCH}, float64", _torchs(model, torch.float64, target)


def _beside(ours: PerceptualLoss, targets: Any) -> Loss:
    return lambda x: ours(x, targets)


def _torchs(model: Model, dtype: torch.dtype, target: torch.Tensor) -> Loss:
    """The same sum by torch's operators, in the target's order of memory; sums are float32 or float64."""
    is_nhwc = target.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if is_nhwc else torch.contiguous_format
    sums = torch.promote_types(dtype, torch.float32)
    net = torch_outputs(model.graph("fp32", LAYERS), target.device, dtype, order)
    with torch.no_grad():
        targets = [y.to(sums) for y in net(target.to(dtype))]

    def loss(x: torch.Tensor) -> torch.Tensor:
        pairs = zip(net(x.to(dtype, memory_format=order)), targets, strict=True)
        return torch.stack([torch.nn.functional.mse_loss(a.to(sums), b) for a, b in pairs]).sum()

    return loss


def _optimised(loss: Loss, target: torch.Tensor, steps: int, *, decays: bool) -> tuple[float, torch.Tensor]:
    """Seconds, without those of the first call, and the image."""
    x = _noise(target).requires_grad_()
    loss(x).backward()  # what is planned and loaded at first
    optimiser = torch.optim.Adam([x], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps) if decays else None
    if target.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        loss(x).backward()
        optimiser.step()
        if schedule:
            schedule.step()
    image = x.detach()
    image.sum().item()  # waits
    return time.perf_counter() - start, image


def _content(ends: Sequence[dict[str, Any]], first: float, options: argparse.Namespace) -> dict[str, Any]:
    by_name = {(end["precision"], end["way"]): end["loss"] for end in ends}
    ratios = {precision: by_name[precision, "vgg16gpu"] / by_name[precision, TORCH] for precision in WITHIN}
    torchs = [loss for (precision, name), loss in by_name.items() if precision == "fp32" and name.startswith(TORCH)]
    with closing(open_device(options.device).device) as device:
        told = environment(device)
    return {
        "what": __doc__,
        "environment": {**told, "torch": torch.__version__},
        "steps": options.steps,
        "decays": options.decay,
        "first_loss": first,
        "ends": list(ends),
        "ratios": ratios,
        "spread": max(torchs) / min(torchs) - 1,
        "within": dict(WITHIN),
    }


def _noise(target: torch.Tensor) -> torch.Tensor:
    made = np.random.default_rng(0).standard_normal(tuple(target.shape), np.float32)
    return torch.from_numpy(made).to(target.device)


def _normalised(image: Image.Image) -> torch.Tensor:
    """(1, 3, H, W), as the model wants it."""
    pixels = torch.tensor(np.asarray(image.convert("RGB"))).permute(2, 0, 1)[None] / 255
    return (pixels - _of_channels(IMAGENET_MEAN)) / _of_channels(IMAGENET_STD)


def _row(images: Sequence[torch.Tensor]) -> Image.Image:
    """Side by side, as pictures."""
    mean, std = _of_channels(IMAGENET_MEAN), _of_channels(IMAGENET_STD)
    shown = [((image.cpu()[0] * std + mean).clamp(0, 1) * 255).round().byte() for image in images]
    return Image.fromarray(torch.cat(shown, dim=2).permute(1, 2, 0).numpy())


def _of_channels(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values)[:, None, None]


if __name__ == "__main__":
    sys.exit(main())

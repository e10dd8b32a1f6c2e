"""Train VGG16 itself, 138 million weights, on scikit-learn's handwritten digits enlarged to 224x224.

    pip install torch scikit-learn onnx pillow
    python models/train_vgg16.py

Two and a half minutes on an H200. Random weights are a poor judge of precision: their scores are small differences of
large sums. This net has learned something, and 450 images that it never saw show what an arithmetic does to it.

The net is torchvision's: 1000 outputs, of which the first ten stand for the digits. build/vgg16-digits (or --output)
gets vgg16-digits.onnx, heldout/LABEL/*.png (for `testbench --images`), calibration/*.png (training images, for
`calibrate --images`) and training.json. The images are plain: white digits on black. In training they are moved,
turned, scaled, coloured, inverted and noisy. Another machine gives other weights, as does another number of steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from vgg16gpu.compiler.onnx.metadata import LABELS_KEY, NOTE_KEY, PREPROCESS_KEY
from vgg16gpu.compiler.vgg.architecture import Vgg, VggLayer
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import Preprocess, resize_target
from vgg16gpu.zoo.digits import enlarge
from vgg16gpu.zoo.model_writer import ModelWriter

SPLIT_SEED: Final = 0  # the split of train_digits.py: what one net never saw, the other did not see either
DIGITS: Final = 10
WANTED: Final = 0.98  # of the held-out images
CALIBRATION_IMAGES: Final = 200

# Seed and highest learning rate of each try. Sixteen layers without batch normalisation may stay on the plateau of
# equal scores; a try that has not left it after PATIENCE steps will not.
TRIES: Final = ((0, 1e-4), (1, 5e-5), (2, 2e-5))
PATIENCE: Final = 400
PLATEAU: Final = 0.95 * math.log(DIGITS)
WARM_UP: Final = 100  # steps
WEIGHT_DECAY: Final = 1e-2
LARGEST_GRADIENT: Final = 1.0  # norm, all weights together
REPORT_EVERY: Final = 50  # steps; the loss is fetched then

SHIFT, TURN, SCALE = 0.08, math.radians(15), 0.15  # most that a training image changes; shift in widths


@dataclass(frozen=True, eq=False)
class Digits:
    """8x8 grey levels 0..16 and labels: three quarters to train on, one held out."""

    seen: Pixels
    seen_labels: npt.NDArray[np.int64]
    unseen: Pixels
    unseen_labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Settings:
    """What the command line says of a training."""

    device: str
    batch: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Training:
    """How a training went: of the try that succeeded, and how many tries there were."""

    tries: int
    seed: int
    learning_rate: float
    steps: int
    seconds: float
    loss: float  # mean of the last steps


def load_split() -> Digits:
    """The 1797 digits of scikit-learn, split as train_digits.py does."""
    levels, labels = load_digits(return_X_y=True)
    levels = levels.reshape(-1, 8, 8).astype(np.uint8)
    seen, unseen, seen_labels, unseen_labels = train_test_split(
        levels, labels, test_size=0.25, random_state=SPLIT_SEED, stratify=labels
    )
    return Digits(seen, seen_labels.astype(np.int64), unseen, unseen_labels.astype(np.int64))


def build(net: Vgg) -> nn.Sequential:
    """The net in torch, its parameters named as in `net` (which are torchvision's names), He-initialised."""
    parts: dict[str, list[nn.Module]] = {"features": [], "avgpool": [], "classifier": []}
    for layer in net.layers:
        if layer.kind != "Flatten":
            parts[layer.name.partition(".")[0]] += _modules(layer)
    del parts["classifier"][-1]  # no dropout after the scores
    model = nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*parts["features"]),
            avgpool=parts["avgpool"][0],
            flatten=nn.Flatten(),
            classifier=nn.Sequential(*parts["classifier"]),
        )
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.classifier[-1].weight, std=0.01)  # the first scores are nearly equal
    return model


def _modules(layer: VggLayer) -> list[nn.Module]:
    match layer.kind:
        case "Conv":
            return [nn.Conv2d(layer.shape[1], layer.shape[0], kernel_size=3, padding=1)]
        case "MaxPool":
            return [nn.MaxPool2d(layer.window)]
        case "AveragePool":
            return [nn.AvgPool2d(layer.window)]
        case "Gemm":  # in torch's classifier every one is followed by ReLU and dropout
            return [nn.Linear(layer.shape[1], layer.shape[0]), *([nn.Dropout()] if layer.name.endswith("6") else [])]
        case _:
            return [nn.ReLU(inplace=True), *([nn.Dropout()] if layer.name.startswith("classifier") else [])]


def moved(pictures: torch.Tensor) -> torch.Tensor:
    """Grey pictures (N, 1, S, S) in [0, 1], each turned, scaled and moved at random; black comes in from outside."""
    count, device = len(pictures), pictures.device
    angle = _uniform(count, -TURN, TURN, device)
    scale = 1 + _uniform(count, -SCALE, SCALE, device)
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0] = theta[:, 1, 1] = torch.cos(angle) * scale
    theta[:, 1, 0] = torch.sin(angle) * scale
    theta[:, 0, 1] = -theta[:, 1, 0]
    theta[:, :, 2] = _uniform(2 * count, -2 * SHIFT, 2 * SHIFT, device).reshape(count, 2)
    grid = functional.affine_grid(theta, list(pictures.shape), align_corners=False)
    return functional.grid_sample(pictures, grid, align_corners=False)


def coloured(pictures: torch.Tensor) -> torch.Tensor:
    """Grey pictures as RGB (N, 3, S, S): random ink, paper and noise, some inverted; a third stay."""
    count, device = len(pictures), pictures.device

    def colours(low: float, high: float) -> torch.Tensor:
        return _uniform(3 * count, low, high, device).reshape(count, 3, 1, 1)

    def chosen(share: float) -> torch.Tensor:
        return (torch.rand(count, device=device) < share).reshape(count, 1, 1, 1)

    paper, ink = colours(0.0, 0.3), colours(0.6, 1.0)
    inverted = chosen(0.25)
    paper, ink = torch.where(inverted, ink, paper), torch.where(inverted, paper, ink)
    strength = _uniform(count, 0, 0.1, device).reshape(count, 1, 1, 1)
    noise = strength * torch.randn(count, 3, *pictures.shape[2:], device=device)
    painted = (paper + (ink - paper) * pictures + noise).clamp(0, 1)
    return torch.where(chosen(1 / 3), pictures.expand_as(painted), painted)


def _uniform(count: int, low: float, high: float, device: torch.device) -> torch.Tensor:
    return low + (high - low) * torch.rand(count, device=device)


def as_input(pictures: torch.Tensor) -> torch.Tensor:
    """Grey or RGB pictures in [0, 1] normalised as the net takes them, channels last in memory."""
    mean, std = (torch.tensor(v, device=pictures.device).reshape(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return ((pictures - mean) / std).contiguous(memory_format=torch.channels_last)


def as_pictures(levels: Pixels, size: int, device: str) -> torch.Tensor:
    """Grey levels as pictures (N, 1, size, size) in [0, 1]."""
    pixels = torch.from_numpy(enlarge(levels, size)[..., 0])
    return pixels.to(device)[:, None].float() / 255


def train(net: Vgg, digits: Digits, settings: Settings) -> tuple[nn.Module, Training]:
    """The net trained on the digits that it may see; one try after the other until the loss falls.

    Exits with a message when it never does.
    """
    started = time.perf_counter()
    pictures = as_pictures(digits.seen, net.size, settings.device)
    labels = torch.from_numpy(digits.seen_labels).to(settings.device)
    for number, (seed, rate) in enumerate(TRIES, start=1):
        torch.manual_seed(seed)
        model = build(net).to(settings.device, memory_format=torch.channels_last)
        steps, loss = _try(model, pictures, labels, rate, settings, started)
        if steps:
            return model, Training(number, seed, rate, steps, time.perf_counter() - started, loss)
        print(f"try {number}: the loss is still {loss:.3f} after {PATIENCE} steps", flush=True)
    sys.exit(f"the loss did not fall in {len(TRIES)} tries")


def _try(
    model: nn.Module, pictures: torch.Tensor, labels: torch.Tensor, rate: float, settings: Settings, started: float
) -> tuple[int, float]:
    """Train until steps or seconds are used up: how many steps, 0 if the loss does not fall, and the last mean loss."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=WEIGHT_DECAY, fused=True)
    begun = time.perf_counter() - started
    losses: list[torch.Tensor] = []
    mean = math.nan
    model.train()
    for step, batch in enumerate(_batches(len(pictures), settings.batch, settings.device), start=1):
        # What is used up first, steps or time, says how far the training is.
        used = (time.perf_counter() - started - begun) / max(settings.seconds - begun, 1e-9)
        progress = min(max(step / settings.steps, used), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(step / WARM_UP, 1.0) * 0.5 * (1 + math.cos(math.pi * progress))
        losses.append(_step(model, optimizer, as_input(coloured(moved(pictures[batch]))), labels[batch]))
        if step % REPORT_EVERY == 0 or progress >= 1:
            mean = float(torch.stack(losses).mean())
            losses.clear()
            print(f"step {step}: {time.perf_counter() - started:.1f} s, loss {mean:.4f}", flush=True)
            if step == PATIENCE and not mean < PLATEAU:
                return 0, mean
        if progress >= 1:
            return step, mean
    raise AssertionError("batches never end")


def _step(model: nn.Module, optimizer: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with _mixed(x.device.type):
        scores = model(x)
    loss = functional.cross_entropy(scores.float(), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
    optimizer.step()
    return loss.detach()


def _mixed(device: str) -> torch.autocast:
    """bf16 products where they are fast."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda"))


def _batches(count: int, size: int, device: str) -> Iterator[torch.Tensor]:
    """Full batches of indices, without end, every image once in a round."""
    size = min(size, count)
    for _ in itertools.count():
        order = torch.randperm(count, device=device)
        yield from order[: count // size * size].split(size)


def right_answers(model: nn.Module, digits: Digits, size: int, device: str) -> int:
    """How many held-out digits the net names, in the arithmetic that it was trained in."""
    model.eval()
    right = 0
    with torch.no_grad(), _mixed(device):
        for levels, labels in zip(
            np.array_split(digits.unseen, 10), np.array_split(digits.unseen_labels, 10), strict=True
        ):
            pictures = as_pictures(levels, size, device)
            answers = model(as_input(pictures.expand(-1, 3, -1, -1))).argmax(1).cpu().numpy()
            right += int((answers == labels).sum())
    return right


def export(net: Vgg, model: nn.Module, path: Path, note: str) -> str:
    """Write the model as ONNX, with preprocessing and class names; its SHA-256."""
    names = [str(i) if i < DIGITS else f"unused {i}" for i in range(net.classes)]
    metadata = {
        PREPROCESS_KEY: Preprocess.named("torchvision").to_json(),
        LABELS_KEY: json.dumps(names),
        NOTE_KEY: note,
    }
    tensors = {name: shape for layer in net.layers for name, shape in layer.parameters}
    weights = model.state_dict()
    if {name: tuple(tensor.shape) for name, tensor in weights.items()} != tensors:
        raise AssertionError("the net in torch and the net in the file differ")
    writer = ModelWriter(net.graph(), tensors, metadata)
    with atomic_writer(path) as stream:
        writer.open(stream)
        for name in tensors:
            writer.begin(name)
            writer.values(weights[name].float().contiguous().cpu().numpy())
        return writer.finish()


def write_images(digits: Digits, folder: Path, size: int) -> None:
    """Held-out digits in a folder a label, and training digits to calibrate on.

    The files have the border that the centre crop of images.py takes off again: the net sees the pixels it was
    trained on.
    """
    for name in ("heldout", "calibration"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for index, (levels, label) in enumerate(zip(digits.unseen, digits.unseen_labels, strict=True)):
        _write_image(levels, size, folder / "heldout" / str(label) / f"{index:03}.png")
    for index, levels in enumerate(digits.seen[:CALIBRATION_IMAGES]):
        _write_image(levels, size, folder / "calibration" / f"{index:03}.png")


def _write_image(levels: Pixels, size: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    border = (resize_target((size, size))[0] - size) // 2
    Image.fromarray(np.pad(enlarge(levels[None], size)[0, :, :, 0], border)).save(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, report the held-out accuracy, write model, images and record; 1 if the net is not good enough."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parent.parent / "build" / "vgg16-digits"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=150.0, help="Training ends after so many at the latest.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=128)
    trial = parser.add_argument_group("a smaller net, to try the script out")
    trial.add_argument("--size", type=int, default=224, help="Pixels, a multiple of 56.")
    trial.add_argument("--width", type=int, default=64, help="Channels of the first block.")
    trial.add_argument("--hidden", type=int, default=4096, help="Outputs of the first fully connected layers.")
    options = parser.parse_args(arguments)
    if options.size % 56:
        parser.error(f"--size {options.size} is no multiple of 56")
    torch.backends.cudnn.benchmark = True

    net = Vgg(size=options.size, width=options.width, hidden=options.hidden)
    digits = load_split()
    options.output.mkdir(parents=True, exist_ok=True)
    write_images(digits, options.output, net.size)
    settings = Settings(options.device, options.batch, options.steps, options.seconds)
    model, training = train(net, digits, settings)
    right, count = right_answers(model, digits, net.size, options.device), len(digits.unseen)
    print(f"held out: {right} of {count} right, {right / count:.2%}", flush=True)

    note = f"trained on handwritten digits: class 0 to 9; {right / count:.1%} of {count} held-out images right"
    path = options.output / "vgg16-digits.onnx"
    digest = export(net, model, path, note)
    record = {
        **asdict(training),
        "batch": options.batch,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "heldout": count,
        "heldout_right_bf16": right,
        "model_sha256": digest,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device,
    }
    (options.output / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{path}: {record['weights']} weights, SHA-256 {digest}")
    return 0 if right >= WANTED * count else 1


if __name__ == "__main__":
    sys.exit(main())

"""Train the small VGG-style net on scikit-learn's handwritten digits and write what ships in vgg16gpu/data.

    pip install torch scikit-learn onnx onnxruntime pillow
    python models/train_digits.py

Under two minutes on two cores. A quarter of the 1797 images is held out by a fixed seed and never trained on. Another
torch version gives slightly other weights; the file that ships is the one that the tests know.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from vgg16gpu.compiler.onnx.metadata import LABELS_KEY, PREPROCESS_KEY
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.zoo.digits import DIGITS_LABELS, DIGITS_MEAN, DIGITS_SIZE, DIGITS_STD, enlarge

SEED = 0
EPOCHS = 30
BATCH = 32
LEARNING_RATE = 3e-3
SHIFT = 3  # pixels, at most, that a training image is moved
SAMPLE_SIZE = 256


class DigitsNet(nn.Module):
    """VGG in miniature: conv-conv-pool three times, then two fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for width in (16, 32, 64):
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        side = DIGITS_SIZE // 8
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, 128), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(128, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 1, 32, 32) normalised images to (N, 10) scores."""
        scores: torch.Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return scores


def augment(images: torch.Tensor) -> torch.Tensor:
    """Each image turned by up to 12 degrees, scaled by up to 10 % and moved by up to SHIFT pixels."""
    count = len(images)
    angle = (torch.rand(count) - 0.5) * 2 * np.deg2rad(12)
    scale = 1 + (torch.rand(count) - 0.5) * 0.2
    shift = (torch.rand(count, 2) - 0.5) * 2 * SHIFT * 2 / DIGITS_SIZE
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = torch.cos(angle) * scale
    theta[:, 0, 1] = -torch.sin(angle) * scale
    theta[:, 1, 0] = torch.sin(angle) * scale
    theta[:, :, 2] = shift
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    # Outside the picture is black, which is not zero once normalised.
    black = -DIGITS_MEAN[0] / DIGITS_STD[0]
    return functional.grid_sample(images - black, grid, align_corners=False) + black


def train(images: torch.Tensor, labels: torch.Tensor, epochs: int) -> DigitsNet:
    """A net trained on normalised images (N, 1, 32, 32)."""
    net = DigitsNet()
    steps = epochs * -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.split(torch.randperm(len(images)), BATCH):
            scores = net(augment(images[batch]))
            loss = functional.cross_entropy(scores, labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(batch)
        print(f"epoch {epoch + 1:2d} of {epochs}: loss {total / len(images):.4f}")
    net.eval()
    return net


def export(net: DigitsNet, path: Path) -> None:
    """Write the net as ONNX, with its preprocessing and class names in the metadata."""
    example = torch.zeros(1, 1, DIGITS_SIZE, DIGITS_SIZE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the legacy exporter writes the plainest file
        torch.onnx.export(
            net,
            (example,),
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=["input"],
            output_names=["output"],
            dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
        )
    model = onnx.load(path)
    preprocess = Preprocess(DIGITS_MEAN, DIGITS_STD, fit="stretch")
    for key, value in ((PREPROCESS_KEY, preprocess.to_json()), (LABELS_KEY, json.dumps(DIGITS_LABELS))):
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def main() -> None:
    """Train, report the held-out accuracy, write the four files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "vgg16gpu" / "data")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()

    torch.manual_seed(SEED)
    levels, labels = load_digits(return_X_y=True)
    levels = levels.reshape(-1, 8, 8).astype(np.uint8)
    seen, unseen, seen_labels, unseen_labels = train_test_split(
        levels, labels, test_size=0.25, random_state=SEED, stratify=labels
    )
    pixels = enlarge(seen, DIGITS_SIZE)
    print(f"training pixels: mean {pixels.mean() / 255:.3f}, standard deviation {pixels.std() / 255:.3f}")
    x = torch.from_numpy(normalise(pixels, DIGITS_MEAN, DIGITS_STD))
    net = train(x, torch.from_numpy(seen_labels), arguments.epochs)

    with torch.no_grad():
        scores = net(torch.from_numpy(normalise(enlarge(unseen, DIGITS_SIZE), DIGITS_MEAN, DIGITS_STD))).numpy()
    right = scores.argmax(1) == unseen_labels
    print(f"held out: {right.sum()} of {len(right)} right, {right.mean():.2%}")

    arguments.output.mkdir(parents=True, exist_ok=True)
    export(net, arguments.output / "digits.onnx")
    for part, images, labels in (("heldout", unseen, unseen_labels), ("training", seen, seen_labels)):
        np.savez_compressed(arguments.output / f"digits_{part}.npz", images=images, labels=labels.astype(np.uint8))
    sample = int(np.flatnonzero(right)[0])
    picture = enlarge(unseen[sample : sample + 1], SAMPLE_SIZE)[0, :, :, 0]
    Image.fromarray(picture).save(arguments.output / "digit_sample.png", optimize=True)
    print(f"sample: a {unseen_labels[sample]}")


if __name__ == "__main__":
    main()

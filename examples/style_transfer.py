"""Paint one picture in the style of another: Gram matrices of a network's features, and gradients to the picture.

python examples/style_transfer.py MODEL CONTENT STYLE OUTPUT [STEPS]

MODEL: a VGG16 or VGG19 as ONNX, best one with trained weights. numpy is enough; on a GPU it takes seconds.
"""

import sys

import numpy as np
from PIL import Image

from vgg16gpu import LossEngine
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD

mean, std = (np.array(values, np.float32)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))


def read(path: str) -> Array:
    """A picture as the model wants it, (1, 3, H, W)."""
    pixels = np.asarray(Image.open(path).convert("RGB"), np.float32) / 255
    return np.asarray(((pixels.transpose(2, 0, 1) - mean) / std)[None], np.float32)


model, content, style, output = sys.argv[1:5]
steps = int(sys.argv[5]) if len(sys.argv) > 5 else 200
grams = dict.fromkeys(("relu1_1", "relu2_1", "relu3_1", "relu4_1"), 5e4)
with LossEngine(model, {"relu3_2": 1.0}, grams) as engine:
    x, targets = read(content), engine.targets(read(content), read(style))
    first, second = np.zeros_like(x), np.zeros_like(x)  # Adam's moments
    for step in range(1, steps + 1):
        loss, gradient = engine.value_and_gradient(x, targets)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        x -= 0.05 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-12)
        x = np.clip(x, -mean / std, (1 - mean) / std)  # what is black and white
        print(f"step {step}: loss {loss[0]:.4g}") if step % 20 == 0 or step == 1 else None
Image.fromarray(np.uint8(((x[0] * std + mean).transpose(1, 2, 0) * 255).round())).save(output)

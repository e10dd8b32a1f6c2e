"""Train on a perceptual loss in torch: an image is changed until a network sees in it what it sees in another.

python examples/perceptual_loss.py MODEL IMAGE OUTPUT [STEPS]

MODEL: a VGG16 as ONNX. In a training of yours `x` is what your network gives, and its weights get the gradient.
"""

import sys

import numpy as np
import torch
from PIL import Image

from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.pytorch import PerceptualLoss

model, image, output = sys.argv[1:4]
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 300
device = "cuda" if torch.cuda.is_available() else "cpu"
mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))

pixels = torch.tensor(np.asarray(Image.open(image).convert("RGB")), device=device)
y = (pixels.permute(2, 0, 1)[None] / 255 - mean) / std
x = torch.randn(y.shape, device=device, generator=torch.Generator(device).manual_seed(0)).requires_grad_()

perceptual = PerceptualLoss(model, {"relu1_2": 1.0, "relu2_2": 1.0, "relu3_3": 1.0})
targets = perceptual.targets(y)  # once: the target stays what it is
optimiser = torch.optim.Adam([x], lr=0.05)
for step in range(1, steps + 1):
    optimiser.zero_grad()
    loss = perceptual(x, targets)
    loss.backward()
    optimiser.step()
    print(f"step {step}: loss {loss.item():.4g}") if step % 20 == 0 or step == 1 else None

shown = ((x.detach()[0] * std + mean).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
Image.fromarray(shown.cpu().numpy()).save(output)

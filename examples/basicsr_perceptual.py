"""BasicSR's PerceptualLoss by our kernels: its options, features before their ReLU, and (perceptual, style) comes back.

python examples/basicsr_perceptual.py MODEL IMAGE OTHER (a VGG19, say torchvision/vgg19; two pictures of one size)
"""

import sys
from typing import Any

import numpy as np
import torch
from PIL import Image

from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.pytorch import PerceptualLoss


class BasicSRLoss(torch.nn.Module):  # type: ignore[misc]  # noqa: D101
    def __init__(self, layer_weights: dict[str, float], vgg_type: str = "torchvision/vgg19",
                 use_input_norm: bool = True, range_norm: bool = False, perceptual_weight: float = 1.0,
                 style_weight: float = 0.0, criterion: str = "l1") -> None:  # fmt: skip
        super().__init__()
        pairs = zip(IMAGENET_MEAN, IMAGENET_STD, strict=True) if use_input_norm else [(0.0, 1.0)] * 3
        mean, std = zip(*((2 * m - 1, 2 * s) if range_norm else (m, s) for m, s in pairs), strict=True)
        options: dict[str, Any] = {"criterion": criterion, "mean": mean, "std": std}
        percep, style = ({name: a * w for name, w in layer_weights.items()} for a in (perceptual_weight, style_weight))
        self.perceptual = PerceptualLoss(vgg_type, percep, **options) if perceptual_weight > 0 else None
        self.style = PerceptualLoss(vgg_type, style=style, **options) if style_weight > 0 else None

    def forward(self, x: torch.Tensor, gt: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        return tuple(loss if loss is None else loss(x, gt.detach()) for loss in (self.perceptual, self.style))


if __name__ == "__main__":
    _, model, *paths = sys.argv if len(sys.argv) == 4 else sys.exit(__doc__)
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB"), np.float32) / 255 for path in paths])
    x, gt = torch.from_numpy(pixels).permute(0, 3, 1, 2).split(1)
    percep, style = BasicSRLoss({"conv5_4": 1.0}, model, style_weight=1.0)(x.requires_grad_(), gt)
    (percep + style).backward()
    print(f"perceptual {percep:.4g}, style {style:.4g}, norm of the gradient {x.grad.norm():.4g}")

"""BasicSR's PerceptualLoss by our kernels: its options, features before their ReLU, and (perceptual, style) comes back.

python examples/basicsr_perceptual.py MODEL IMAGE OTHER

MODEL: a VGG19, say torchvision/vgg19. In a training of yours `x` is what your network gives.
"""

import sys

import numpy as np
import torch
from PIL import Image

from vgg16gpu.io.imagenet import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.pytorch import PerceptualLoss


class BasicSRLoss(torch.nn.Module):  # noqa: D101
    def __init__(self, layer_weights: dict[str, float], vgg_type: str = "torchvision/vgg19",
                 use_input_norm: bool = True, range_norm: bool = False, perceptual_weight: float = 1.0,
                 style_weight: float = 0.0, criterion: str = "l1") -> None:  # fmt: skip
        super().__init__()
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if use_input_norm else ((0, 0, 0), (1, 1, 1))
        mean, std = ([2 * m - 1 for m in mean], [2 * s for s in std]) if range_norm else (mean, std)
        options = {"criterion": criterion, "mean": mean, "std": std}
        percep, style = ({name: a * w for name, w in layer_weights.items()} for a in (perceptual_weight, style_weight))
        self.perceptual = PerceptualLoss(vgg_type, percep, **options) if perceptual_weight > 0 else None
        self.style = PerceptualLoss(vgg_type, style=style, **options) if style_weight > 0 else None

    def forward(self, x: torch.Tensor, gt: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        return tuple(loss if loss is None else loss(x, gt.detach()) for loss in (self.perceptual, self.style))


if __name__ == "__main__":
    pixels = (torch.tensor(np.asarray(Image.open(path).convert("RGB"))) for path in sys.argv[2:4])
    x, gt = (each.permute(2, 0, 1)[None] / 255 for each in pixels)
    percep, style = BasicSRLoss({"conv5_4": 1.0}, sys.argv[1], style_weight=1.0)(x.requires_grad_(), gt)
    (percep + style).backward()
    print(f"perceptual {percep:.4g}, style {style:.4g}, norm of the gradient {x.grad.norm():.4g}")

"""Mean and deviation of ImageNet's pixels, here only. No imports: a command line offers them before numpy is loaded."""

from __future__ import annotations

from typing import Final

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)  # R, G, B, of pixels in [0, 1]
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

"""Made weights of a VGG16 of torchvision's width under torch hub's name for its file, for packages that load that."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.compiler.vgg.source import FILES

WIDTHS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
PLACES = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)  # of convolutions in `features`


def write_hub_file(torch: Any, home: Path) -> Path:
    """Write random weights with biases. The classifier's, which nobody computes with here, share one number."""
    random, state, channels = torch.Generator().manual_seed(0), {}, 3
    for place, width in zip(PLACES, WIDTHS, strict=True):
        weight = torch.randn(width, channels, 3, 3, generator=random) * (2 / (9 * channels)) ** 0.5
        state[f"features.{place}.weight"] = weight
        state[f"features.{place}.bias"] = 0.1 * torch.randn(width, generator=random)
        channels = width
    for place, shape in ((0, (4096, 25088)), (3, (4096, 4096)), (6, (1000, 4096))):
        state[f"classifier.{place}.weight"] = torch.zeros(1, 1).expand(shape)
        state[f"classifier.{place}.bias"] = torch.zeros(1).expand(shape[0])
    path = home / "hub" / "checkpoints" / FILES["vgg16"]
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    return path


@contextmanager
def torch_home(torch: Any, folder: Path) -> Iterator[Path]:
    """Let torch hub find the made file, without the seconds that torchvision takes to make up a classifier first."""
    path = write_hub_file(torch, folder)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("TORCH_HOME", str(folder))
        patch.setattr(torch.nn.Linear, "reset_parameters", lambda _: None)
        yield path

"""Every way in which the installed torch writes a VGG: exporters, opsets, options.

The networks have torchvision's module structure and names (features.N, classifier.N), and by default a sixteenth of its
channels; so torchvision need not be installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Filters of the convolutions, "M" for a max-pool (Simonyan and Zisserman, 2015; torchvision.models.vgg).
LAYERS: dict[str, Sequence[int | str]] = {
    "vgg11": (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "vgg13": (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "vgg16": (64, 64, "M", 128, 128, "M", *(256,) * 3, "M", *(512,) * 3, "M", *(512,) * 3, "M"),
    "vgg19": (64, 64, "M", 128, 128, "M", *(256,) * 4, "M", *(512,) * 4, "M", *(512,) * 4, "M"),
}
NETWORKS = tuple(f"{variant}{norm}" for variant in LAYERS for norm in ("", "_bn"))
LEGACY_OPSETS = range(9, 21)
DYNAMO_OPSETS = range(18, 24)
UNOPTIMISED = {"optimize": False}


class VGG(nn.Module):
    """torchvision.models.VGG of any width (filters of the first layer); its maps are pooled to `side` squared."""

    def __init__(self, network: str, width: int = 4, side: int = 2, hidden: int = 16, classes: int = 10) -> None:
        super().__init__()
        variant, _, norm = network.partition("_")
        layers: list[nn.Module] = []
        channels = 3
        for layer in LAYERS[variant]:
            if isinstance(layer, str):
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
                continue
            filters = layer * width // 64
            layers.append(nn.Conv2d(channels, filters, kernel_size=3, padding=1))
            layers += [nn.BatchNorm2d(filters), nn.ReLU(inplace=True)] if norm else [nn.ReLU(inplace=True)]
            channels = filters
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((side, side))
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, hidden),
            nn.ReLU(True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def network(name: str, seed: int = 0, **sizes: int) -> VGG:
    """A VGG with seeded weights under which activations keep their size, and normalisations far from the identity."""
    torch.manual_seed(seed)
    net = VGG(name, **sizes)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        elif isinstance(module, nn.BatchNorm2d):
            for values, low, high in ((module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5)):
                nn.init.uniform_(values, low, high)
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return net.eval()


@dataclass(frozen=True)
class Form:
    """One way to call torch.onnx.export; `options` go to it as they are."""

    opset: int
    dynamo: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 64
    open_batch: bool = False
    half: bool = False
    training: bool = False

    def export(self, net: VGG, path: Path) -> Path:
        """Write `net` in this form. Raises what torch raises."""
        x = torch.zeros(1, 3, self.size, self.size)
        if self.half:
            net, x = net.half(), x.half()
        options: dict[str, Any] = {"input_names": ["input"], "output_names": ["output"], **self.options}
        if self.training:
            net = net.train()
            options |= {} if self.dynamo else {"training": torch.onnx.TrainingMode.TRAINING}
        if self.open_batch and self.dynamo:
            options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
            x = x.repeat(2, 1, 1, 1)  # torch.export takes a dimension of 1 for a constant
        elif self.open_batch:
            options["dynamic_axes"] = {"input": {0: "batch"}, "output": {0: "batch"}}
        with _quietly():
            torch.onnx.export(
                net, (x,), str(path), opset_version=self.opset, dynamo=self.dynamo, verbose=False, **options
            )
        return path


@contextmanager
def _quietly() -> Iterator[None]:
    """Exporters warn of themselves: of the legacy one's age, of opsets older than their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


UNFOLDED = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}

LEGACY_FORMS: dict[str, Form] = {
    **{f"opset{opset}": Form(opset) for opset in LEGACY_OPSETS},
    **{f"opset{opset}-open-batch": Form(opset, open_batch=True) for opset in (9, 13, 20)},
    **{f"opset{opset}-unfolded": Form(opset, options=UNFOLDED) for opset in (9, 14, 17)},
    **{f"opset{opset}-half": Form(opset, half=True) for opset in (9, 17)},
    "opset17-half-open-batch": Form(17, half=True, open_batch=True),
    "opset9-weights-as-inputs": Form(9, options={"keep_initializers_as_inputs": True}),
    "opset17-twice-the-size": Form(17, size=128),
}

DYNAMO_FORMS: dict[str, Form] = {
    **{f"opset{opset}": Form(opset, dynamo=True) for opset in DYNAMO_OPSETS},
    **{f"opset{opset}-unoptimised": Form(opset, dynamo=True, options=UNOPTIMISED) for opset in DYNAMO_OPSETS},
    "opset18-open-batch": Form(18, dynamo=True, open_batch=True),
    "opset20-open-batch-unoptimised": Form(20, dynamo=True, options=UNOPTIMISED, open_batch=True),
    "opset18-half": Form(18, dynamo=True, half=True),
    "opset20-half-unoptimised": Form(20, dynamo=True, options=UNOPTIMISED, half=True),
    "opset20-one-file": Form(20, dynamo=True, options={"external_data": False}),
    "opset20-twice-the-size": Form(20, dynamo=True, size=128),
}

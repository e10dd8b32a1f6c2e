"""`LearnedPerceptualImagePatchSimilarity` as torchmetrics 1.9 has it, by our kernels; with torchmetrics alone."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import torch

from vgg16gpu.compiler.model import ModelSource
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.pytorch.lpips import BACKBONE, LPIPS
from vgg16gpu.pytorch.scaling import TORCH

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise InputError(
        "LearnedPerceptualImagePatchSimilarity needs torchmetrics, which is not installed: pip install torchmetrics; "
        "LPIPS goes without"
    ) from error

REDUCTIONS: Final = ("mean", "sum", "none", None)


class LearnedPerceptualImagePatchSimilarity(Metric):
    """LPIPS of all pictures seen so far: torchmetrics' parameters with its defaults, but net_type="vgg".

    reduction: "mean" or "sum" of the pictures, or "none" or None, (N,). normalize: pictures lie in [0, 1], not [-1, 1];
    ranges are neither checked nor corrected, so that nobody waits for a GPU. backbone, precision, check_backbone: as of
    `LPIPS`. kwargs: of `torchmetrics.Metric`. Raises InputError for another network or reduction, and as `LPIPS`.
    """

    is_differentiable: bool = True
    higher_is_better: bool = False
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0
    feature_network: str = "net"
    __jit_ignored_attributes__: ClassVar[list[str]] = ["net"]

    all_scores: list[torch.Tensor]

    def __init__(
        self,
        net_type: Literal["vgg", "alex", "squeeze"] = "vgg",
        reduction: Literal["sum", "mean", "none"] | None = "mean",
        normalize: bool = False,
        *,
        backbone: ModelSource = BACKBONE,
        precision: str = TORCH,
        check_backbone: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction {shown(reduction)} is not known; accepted: mean, sum, none, None")
        if not isinstance(normalize, bool):
            raise InputError(f"normalize is {shown(normalize)}; give True for pictures in [0, 1], else False")
        self.net = LPIPS(
            net=net_type, backbone=backbone, precision=precision, check_backbone=check_backbone, verbose=False
        )
        self.reduction, self.normalize = reduction, normalize
        self.add_state("all_scores", default=[], dist_reduce_fx=None)

    def update(self, img1: torch.Tensor, img2: torch.Tensor) -> None:
        """Take pictures (N, 3, H, W) and those that they are compared with."""
        self.all_scores.append(self.net(img1, img2, normalize=self.normalize).view(-1))

    def compute(self) -> torch.Tensor:
        """Return the distances of all pictures, reduced."""
        scores: torch.Tensor = dim_zero_cat(self.all_scores)
        return scores.mean() if self.reduction == "mean" else scores.sum() if self.reduction == "sum" else scores

"""`LearnedPerceptualImagePatchSimilarity` beside torchmetrics' in float64, with the same made weights."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import distance
from tests.pytorch.test_lpips_class import pictures
from tests.support.torch_hub import torch_home
from vgg16gpu.errors import InputError

VALUES, GRADIENTS = 1e-6, 1e-5


@pytest.fixture(scope="module")
def classes(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Their class and ours, while torch hub has made weights."""
    lpip = pytest.importorskip("torchmetrics.image.lpip", reason="torchmetrics is not installed")
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    from vgg16gpu.pytorch import LearnedPerceptualImagePatchSimilarity

    with torch_home(torch, tmp_path_factory.mktemp("home")):
        yield lpip.LearnedPerceptualImagePatchSimilarity, LearnedPerceptualImagePatchSimilarity


def test_parameters_are_theirs(classes: Any) -> None:
    theirs, ours = (list(inspect.signature(each).parameters.values()) for each in classes)
    assert [each.name for each in ours[:3]] == [each.name for each in theirs[:3]]
    assert [each.default for each in ours[:3]] == ["vgg", *(each.default for each in theirs[1:3])]
    assert ours[-1].kind == theirs[-1].kind == inspect.Parameter.VAR_KEYWORD


def test_values_and_gradients(torch: Any, classes: Any) -> None:
    """Compare several batches, each reduction, and the call itself, which is differentiable."""
    theirs, ours = classes[0](net_type="vgg"), classes[1](check_backbone=False)
    theirs.net.double()
    x, y = pictures(torch)
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    found, right = ours(given, y), theirs(exact, y.double())
    assert (found.dtype, found.shape) == (torch.float32, right.shape)
    assert distance(found.detach(), right.detach()) < VALUES
    found.backward()
    right.backward()
    assert distance(given.grad, exact.grad) < GRADIENTS
    for metric, kind in ((theirs, torch.float64), (ours, torch.float32)):
        metric.reset()
        metric.normalize = True
        for first, last in ((0, 2), (1, 2)):
            metric.update((x.to(kind)[first:last] + 1) / 2, (y.to(kind)[first:last].clamp(-1, 1) + 1) / 2)
    for reduction in ("mean", "sum", "none", None):
        theirs.reduction = ours.reduction = reduction
        theirs._computed = ours._computed = None
        np.testing.assert_allclose(ours.compute().detach().numpy(), theirs.compute().detach().numpy(), rtol=2 * VALUES)
    ours.reset()
    copied = copy.deepcopy(ours)
    assert torch.equal(copied(x / 4, y / 4), ours(x / 4, y / 4))
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    copied.net.close()
    ours.net.close()


def test_what_is_wrong_is_said(torch: Any, classes: Any) -> None:
    del torch
    for options, message in (
        ({"net_type": "alex"}, "net is 'alex'; the networks here are VGGs"),
        ({"reduction": "middle"}, "reduction 'middle' is not known; accepted: mean, sum, none, None"),
        ({"normalize": 1}, "normalize is 1; give True for"),
    ):
        with pytest.raises(InputError, match=message):
            classes[1](**options, check_backbone=False)


def test_torchmetrics_is_imported_for_it_alone(torch: Any) -> None:
    """And without it one line says what to install."""
    del torch
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); sys.modules['torchmetrics'] = None\n"
        "import vgg16gpu.pytorch\n"
        "try: vgg16gpu.pytorch.LearnedPerceptualImagePatchSimilarity\n"
        "except vgg16gpu.errors.InputError as error: print(error)\n"
        "print(hasattr(vgg16gpu.pytorch, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "LearnedPerceptualImagePatchSimilarity needs torchmetrics, which is not installed: pip install torchmetrics; "
        "LPIPS goes without\nFalse\n"
    )

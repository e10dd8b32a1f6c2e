"""Which pass of a resize Pillow makes first, found by trying."""

from __future__ import annotations

import PIL
import pytest

from vgg16gpu.compiler.op_kernels.layout.resize import PassOrder
from vgg16gpu.pictures import pass_order as module
from vgg16gpu.pictures.pass_order import pass_order


def of_version(version: str) -> PassOrder:
    """What Pillow's sources of each version say."""
    major, minor = map(int, version.split(".")[:2])
    if (major, minor) < (12, 2):
        return PassOrder.NONE
    return PassOrder.STRIPS if major == 12 else PassOrder.STEEP


def test_the_installed_version_is_known() -> None:
    assert pass_order() is of_version(PIL.__version__)


@pytest.mark.parametrize("order", PassOrder)
def test_every_order_is_told_from_the_others(order: PassOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    def goes_down_first(size: tuple[int, int], result: tuple[int, int]) -> bool:
        return {
            PassOrder.NONE: False,
            PassOrder.STRIPS: size[0] > 100 * size[1] and result[0] < size[0],
            PassOrder.STEEP: size[0] > result[0] and size[0] - result[0] > 2 * (size[1] - result[1]),
        }[order]

    monkeypatch.setattr(module, "_goes_down_first", goes_down_first)
    assert module.pass_order.__wrapped__() is order


def test_an_order_of_its_own_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (True, None):
        monkeypatch.setattr(module, "_goes_down_first", lambda *_, answer=answer: answer)
        assert module.pass_order.__wrapped__() is None
    monkeypatch.setattr(module, "_goes_down_first", lambda size, _: size[0] > size[1])
    assert module.pass_order.__wrapped__() is None

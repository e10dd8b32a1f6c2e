"""Weights as gradients multiply by them: made once of each array, whatever sizes of images are planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias
from weakref import ref

import numpy as np

from vgg16gpu.compiler.graph.ops import Array

_Made: TypeAlias = tuple["ref[Array]", "ref[Array]"]  # of what, and what; both live as long as somebody else has them
_MADE: Final[dict[int, _Made]] = {}  # by the identity of what they are made of


def dgrad_conv_weight(weight: Array) -> Array:
    """(K, C, R, S) turned by 180 degrees, as (C, K, R, S); read-only, the same array as long as it lives."""
    return _once(weight, lambda: weight[:, :, ::-1, ::-1].swapaxes(0, 1))


def dgrad_matrix_weight(weight: Array) -> Array:
    """(N, K) transposed; read-only, the same array as long as it lives."""
    return _once(weight, lambda: weight.T)


def _once(weight: Array, make: Callable[[], Array]) -> Array:
    key = id(weight)
    source, made = _MADE.get(key, (None, None))
    if source and made and source() is weight and (found := made()) is not None:
        return found
    found = np.array(make(), order="C")
    found.setflags(write=False)
    _MADE[key] = ref(weight), ref(found, lambda gone: _forget(key, gone))
    return found


def _forget(key: int, gone: ref[Array]) -> None:
    if key in _MADE and _MADE[key][1] is gone:
        del _MADE[key]

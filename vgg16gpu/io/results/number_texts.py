"""Numbers as text: nine significant digits, of which each float32 comes back with the same bits.

The same bits always give the same text. Formatting is most of what a row costs, so a whole column or row is one
operation of Python's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Instead: TypeAlias = Mapping[str, str]  # what stands for "nan", "inf" and "-inf"; by themselves without an entry

_NUMBER: Final = "%.9g"


def number_texts(values: Floats, instead: Instead) -> list[str]:
    """Return a text for each of (n,) numbers."""
    texts = (f"{_NUMBER} " * len(values) % tuple(values.tolist())).split()
    return texts if np.isfinite(values).all() else _exchanged(texts, instead)


def row_texts(rows: Floats, separator: str, instead: Instead) -> list[str]:
    """Return a text for each row of (n, K) numbers."""
    template = separator.join([_NUMBER] * rows.shape[1])
    texts = [template % tuple(row) for row in rows.tolist()]
    for index in np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist():
        texts[index] = separator.join(_exchanged(texts[index].split(separator), instead))
    return texts


def _exchanged(texts: Iterable[str], instead: Instead) -> list[str]:
    return [instead.get(text, text) for text in texts]

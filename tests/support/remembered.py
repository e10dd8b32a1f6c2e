"""Remember in this process what tests ask for again and again.

Versions of packages and the commit of this checkout, which every record holds: the files of twenty packages, and git.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

from vgg16gpu.bench.measure import environment

_commit = environment.commit
_ROOT: Final = Path(__file__).resolve().parents[2]


def remember() -> None:
    """Take the place of the functions that find these things."""
    environment.package_versions = functools.cache(environment.package_versions)
    environment.commit = _commit_of


@functools.cache
def _own_commit() -> dict[str, Any] | None:
    return _commit(_ROOT)


def _commit_of(folder: Path) -> dict[str, Any] | None:
    return _own_commit() if folder == _ROOT else _commit(folder)

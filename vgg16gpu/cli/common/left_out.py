"""Inputs that cannot be read, and that a command goes on without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vgg16gpu.cli.common.tell import tell
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable

MANY: Final = 20  # lines


def tell_left_out(problems: Sequence[str]) -> None:
    """Print why each of the first inputs is left out, and how many others are."""
    for problem in problems[:MANY]:
        tell(f"left out: {printable(problem)}")
    if len(problems) > MANY:
        tell(f"{len(problems) - MANY:,} other inputs are left out, too; --json names them all")


def none_left(problems: Sequence[str]) -> InputError:
    """Return the error for inputs of which none can be read."""
    others = f" ({len(problems) - 1:,} other inputs cannot be read either)" if len(problems) > 1 else ""
    return InputError(problems[0] + others)

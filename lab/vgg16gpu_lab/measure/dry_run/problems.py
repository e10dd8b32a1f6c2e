"""The small problems of a dry run, in place of the one that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vgg16gpu.program.types import DeviceFacts
from vgg16gpu_lab.measure.trial import InvalidLaunchError, RefusedError, guarded
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Parameters, Variant

_ODD: Final = (37, 43)  # rows and columns of an output: primes, so that threads of every block stand over the edge
_FOURS: Final = (20, 44)  # of an image: rows of 16 bytes by 16 bytes, but of no larger power of two
_WHOLE: Final = (32, 64)  # of an image: blocks without an edge, where the output is as large
_TINY: Final = (5, 7)  # of an output, for as many channels as are asked for
_LARGER: Final = (64, 64)  # of an image, for variants that refuse all of these
_MOST_IMAGES: Final = 2
_MOST_CHANNELS: Final = 16  # of the image and of the output, but for the tiny one


def small_problems(variant: Variant, asked: Problem, parameters: Parameters, facts: DeviceFacts) -> list[Problem]:
    """Return the problems that the variant takes: small ones, else a larger one, else the one asked for.

    Window, stride and padding are as asked. None if it refuses that. Raises what the Python side of the variant does.
    """

    def takes(problem: Problem) -> bool:
        try:
            guarded(variant, problem, parameters, facts)
        except (RefusedError, InvalidLaunchError):
            return False
        return True

    if not takes(asked):
        return []
    for group in (_small(asked), [_image(replace(asked, batch=1), *_LARGER)], [asked]):
        if taken := [problem for problem in group if takes(problem)]:
            return taken
    return []


def _small(asked: Problem) -> list[Problem]:
    channels, outputs = min(asked.channels, _MOST_CHANNELS), min(asked.outputs, _MOST_CHANNELS)
    few = replace(asked, batch=min(asked.batch, _MOST_IMAGES), channels=channels, outputs=outputs)
    found = [_output(few, *_ODD), _image(few, *_FOURS), _image(few, *_WHOLE)]
    if (channels, outputs) != (asked.channels, asked.outputs):
        found.append(_output(replace(asked, batch=1), *_TINY))
    return found


def _output(problem: Problem, rows: int, columns: int) -> Problem:
    """Return a problem with an output of this size, and image rows that no window reaches if the stride allows."""
    beside = problem.kernel - 2 * problem.padding
    height, width = ((count - 1) * problem.stride + beside for count in (rows, columns))
    return _image(problem, height + problem.stride - 1, width)


def _image(problem: Problem, height: int, width: int) -> Problem:
    """Return a problem with an image of this size, or one in which a window has room."""
    least = max(1, problem.kernel - 2 * problem.padding)
    return replace(problem, height=max(height, least), width=max(width, least))

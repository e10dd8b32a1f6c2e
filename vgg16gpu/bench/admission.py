"""Who may be timed: scores are checked first, because the time of a wrong answer means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from vgg16gpu.accuracy import score_error
from vgg16gpu.bench.findings import Absent, Remarks
from vgg16gpu.bench.peer_remote import RemotePeer
from vgg16gpu.bench.precision import SCORE_TOLERANCES, peer_tolerance
from vgg16gpu.bench.timing import Contender, LostError
from vgg16gpu.errors import Error
from vgg16gpu.graph import Array

Admitted = tuple[Contender, float | None]


class WrongScoresError(Error):
    """Our scores are not the reference's: their times would mean nothing."""


def checked(scores: Array, references: Array, precision: str, what: str) -> float:
    """The error of our scores. Raises WrongScoresError, naming `what` was run, when it is too large."""
    error = float(score_error(scores, references).max())
    if not error <= SCORE_TOLERANCES[precision]:
        raise WrongScoresError(
            f"{what}: the scores differ from onnxruntime's by {error:.2e} of their maximum, at most "
            f"{SCORE_TOLERANCES[precision]:g} is right; nothing is timed (`python -m vgg16gpu testbench --layers` "
            "shows where)"
        )
    return error


def admit(
    peer: RemotePeer, x: Array, scores: Array, precision: str, stack: ExitStack, remarks: Remarks
) -> list[Admitted]:
    """The contenders of a peer that compute our `scores` from `x`, with their errors; the others are named as absent.

    Those that are there for their time alone are not checked, and their error is None. `stack` closes all.
    """
    try:
        contenders = stack.enter_context(peer.contenders(x))
        for built in peer.unbuilt:
            remarks.miss(Absent(peer.name, built.reason, precision, len(x), built.variant))
        return list(_right(contenders, scores, precision, remarks))
    except LostError as error:
        remarks.miss(Absent(peer.name, str(error), precision, len(x), output=error.output))
        return []


def _right(contenders: list[Contender], scores: Array, precision: str, remarks: Remarks) -> Iterator[Admitted]:
    for contender in contenders:
        if contender.unchecked:
            yield contender, None
            continue
        theirs, bound = contender.scores(), peer_tolerance(precision, tf32=contender.tf32)
        error = float(score_error(theirs.reshape(scores.shape), scores).max()) if theirs.size == scores.size else None
        if error is not None and error <= bound:
            yield contender, error
            continue
        reason = (
            f"it gives {theirs.size} scores, ours are {scores.size}"
            if error is None
            else f"its scores differ from ours by {error:.2e}, more than {bound:g}"
        )
        remarks.miss(Absent(contender.name, reason, precision, len(scores), contender.variant))

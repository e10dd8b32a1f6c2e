"""Who may be timed: scores are checked first, because the time of a wrong answer means nothing."""

from __future__ import annotations

from contextlib import ExitStack

from vgg16gpu.bench.measure.timing import Contender, LostError
from vgg16gpu.bench.peers.remote import RemotePeer
from vgg16gpu.bench.records.findings import Absent, Remarks
from vgg16gpu.checks.accuracy import ADMITTED_ERRORS, peer_tolerance, score_error
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import Error

Admitted = tuple[Contender, float | None]


class WrongScoresError(Error):
    """Our scores are not the reference's: their times would mean nothing."""


def checked(scores: Array, references: Array, precision: str, what: str) -> float:
    """Return the error of our scores. Raises WrongScoresError, naming `what` was run, when it is too large."""
    error = float(score_error(scores, references).max())
    if not error <= ADMITTED_ERRORS[precision]:
        raise WrongScoresError(
            f"{what}: the scores differ from onnxruntime's by {error:.2e} of their maximum, at most "
            f"{ADMITTED_ERRORS[precision]:g} is right; nothing is timed (`python -m vgg16gpu testbench --layers` "
            "shows where)"
        )
    return error


def admit(
    peer: RemotePeer, x: Array, scores: Array, precision: str, stack: ExitStack, remarks: Remarks
) -> list[Admitted]:
    """Return a peer's contenders that compute our `scores` from `x`, with their errors; note the others as absent.

    Those that are there for their time alone are not checked, and their error is None. `stack` closes all.
    """
    admitted: list[Admitted] = []
    try:
        contenders = stack.enter_context(peer.contenders(x))
        missing = [Absent(peer.name, each.reason, precision, len(x), each.variant) for each in peer.unbuilt]
        for contender in contenders:
            error, reason = _judged(contender, scores, precision)
            if reason:
                missing.append(Absent(peer.name, reason, precision, len(x), contender.variant))
            else:
                admitted.append((contender, error))
    except LostError as lost:
        remarks.miss(Absent(peer.name, str(lost), precision, len(x), output=lost.output))
        return []
    if missing and not admitted:  # the peer is absent as a whole
        reasons = dict.fromkeys(each.reason for each in missing)
        missing = [Absent(peer.name, "; ".join(reasons), precision, len(x))]
    for each in missing:
        remarks.miss(each)
    return admitted


def _judged(contender: Contender, scores: Array, precision: str) -> tuple[float | None, str]:
    """Return (error, why the contender may not be timed); the error is None where it means nothing."""
    if contender.unchecked:
        return None, ""
    theirs, bound = contender.scores(), peer_tolerance(precision, tf32=contender.tf32)
    if theirs.size != scores.size:
        return None, f"it gives {theirs.size} scores, ours are {scores.size}"
    error = float(score_error(theirs.reshape(scores.shape), scores).max())
    if not error <= bound:
        return None, f"its scores differ from ours by {error:.2e}, more than {bound:g}"
    return error, ""

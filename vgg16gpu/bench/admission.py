"""Who may be timed: scores are checked first, because the time of a wrong answer means nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from vgg16gpu.accuracy import score_error
from vgg16gpu.bench.peers import Peer
from vgg16gpu.bench.precision import PEER_TOLERANCES, SCORE_TOLERANCES
from vgg16gpu.bench.timing import Contender
from vgg16gpu.errors import Error
from vgg16gpu.graph import Array


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
    peer: Peer, x: Array, scores: Array, precision: str, stack: ExitStack, note: Callable[[str], None]
) -> list[tuple[Contender, float | None]]:
    """The contenders of a peer that compute our `scores` from `x`, with their errors; a note for each that does not.

    Those that are there for their time alone are not checked, and their error is None. `stack` closes all.
    """
    admitted: list[tuple[Contender, float | None]] = []
    try:
        for contender in stack.enter_context(peer.contenders(x)):
            if contender.unchecked:
                admitted.append((contender, None))
                continue
            error = float(score_error(contender.scores().reshape(scores.shape), scores).max())
            if error <= PEER_TOLERANCES[precision]:
                admitted.append((contender, error))
            else:
                note(
                    f"{contender.name} ({contender.variant}), {precision}, batch {len(x)}: its scores differ from "
                    f"ours by {error:.2e}, more than {PEER_TOLERANCES[precision]:g}: not compared"
                )
    except Exception as error:  # a framework raises what it likes, out of memory for one
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        name = type(peer).__name__.removesuffix("Peer").lower()
        note(f"{name}, {precision}, batch {len(x)}: {reason}: not compared")
    return admitted

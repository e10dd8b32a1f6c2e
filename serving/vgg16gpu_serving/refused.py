"""A request that gets no scores, and the HTTP status that says so."""

from __future__ import annotations

from vgg16gpu.errors import Error


class RefusedError(Error):
    """status: of HTTP. retry: whether the same request may succeed a moment later (Retry-After)."""

    def __init__(self, status: int, message: str, *, retry: bool = False) -> None:
        super().__init__(" ".join(message.split()))  # one line
        self.status = status
        self.retry = retry


def no_device() -> RefusedError:
    """Return the error while the device process is starting."""
    return RefusedError(503, "the device process is starting; try again in a moment", retry=True)


def too_late() -> RefusedError:
    """Return the error of a request whose deadline passed before it had its scores."""
    return RefusedError(503, "the request was not answered before its deadline; try again with less load", retry=True)

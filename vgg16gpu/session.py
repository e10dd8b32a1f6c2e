"""runtime/session.py by the name that people know."""

from vgg16gpu.runtime.session import Session

__all__ = ["Session"]

"""How many files a process of a server may open: each connection is one."""

from __future__ import annotations

import resource
from typing import Final

from vgg16gpu.errors import InputError

_OWN: Final = 96  # files of a front end beside its connections: sockets, pipes, slots, metrics, what it reads meanwhile


def allowed_connections(wanted: int) -> int:
    """Return how many connections a front end may have, `wanted` at most.

    The soft limit of this process, which others inherit, is raised as far as that needs. Raises InputError where the
    hard limit leaves no connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft <= _OWN:
        raise InputError(f"a process may open {soft} files here, and a server needs {_OWN + 1}; raise `ulimit -n`")
    return min(wanted, soft - _OWN)

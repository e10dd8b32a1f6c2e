"""The address of a server: taken before a model is loaded, and by one server alone.

Front ends share the port by SO_REUSEPORT, so the system would let a second server of the same user join them, and
clients would get answers of both. Three things keep it out: a name that only one process can have, a bind that no
listener of another shares, and a socket that keeps the address from here on.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown


@dataclass(frozen=True)
class Address:
    """Where a server listens. host: the number of an interface, of IPv4 or IPv6."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether this machine alone can reach it."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@contextmanager
def reserved(host: str, port: int) -> Iterator[Address]:
    """Keep the address for the server of this process; port 0 becomes one that is free.

    Raises InputError where it cannot be had.
    """
    with ExitStack() as stack:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            if port:
                stack.enter_context(_claimed(Address(str(address[0]), port)))
                _require_unused(family, address)
            kept = stack.enter_context(_kept(family, address))
            found = Address(*kept.getsockname()[:2])
            if not port:
                stack.enter_context(_claimed(found))
        except (OSError, OverflowError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"--host {shown(host)} --port {port}: {why}; choose others") from error
        yield found


def _claimed(address: Address) -> socket.socket:
    """Claim a name in the network namespace that goes with the process. Raises OSError where another server has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0vgg16gpu serve {address}")
    except BaseException:
        claim.close()
        raise
    return claim


def _require_unused(family: int, address: Any) -> None:
    """Raise OSError where somebody has the address, or one that holds it, 0.0.0.0 say; old connections do not count."""
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)


def _kept(family: int, address: Any) -> socket.socket:
    """Return a socket that has the address and does not listen: front ends share it. Raises OSError.

    Without SO_REUSEADDR it is in the way of another server's `_require_unused`. Connections that another program has
    just ended are then in its own way: only there it is set.
    """
    for options in ((socket.SO_REUSEPORT,), (socket.SO_REUSEPORT, socket.SO_REUSEADDR)):
        kept = socket.socket(family, socket.SOCK_STREAM)
        try:
            for option in options:
                kept.setsockopt(socket.SOL_SOCKET, option, 1)
            kept.bind(address)
        except OSError as error:
            kept.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        except BaseException:
            kept.close()
            raise
        return kept
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

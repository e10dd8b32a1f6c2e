"""Heads of requests: which are taken, before anything of their bodies is read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.numbers import whole_number
from vgg16gpu.io.shown import shown
from vgg16gpu_serving.refused import RefusedError

_TYPES: Final = ("application/json", "application/octet-stream", "application/vnd.sagemaker-triton.binary+json")
_LONGEST: Final = (1 << 63) - 1  # bytes of a body, which is compared with the bound for bodies
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@?#]+)(?::[0-9]{0,5})?", re.ASCII)
_KEPT: Final = 256  # of what Host headers said


class Heads:
    """Checks the heads of a server. names: hosts that requests may name; None where they may name any."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else frozenset(map(host_name, names))
        self._is_ours = lru_cache(_KEPT)(self._is_named)

    def check(self, scope: Any) -> int:
        """Return the bytes of the body. Raises RefusedError for a head that is not taken.

        400 and 411 are for what two servers on its way might read in two ways. Chunks are such a form, and of chunks
        that end early granian says nothing. 421 is for the name of a foreign host: a page of a stranger reaches this
        server under a name of the stranger's, which was made to mean this machine (DNS rebinding).
        """
        headers = scope.headers
        if headers.get("transfer-encoding") is not None:
            raise RefusedError(411, "send a Content-Length and no Transfer-Encoding")
        hosts = [value for name, value in headers.items() if name == "host"]
        if len(hosts) > 1 or (not hosts and scope.http_version == "1.1"):
            found = f"{len(hosts)} Host headers" if hosts else "no Host header that is ASCII"
            raise RefusedError(400, f"{found}; send one")
        for host in hosts if scope.authority is None else (*hosts, scope.authority):
            if not self._is_ours(host):
                raise RefusedError(
                    421, f"Host {shown(host)} is not this server's; start it with --host-name to add names"
                )
        length = headers.get("content-length")
        if length is None:
            return 0
        try:
            return whole_number(length, "Content-Length", 0, _LONGEST)
        except InputError as error:
            raise RefusedError(400, str(error)) from error

    def _is_named(self, host: str) -> bool:
        if self._names is None:
            return True
        found = _HOST.fullmatch(host.lower())
        if not found:
            return False
        name = host_name(found[1])
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def host_name(text: str) -> str:
    """Return the name of a host in the form in which names are compared."""
    return text.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def check_form(header: Any) -> None:
    """Raise RefusedError (415) for a body that is packed, or is no JSON with or without binary tensors.

    header: gives a header by its name in lower case. Browsers send bodies of unknown type for pages of strangers
    without asking; programs leave the type out, tritonclient among them.
    """
    packed = header("content-encoding")
    if packed and packed.lower() != "identity":
        raise RefusedError(415, "Content-Encoding is not taken; send the body as it is")
    kind = header("content-type")
    if kind:
        if kind.partition(";")[0].strip().lower() not in _TYPES:
            raise RefusedError(415, f"the Content-Type of a request is {_TYPES[0]} or {_TYPES[1]}")
    elif header("origin") is not None or header("sec-fetch-site") is not None:
        raise RefusedError(415, f"a browser's request has no Content-Type; send {_TYPES[0]} or {_TYPES[1]}")

"""A server that is measured: where it is, what it is sent, what its model takes, and its own statistics."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.shown import printable, shown

TIMEOUT: Final = 30.0  # seconds until a client gives a request up

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """A server. headers: what every request has."""

    scheme: str
    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, token: str | None = None) -> Address:
        """Of http://HOST:PORT. Raises InputError for anything else."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in _PORTS or not port or not parts.hostname or parts.path.strip("/") or parts.query:
            raise InputError(f"--server {shown(url)}: give http://HOST:PORT or https://HOST:PORT")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return cls(parts.scheme, parts.hostname, port, headers)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    def connection(self) -> http.client.HTTPConnection:
        """A connection that is kept alive; it is opened by its first request."""
        if self.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)

    def ask(self, path: str, method: str = "GET") -> Any:
        """What it answers, as JSON. Raises InputError where it answers with an error, or not at all."""
        connection = self.connection()
        try:
            connection.request(method, path, headers=dict(self.headers))
            reply = connection.getresponse()
            body = reply.read()
            if reply.status != 200:
                raise InputError(
                    f"{self}{path} answers {reply.status}: {printable(body[:200].decode(errors='replace'))}"
                )
            return parse_json(body, "the answer")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise InputError(f"{self}{path} gives no answer: {error}; start one with `vgg16gpu serve`") from error
        finally:
            connection.close()


@dataclass(frozen=True)
class Body:
    """A request: what is posted, with which headers. plain: its images' bytes alone, one behind the other."""

    data: bytes
    headers: Mapping[str, str]
    images: int
    plain: bytes


@dataclass(frozen=True)
class Served:
    """A model behind the Open Inference Protocol. sample: (C, H, W) or (F,); pixels: (H, W, C), None without BYTES."""

    address: Address
    name: str
    input: str
    sample: tuple[int, ...]
    pixels: tuple[int, int, int] | None
    version: str

    @classmethod
    def find(cls, address: Address, name: str | None = None) -> Served:
        """What a server has; `name` where it does not tell its models. Raises InputError."""
        about = address.ask("/v2")
        name = name or str(address.ask("/v2/repository/index", "POST")[0]["name"])
        told = address.ask(f"/v2/models/{quote(name, safe='')}")
        try:
            given = told["inputs"][0]
            sample = tuple(int(side) for side in given["shape"][1:])
            takes_pictures = "BYTES" in given.get("parameters", {}).get("accepts", "")
            return cls(address, name, given["name"], sample, _pixels(sample, takes_pictures), str(about.get("version")))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"{address} does not describe '{name}' as KServe v2 does") from error

    @property
    def path(self) -> str:
        """Where requests to infer go."""
        return f"/v2/models/{quote(self.name, safe='')}/infer"

    def statistics(self) -> tuple[int, int] | None:
        """Images and batches so far; None where the server does not tell."""
        try:
            found = self.address.ask(f"/v2/models/{quote(self.name, safe='')}/stats")["model_stats"][0]
            return int(found["inference_count"]), int(found["execution_count"])
        except (InputError, KeyError, IndexError, TypeError, ValueError):
            return None


def _pixels(sample: tuple[int, ...], takes_pictures: bool) -> tuple[int, int, int] | None:
    if not takes_pictures or len(sample) != 3:
        return None
    return (sample[1], sample[2], sample[0]) if sample[0] in (1, 3) else (sample[0], sample[1], sample[2])

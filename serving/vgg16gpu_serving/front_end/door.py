"""What a front end listens with and writes to, checked and opened by the process that starts them all."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable
from vgg16gpu_serving.address import Address


class LogFile:
    """A file that is open to append lines, here and in processes that are started with it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def opened(cls, target: str) -> LogFile:
        """Open a file, or stdout for "-". Raises InputError."""
        if target == "-":
            return cls(os.dup(1))
        try:
            return cls(os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666))
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"--access-log '{printable(target)}' cannot be written: {reason}") from error

    def write(self, line: str) -> None:
        """Append a line by one call of the system, so that lines of several processes come whole. Raises OSError."""
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Close it here."""
        os.close(self._descriptor)

    def __reduce__(self) -> Any:
        """Pickle the descriptor, only on the way into a process that is being started."""
        return _inherited, (reduction.DupFd(self._descriptor),)


def _inherited(descriptor: Any) -> LogFile:
    return LogFile(descriptor.detach())


@dataclass(frozen=True)
class Door:
    """Where a front end listens, and what it writes. log: None for none."""

    address: Address
    certificate: Path | None
    key: Path | None
    log: LogFile | None


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise InputError where a certificate and a key cannot be read, or do not go together."""
    if certificate is None or key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InputError(
            f"--tls-cert '{printable(str(certificate))}' with --tls-key '{printable(str(key))}': {_reason(error)}; "
            "give a certificate (PEM) and its own key, without a password"
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):  # of which the words are OpenSSL's own, in capitals; some have none
        return error.reason.lower().replace("_", " ") if error.reason else "no PEM in it"
    return getattr(error, "strerror", None) or str(error)


class AccessLog(logging.Handler):
    """Writes each record as a line. A disk that is full costs lines, and no request."""

    def __init__(self, file: LogFile) -> None:
        super().__init__()
        self._file = file
        self._is_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line."""
        try:
            self._file.write(record.getMessage())
        except OSError as error:
            if not self._is_lost:
                logging.getLogger(__name__).warning("the access log cannot be written: %s", error.strerror)
            self._is_lost = True
        else:
            self._is_lost = False

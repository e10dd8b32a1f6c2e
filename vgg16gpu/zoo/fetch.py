"""Download the public VGG16 of the ONNX Model Zoo: resumed, verified, whole or not there.

What it says about itself is added behind the verified bytes: a protobuf message goes on where another ends, so the file
stays the model that it is, and `infer` finds its preprocessing there.
"""

from __future__ import annotations

import hashlib
import http
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vgg16gpu.compiler.onnx.metadata import PREPROCESS_KEY, encoded
from vgg16gpu.errors import ModelError
from vgg16gpu.io.files import Progress, target_of, write_error
from vgg16gpu.io.preprocessing import Preprocess

# What its page in the zoo says of pictures.
VGG16_METADATA: Final[Mapping[str, str]] = {PREPROCESS_KEY: Preprocess.named("torchvision").to_json()}
VGG16_SIZE: Final = 553_437_328  # bytes
VGG16_SHA256: Final = "f20805a3ecccaa88647bbab4ad011ff2412a9838485ea844de0fcbce349820b9"
_ZOO_PATH = "validated/vision/classification/vgg/model/vgg16-7.onnx"
VGG16_URLS: Final = (
    f"https://media.githubusercontent.com/media/onnx/models/main/{_ZOO_PATH}",
    f"https://huggingface.co/onnxmodelzoo/legacy_models/resolve/main/{_ZOO_PATH}",
)

_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 20
_ATTEMPTS = 5  # at one URL, as long as each brings something


def fetch_vgg16(
    path: str | Path,
    urls: Sequence[str] | None = None,
    *,
    size: int = VGG16_SIZE,
    sha256: str = VGG16_SHA256,
    metadata: Mapping[str, str] = VGG16_METADATA,
    progress: Progress | None = None,
) -> str | None:
    """Download the file of that size and SHA-256 to `path` from the first URL that has it; the URL.

    `metadata` is added behind it. None when `path` has it already, with or without the metadata. What has come lies in
    `path`.part until the file is whole and verified; an interrupted download goes on there. A download with the wrong
    checksum is deleted. Raises ModelError listing each URL and what was wrong with it, or saying why the file cannot be
    written; one that is there is not overwritten.
    """
    download = _Download(target_of(Path(path)), size, sha256, encoded(metadata), progress)
    failures = []
    try:
        if download.is_done():
            return None
        if download.path.exists():
            raise ModelError(f"{path}: exists and is another file; delete it or give another --output")
        for url in urls or VGG16_URLS:
            try:
                download.run(url)
            except _FetchError as failure:
                failures.append(f"{url}: {failure}")
            else:
                return url
    except OSError as error:
        raise write_error(download.path, error) from error
    reasons = "; ".join(failures)
    raise ModelError(f"{path}: could not be downloaded: {reasons}; check the network or give another --url")


class _FetchError(Exception):
    """One URL did not give the file."""


class _CutError(_FetchError):
    """The connection ended early; what came is kept."""


@dataclass(frozen=True, eq=False)
class _Download:
    path: Path
    size: int
    sha256: str
    tail: bytes  # what comes behind it, once it is verified
    progress: Progress | None

    @property
    def part(self) -> Path:
        """Path of the bytes until they are complete."""
        return self.path.with_name(self.path.name + ".part")

    def is_done(self) -> bool:
        """Return whether the file is there, whole and right, with what comes behind it or without."""
        if not self.path.is_file() or self.path.stat().st_size not in (self.size, self.size + len(self.tail)):
            return False
        digest, tail = _digest(self.path, self.size)
        return digest == self.sha256 and tail in (b"", self.tail)

    def run(self, url: str) -> None:
        """Download the file from one URL, going on where an earlier attempt ended. Raises _FetchError."""
        failure = _FetchError("no attempt was made")
        for _ in range(_ATTEMPTS):
            before = self._have()
            try:
                if before < self.size:
                    with _open(url, before) as response:
                        self._receive(response, before)
                return self._finish()
            except _FetchError as error:
                failure = error
            have = self._have()
            # A leftover of another download, or a damaged one, spoils the sum: once more, from the start.
            from_the_start = before > 0 and have == 0
            further = isinstance(failure, _CutError) and have > before
            if not (from_the_start or further):
                break
        raise failure

    def _have(self) -> int:
        """Return the bytes in the .part file; delete one that is too long."""
        have = self.part.stat().st_size if self.part.exists() else 0
        if have > self.size:
            self.part.unlink()
            return 0
        return have

    def _receive(self, response: http.client.HTTPResponse, offset: int) -> None:
        """Append the answer to a request for the bytes from `offset` on, or take it whole if the server sends that."""
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            start, total = _content_range(response)
        else:
            start, total = 0, response.length if response.length is not None else self.size
        if total != self.size:
            raise _FetchError(f"offers {total} bytes, the file has {self.size}")
        if start not in (0, offset):
            raise _FetchError(f"sent the bytes from {start} on instead of {offset}")
        with self.part.open("ab" if start else "wb") as file:
            while data := _read(response):
                file.write(data)
                if self.progress:
                    self.progress(min(file.tell(), self.size), self.size)
                if file.tell() > self.size:
                    break
        have = self._have()
        if have < self.size:
            raise _CutError(f"the connection ended after {have} of {self.size} bytes")

    def _finish(self) -> None:
        found, _ = _digest(self.part, self.size)
        if found != self.sha256:
            self.part.unlink()
            raise _FetchError(f"sent another file: SHA-256 {found} instead of {self.sha256}")
        with self.part.open("ab") as file:
            file.write(self.tail)
        self.part.replace(self.path)


def _open(url: str, offset: int) -> http.client.HTTPResponse:
    if not url.startswith(("http://", "https://")):
        raise _FetchError("is not an http or https address")
    headers = {"User-Agent": "vgg16gpu", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()
        raise _FetchError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _FetchError(str(getattr(error, "reason", "") or error)) from error
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    """Read some bytes; none at the end, and none when the connection breaks."""
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException):
        return b""


def _content_range(response: http.client.HTTPResponse) -> tuple[int, int]:
    """Return (first byte, size of the whole file) of a partial answer."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if not match:
        raise _FetchError("answered a partial request without saying which part it sends")
    return int(match[1]), int(match[2])


def _digest(path: Path, size: int) -> tuple[str, bytes]:
    """Return the SHA-256 (hex) of the first `size` bytes of a file, and the bytes behind them."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(min(_CHUNK, size - file.tell())):
            digest.update(data)
        return digest.hexdigest(), file.read()

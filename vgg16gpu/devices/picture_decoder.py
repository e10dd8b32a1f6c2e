"""Pictures decoded by the device: what the engine asks of a library that can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vgg16gpu.devices.base import Bytes


class Place(NamedTuple):
    """Where a picture's planes shall lie on the device, as `program.ycbcr` says, from a multiple of 16 bytes on."""

    address: int
    height: int
    width: int
    sampling: int


class PictureDecoder(Protocol):
    """Decodes JPEG files into memory of the device. One thread at a time; several decoders work beside each other.

    It does not make RGB of them: what libraries make of the same planes differs, and ours is libjpeg's.
    """

    def decode(self, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
        """Decode each file to its place, and wait for that; which of them are there.

        A file that is refused may have changed its place, and nothing else. Others of the same call may be refused with
        it: asked for alone, each has its own answer. Raises KernelError when the device has failed.
        """

    def close(self) -> None:
        """Free everything. Safe to call twice."""


class PictureCodec(Protocol):
    """A library that decodes on one device, always in the same way: the same file gets the same pixels.

    name: the library, its versions and its way of decoding, whatever changes pixels.
    """

    name: str

    def decoder(self) -> PictureDecoder:
        """Return a decoder, to be closed before the device. Raises DeviceError where there can be none."""

    def close(self) -> None:
        """Free what no decoder has taken, before the device is closed. Safe to call twice."""

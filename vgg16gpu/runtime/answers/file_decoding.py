"""Encoded pictures decoded on the device, into a room there; by the CPU where the device refuses one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from vgg16gpu.devices.base import Bytes, Stream
from vgg16gpu.devices.picture_decoder import PictureDecoder, Place
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.slots import Failure, SampleRow, aligned
from vgg16gpu.runtime.engine import Engine


class Decoded(NamedTuple):
    """What became of rows.

    rows: as they lie now, at `addresses`; None where there is no picture, of which a failure tells. refused: how many
    the CPU was asked for.
    """

    rows: list[SampleRow | None]
    addresses: list[int]
    failures: list[Failure]
    refused: int


class FileDecoding:
    """Brings rows to the device of an engine, for a network that takes `spec`. Several threads may use it.

    A file that a decoder refuses alone is decoded as if there were none, from the bytes that are there; so which pixels
    it gets depends on nothing but itself.
    """

    def __init__(self, engine: Engine, spec: InputSpec) -> None:
        self._engine = engine
        self._cpu = Decoder(spec)
        self._fitted = math.prod(spec.shape)  # bytes of a picture as the network takes it

    def needed(self, row: SampleRow) -> int:
        """Bytes on the device, as a loader counts them."""
        if row.nbytes:
            return self._cpu.room_nbytes(row.height, row.width, row.sampling)
        return aligned(self.nbytes(row))

    def nbytes(self, row: SampleRow) -> int:
        """Bytes of the row on the host: of a file, of a picture, or of what the network takes."""
        return row.nbytes or row.height * row.width * self._cpu.channels or self._fitted

    def decode(
        self, decoder: PictureDecoder | None, rows: Sequence[SampleRow], data: Sequence[Bytes], address: int
    ) -> Decoded:
        """All rows as planes, as pictures or as what the network takes, from `address` on. data: the bytes of each.

        decoder: None where there turned out to be none; then all files are refused.
        """
        addresses, there = self.on_device(decoder, rows, data, address)
        failures: list[Failure] = []
        found = [
            row if i in there else self._by_cpu(row, data[i], addresses[i], failures) for i, row in enumerate(rows)
        ]
        return Decoded(found, addresses, failures, sum(row.nbytes > 0 for row in rows) - len(there))

    def on_device(
        self, decoder: PictureDecoder | None, rows: Sequence[SampleRow], data: Sequence[Bytes], address: int
    ) -> tuple[list[int], set[int]]:
        """Where each row has its place, from `address` on; and the numbers of the files that lie decoded in theirs."""
        ends = accumulate((self.needed(row) for row in rows), initial=address)
        addresses = [end for end, _ in zip(ends, rows, strict=False)]
        files = [i for i, row in enumerate(rows) if row.nbytes]
        places = [_place(addresses[i], rows[i]) for i in files]
        taken = _taken(decoder, [data[i] for i in files], places)
        return addresses, {i for i, is_there in zip(files, taken, strict=True) if is_there}

    def upload(self, address: int, pixels: Bytes) -> None:
        """Enqueue a copy to a place of a row; what reads there waits for it."""
        with self._engine.turn():
            self._engine.device.copy_in(address, pixels, Stream.UPLOAD)

    def _by_cpu(self, row: SampleRow, data: Bytes, address: int, failures: list[Failure]) -> SampleRow | None:
        """A row that no decoder has put in its place; None where there is no picture, which `failures` say then."""
        if not row.nbytes:
            self.upload(address, data)
            return row
        file = data.tobytes()
        pixels = np.empty(row.height * row.width * self._cpu.channels, np.uint8)
        try:
            if self._cpu.shape(file) and self._cpu.decode_into(file, pixels):
                self.upload(address, pixels)
                return row._replace(nbytes=0, sampling=0)
            fitted = self._cpu.fitted(file, row.name)
        except InputError as error:
            failures.append(Failure(row.file, row.sample, row.name, str(error)))
            return None
        self.upload(address, np.ascontiguousarray(fitted).reshape(-1))
        return row._replace(height=0, width=0, nbytes=0, sampling=0)


def _place(address: int, row: SampleRow) -> Place:
    return Place(address, row.height, row.width, row.sampling)


def _taken(decoder: PictureDecoder | None, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
    """Which files the decoder decodes. Refused ones are asked for in halves, down to each alone: others may be why."""
    if decoder is None or not files:
        return [False] * len(files)
    taken = decoder.decode(files, places)
    left = [i for i, is_there in enumerate(taken) if not is_there]
    middle = len(left) // 2
    for half in (left[:middle], left[middle:]) if len(files) > 1 else ():
        again = _taken(decoder, [files[i] for i in half], [places[i] for i in half])
        for i, is_there in zip(half, again, strict=True):
            taken[i] = is_there
    return taken

"""Rows that are there already: whose they are, and where to go on behind them."""

from __future__ import annotations

from collections.abc import Sequence

from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.names import STANDARD_INPUT


def first_open(done: Sequence[str], listing: Listing) -> tuple[tuple[int, int], list[str]]:
    """The (file, sample) behind the rows that are done, and whose rows these are by the listing.

    done: names of rows; a file of numbers has a row for each sample.
    """
    file, sample, names = 0, 0, []
    for name in done:
        if file < len(listing.files) and sample and not _is_sample(name, listing.files[file]):
            file, sample = file + 1, 0
        if file == len(listing.files):
            break
        if listing.files[file] in listing.numbers and _is_sample(name, listing.files[file]):
            names.append(name)
            sample += 1
        else:
            names.append(listing.files[file])
            file += 1
    return (file, sample), names


def _is_sample(name: str, file: str) -> bool:
    return name.startswith("standard input" if file == STANDARD_INPUT else file)

"""Files as network inputs: text, .npy, .npz, images, folders of images, standard input. Which files: `listing.py`.

Numbers (float) are taken as they are, in the order of the model's file: channels first, (C, H, W) or (N, C, H, W), or
last (Keras). Bytes (uint8) are pixels, channels last: (H, W, C) or (N, H, W, C), RGB where there are three; they get
the order of channels that the network takes, and the engine normalises them on the device. Image files become pixels
(see images.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import GraphInput
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.arrays import ForeignArray, opened_npy, opened_npz, reading
from vgg16gpu.io.foreign.lines import read_standard_input
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.content import check_regular, read_file, suffix_of
from vgg16gpu.pictures.images import in_channel_order
from vgg16gpu.pictures.listing import HIDDEN, STANDARD_INPUT, Listing, list_files

Sample: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
AnyArray: TypeAlias = npt.NDArray[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputSpec:
    """What one sample must be: its shape, without the batch, and whether NaN and Inf may pass.

    `channels_last`: numbers are (H, W, C) all the same, as the model's file says. `preprocess`: what is done to
    pictures; None is what is assumed of models of so many channels. The rest is for messages: whether the model runs at
    other image sizes (--size), and what to do about NaN and Inf.
    """

    shape: tuple[int, ...]  # (C, H, W), or (F,) for a model without images
    allow_nonfinite: bool = False
    open_size: bool = False
    nonfinite_advice: str = "repair the data"
    channels_last: bool = False
    preprocess: Preprocess | None = None

    def array_shape(self, *, is_pixels: bool) -> tuple[int, ...]:
        """Return the shape of one sample as an array of numbers or of pixels."""
        turned = len(self.shape) == 3 and (is_pixels or self.channels_last)
        return (*self.shape[1:], self.shape[0]) if turned else self.shape

    def turns(self, element_type: str) -> bool:
        """Return whether a sample has its channels last where the kernels read them first."""
        return self.channels_last and element_type == "float32" and len(self.shape) == 3


def spec_of(given: GraphInput, shape: tuple[int, ...], preprocess: Preprocess | None = None) -> InputSpec:
    """Return the input that a model takes, for one sample of `shape`."""
    open_size = given.shape[2:] == (None, None)
    return InputSpec(shape, open_size=open_size, channels_last=given.channels_last, preprocess=preprocess)


@dataclass(frozen=True, eq=False)
class NamedInput:
    """One sample, float32 as the model's file has it or uint8 (H, W, C), and where it came from."""

    name: str
    array: Sample


def listed(
    paths: Sequence[str | Path], files_from: str | None = None, *, recursive: bool = True, null: bool = False
) -> Listing:
    """Return the result of `list_files`, and log what folders hold besides."""
    listing = list_files(paths, files_from, recursive=recursive, null=null)
    if line := listing.line():
        level = logging.INFO if set(listing.left_out) == {HIDDEN} else logging.WARNING
        _log.log(level, "%s", line)
    return listing


def expand_paths(paths: Sequence[str | Path]) -> list[str]:
    """Return the files to read, folders replaced by their images and those of their subfolders in sorted order.

    Raises InputError for what does not exist, is of an unknown type, or is a folder without images.
    """
    return list(listed(paths).files)


def samples(file: str, spec: InputSpec) -> Iterator[tuple[str, Sample]]:
    """Yield (name, sample) of each sample in one file of numbers, by its ending, or of standard input ("-").

    float32 as the model's file has it, or uint8 (H, W, C); read when it is asked for. Raises InputError naming file,
    value found and what is accepted.
    """
    for name, sample in each_sample(file, spec):
        if isinstance(sample, InputError):
            raise sample
        if not spec.allow_nonfinite:
            check_finite(sample, name, spec.nonfinite_advice)
        yield name, sample


def each_sample(file: str, spec: InputSpec) -> Iterator[tuple[str, Sample | InputError]]:
    """Yield the same, with the error in place of a sample that cannot be read; NaN and Inf pass.

    Behind a member of an archive that cannot be read come the others, behind one of another file nothing.
    """
    try:
        with reading(f"'{file}'"):
            yield from _read_numbers(file, spec)
    except InputError as error:
        yield file, error


def image_shape(spec: InputSpec, name: str) -> tuple[int, int, int]:
    """Return (C, H, W) of a model that takes images. Raises InputError, which names the image, for another."""
    if len(spec.shape) != 3:
        raise InputError(f"'{name}' is an image; the model takes {spec.shape} numbers: give .npy, .npz or .txt")
    return spec.shape[0], spec.shape[1], spec.shape[2]


def batched(inputs: Iterable[NamedInput], size: int) -> Iterator[list[NamedInput]]:
    """Yield consecutive inputs of the same type, at most `size` together."""
    batch: list[NamedInput] = []
    for item in inputs:
        if batch and (len(batch) == size or batch[0].array.dtype != item.array.dtype):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def check_finite(array: AnyArray, name: str, advice: str) -> None:
    """Raise InputError with count, place and `advice` when a float array holds NaN or Inf."""
    finite = np.isfinite(array)
    if finite.all():
        return
    places = np.argwhere(~finite)
    place = tuple(int(i) for i in places[0])
    raise InputError(
        f"'{name}' has {len(places)} values that are NaN or infinite, the first ({array[place]}) at index "
        f"{list(place)}; {advice}"
    )


def _read_numbers(file: str, spec: InputSpec) -> Iterator[tuple[str, Sample | InputError]]:
    if file == STANDARD_INPUT:
        text = read_standard_input("standard input")
        numbers = _from_text(text, "standard input", spec)
        yield from _numbered("standard input", numbers, len(numbers))
        return
    check_regular(file)  # what is read below would wait for a pipe
    match suffix_of(file):
        case ".txt":
            numbers = _from_text(read_file(file, most=None), file, spec)
            yield from _numbered(file, numbers, len(numbers))
        case ".npy":
            with opened_npy(Path(file)) as array:
                yield from _samples(array, file, spec)
        case _:
            with opened_npz(Path(file)) as members:
                for key, member in members:
                    yield from _member(f"{file}[{key}]", member, spec)


def _member(name: str, member: ForeignArray | InputError, spec: InputSpec) -> Iterator[tuple[str, Sample | InputError]]:
    try:
        if isinstance(member, InputError):
            raise member
        yield from _samples(member, name, spec)
    except InputError as error:
        yield name, error


def _numbered(
    name: str, samples: Iterable[AnyArray], count: int, preprocess: Preprocess | None = None
) -> Iterator[tuple[str, Sample]]:
    # One sample at a time is converted: a file may be larger than memory.
    for index, sample in enumerate(samples):
        sample_name = f"{name}[{index}]" if count > 1 else name
        if sample.dtype != np.uint8:
            yield sample_name, _to_float32(sample, sample_name)
        else:
            yield sample_name, in_channel_order(sample, preprocess) if preprocess else sample


def _from_text(text: bytes, name: str, spec: InputSpec) -> npt.NDArray[np.float32]:
    from vgg16gpu.io.text import parse_numbers, shape_samples  # noqa: PLC0415 - pictures do without

    if not text.strip():
        raise InputError(f"'{name}' is empty; expected numbers separated by white space")
    shape = spec.array_shape(is_pixels=False)
    channels_last = spec.channels_last
    return shape_samples(parse_numbers(text, name), shape, name, open_size=spec.open_size, channels_last=channels_last)


def _samples(array: ForeignArray, name: str, spec: InputSpec) -> Iterator[tuple[str, Sample]]:
    """Yield the samples of an array of one or several. Raises InputError before the first is read."""
    is_pixels = array.dtype == np.uint8
    if not is_pixels and array.dtype.kind != "f":
        raise InputError(
            f"'{name}' has elements of type {array.dtype}; accepted are floats (numbers, channels "
            f"{'last' if spec.channels_last else 'first'}) and uint8 (pixels, channels last)"
        )
    shape, rank = spec.array_shape(is_pixels=is_pixels), len(array.shape)
    if rank not in (len(shape), len(shape) + 1):
        raise InputError(
            f"'{name}' has rank {rank}, shape {array.shape}; accepted are {_shape(shape)} for one input "
            f"and {_shape(('N', *shape))} for several"
        )
    found = array.shape[rank - len(shape) :]
    if found != shape:
        advice = _shape_advice(found, is_pixels, spec)
        raise InputError(f"'{name}' has shape {array.shape}; {advice}")
    count = array.shape[0] if rank > len(shape) else 1
    if not count:
        raise InputError(f"'{name}' has shape {array.shape}: it holds no inputs; give at least one")
    yield from _numbered(name, array.samples(len(shape)), count, spec.preprocess)


def _to_float32(sample: AnyArray, name: str) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        numbers = sample.astype(np.float32)
    if np.isinf(numbers).sum() > np.isinf(sample).sum():
        raise InputError(f"'{name}' holds {sample.dtype} numbers that are too large for float32")
    return numbers


def _shape_advice(found: tuple[int, ...], is_pixels: bool, spec: InputSpec) -> str:
    kind, wanted = "uint8 pixels" if is_pixels else "floats", spec.array_shape(is_pixels=is_pixels)
    text = f"the model takes {kind} of {_shape(wanted)}, or {_shape(('N', *wanted))}"
    if len(wanted) != 3:
        return text
    channels_last = is_pixels or spec.channels_last
    other = (wanted[2], *wanted[:2]) if channels_last else (*wanted[1:], wanted[0])
    if found == other:
        axes = "2, 3, 1" if channels_last else "3, 1, 2"
        return f"{text}: transpose it (batch axes 0, {axes})"
    channel_axis = 2 if channels_last else 0
    sides = {side for axis, side in enumerate(found) if axis != channel_axis}
    if spec.open_size and found[channel_axis] == wanted[channel_axis] and len(sides) == 1:
        return f"{text}; --size {sides.pop()} runs the model at that size if its layers allow it"
    return text


def _shape(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(side) for side in shape) + ("," if len(shape) == 1 else "") + ")"

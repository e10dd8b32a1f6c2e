"""What --inputs names, found before it is read: an input without a reference need not be readable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vgg16gpu.errors import InputError
from vgg16gpu.pictures.images import load_image
from vgg16gpu.pictures.inputs import InputSpec, NamedInput, Sample, check_finite, each_sample, image_shape, listed


@dataclass(frozen=True, eq=False)
class LazyInput:
    """An input that is read when it is asked for."""

    name: str
    _read: Callable[[], Sample]

    def read(self) -> NamedInput:
        """Read the input. Raises InputError where it cannot be read."""
        return NamedInput(self.name, self._read())


def sources(path: Path, spec: InputSpec) -> list[LazyInput]:
    """Return the inputs of a file or folder, in the order in which `infer` has them.

    Raises InputError for what does not exist; what cannot be read, or is not what the model takes, is told by `read`.
    """
    listing = listed([path])
    found = []
    for file in listing.files:
        if file in listing.numbers:
            found += [LazyInput(name, partial(_finite, each, name, spec)) for name, each in each_sample(file, spec)]
        else:
            found.append(LazyInput(file, partial(load_image, Path(file), *image_shape(spec, file), spec.preprocess)))
    return found


def _finite(sample: Sample | InputError, name: str, spec: InputSpec) -> Sample:
    if isinstance(sample, InputError):
        raise sample
    check_finite(sample, name, spec.nonfinite_advice)
    return sample

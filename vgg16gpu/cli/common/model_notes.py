"""What belongs to a model but is not in its graph: preprocessing, class names, a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vgg16gpu.cli.common.preprocess_options import PixelOptions, chosen
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.metadata import NOTE_KEY
from vgg16gpu.errors import InputError
from vgg16gpu.io.labels import load as load_labels
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.shown import printable


@dataclass(frozen=True)
class ModelNotes:
    """`preprocess`: what is done to pictures; None for a model that takes none, but rows of numbers."""

    preprocess: Preprocess | None
    labels: Path | None
    model: Model
    note: str

    @property
    def mean(self) -> tuple[float, ...] | None:
        """Per channel, of pixels / 255, as `Engine` takes it."""
        return self.preprocess.unit_mean if self.preprocess else None

    @property
    def std(self) -> tuple[float, ...] | None:
        """Per channel, of pixels / 255, as `Engine` takes it."""
        return self.preprocess.unit_std if self.preprocess else None

    def names(self, classes: int) -> Sequence[str]:
        """Return a name for each of `classes` classes. Raises InputError when --labels holds another number."""
        return self.model.labels(classes) if self.labels is None else load_labels(self.labels, classes)


def model_notes(model: Model, graph: Graph, shape: Shape, pixels: PixelOptions, labels: Path | None) -> ModelNotes:
    """Return the user's options first, then the metadata of the model file, then what its graph lets assume.

    `graph` is the simplified one, `shape` that of its inputs. Raises InputError and ModelError.
    """
    preprocess = None
    if len(shape) == 4:
        preprocess = chosen(pixels, shape[1], lambda: model.preprocess(graph, shape))
    elif pixels.given:
        raise InputError(f"{model.name}: takes rows of {shape[1]} numbers, no pictures; leave {pixels.given[0]} out")
    return ModelNotes(
        preprocess=preprocess,
        labels=labels,
        model=model,
        note=printable(model.metadata.get(NOTE_KEY, "")),
    )


def contradiction(model: Model, graph: Graph, notes: ModelNotes, shape: Shape) -> str | None:
    """Return a warning when the user's options differ from the file's own preprocessing. Raises ModelError."""
    if notes.preprocess is None or not notes.preprocess.origin.options:
        return None
    from vgg16gpu.compiler.graph.first_layers import first_layers  # noqa: PLC0415 - who gives no options does without

    own = model.preprocess(graph, shape)
    if own.origin.kind != "file":
        if first_layers(graph, shape[1]) is None:
            return None
        # Layers know neither of these.
        own = replace(own, fit=notes.preprocess.fit, interpolation=notes.preprocess.interpolation)
    if own == notes.preprocess:
        return None
    steps, _, _ = own.line(shape[2], shape[3]).partition(";")
    given = ", ".join(notes.preprocess.origin.options)
    return f"the model asks for other {steps}; {own.origin}; without {given} that is done"


def calibrated_otherwise(model: Model, notes: ModelNotes, shape: Shape) -> str | None:
    """Return a warning when int8's scales come from pictures that were prepared otherwise. Raises ModelError."""
    from vgg16gpu.compiler.quantization.scale_file import read_preprocess, scales_path  # noqa: PLC0415 - int8 alone

    before = read_preprocess(model.path)
    if before is None or before == notes.preprocess:
        return None
    steps, _, _ = before.line(shape[2], shape[3]).partition(";")
    return f"{scales_path(model.path)} was calibrated on other {steps}; run `calibrate` again with what is done now"

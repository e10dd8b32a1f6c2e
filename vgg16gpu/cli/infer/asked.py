"""What the command line of `infer` comes to: the model, what is done to pictures, the files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vgg16gpu.cli.common.model_notes import ModelNotes, calibrated_otherwise, contradiction, model_notes
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.infer.options import InferOptions
from vgg16gpu.compiler.class_scores import class_count
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.stages import stage
from vgg16gpu.pictures.inputs import InputSpec, listed, spec_of
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.runtime.answers.folder import default_batch

_NONFINITE_ADVICE = "repair the data, or give --allow-nonfinite to run on it"


@dataclass(frozen=True)
class ResolvedConfig:
    """The command line, looked into. `shape`: of one sample. `score_shape`: of its first output."""

    options: InferOptions
    path: Path
    model: Model
    graph: Graph
    shape: Shape
    score_shape: Shape
    notes: ModelNotes
    warnings: tuple[str, ...]
    listing: Listing

    @classmethod
    def of(cls, options: InferOptions, listing: Listing | None = None) -> ResolvedConfig:
        """Find and open everything, but the files where they are listed. Raises InputError and ModelError."""
        listing = listing or listed(options.images, options.files_from, recursive=options.recursive, null=options.null)
        path = find_model(options.model)
        with stage("model"):
            model = Model(path)
            graph = model.graph(options.precision, options.outputs)
            shape = resolve_input_shape(graph, graph.input.shape[0] or 1, options.size)
            notes = model_notes(model, graph, shape, options.pixels, options.labels)
        has_scales_beside = options.precision == "int8" and not graph.integers
        warnings = [contradiction(model, graph, notes, shape)]
        warnings += [calibrated_otherwise(model, notes, shape)] if has_scales_beside else []
        scores = infer_shapes(graph, shape)[graph.outputs[0]]
        row = scores[1:] if scores[:1] == shape[:1] else scores
        told = tuple(filter(None, warnings))
        return cls(options, path, model, graph, shape[1:], row, notes, told, listing)

    @property
    def spec(self) -> InputSpec:
        """Form of one sample."""
        return replace(
            spec_of(self.graph.input, self.shape, self.notes.preprocess),
            allow_nonfinite=self.options.allow_nonfinite,
            nonfinite_advice=_NONFINITE_ADVICE,
        )

    @property
    def assumption(self) -> str:
        """Warning about an assumed preprocessing; "" where file or user gives one."""
        preprocess = self.notes.preprocess
        told = preprocess.assumption(*self.shape[1:]) if preprocess else ""
        return f"warning: {told}; --preprocess says how" if told else ""

    @property
    def top(self) -> int:
        """Classes of each input; none where the first output has no classes.

        It has them if it is the model's own: what --outputs names inside of it are features.
        """
        own = [output.name for output in self.model.file.model.graph.output]
        is_own = not self.options.outputs or self.graph.outputs[0] in own
        return min(self.options.top, self.classes) if is_own else 0

    @property
    def classes(self) -> int:
        """Scores of classes in the first output; 0 where it has another form."""
        return class_count((1, *self.score_shape))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes. Raises InputError when --labels has another number."""
        return tuple(self.notes.names(self.classes)) if self.top else ()

    def batch(self, kind: str) -> int:
        """Return the one batch size for a kind of device: bits may differ from size to size."""
        given = max(self.options.batches, default=0)
        return given or default_batch(len(self.listing.files), self.graph, self.shape, kind)

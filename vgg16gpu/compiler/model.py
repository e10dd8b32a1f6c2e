"""An ONNX model, opened once. Whatever takes a model takes this, too, so that one command reads its file once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, Union, cast

import onnx

from vgg16gpu.compiler.choices import MAX_BATCH, MAX_CHANNELS, PRECISIONS
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import FakeQuantize, Shape
from vgg16gpu.compiler.graph.passes import IMAGE_PASSES, simplify
from vgg16gpu.compiler.onnx.file import OnnxFile, open_onnx, parse_onnx
from vgg16gpu.compiler.onnx.free_size import with_free_size
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.compiler.onnx.metadata import (
    LABELS_KEY,
    NOTE_KEY,
    RANDOM_NOTE,
    metadata_list,
    metadata_of,
    model_preprocess,
)
from vgg16gpu.compiler.vgg.forms import is_hub_name, is_of_torch
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.labels import load as load_labels
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.shipped import digits_model, is_digits
from vgg16gpu.io.shown import printable, shown


class TorchModule(Protocol):
    """What a module of torch has."""

    def state_dict(self) -> Any:
        """Return its tensors by name."""


TorchSource: TypeAlias = str | Path | Mapping[str, Any] | TorchModule
ModelSource: TypeAlias = Union[str, Path, bytes, onnx.ModelProto, Mapping[str, Any], TorchModule, "Model"]

_FORMS = (
    "the path of an ONNX file, 'digits', the bytes of a file, what onnx.load returns, a vgg16gpu.Model, or a VGG of "
    "torch: a module, a state dict, the path of a .pth, .pt or .safetensors file, or 'torchvision/vgg16'"
)
SESSION = "use vgg16gpu.session.Session or vgg16gpu.onnx_backend"


class Model:
    """An ONNX model: opened and parsed here, and simplified once, however many ask for its graph.

    source: the path of a file, "digits" (the small net in the package), the bytes of a file, what `onnx.load` returns,
        or a VGG as torch has it: see `from_torch`. A file must not be rewritten in place meanwhile. `Model.of` takes a
        Model, too, and gives it back.

    It can be pickled: one of a file by its path, which is opened anew, one in memory with its weights.

    Raises ModelError for what is no model, InputError for what is none of these.
    """

    def __init__(self, source: str | Path | bytes | onnx.ModelProto | Mapping[str, Any] | TorchModule) -> None:
        self._open(_opened(source), source)

    def _open(self, file: OnnxFile, source: Any) -> None:
        self.file = file
        self._origin: str | Path | None = None  # what opens its file anew, from any folder: a path, or a name of ours
        if file.is_on_disk:
            is_named = is_digits(source) or is_hub_name(source)
            self._origin = str(source) if is_named else file.path.absolute()
        self._loaded: dict[tuple[str, ...] | None, Graph] = {}  # by the names that were asked for
        # Simplified, by outputs, for int8 or not, and whether nobody asked for these outputs.
        self._graphs: dict[tuple[tuple[str, ...], bool, bool], Graph] = {}

    def __repr__(self) -> str:
        return f"Model({self.name})"

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what another process opens: the path or name of a file, or all of a model in memory."""
        return {"origin": self._origin, "file": self.file if self._origin is None else None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Open it. Raises ModelError where its file is not there any more."""
        origin, file = state["origin"], state["file"]
        if isinstance(origin, Path) and not origin.exists():
            raise ModelError(
                f"{printable(str(origin))}: no such file, from which a pickled model is read; bring the file there, or "
                "build anew what was pickled"
            )
        self._open(_opened(origin) if file is None else file, origin)

    @classmethod
    def of(cls, source: ModelSource) -> Self:
        """Return the source itself if it is a Model, else a Model of it."""
        return source if isinstance(source, cls) else cls(cast(Any, source))

    @classmethod
    def from_torch(cls, source: TorchSource, arch: str | None = None) -> Self:
        """Return the model of a VGG's weights, without an export: VGG11, 13, 16 or 19, with batch normalisation or not.

        source: torchvision's module, or its `features` or the first layers of them; a state dict, with torchvision's
            names or timm's, of tensors or numpy arrays; a .pth or .pt file, which torch reads (weights_only); a
            .safetensors file; or "torchvision/vgg16" and its like, the file that torch hub keeps.
        arch: "vgg11", "vgg11_bn", ... "vgg19_bn", which the weights must fit; None: what they are.

        Scores and features have the bits of the ONNX file that torch's exporter writes (normalisations kept:
        `training=TrainingMode.PRESERVE`), and layers have the same names. The model computes what the module does
        after `eval()`, also for one in train mode: no dropout, and the running statistics of normalisations. A whole
        net takes images of 224 pixels; cut off before the classifier, of any size. Weights become float32, rounded
        where they have more digits. Float32 on the CPU is read where it lies: do not change a module's weights while
        the model is in use, or give a copy.

        Raises ModelError that names missing, unknown or misshaped tensors, or the layer of a module that is another's;
        InputError for what is none of these sources.
        """
        from vgg16gpu.compiler.vgg.source import open_weights  # noqa: PLC0415 - most models are ONNX files

        model = cls.__new__(cls)
        model._open(open_weights(source, arch), source)
        return model

    @property
    def name(self) -> str:
        """The name in messages: its path, or "the model in memory"."""
        return printable(str(self.file.path))

    @property
    def path(self) -> Path:
        """Its file. Raises InputError for a model in memory, which has none."""
        if not self.file.is_on_disk:
            raise InputError(f"{self.name} has no file; save it, and give the path")
        return self.file.path

    @property
    def is_on_disk(self) -> bool:
        """Return whether it was read from a file, beside which others may lie."""
        return self.file.is_on_disk

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata by key: see `metadata.py`."""
        return metadata_of(self.file)

    @property
    def is_random(self) -> bool:
        """Return whether its metadata says that its weights are random: those of `model make` do."""
        return self.metadata.get(NOTE_KEY) == RANDOM_NOTE

    @cached_property
    def has_scales(self) -> bool:
        """Return whether the file has scales of its own, which int8 takes: then none beside it are read."""
        return bool(self.graph("int8").integers)

    def loaded(self, outputs: Sequence[str] | None = None) -> Graph:
        """Return the file's graph, for its outputs or for those named. Raises ModelError and InputError."""
        if outputs is not None and not (isinstance(outputs, Sequence) and all(isinstance(y, str) for y in outputs)):
            raise InputError(f"outputs {shown(outputs)}: give names of values, nodes or layers")
        key = None if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if key not in self._loaded:
            self._loaded[key] = load(self.file, key)
        return self._loaded[key]

    def graph(self, precision: str = "fp32", outputs: Sequence[str] | None = None) -> Graph:
        """Return the simplified graph for an engine: images or rows. Raises ModelError and InputError.

        int8 differs from other precisions only for a file that rounds values to integers itself.
        """
        if precision not in PRECISIONS:
            raise ModelError(f"precision {shown(precision)} is not supported; accepted: {', '.join(PRECISIONS)}")
        loaded = self.loaded(outputs)
        is_int8 = precision == "int8"
        key = loaded.outputs, is_int8, outputs is None
        if key not in self._graphs:
            _check_input(self.name, loaded)
            prepared = _without_rounding(loaded, keeps_scales=is_int8)
            rounds_nothing = prepared is loaded
            shared = self._graphs.get((loaded.outputs, not is_int8, outputs is None)) if rounds_nothing else None
            graph = shared or self._with_size(simplify(prepared, passes=IMAGE_PASSES), loaded, outputs)
            _check_counts(self.name, graph)
            self._graphs[key] = graph
        return self._graphs[key]

    def _with_size(self, graph: Graph, loaded: Graph, outputs: Sequence[str] | None) -> Graph:
        """Return the graph: the whole file's keeps the declared size; one that ends early may be free of it."""
        return graph if outputs is None else with_free_size(graph, self.file, loaded)

    def labels(self, classes: int) -> tuple[str, ...]:
        """Return a name for each of `classes` classes: the file's, ImageNet's for 1000, else "class 0", "class 1", ...

        Raises ModelError for metadata that is wrong.
        """
        own = metadata_list(self.metadata, LABELS_KEY, self.name)
        return tuple(map(str, own)) if len(own) == classes else load_labels(None, classes)

    def preprocess(self, graph: Graph, shape: Shape) -> Preprocess:
        """Return the preprocessing of pictures from the metadata, else the one assumed for a simplified graph.

        shape: (N, C, H, W). Raises ModelError for metadata that is wrong.
        """
        return model_preprocess(self.name, self.metadata, graph, shape)


def _opened(source: Any) -> OnnxFile:
    if is_digits(source):
        return open_onnx(digits_model())
    if is_of_torch(source):
        from vgg16gpu.compiler.vgg.source import open_weights  # noqa: PLC0415 - most models are ONNX files

        return open_weights(source)
    if isinstance(source, str | Path):
        return open_onnx(source)
    if isinstance(source, bytes | onnx.ModelProto):
        return parse_onnx(source if isinstance(source, bytes) else source.SerializeToString())
    raise InputError(f"model is {shown(source)}; give {_FORMS}")


def _check_input(model: str, graph: Graph) -> None:
    """Refuse what is no image or row, and inputs beside it: batches are made of one input."""
    if graph.others:
        inputs = " and ".join(f"'{value.name}' {value.shape}" for value in graph.inputs)
        raise ModelError(f"{model}: has {len(graph.inputs)} run-time inputs, {inputs}; an engine takes one; {SESSION}")
    if len(graph.input.shape) not in (2, 4):
        raise ModelError(
            f"{model}: input '{graph.input.name}' has shape {graph.input.shape}; an engine takes (N, C, H, W) or "
            f"(N, F); {SESSION}"
        )


def _check_counts(model: str, graph: Graph) -> None:
    """Refuse more images or channels than an engine takes. graph: simplified, with its channels in their place."""
    batch, channels = graph.input.shape[:2]
    is_images = len(graph.input.shape) == 4
    for what, found, most in (("images", batch, MAX_BATCH), ("channels", is_images and channels, MAX_CHANNELS)):
        if found and found > most:
            raise ModelError(
                f"{model}: input '{graph.input.name}' has shape {graph.input.shape}, {found:,} {what}; an engine takes "
                f"at most {most:,}; export the model with fewer, or {SESSION}"
            )


def _without_rounding(graph: Graph, *, keeps_scales: bool) -> Graph:
    """Remove the rounding to integers from a graph; return the graph itself if it rounds nothing."""
    if not any(isinstance(op, FakeQuantize) for op in graph.ops):
        return graph
    from vgg16gpu.compiler.quantization.qdq import absorb_qdq, strip_qdq  # noqa: PLC0415 - most files do without

    return absorb_qdq(graph) if keeps_scales else strip_qdq(graph)

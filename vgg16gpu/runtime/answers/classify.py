"""`vgg16gpu.classify`: files in, the best classes of each out, as they come."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from vgg16gpu.compiler.class_scores import class_count, gives_probabilities
from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.devices import expects_gpu, open_device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.scores import PredictionBatch, Scores
from vgg16gpu.io.shown import shown
from vgg16gpu.pictures.inputs import spec_of
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.runtime.answers.codec_choice import CodecAhead, decodes_on_device
from vgg16gpu.runtime.answers.folder import FilePipeline, default_batch
from vgg16gpu.runtime.answers.rows import Answering, Ranking
from vgg16gpu.runtime.engine import Engine

PathLike: TypeAlias = "str | os.PathLike[str]"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rank:
    """One line of a top-k: the class, its name, its score and its probability."""

    index: int
    label: str
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class Answer:
    """What became of one input. `top`: the best classes, best first; empty where there is an error."""

    name: str
    error: str  # why there is no answer; "" where there is one
    top: tuple[Rank, ...]
    scores: Scores  # of the model's first output; NaN where there is an error


def classify(
    paths: PathLike | Iterable[PathLike],
    model: ModelSource,
    *,
    top: int = 5,
    device: str = "auto",
    precision: str = "fp32",
    kernels: str = "auto",
    batch: int | None = None,
    size: int | tuple[int, int] | None = None,
    preprocess: Preprocess | str | None = None,
    class_names: Sequence[str] | None = None,
    recursive: bool = True,
    workers: int | None = None,
    decode: str = "auto",
) -> Iterator[Answer]:
    """The answer for each picture, in the order of the files, as it comes: memory does not grow with their number.

    paths: files, and folders with their subfolders (unless `recursive` is False): pictures, or numbers as .npy, .npz
        and .txt. Each costs its own answer alone: see `Answer.error`.
    model, device, precision, kernels, size: as for `Engine`.
    batch: images computed at once; None: as their number wants.
    preprocess: a `Preprocess`, or the name of a preset; None: by the model's metadata, else by what its first layers
        let assume.
    class_names: one for each class; None: the model's own, else ImageNet's for 1000 classes.
    workers: threads that read and decode, in processes of four beside a GPU and from 1024 pictures on; None: one for
        each core, from 8 on for three of four (seven of eight in processes), or where a GPU decodes as many as that
        takes.
    decode: who decodes JPEG, "cpu", "gpu" (by nvJPEG) or "auto", as docs/pictures.md says.

    Leaving the iterator early ends all threads. Raises InputError for paths that do not exist and where no input at all
    can be read; ModelError, DeviceError, KernelError as `Engine` does.
    """
    if top < 0:
        raise InputError(f"top {top}: give a number of classes, 0 for none")
    opened_model = Model.of(model)
    graph = opened_model.graph(precision)
    sides = (size, size) if isinstance(size, int) else size
    sample = resolve_input_shape(graph, graph.input.shape[0] or 1, sides)[1:]
    wanted = wanted_preprocess(opened_model, preprocess, precision, sample)
    listing = list_files(paths_of(paths), recursive=recursive)
    spec = spec_of(graph.input, sample, wanted)
    on_device = decodes_on_device(decode, device, spec)
    with FilePipeline(listing, spec, workers, decodes_on_device=on_device, for_gpu=expects_gpu(device)) as folder:
        folder.require_one()
        opened = open_device(device)
        kind = opened.device.facts.kind
        numbers = default_batch(len(listing.files), graph, sample, kind) if batch is None else batch
        with (
            closing(opened.device),
            closing(CodecAhead(opened.device, decode)) if on_device else nullcontext() as ahead,
            Engine(
                opened_model,
                device=opened,
                precision=precision,
                kernels=kernels,
                batch=numbers,
                size=size,
                mean=wanted.unit_mean if wanted else None,
                std=wanted.unit_std if wanted else None,
            ) as engine,
            folder.answers(
                engine,
                Ranking(top, gives_probabilities(engine.graph)),
                codec=ahead.result() if ahead else None,
            ) as stream,
        ):
            if listing.has_pictures:
                warn_of_assumption(opened_model, wanted, sample)
            yield from named(stream, class_names_of(opened_model, engine, class_names))
            if "uint8" in stream.element_types:  # arrays of pixels, too
                warn_of_assumption(opened_model, wanted, sample)


def paths_of(paths: Any) -> list[PathLike]:
    """Return the paths as a list. Raises InputError for arrays, tensors, pictures and all else that is no path."""
    is_one = isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) or getattr(paths, "ndim", 1) != 1
    given = [paths] if is_one else list(paths)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise InputError(
                f"paths has {shown(path)}, and classify reads files; give their names, and arrays to Engine.run"
            )
    return given


def warn_of_assumption(model: Model, wanted: Preprocess | None, sample: tuple[int, ...]) -> None:
    """Log a warning where what is done to pictures is assumed, once in a process for each model."""
    if wanted and (told := wanted.assumption(*sample[1:])):
        _warn_once(f"{model.name}: {told}; preprocess= says how")


@lru_cache(256)
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def labels(model: ModelSource) -> tuple[str, ...]:
    """A name for each class of a model's first output: the file's own, else ImageNet's for 1000, else "class 0", ...

    Raises ModelError, also for a model whose first output has no classes.
    """
    opened = Model.of(model)
    graph = opened.graph()
    shape = infer_shapes(graph, resolve_input_shape(graph, graph.input.shape[0] or 1))[graph.outputs[0]]
    if not class_count(shape):
        raise ModelError(f"{opened.name}: output '{graph.outputs[0]}' has shape {shape}, which is no score a class")
    return opened.labels(class_count(shape))


def wanted_preprocess(
    model: Model, wanted: Preprocess | str | None, precision: str, sample: tuple[int, ...]
) -> Preprocess | None:
    """What is done to pictures: as asked for, by name or value, else as the model says; None where none are taken."""
    if len(sample) != 3:
        return None
    if isinstance(wanted, str):
        return Preprocess.named(wanted, sample[0])
    return wanted or model.preprocess(model.graph(precision), (1, *sample))


def class_names_of(model: Model, engine: Answering, given: Sequence[str] | None) -> Sequence[str]:
    """A name for each class, those that are `given` or the model's. Raises InputError for another number of them."""
    classes = class_count(engine.program.outputs[0].shape)
    if not classes:
        return ()
    if given is None:
        return model.labels(classes)
    if len(given) != classes:
        raise InputError(f"class_names has {len(given)}, the model has {classes} scores; give one name a class")
    return given


def named(stream: Iterable[PredictionBatch], names: Sequence[str]) -> Iterator[Answer]:
    """Each answer of a stream by itself, with the names of its classes."""
    for answers in stream:
        yield from _each(answers, names)


def _each(answers: PredictionBatch, names: Sequence[str]) -> Iterator[Answer]:
    for i, name in enumerate(answers.names):
        scores = answers.scores[i]
        pairs = zip(answers.best[i].tolist(), answers.probabilities[i].tolist(), strict=True)
        top = () if answers.errors[i] else tuple(Rank(k, names[k], float(scores.flat[k]), p) for k, p in pairs)
        yield Answer(name, answers.errors[i], top, scores)

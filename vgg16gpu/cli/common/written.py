"""Options that name files which a command writes: none of these is a file that the command reads.

Whatever else a command is given, and is a file, it reads: an option that comes later is looked at without more ado.
What is read besides is found here, too: the default model, a model's scales and its weights in other files, pictures
of folders, the record beside references. Files that a list names, and files that get their names while a command runs,
are for the command to give to `io.files.check_outputs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from vgg16gpu.errors import Error
from vgg16gpu.io.foreign.outputs import Named, file_of, refuse_read_files

WRITTEN: Final = ("output", "plot", "table", "sample", "access_log")  # parameters, each a file
WRITTEN_FOLDERS: Final = {"save": ("input.txt", "output.txt")}  # parameters, each a folder, and files in it
_RECORD: Final = ".run.json"
_BESIDE: Final = (_RECORD, ".partial")  # what lies beside results, and is written with them
_MODELS: Final = ("positional", "model", "models", "--model")  # as arguments, parameters and options are called
_WORDS: Final = {
    "images": "an input",
    "inputs": "an input",
    "labels": "the file of labels",
    "files_from": "the list",
    "references": "the file of references",
    "token_file": "the file of tokens",
}


class WritingCommand(click.Command):
    """A command with options of WRITTEN. Raises InputError before it runs where one names a file that it reads.

    lists_inputs: it looks at its inputs by itself, those of folders and lists.
    """

    def __init__(self, *args: Any, lists_inputs: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lists_inputs = lists_inputs

    def invoke(self, ctx: click.Context) -> Any:
        """Look at the files, then run."""
        written = list(_written(ctx))
        if any(file_of(path) for _, path in written):  # seldom: a command is repeated, or a name is wrong
            refuse_read_files(written, _read(ctx, takes_folders=not self.lists_inputs))
        return super().invoke(ctx)


def model_files(path: Path) -> Iterator[Named]:
    """Yield the files of a model: its own, the scales beside it, the files that have its weights."""
    from vgg16gpu.compiler.quantization.scale_file import scales_path  # noqa: PLC0415 - few commands come here

    yield "the model", path
    yield "the scales of the model", scales_path(path)
    for location in _external_files(path):
        yield "a file of the model's weights", path.parent / location


def _written(ctx: click.Context) -> Iterator[Named]:
    for option, value in _values(ctx):
        if option.name in WRITTEN and str(value) != "-" and not os.path.isdir(value):  # noqa: PTH112
            yield _flag(option), value
            for ending in _BESIDE:
                yield _flag(option), os.path.realpath(value) + ending
        for file in WRITTEN_FOLDERS.get(option.name or "", ()):
            yield _flag(option), os.path.join(value, file)  # noqa: PTH118


def _read(ctx: click.Context, *, takes_folders: bool) -> Iterator[Named]:
    has_model = False
    for option, value in _values(ctx):
        name = option.name or ""
        if name in WRITTEN or name in WRITTEN_FOLDERS:
            continue
        if _is_model(option):
            has_model = True
            yield from _model(value)
        elif os.path.isdir(value):  # noqa: PTH112
            if takes_folders:
                yield from (("an input", path) for path in _taken(value))
        else:
            yield _WORDS.get(name, f"what {_flag(option)} names"), value
            yield "the record of a run", f"{value}{_RECORD}"
    if not has_model and any(map(_is_model, ctx.command.params)):
        for path in _default_models(ctx.command.name):
            yield from model_files(path)


def _is_model(option: click.Parameter) -> bool:
    return option.name in _MODELS or not set(option.opts).isdisjoint(_MODELS)


def _model(name: str | Path) -> Iterator[Named]:
    from vgg16gpu.cli.common.options import find_model  # noqa: PLC0415 - which imports what the command needs

    yield from model_files(find_model(str(name)))


def _default_models(command: str | None) -> Iterator[Path]:
    """Yield the files that may be the model where none is named."""
    from vgg16gpu.cli.common.options import DEFAULT_MODELS, TESTBENCH_MODELS  # noqa: PLC0415 - as above

    names = (*TESTBENCH_MODELS, *DEFAULT_MODELS) if command == "testbench" else DEFAULT_MODELS
    yield from (Path(name) for name in names if os.path.isfile(name))  # noqa: PTH113


def _values(ctx: click.Context) -> Iterator[tuple[click.Parameter, str | Path]]:
    """Yield every text and path of the command line, with its option."""
    for option in ctx.command.params:
        value = ctx.params.get(option.name or "")
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, str | Path) and not isinstance(option.type, click.Choice):
                yield option, each


def _flag(option: click.Parameter) -> str:
    return max(option.opts, key=len) if isinstance(option, click.Option) else option.human_readable_name


def _taken(folder: str | Path) -> Iterator[str]:
    """Yield the files of a folder that a command may take for inputs."""
    from vgg16gpu.pictures.content import IMAGE_SUFFIXES, NUMBER_SUFFIXES, picture_kind, read_head  # noqa: PLC0415 - only where an output is there already

    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118
            try:
                if name.lower().endswith((*IMAGE_SUFFIXES, *NUMBER_SUFFIXES)) or picture_kind(read_head(path)):
                    yield path
            except OSError:
                continue


def _external_files(path: Path) -> set[str]:
    """Return the names of the files that have a model's weights; none if it cannot be read, which the command says."""
    from vgg16gpu.compiler.onnx.file import open_onnx  # noqa: PLC0415 - as above
    from vgg16gpu.compiler.onnx.wire import INSIDE  # noqa: PLC0415 - as above

    try:
        model = open_onnx(path).model
    except (Error, OSError):
        return set()
    tensors = [*model.graph.initializer, *(each.t for node in model.graph.node for each in node.attribute)]
    places = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return {place for place in places if place != INSIDE and "\0" not in place}

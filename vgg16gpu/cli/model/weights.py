"""`model weights`: what a model has learned, as files that a program without ONNX reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from vgg16gpu.cli.common.options import find_model, json_option, model_argument
from vgg16gpu.cli.common.show import add_row, console, fitting, heading, megabytes, print_json, progress, table
from vgg16gpu.cli.common.written import model_files
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.files import check_new_folder
from vgg16gpu.io.shown import printable
from vgg16gpu.zoo.weight_files import FORMATS, TABLE, weights_of, write_weights

_OUTPUT_HELP: Final = "A new folder for the files; it is made whole or not at all."
_FORMAT_HELP: Final = "npy: numpy's, in the tensor's shape. txt: flat, a number a line, the last dimension fastest."
_FORCE_HELP: Final = "Also into a folder that holds files, over those of the same names."
_OPTIONAL: Final = ("file", "op", "type", "read by")  # columns, the first to be left out first


@click.command("weights")
@model_argument()
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", required=True, help=_OUTPUT_HELP)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="npy", show_default=True, help=_FORMAT_HELP)
@click.option("--force", is_flag=True, help=_FORCE_HELP)
@json_option
def weights_command(*, model: str | None, output: Path, form: str, force: bool, as_json: bool) -> None:
    """Write the weights and biases of MODEL as files, named as in the model, and weights.json about them.

    Every floating-point constant that a node reads is written, in the order of the graph; of a quantised model also the
    integers and their steps. weights.json tells of each its name, shape, element type, the nodes that read it, and its
    files. Characters of a name that are no letter, digit, dot, dash or underscore become underscores in that of its
    file. The model need not be one that runs here.
    """
    path = find_model(model)
    check_new_folder(output, force=force)
    file = Model(path).file
    weights = weights_of(file)
    with progress(quiet=as_json) as bar:
        task = bar.add_task("numbers", total=None)
        content = write_weights(
            file,
            weights,
            output,
            form,
            force=force,
            reads=model_files(path),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    report = {**content, "folder": str(output)}
    print_json(report) if as_json else _print(report)


def _print(report: dict[str, Any]) -> None:
    screen = console()
    rows = report["weights"]
    heading(screen, f"{report['model']}: {len(rows)} weights, {report['numbers']:,} numbers")
    screen.print(fitting(screen, partial(_table, rows), _OPTIONAL))
    nbytes = sum((Path(report["folder"]) / name).stat().st_size for row in rows for name in row["files"])
    files = sum(len(row["files"]) for row in rows)
    told = f"Written: {files} files ({megabytes(nbytes)}) and {TABLE} in {printable(report['folder'])}"
    screen.print(told, markup=False, soft_wrap=True)


def _table(rows: Sequence[dict[str, Any]], omitted: Sequence[str]) -> Table:
    right = [name for name in ("#", "numbers") if name not in omitted]
    columns = [
        name for name in ("#", "name", "shape", "numbers", "type", "op", "read by", "file") if name not in omitted
    ]
    shown = table(columns, right=right)
    for index, row in enumerate(rows, start=1):
        cells = {
            "#": index,
            "name": row["name"],
            "shape": "x".join(map(str, row["shape"])) or "scalar",
            "numbers": f"{row['numbers']:,}",
            "type": row["type"],
            "op": "\n".join(reader["op"] for reader in row["readers"]),
            "read by": "\n".join(f"{reader['node']}" for reader in row["readers"]),
            "file": "\n".join(row["files"]),
        }
        add_row(shown, *(cells[name] for name in columns))
    return shown

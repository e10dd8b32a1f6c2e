"""`ladder`: a whole VGG on kernels from naive to the product's own, rung by rung, each checked, then timed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from vgg16gpu.bench.records.plot import check_plot
from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.options import device_option, find_model, json_option, model_argument, size_option
from vgg16gpu.cli.common.parsing import parse_names
from vgg16gpu.cli.common.show import add_row, console, heading, print_json, table
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.io.files import atomic_writer, check_outputs
from vgg16gpu.io.scores import finite_or_none
from vgg16gpu_lab.ladder.climb import Say, climb, onnxruntime_scores
from vgg16gpu_lab.ladder.content import Content, content
from vgg16gpu_lab.ladder.given import MOST, given_inputs
from vgg16gpu_lab.ladder.plot import digits, write_plot
from vgg16gpu_lab.ladder.rung import Setting
from vgg16gpu_lab.ladder.rungs import LETTERS, RUNGS

_INPUTS_HELP = (
    f"Your own inputs, {MOST} at most: a folder of pictures or of .txt, .npy and .npz files, or one such file. Each "
    "rung is checked on all of them, and timed on the first."
)
_RUNGS_HELP = f"Letters of rungs, with commas, {LETTERS[0]} to {LETTERS[-1]}. Default: every one."


@click.command("ladder", cls=WritingCommand)
@model_argument()
@device_option
@click.option("--rungs", callback=parse_names(LETTERS), metavar="LETTERS", help=_RUNGS_HELP)
@size_option
@click.option("--inputs", type=click.Path(path_type=Path), metavar="FOLDER", help=_INPUTS_HELP)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a .png, .svg or .pdf file.")
@json_option
@click.pass_context
def ladder_command(
    ctx: click.Context,
    *,
    model: str | None,
    device: str,
    rungs: tuple[str, ...],
    size: tuple[int, int] | None,
    inputs: Path | None,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Climb from naive kernels to the fastest, a whole network at every rung, batch 1.

    Each rung is checked against onnxruntime on whole scores before it is timed, a wrong one gets no time, and one that
    this device cannot have says why. MODEL is an ONNX file of a VGG, or 'digits'; without it the VGG16 that `model
    fetch` or else `model make` wrote. On a CPU the first rungs take many minutes at 224x224: a model of `model make
    --size 64` has the same layers and a twelfth of the work. Exit code 1 when a rung's scores are wrong.
    """
    check_outputs({"--output": output, "--plot": plot})
    if plot:
        check_plot(plot)
    opened_model = Model(find_model(model))
    graph = opened_model.graph()
    shape = resolve_input_shape(graph, 1, size)
    given = given_inputs(inputs, opened_model, graph, shape) if inputs else None
    opened, choice = open_device(device)
    try:
        say = _progress(wanted=not as_json and (output is not None or console(stderr=True).is_terminal))
        result = _climbed(Setting(opened_model, graph, shape, opened, device, given), choice, rungs or LETTERS, say)
    finally:
        opened.close()
    if output:
        with atomic_writer(output) as file:
            file.write(json.dumps(finite_or_none(result), indent=2).encode() + b"\n")
    if plot:
        write_plot(result, plot)
    if as_json:
        print_json(result)
    else:
        _print(result)
    ctx.exit(EXIT_CHECK_FAILED if any(rung["status"] == "wrong" for rung in result["rungs"]) else 0)


def _climbed(setting: Setting, choice: str, letters: Sequence[str], say: Say) -> Content:
    x = setting.inputs
    if x is None:
        x = np.ascontiguousarray(sample_inputs(setting.shape[1:])[:1])
    say("onnxruntime: the scores to meet, the time to beat")
    reference, line = onnxruntime_scores(setting, x)
    chosen = [rung for rung in RUNGS if rung.letter in letters]
    return content(setting, choice, climb(setting, chosen, x, reference, say), line)


def _progress(*, wanted: bool) -> Say:
    """Return a function that tells a person at a terminal, or the log of a run that writes a file, how far it is."""
    start = time.monotonic()

    def say(text: str) -> None:
        if wanted:
            click.echo(f"ladder {time.monotonic() - start:5.1f} s: {text} ...", err=True)

    return say


def _print(result: Content) -> None:
    screen, kind = console(), result["device"]["kind"]
    shape = "x".join(map(str, result["model"]["input_shape"]))
    heading(screen, f"{Path(result['model']['path']).name}, input {shape}, on {result['device']['name']}")
    ms = "ms (CPU)" if kind == "cpu" else "ms"
    numbers = (ms, "gain predicted", "gain", "error")
    rows = table(["", "rung", "idea", *numbers], right=numbers)
    for rung in result["rungs"]:
        add_row(rows, rung["letter"], rung["name"], rung["idea"], *_cells(rung))
    add_row(
        rows, "", "onnxruntime, CPU", "the line to beat", digits(1e3 * result["onnxruntime"]["median_s"]), "", "", ""
    )
    screen.print(rows)
    for rung in result["rungs"]:
        if rung["why"]:
            screen.print(f"{rung['letter']}: {rung['why']}", markup=False)
    screen.print(f"ms: {result['method']}", markup=False)
    screen.print(f"error: {result['bounds']}", markup=False)
    if count := result["inputs"]:
        screen.print(f"error: the largest of your inputs ({count}); times are of the first")
    screen.print(f"gain predicted: {result['predictions']}", markup=False)
    if kind == "cpu":
        screen.print("The same kernels as on a GPU, run by a CPU: the scores count, the times are a CPU's.")


def _cells(rung: dict[str, Any]) -> tuple[str, str, str, str]:
    predicted, gain = rung["gain"]["predicted"], rung["gain"]["measured"]
    return (
        digits(1e3 * rung["times"]["median_s"]) if rung["times"] else rung["status"],
        f"{digits(predicted)}x" if predicted else "",
        f"{digits(gain)}x" if gain else "",
        f"{rung['error']:.1e}" if rung["error"] is not None else "",
    )

"""What `infer` found, on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vgg16gpu.cli.common.show import add_row, console, from_here, heading, seconds, sentence, table
from vgg16gpu.cli.common.tell import device_words
from vgg16gpu.cli.infer.options import MANY
from vgg16gpu.cli.infer.summary import print_summary
from vgg16gpu.io.scores import holds_all_outputs
from vgg16gpu.io.shown import printable


def print_report(report: dict[str, Any], *, every_input: bool = False) -> None:
    """Table, remarks and times, on stdout. Many inputs are summed up unless every one is asked for."""
    screen = console()
    if len(report["output_shape"]) == 1 and report["probabilities"]:
        heading(screen, f"{from_here(report['model'])} (probability: {report['probabilities']})")
        if every_input or len(report["inputs"]) + len(report["unreadable"]) <= MANY:
            screen.print(_table(report))
        else:
            print_summary(screen, report)
    else:
        screen.print(f"Output of shape {report['output_shape']} per input: no classes to rank; see --output")
    if len(report["outputs"]) > 1:
        screen.print(_outputs_line(report), style="bold yellow", markup=False)
    if report["note"]:
        screen.print(f"Note: {report['note']}", style="bold yellow", markup=False)
    done = sentence(report["preprocess"]["line"]) if report["preprocess"] else "Numbers: taken as they are"
    screen.print(done, markup=False, soft_wrap=True)
    times = report["timings"]
    build = times["compile_s"] + times["upload_s"]
    screen.print(
        f"Device: {device_words(report['device_choice'])}; "
        f"precision {report['precision']}, kernels {report['kernels']}",
        markup=False,
    )
    screen.print(
        f"Times: load {seconds(times['load_s'])}, build {seconds(build)} "
        f"(kernels {seconds(times['compile_s'])}, weights {seconds(times['upload_s'])}), "
        f"first run {seconds(times['first_run_s'])}, steady run {seconds(times['steady_run_s'])}, "
        f"batch {report['batch']}"
    )
    if len(report["inputs"]) > 1 and report["rates"]["decode_images_per_s"]:
        screen.print(_rates_line(report))
    if "output" in report:
        screen.print(f"Scores of {len(report['inputs'])} inputs: {printable(report['output'])}", markup=False)


def _rates_line(report: dict[str, Any]) -> str:
    rates = report["rates"]
    where = f"{rates['decode_processes']} processes" if rates["decode_processes"] else "this process"
    return (
        f"Rates: decoding {rates['decode_images_per_s']:,.0f} images/s ({where}), "
        f"engine {rates['engine_images_per_s']:,.0f} images/s (batch {report['batch']}, host to host)"
    )


def _outputs_line(report: dict[str, Any]) -> str:
    first, *others = report["outputs"]
    line = f"Outputs: shown is '{first}', the first of {len(others) + 1}; the model also gives {', '.join(others)}"
    if "output" in report and holds_all_outputs(Path(report["output"])):
        return f"{line}: all are in {report['output']}"
    return f"{line}: --output FILE.npz takes all" + (", this file the first alone" if "output" in report else "")


def _table(report: dict[str, Any]) -> Any:
    result = table(
        ["input", "rank", "class", "name", "score", "probability"],
        right=["rank", "class", "score", "probability"],
    )
    for item in report["inputs"]:
        if item["problem"]:
            add_row(result, printable(item["name"]), "", "", item["problem"], "", "", style="red")
        for place, line in enumerate(item["top"], start=1):
            add_row(
                result,
                printable(item["name"]) if place == 1 else "",
                place,
                line["index"],
                line["label"],
                f"{line['score']:.4f}",
                f"{line['probability']:.2%}",
                end_section=place == len(item["top"]) > 1,
            )
    return result

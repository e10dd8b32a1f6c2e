"""How the outcome of a testbench reads: as tables, and as data."""

from __future__ import annotations

import math
from typing import Any

from vgg16gpu.checks.testbench import Report
from vgg16gpu.cli.common.show import add_row, console, heading, seconds, sentence, table
from vgg16gpu.cli.common.tell import device_words
from vgg16gpu.cli.testbench.case import Bench, Outcome

_SHOWN = 20  # rows of the table of inputs; failing ones are always shown


def content_of(bench: Bench, outcome: Outcome, report: Report) -> dict[str, Any]:
    """Everything that was found, for JSON."""
    return {
        "passed": report.passed,
        "failures": list(report.failures),
        "model": bench.model.path.name,
        "note": bench.notes.note,
        "preprocess": bench.preprocess,
        "precision": outcome.precision,
        "kernels": outcome.kernels,
        "batch": bench.batch,
        "tolerance": report.tolerance,  # None: int8 has none
        **summary(report),
        "inputs_passed": sum(verdict.passed for verdict in report.verdicts),
        "distinct_answers": report.distinct,
        "min_accuracy": report.min_accuracy or None,  # None: not judged
        "inputs": [vars(verdict) for verdict in report.verdicts],
        "steps": [vars(step) for step in report.steps],
        "mean_run_s": outcome.times,
        "environment": outcome.facts,
    }


def summary(report: Report) -> dict[str, Any]:
    """What was found in a few numbers."""
    quantised = report.quantised
    return {
        "worst_error": report.worst_error,
        "mean_error": report.mean_error,
        "agreement": report.agreement,  # share of inputs with the reference's best class
        "accuracy": report.accuracy,
        "quantised": quantised and {**vars(quantised), "ratio": quantised.ratio},
    }


def print_report(bench: Bench, outcome: Outcome, report: Report) -> None:
    """Tables and verdict on stdout."""
    screen = console()
    judged = f"tolerance {report.tolerance:g}" if math.isfinite(report.tolerance) else "judged by their mean"
    heading(screen, f"{bench.model.path}, {outcome.precision}: errors are max|y - r| / max|r|, {judged}")
    screen.print(_input_table(report))
    if report.steps:
        heading(screen, "Steps: ||y - r|| / ||r|| of what each stores, the worst input")
        screen.print(_step_table(report))
    for iterations, mean in outcome.times.items():
        batch = f" of batch {bench.batch}" if bench.batch > 1 else ""
        text = f"Mean of {len(bench.inputs)} inputs x {iterations}: {seconds(mean)} a run{batch}, host to host"
        screen.print(text)
    if report.accuracy is not None:
        judged = "" if report.min_accuracy else " (not judged without --min-accuracy)"
        screen.print(f"Accuracy: {report.accuracy:.2%} of {len(report.verdicts)} labelled inputs{judged}")
    if report.quantised:
        screen.print(
            f"Mean error: {report.quantised.mean_error:.2e}, {report.quantised.ratio:.3f} times that of onnxruntime's "
            f"quantised form (at most {report.quantised.limit:g})"
        )
    if done := bench.preprocess:
        screen.print(sentence(done["line"]), markup=False, soft_wrap=True)
    screen.print(f"Device: {device_words(outcome.facts['device_choice'])}", markup=False)
    if bench.notes.note:
        screen.print(f"Note: {bench.notes.note}", markup=False)
    passed = sum(verdict.passed for verdict in report.verdicts)
    for reason in report.failures:
        screen.print(f"FAIL: {reason}", style="bold red", markup=False)
    if report.passed:
        text = f"PASS: {passed} of {len(report.verdicts)} inputs, {report.distinct} different answers"
        screen.print(text, style="bold green", markup=False)


def _input_table(report: Report) -> Any:
    result = table(
        ["input", "error", "top-1", "reference", "top-5 shared", "label", "verdict"],
        right=["error", "top-1", "reference", "top-5 shared", "label"],
    )
    shown = [v for i, v in enumerate(report.verdicts) if i < _SHOWN or not v.passed]
    for verdict in shown:
        add_row(
            result,
            verdict.name,
            f"{verdict.error:.2e}",
            verdict.top1,
            verdict.reference_top1,
            f"{verdict.top5} of {verdict.top5_of}",
            "" if verdict.label is None else verdict.label,
            "PASS" if verdict.passed else "FAIL",
            style=None if verdict.passed else "red",
        )
    if len(shown) < len(report.verdicts):
        result.caption_justify = "left"
        result.caption = f"{len(report.verdicts) - len(shown)} more inputs pass"
    return result


def _step_table(report: Report) -> Any:
    result = table(
        ["ONNX value", "computes", "shape", "error", "verdict"],
        right=["computes", "error"],
    )
    for step in report.steps:
        first = step is report.first_bad_step
        verdict = "PASS" if step.passed else "FAIL, first" if first else "FAIL"
        style = None if step.passed else "red"
        count = f"{len(step.names)} values"
        add_row(result, step.names[-1], count, _times(step.shape), f"{step.error:.2e}", verdict, style=style)
    return result


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

"""How the outcome of a testbench reads: as tables, and as data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from vgg16gpu.checks.accuracy import SCORE_TOLERANCES
from vgg16gpu.checks.references import References, StoredReferences
from vgg16gpu.checks.testbench import AnswersReport, InputVerdict, Rounded, StepVerdict
from vgg16gpu.cli.common.show import add_row, console, heading, seconds, sentence, table
from vgg16gpu.cli.common.tell import device_words
from vgg16gpu.cli.testbench.case import Bench, TestbenchCase
from vgg16gpu.io.shown import printable

_NAMED = 3  # inputs without a reference
_SHOWN = 20  # rows of the table of inputs; failing ones are always shown


def content_of(bench: Bench, outcome: TestbenchCase, report: AnswersReport) -> dict[str, Any]:
    """Return everything that was found, for JSON."""
    return {
        "passed": report.passed,
        "failures": list(report.failures),
        "hints": list(report.hints),
        "model": bench.model.path.name,
        "note": bench.notes.note,
        "preprocess": bench.preprocess,
        "precision": outcome.precision,
        "kernels": outcome.kernels,
        "batch": bench.batch,
        "tolerance": report.tolerance,  # None: int8 has none
        "promised_tolerance": SCORE_TOLERANCES[outcome.precision],  # another one: --tolerance has replaced it
        "references": _stored(bench.stored) if bench.stored else _references(bench.references),
        **summary(report),
        "outputs": list(bench.values) or None,  # None: the model's own scores
        "left_out": list(bench.left_out),  # why some inputs cannot be read
        "inputs_passed": None if report.values else sum(verdict.passed for verdict in report.verdicts),
        "distinct_answers": report.distinct,
        "control": report.control and {**vars(report.control), "passed": report.control.passed},
        "float64": [vars(decision) for decision in report.decisions],  # of answers beyond the tolerance
        "min_accuracy": report.min_accuracy or None,  # None: not judged
        "inputs": [vars(verdict) for verdict in report.verdicts],
        "values": [vars(value) for value in report.values],
        "steps": [vars(step) for step in report.steps],
        "mean_run_s": outcome.times,
        "environment": outcome.facts,
    }


def _references(references: References | None) -> dict[str, Any] | None:
    """Return the origin of the references; None where onnxruntime has computed them."""
    if references is None:
        return None
    return {
        "file": Path(references.file).name,
        "found_by": "name" if references.has_names else "place",
        "unanswered": list(references.unanswered),
        "rows_of_others": references.unused,
    }


def _stored(stored: StoredReferences) -> dict[str, Any]:
    """Describe which of the package's own references they are."""
    return {
        "file": stored.path.name,
        "found_by": "model's SHA-256",
        "unanswered": [],
        "rows_of_others": 0,
        "onnxruntime": stored.onnxruntime,
        "provider": stored.provider,
    }


def summary(report: AnswersReport) -> dict[str, Any]:
    """Sum up the findings in a few numbers."""
    quantised = report.quantised
    return {
        "worst_error": report.worst_error,
        "mean_error": report.mean_error,
        "agreement": report.agreement,  # share of inputs with the reference's best class
        "accuracy": report.accuracy,
        "quantised": quantised and {**vars(quantised), "ratio": quantised.ratio},
        "as_it_stands": report.rounded and vars(report.rounded),  # None: the file does not round, or int8 does, too
    }


def print_report(bench: Bench, outcome: TestbenchCase, report: AnswersReport) -> None:
    """Print tables and verdict on stdout."""
    screen = console()
    bound = _bound(report.tolerance, outcome.precision)
    error = "||y - r|| / ||r||, the worst input" if report.values else "max|y - r| / max|r|"
    heading(screen, f"{bench.model.path}, {outcome.precision}: errors are {error}, {bound}")
    screen.print(_value_table(report) if report.values else _input_table(report))
    if line := _origin(bench):
        screen.print(line, markup=False)
    for line in _by_float64(report):
        screen.print(line, markup=False)
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
    if report.rounded:
        screen.print(_as_it_stands(report.rounded), markup=False)
    if done := bench.preprocess:
        screen.print(sentence(done["line"]), markup=False, soft_wrap=True)
    screen.print(f"Device: {device_words(outcome.facts['device_choice'])}", markup=False)
    if bench.notes.note:
        screen.print(f"Note: {bench.notes.note}", markup=False)
    for reason in report.failures:
        screen.print(f"FAIL: {reason}", style="bold red", markup=False)
    for hint in report.hints:
        screen.print(f"Hint: {hint}", markup=False)
    if report.passed:
        within = "" if report.tolerance == SCORE_TOLERANCES[outcome.precision] else f", {bound}"
        screen.print(f"PASS: {_passed(bench, report)}{within}", style="bold green", markup=False)


def _by_float64(report: AnswersReport) -> list[str]:
    """Return lines about answers that float64 decided on."""
    passed = [each for each in report.decisions if each.passed]
    lines = [
        f"Float64: '{printable(each.name)}' is off by {each.error:.2e}, onnxruntime's by {each.onnxruntime_error:.2e}"
        for each in report.decisions
        if not each.passed
    ]
    if passed:
        ours, theirs = (max(values) for values in zip(*((d.error, d.onnxruntime_error) for d in passed), strict=True))
        lines.append(
            f"Float64 decides on {len(passed)} answer{'s' * (len(passed) > 1)} beyond the tolerance of onnxruntime's: "
            f"ours are off by at most {ours:.2e}, onnxruntime's by {theirs:.2e}"
        )
    return [*lines, f"Float64: {report.undecided}"] if report.undecided else lines


def _origin(bench: Bench) -> str:
    """Return a line about where the references come from; empty where onnxruntime has computed them."""
    if bench.references:
        return _compared(bench.references)
    if bench.stored:
        version, name = bench.stored.onnxruntime, bench.stored.path.name
        return f"References: stored scores of onnxruntime {version} for this model ({name})"
    return ""


def _as_it_stands(rounded: Rounded) -> str:
    """Return a line about a file that rounds, as the tables compare with its values without rounding."""
    same = "" if rounded.agreement is None else f", the same best class for {rounded.agreement:.0%}"
    return (
        "The file rounds values (QuantizeLinear), this precision does not. Beside the file as it stands the mean error "
        f"is {rounded.mean_error:.2e}{same}; its rounding explains {rounded.tolerance:.2e}"
    )


def _passed(bench: Bench, report: AnswersReport) -> str:
    if report.values:
        return f"{len(report.values)} value{'s' * (len(report.values) > 1)} of {report.inputs} inputs"
    passed = sum(verdict.passed for verdict in report.verdicts)
    inputs, answers = f"{passed} of {len(report.verdicts)} inputs", ""
    if report.distinct:
        answers = f"{report.distinct} different answer{'s' * (report.distinct > 1)}"
    if bench.stored and report.worst_error is not None:
        inputs = f"{inputs} agree with onnxruntime's stored scores, worst error {report.worst_error:.1e}"
        return f"{inputs}; {answers}" if answers else inputs
    return f"{inputs}, {answers}" if answers else inputs


def _bound(tolerance: float, precision: str) -> str:
    """Return the largest error that passes; where --tolerance sets it, what is promised, too."""
    promised = SCORE_TOLERANCES[precision]
    if tolerance == promised:
        return f"tolerance {tolerance:g}" if math.isfinite(tolerance) else "judged by their mean"
    instead = f"in place of the promised {promised:g}" if math.isfinite(promised) else "where none is promised"
    return f"--tolerance {tolerance:g} {instead}"


def _compared(references: References) -> str:
    """Return a line about the file, and which inputs it has no answer for."""
    by = "by name" if references.has_names else "by place"
    others = f", {references.unused} rows there are of other inputs" if references.unused else ""
    text = f"References: {references.file}, rows found {by}{others}"
    if not references.unanswered:
        return printable(text)
    count, total = len(references.unanswered), len(references.answered)
    listed = ", ".join(f"'{name}'" for name in references.unanswered[:_NAMED])
    more = ", ..." if count > _NAMED else ""
    return printable(f"{text}; {count} of {total} inputs have no answer there and are not compared: {listed}{more}")


def _input_table(report: AnswersReport) -> Any:
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
            "" if verdict.top1 is None else verdict.top1,
            "" if verdict.reference_top1 is None else verdict.reference_top1,
            f"{verdict.top5} of {verdict.top5_of}" if verdict.top5_of else "",
            "" if verdict.label is None else verdict.label,
            _verdict(verdict),
            style=None if verdict.passed else "red",
        )
    if len(shown) < len(report.verdicts):
        result.caption_justify = "left"
        result.caption = f"{len(report.verdicts) - len(shown)} more inputs pass"
    return result


def _value_table(report: AnswersReport) -> Any:
    result = table(["value", "in the file", "shape", "error", "verdict"], right=["error"])
    for value in report.values:
        row = value.names[0], value.names[-1], _times(value.shape), f"{value.error:.2e}", _verdict(value)
        add_row(result, *row, style=None if value.passed else "red")
    return result


def _step_table(report: AnswersReport) -> Any:
    result = table(
        ["ONNX value", "computes", "shape", "error", "verdict"],
        right=["computes", "error"],
    )
    for step in report.steps:
        first = step is report.first_bad_step
        verdict = "FAIL, first" if first else _verdict(step)
        style = None if step.passed else "red"
        count = f"{len(step.names)} values"
        add_row(result, step.names[-1], count, _times(step.shape), f"{step.error:.2e}", verdict, style=style)
    return result


def _verdict(verdict: InputVerdict | StepVerdict) -> str:
    return f"PASS{', by float64' * verdict.by_float64}" if verdict.passed else "FAIL"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

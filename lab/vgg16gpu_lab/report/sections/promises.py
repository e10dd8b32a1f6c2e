"""What is promised and how it was checked: conformance, tests, sanitizers, hostile files, stress, scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vgg16gpu_lab.report.folder import Content, Record, Results, each
from vgg16gpu_lab.report.html.markup import NONE, Html, element, fold, joined, missing, number, table
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections.benchmark import commit_of

_OUTCOMES = ("passed", "refused", "failed")
_CELLS = Callable[[Record], Sequence[object]]


def conformance(results: Results) -> Html:
    """Return ONNX's suite: counts, and a table op by op for every record."""
    records = results.records(Kind.CONFORMANCE)
    command = f"python -m tests.conformance.suite --output {results.folder / 'conformance.json'}"
    if not records:
        return missing("ONNX's conformance suite", command)
    right = [*(f"{name} (tests)" for name in _OUTCOMES), "required, passed (tests)", "time (s)"]
    rows = each(records, _conformance_row)
    return joined([table(["device", "onnx", *right, "date"], rows, right), *each(records, _operators)])


def promises(results: Results) -> Html:
    """Return a table for every kind of check."""
    folder = results.folder
    return joined(
        [
            _part(
                "Tests",
                results.records(Kind.TESTS),
                (["record", "device", "passed", "skipped", "failed", "time (s)", "commit"], _tests_row),
                f"python -m pytest --record {folder / 'tests.json'}",
            ),
            _part(
                "Hostile files",
                results.records(Kind.FUZZ),
                (["record", "files", "agree with another", "bad verdicts", "time (s)", "commit"], _fuzz_row),
                f"python -m tests.fuzz.models --cases 100000 --output {folder / 'fuzz.json'}",
            ),
            *each(results.records(Kind.FUZZ), _fuzz_verdicts),
            _part(
                "Stress",
                results.records(Kind.STRESS),
                (["record", "device", "checks passed", "failures", "time (s)", "commit"], _stress_row),
                f"python -m tests.stress.promises models/random-vgg16.onnx --output {folder / 'stress.json'}",
            ),
            _part(
                "Scores",
                results.records(Kind.TESTBENCH),
                (_SCORES, _scores_row),
                f"vgg16gpu testbench --output {folder / 'testbench.json'}",
            ),
        ]
    )


_SCORES = [
    *("model", "precision", "device", "inputs passed"),
    *(
        "worst error (of the largest score)",
        "allowed",
        "same answer (%)",
        "right answer (%)",
        "mean run (ms)",
        "remark",
    ),
]
_WORDS = ("model", "remark", "precision", "device", "record", "commit")
_BAD_VERDICTS = ("crash", "hang", "read outside of the folder", "wrong answer")


def _part(title: str, records: Sequence[Record], form: tuple[Sequence[str], _CELLS], command: str) -> Html:
    """Return a heading and a row for every record."""
    head, cells = form
    if not records:
        return joined([element("h3", title), missing(f"{title.lower()} here", command)])
    numbers = [column for column in head if column not in _WORDS]
    return joined([element("h3", title), table(head, each(records, cells), numbers)])


def _conformance_row(record: Record) -> list[object]:
    content = record.content
    must = f"{content['must']['passed']} of {content['must']['listed']}"
    counts = [content["totals"][name] for name in _OUTCOMES]
    date = content["environment"]["date"][:10]
    return [_device(content), content["onnx"], *counts, must, number(content["seconds"]), date]


def _operators(record: Record) -> Html:
    ops = record.content["ops"]
    head = [f"{name} (tests)" for name in _OUTCOMES]
    rows = [[name, *(counts.get(outcome, 0) for outcome in _OUTCOMES)] for name, counts in ops.items()]
    return fold(f"Operator by operator, on {_device(record.content)}", table(["operator", *head], rows, head))


def _tests_row(record: Record) -> list[object]:
    content, tests = record.content, record.content["tests"]
    counts = [tests.get(name, 0) for name in ("passed", "skipped", "failed")]
    return [record.name, _device(content), *counts, number(content["seconds"]), _commit(content)]


def _fuzz_row(record: Record) -> list[object]:
    content, verdicts = record.content, record.content["verdicts"]
    bad = sum(verdicts.get(name, 0) for name in _BAD_VERDICTS)
    seconds = number(content["seconds"])
    return [record.name, number(content["cases"]), number(content["compared"]), bad, seconds, _commit(content)]


def _fuzz_verdicts(record: Record) -> Html:
    verdicts = record.content["verdicts"].items()
    return fold(f"What became of the files of {record.name}", table(["verdict", "files"], verdicts, ["files"]))


def _stress_row(record: Record) -> list[object]:
    content = record.content
    parts = [part for part in content.values() if isinstance(part, dict) and "rows" in part]
    checks = [row["passed"] for part in parts for row in part["rows"]]
    seconds = number(sum(part["seconds"] for part in parts))
    done = f"{sum(checks)} of {len(checks)}"
    return [record.name, _device(content), done, len(content["failures"]), seconds, _commit(content)]


def _scores_row(record: Record) -> list[object]:
    content = record.content
    runs = content["mean_run_s"]
    most = max(runs, key=int, default=None)
    agreement, accuracy = content.get("agreement"), content["accuracy"]
    return [
        content["model"],
        content.get("precision", "fp32"),
        _device(content),
        f"{content['inputs_passed']} of {len(content['inputs'])}",
        number(content["worst_error"]),
        number(content["tolerance"]),
        number(None if agreement is None else 100 * agreement),
        number(None if accuracy is None else 100 * accuracy),
        number(1e3 * runs[most]) if most else NONE,
        _remark(content),
    ]


def _remark(content: Content) -> str:
    """Return what the scores are to be read with; of int8, without a bound of the worst error, that of the mean.

    And whether the user has replaced the bound.
    """
    quantised = content.get("quantised")
    held = f"mean error {quantised['ratio']:.3f} of onnxruntime's int8" if quantised else ""
    promised = content.get("promised_tolerance", content["tolerance"])  # older records do not have it
    wide = "" if promised == content["tolerance"] else f"--tolerance in place of {number(promised)}"
    return "; ".join(text for text in (content["note"], held, wide) if text)


def _device(content: Content) -> str:
    device = content["environment"]["device"]
    return f"{device['name']}{' (a CPU)' if device['kind'] == 'cpu' else ''}"


def _commit(content: Content) -> str:
    return commit_of(content["environment"]) or NONE

"""What `bench` wrote: the table beside the peers, its chart, every number, and the rooflines of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records.plot import draw
from vgg16gpu.bench.records.record import (
    Content,
    batches,
    ceilings_text,
    fastest,
    headline,
    label,
    names,
    peers,
    precisions,
)
from vgg16gpu_lab.report.folder import Record, Results, each
from vgg16gpu_lab.report.html.markup import NONE, Html, element, error, fold, joined, missing, number, paragraph, table
from vgg16gpu_lab.report.html.pictures import files, picture
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections import roofline
from vgg16gpu_lab.report.sections.links import to_kernel

WHAT = "a benchmark"


def command(results: Results) -> str:
    """Return the command that makes a record."""
    return f"vgg16gpu bench --output {results.folder / 'bench.json'}"


def benchmarks(results: Results) -> Html:
    """Return a part for every record."""
    found = each(results.records(Kind.BENCHMARK), _benchmark)
    return joined(found) if found else missing(WHAT, command(results))


def rooflines(results: Results) -> Html:
    """Return a part for every record: a chart and a table for each precision and batch size."""
    found = each(results.records(Kind.BENCHMARK), _rooflines)
    return joined(found) if found else missing(f"{WHAT}'s steps", command(results))


def described(content: Content) -> str:
    """Return model, input and device."""
    shape = "x".join(map(str, content["model"]["input_shape"]))
    kind = " (a CPU)" if content["device"]["kind"] == "cpu" else ""
    return f"{Path(content['model']['path']).name}, input {shape}, on {content['device']['name']}{kind}"


def origin(environment: Content) -> str:
    """Return when and of what a record was made."""
    commit, versions = commit_of(environment), environment["versions"]
    at = f" at commit {commit}" if commit else ""
    return f"Measured {environment['date'][:10]}{at} with vgg16gpu {versions['vgg16gpu']}."


def commit_of(environment: Content) -> str:
    """Return ten digits of the commit; "" for what an installed package has measured."""
    return str((environment["commit"] or {}).get("hash") or "")[:10]


def _method(content: Content) -> Method:
    """Return the method of the numbers to quote: on a CPU there is nothing to copy."""
    return Method.BACK_TO_BACK if content["device"]["kind"] == "cuda" else Method.HOST_TO_HOST


def _benchmark(record: Record) -> Html:
    content = record.content
    shown = files(record.path.parent, f"chart{record.name.removeprefix('bench')}")
    title = f"{described(content)}: time beside the best peer's"
    return joined(
        [
            element("h3", described(content)),
            paragraph(f"Milliseconds a batch, median, {_method(content)}: {content['methods'][_method(content)]}."),
            _headlines(content),
            picture(title, shown, lambda: draw(content, layers=False), "Bars above 1 are slower than the best peer."),
            paragraph(_errors(content)),
            _absent(content),
            fold(f"All {len(content['records'])} measurements", _measurements(content)),
            fold("How the numbers were taken", _methods(content)),
            element("p", origin(content["environment"]), class_="soft"),
        ]
    )


def _headlines(content: Content) -> Html:
    sizes = batches(content)
    heads = [f"batch {batch} (ms)" for batch in sizes]
    rows = [row for precision in precisions(content) for row in _precision_rows(content, precision, sizes)]
    return table(["precision", "by", *heads], rows, heads)


def _precision_rows(content: Content, precision: str, sizes: Sequence[int]) -> Iterator[list[object]]:
    found = [headline(content, precision, batch, _method(content)) for batch in sizes]
    ours = [fastest(record for record in at if record["name"] == NAME) for at in found]
    theirs = [fastest(peers(at)) for at in found]
    yield [precision, element("b", NAME), *(element("b", _ms(record)) if record else NONE for record in ours)]
    if not any(theirs):
        return
    listed = ", ".join(names(peers(record for at in found for record in at)))
    tf32 = [fastest(peers(at, tf32=True)) for at in found]
    strict = "best strict peer" if any(tf32) else "best"
    yield ["", f"{strict} of {listed}", *_rivals(theirs)]
    yield ["", "ratio", *_ratios(ours, theirs)]
    if any(tf32):
        worst = max((each["error"] for each in tf32 if each and each["error"] is not None), default=None)
        listed = ", ".join(names(peers((record for at in found for record in at), tf32=True)))
        yield ["", f"best TF32 peer of {listed} (error {error(worst)})", *_rivals(tf32)]
        yield ["", "ratio", *_ratios(ours, tf32)]


def _rivals(theirs: Sequence[Content | None]) -> list[object]:
    return [f"{_ms(at)} {at['name']}" if at else NONE for at in theirs]


def _ratios(ours: Sequence[Content | None], theirs: Sequence[Content | None]) -> list[object]:
    pairs = zip(ours, theirs, strict=True)
    return [f"{b['median_s'] / a['median_s']:.2f}x" if a and b else NONE for a, b in pairs]


def _ms(record: Content) -> str:
    loaded = " (sustained)" if record["regime"] == Regime.SUSTAINED else ""
    return f"{number(1e3 * record['median_s'])}{loaded}"


def _errors(content: Content) -> str:
    verified = content["verification"]
    errors = [
        f"{precision} {error(worst)} (allowed: {verified['tolerances'][precision]:g})"
        for precision, worst in verified["worst_errors"].items()
        if worst is not None
    ]
    text = f"Largest error of the scores, as a part of the largest score, against {verified['reference']}: "
    cold = content["cold_start"]
    start = f" From the start of a process to its answer: {number(1e3 * cold['to_result_s'])} ms" if cold else ""
    if cold:
        parts = ", ".join(f"{name} {number(1e3 * part)}" for name, part in cold.get("parts_s", {}).items())
        start += f" ({parts})." if parts else "."  # older records have no parts
    return f"{text}{', '.join(errors) or 'not checked'}.{start}"


def _absent(content: Content) -> Html | None:
    """Return a table of contenders without a number, and why; None where none is missing."""
    if not content["absent"]:
        return None
    rows = [
        [each["name"], each["variant"] or NONE, each["precision"] or "all", each["batch"] or "all", each["reason"]]
        for each in content["absent"]
    ]
    return table(["without a number", "variant", "precision", "batch", "reason"], rows)


def _measurements(content: Content) -> Html:
    right = ["batch", "median (ms)", "95 % (ms)", "samples", "images/s", "error"]
    head = ["precision", "batch", "by", "variant", "method", "regime", *right[1:]]
    return table(head, map(_measurement, content["records"]), right)


def _measurement(record: Content) -> list[object]:
    return [
        *(record[key] for key in ("precision", "batch")),
        label(record["name"], record["tf32"]),
        *(record[key] for key in ("variant", "method", "regime")),
        number(1e3 * record["median_s"]),
        number(1e3 * record["p95_s"]),
        record["samples"],
        number(record["images_per_s"]),
        error(record["error"]),
    ]


def _methods(content: Content) -> Html:
    return table(["what", "how"], content["methods"].items())


def _rooflines(record: Record) -> Html:
    content = record.content
    charts = [_roofline(content, batch, is_open=not place) for place, batch in enumerate(content["batches"])]
    return joined([element("h3", described(content)), *charts])


def _roofline(content: Content, batch: Content, *, is_open: bool) -> Html:
    precision, layers = batch["precision"], batch["layers"]
    title = f"{precision}, batch {batch['batch']}"
    dots = roofline.dots_of(layers)
    chart = roofline.draw(dots, roofline.roof_of(content["ceilings"], precision), title) if dots else None
    total = sum(layer["median_s"] for layer in layers)
    summary = f"{title}: {len(layers)} steps, {number(1e3 * total)} ms one by one"
    ceilings = paragraph(f"Ceilings: {ceilings_text(content['ceilings'], precision)}.")
    shown = element("div", chart, class_="wide", tabindex="0") if chart else None
    return fold(summary, shown, ceilings, _layers(layers), is_open=is_open)


def _layers(layers: Sequence[Content]) -> Html:
    right = ["", "time (ms)", "least (ms)", "of ceiling (%)", "GFLOP", "TFLOP/s", "MB", "GB/s", "FLOP/byte"]
    rows = [
        [
            place,
            layer["label"],
            to_kernel(layer["kernel"]),
            number(1e3 * layer["median_s"]),
            number(1e3 * layer["floor_s"]),
            number(layer["percent_of_ceiling"]),
            number(layer["flop"] / 1e9),
            number(layer["flop_per_s"] / 1e12),
            number(layer["nbytes"] / 1e6),
            number(layer["bytes_per_s"] / 1e9),
            number(layer["flop"] / layer["nbytes"] if layer["nbytes"] else None),
        ]
        for place, layer in enumerate(layers)
    ]
    return table([right[0], "step", "kernel", *right[1:]], rows, right)

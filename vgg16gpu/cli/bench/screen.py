"""A benchmark's result on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records.compare import Ratio
from vgg16gpu.bench.records.record import (
    Content,
    absent,
    ceilings_text,
    combinations,
    kinds,
    label,
    names,
    peers,
    precisions,
    select,
)
from vgg16gpu.cli.common.show import add_row, console, fitting, heading, seconds, table
from vgg16gpu.cli.common.tell import device_words

_TIMES_OPTIONAL = ("W", "MHz", "p95", "variant", "images/s", "error")  # the first goes first
_LAYERS_OPTIONAL = ("least us", "GB/s", "kernel")


def print_result(result: Content) -> None:
    """Print all tables and remarks on stdout."""
    screen = console()
    model = result["model"]
    shape = "x".join(map(str, model["input_shape"]))
    kernels = result.get("kernels", "auto")  # older files do not say
    computed = f", computing {', '.join(model['outputs'])}" if model.get("outputs") else ""
    heading(screen, f"{model['path']}{computed}, input {shape}, on {result['device']['name']}, kernels {kernels}")
    screen.print(fitting(screen, partial(_times_table, result), _TIMES_OPTIONAL))
    if result["iterations"]:
        heading(screen, "Host to host, one input a call, over 10 inputs")
        screen.print(fitting(screen, lambda _: _iterations_table(result), ()))
    for batch in result["batches"]:
        heading(screen, f"Steps in {batch['precision']} at batch {batch['batch']}")
        screen.print(fitting(screen, partial(_layer_table, batch), _LAYERS_OPTIONAL))
    for line in _remarks(result):
        screen.print(line, markup=False)


def print_comparison(ratios: Sequence[Ratio], path: Path, threshold: float) -> None:
    """Print the ratios to an older result and the verdict on stdout."""
    screen = console()
    heading(screen, f"Compared with {path}")
    screen.print(fitting(screen, lambda _: _ratio_table(ratios, threshold), ()))
    slower = sum(ratio.is_slower(threshold) for ratio in ratios)
    text = f"SLOWER: {slower} medians, by more than {threshold:g} %" if slower else "No median is slower"
    screen.print(text, style="bold red" if slower else "bold green", markup=False)


def _times_table(result: Content, omitted: Sequence[str]) -> Any:
    gpu = ["MHz", "W"] if any(record["gpu"] for record in result["records"]) else []
    numbers = ["median", "p95", "images/s", "x ours", "error", *gpu]
    columns = [column for column in ("run", "method", "who", "variant", *numbers) if column not in omitted]
    shown = table(columns, right=numbers)
    for precision, batch in combinations(result):
        rows = [
            row
            for regime, method in product(Regime, Method)
            for row in _time_rows(select(result, precision=precision, batch=batch, regime=regime, method=method))
        ]
        rows += _absent_rows(result, precision, batch)
        for row in rows:
            add_row(shown, *(row.get(column, "") for column in columns), end_section=row is rows[-1])
    return shown


def _time_rows(records: Sequence[Content]) -> list[dict[str, str]]:
    """Return a row for each contender of a precision, batch, regime and method, and its TF32: its fastest variant."""
    chosen = [
        min((r for r in records if (r["name"], r["tf32"]) == kind), key=lambda r: float(r["median_s"]))
        for kind in kinds(records)
    ]
    ours = next((record for record in chosen if record["name"] == NAME), None)
    rows: list[dict[str, str]] = []
    for record in chosen:
        ratio = record["median_s"] / ours["median_s"] if ours and record is not ours else None
        first = not rows
        rows.append(
            {
                "run": f"{record['precision']} x {record['batch']}, {record['regime']}" if first else "",
                "method": record["method"] if first else "",
                "who": label(record["name"], record["tf32"]),
                "variant": record["variant"],
                "median": seconds(record["median_s"]),
                "p95": seconds(record["p95_s"]),
                "images/s": f"{record['images_per_s']:.4g}",
                "x ours": "" if ratio is None else f"{ratio:.3g}",
                "error": "-" if record["error"] is None else f"{record['error']:.1e}",
                **_gpu_cells(record["gpu"] or {}),
            }
        )
    return rows


def _absent_rows(result: Content, precision: str, batch: int) -> list[dict[str, str]]:
    """Return one row for each peer without a number there; the reasons stand below the tables."""
    present = names(select(result, precision=precision, batch=batch))
    missing = [each["name"] for each in absent(result, precision, batch) if each["name"] not in present]
    return [{"who": name, "variant": "see below", "median": "absent"} for name in missing]


def _gpu_cells(gpu: Content) -> dict[str, str]:
    """Return clock and power under load, where they were read."""
    cells = {"MHz": gpu.get("sm_mhz"), "W": gpu.get("power_w")}
    return {column: f"{value:.0f}" for column, value in cells.items() if value is not None}


def _iterations_table(result: Content) -> Any:
    columns = ["iterations", "runs", "mean", "median", "p95", "min"]
    shown = table(["precision", *columns], right=columns)
    for item in result["iterations"]:
        times = [seconds(item[key]) for key in ("mean_s", "median_s", "p95_s", "min_s")]
        add_row(shown, item["precision"], item["iterations"], item["samples"], *times)
    return shown


def _layer_table(batch: Content, omitted: Sequence[str]) -> Any:
    numbers = ["us", "TFLOP/s", "GB/s", "least us", "% of ceiling"]
    columns = [column for column in ("step", "kernel", *numbers) if column not in omitted]
    shown = table(columns, right=numbers)
    layers = batch["layers"]
    for layer in layers:
        row = _layer_row(layer["label"], layer["kernel"], [layer])
        add_row(shown, *(row[column] for column in columns), end_section=layer is layers[-1])
    total = _layer_row("sum", "", layers)
    add_row(shown, *(total[column] for column in columns))
    return shown


def _layer_row(step: str, kernel: str, layers: Sequence[Content]) -> dict[str, str]:
    """Sum up the times of some layers, and their rates."""
    took, least, flop, nbytes = (
        sum(layer[key] for layer in layers) for key in ("median_s", "floor_s", "flop", "nbytes")
    )
    return {
        "step": step,
        "kernel": kernel,
        "us": f"{1e6 * took:.1f}",
        "TFLOP/s": f"{flop / took / 1e12:.3g}",
        "GB/s": f"{nbytes / took / 1e9:.4g}",
        "least us": f"{1e6 * least:.1f}",
        "% of ceiling": f"{100 * least / took:.0f}",
    }


def _remarks(result: Content) -> list[str]:
    environment, verified = result["environment"], result["verification"]
    lines = [
        *(
            f"Ceilings of this device, {precision}: {ceilings_text(result['ceilings'], precision)}"
            for precision in precisions(result)
        ),
        *(
            f"Checked, {precision}: error {error:.1e} against {verified['reference']}"
            for precision, error in verified["worst_errors"].items()
            if error is not None
        ),
        *(f"Absent: {_who(each)}: {each['reason']}" for each in result["absent"]),
        *(f"Note: {note}" for note in _notes(result)),
        *(f"{name}: {text}" for name, text in result["methods"].items() if _was_used(name, result)),
        f"Device: {device_words(result['device_choice'])}; CPU: {environment['cpu']}, {environment['cores']} cores",
        f"Versions: {', '.join(f'{name} {version}' for name, version in _versions(environment).items())}",
    ]
    if start := result["cold_start"]:
        lines.insert(
            0, f"Cold start: {seconds(start['to_result_s'])} to the answer, {seconds(start['to_exit_s'])} to the end"
        )
        if parts := start.get("parts_s"):  # older records have none
            lines.insert(1, f"Its parts, ms: {', '.join(f'{name} {1e3 * part:.0f}' for name, part in parts.items())}")
    return lines


def _who(missing: Content) -> str:
    """Describe an absent peer, or a variant of it, and where it is missing."""
    parts = [f"{missing['name']} ({missing['variant']})" if missing["variant"] else missing["name"]]
    parts += [missing["precision"]] if missing["precision"] else []
    parts += [f"batch {missing['batch']}"] if missing["batch"] else []
    return ", ".join(parts)


def _notes(result: Content) -> list[str]:
    """Return the notes, and the contenders that are there for their time alone."""
    unchecked = {f"{r['name']} ({r['variant']}): {r['unchecked']}" for r in result["records"] if r["unchecked"]}
    return [*result["notes"], *sorted(unchecked)]


def _was_used(name: str, result: Content) -> bool:
    """Return whether a description belongs to anything in this result."""
    if name in ("iterations", "cold_start"):
        return bool(result[name])
    if name == "peers":
        return bool(peers(result["records"]) or peers(result["records"], tf32=True))
    if name in tuple(Regime):
        return bool(select(result, regime=name))
    return True


def _versions(environment: Content) -> dict[str, str]:
    commit = environment["commit"]
    state = {"commit": commit["hash"][:12] + ("+changes" if commit["dirty"] else "")} if commit else {}
    return {**environment["versions"], **environment["cuda"], **state}


def _ratio_table(ratios: Sequence[Ratio], threshold: float) -> Any:
    columns = ["before", "now", "now / before"]
    shown = table(["median of", *columns, "verdict"], right=columns)
    for ratio in ratios:
        slower = ratio.is_slower(threshold)
        verdict = "SLOWER" if slower else "ok" if ratio.judged else "not judged"
        times = seconds(ratio.before_s), seconds(ratio.now_s)
        add_row(shown, ratio.what, *times, f"{ratio.ratio:.3f}", verdict, style="red" if slower else None)
    return shown

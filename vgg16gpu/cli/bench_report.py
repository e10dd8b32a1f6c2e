"""A benchmark's result on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from vgg16gpu.bench.compare import Ratio
from vgg16gpu.bench.ours import NAME
from vgg16gpu.bench.record import Content, ceilings_text, combinations, fastest, names, peers, precisions, select
from vgg16gpu.bench.timing import Method, Regime
from vgg16gpu.cli.show import add_row, console, heading, seconds, table
from vgg16gpu.cli.tell import device_words


def print_result(result: Content) -> None:
    """All tables and remarks, on stdout."""
    screen = console()
    model = result["model"]
    shape = "x".join(map(str, model["input_shape"]))
    kernels = result.get("kernels", "auto")  # older files do not say
    heading(screen, f"{model['path']}, input {shape}, on {result['device']['name']}, kernels {kernels}")
    screen.print(_times_table(result))
    if result["iterations"]:
        heading(screen, "Host to host, one input a call, over 10 inputs")
        screen.print(_iterations_table(result))
    for batch in result["batches"]:
        heading(screen, f"Steps in {batch['precision']} at batch {batch['batch']}")
        screen.print(_layer_table(batch))
    for line in _remarks(result):
        screen.print(line, markup=False)


def print_comparison(ratios: Sequence[Ratio], path: Path, threshold: float) -> None:
    """The ratios to an older result and the verdict, on stdout."""
    screen = console()
    heading(screen, f"Compared with {path}")
    screen.print(_ratio_table(ratios, threshold))
    slower = sum(ratio.is_slower(threshold) for ratio in ratios)
    text = f"SLOWER: {slower} medians, by more than {threshold:g} %" if slower else "No median is slower"
    screen.print(text, style="bold red" if slower else "bold green", markup=False)


def _times_table(result: Content) -> Any:
    numbers = ["median", "p95", "images/s", "time / ours", "error"]
    gpu = ["MHz", "W"] if any(record["gpu"] for record in result["records"]) else []
    shown = table(["run", "method", "who", "variant", *numbers, *gpu], right=[*numbers, *gpu])
    for precision, batch in combinations(result):
        rows = [
            row
            for regime, method in product(Regime, Method)
            for row in _time_rows(
                select(result, precision=precision, batch=batch, regime=regime, method=method), bool(gpu)
            )
        ]
        for row in rows:
            add_row(shown, *row, end_section=row is rows[-1])
    return shown


def _time_rows(records: Sequence[Content], with_gpu: bool) -> list[tuple[object, ...]]:
    """One row for each contender of one precision, batch, regime and method: its fastest variant."""
    chosen = [record for name in names(records) if (record := fastest(r for r in records if r["name"] == name))]
    ours = next((record for record in chosen if record["name"] == NAME), None)
    rows: list[tuple[object, ...]] = []
    for record in chosen:
        ratio = record["median_s"] / ours["median_s"] if ours and record is not ours else None
        rows.append(
            (
                "" if rows else f"{record['precision']} x {record['batch']}, {record['regime']}",
                "" if rows else record["method"],
                record["name"],
                record["variant"],
                seconds(record["median_s"]),
                seconds(record["p95_s"]),
                f"{record['images_per_s']:.4g}",
                "" if ratio is None else f"{ratio:.3g}",
                "-" if record["error"] is None else f"{record['error']:.1e}",
                *(_gpu_cells(record["gpu"] or {}) if with_gpu else ()),
            )
        )
    return rows


def _gpu_cells(gpu: Content) -> tuple[str, ...]:
    """Clock and power under load, where they were read."""
    return tuple("" if gpu.get(key) is None else f"{gpu[key]:.0f}" for key in ("sm_mhz", "power_w"))


def _iterations_table(result: Content) -> Any:
    columns = ["iterations", "runs", "mean", "median", "p95", "min"]
    shown = table(["precision", *columns], right=columns)
    for item in result["iterations"]:
        times = [seconds(item[key]) for key in ("mean_s", "median_s", "p95_s", "min_s")]
        add_row(shown, item["precision"], item["iterations"], item["samples"], *times)
    return shown


def _layer_table(batch: Content) -> Any:
    numbers = ["us", "TFLOP/s", "GB/s", "least us", "% of ceiling"]
    shown = table(["step", "kernel", *numbers], right=numbers)
    for layer in batch["layers"]:
        add_row(
            shown,
            layer["label"],
            layer["kernel"],
            f"{1e6 * layer['median_s']:.1f}",
            f"{layer['flop_per_s'] / 1e12:.3g}",
            f"{layer['bytes_per_s'] / 1e9:.4g}",
            f"{1e6 * layer['floor_s']:.1f}",
            f"{layer['percent_of_ceiling']:.0f}",
            end_section=layer is batch["layers"][-1],
        )
    total, floor, flop, nbytes = (
        sum(layer[key] for layer in batch["layers"]) for key in ("median_s", "floor_s", "flop", "nbytes")
    )
    rates = f"{flop / total / 1e12:.3g}", f"{nbytes / total / 1e9:.4g}"
    add_row(shown, "sum", "", f"{1e6 * total:.1f}", *rates, f"{1e6 * floor:.1f}", f"{100 * floor / total:.0f}")
    return shown


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
        *(f"Note: {note}" for note in _notes(result)),
        *(f"{name}: {text}" for name, text in result["methods"].items() if _was_used(name, result)),
        f"Device: {device_words(result['device_choice'])}; CPU: {environment['cpu']}, {environment['cores']} cores",
        f"Versions: {', '.join(f'{name} {version}' for name, version in _versions(environment).items())}",
    ]
    if start := result["cold_start"]:
        lines.insert(
            0, f"Cold start: {seconds(start['to_result_s'])} to the answer, {seconds(start['to_exit_s'])} to the end"
        )
    return lines


def _notes(result: Content) -> list[str]:
    """The notes, and what is there for its time alone."""
    unchecked = {f"{r['name']} ({r['variant']}): {r['unchecked']}" for r in result["records"] if r["unchecked"]}
    return [*result["notes"], *sorted(unchecked)]


def _was_used(name: str, result: Content) -> bool:
    """Whether a description belongs to anything in this result."""
    if name in ("iterations", "cold_start"):
        return bool(result[name])
    if name == "peers":
        return bool(peers(result["records"]))
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

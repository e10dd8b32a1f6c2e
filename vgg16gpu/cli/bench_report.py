"""A benchmark's result on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgg16gpu.bench.compare import Ratio
from vgg16gpu.bench.ours import NAME
from vgg16gpu.bench.report import Content, best_entry, names
from vgg16gpu.bench.timing import Method
from vgg16gpu.cli.show import add_row, console, heading, seconds, table


def print_result(result: Content) -> None:
    """All tables and remarks, on stdout."""
    screen = console()
    model = result["model"]
    shape = "x".join(map(str, model["input_shape"]))
    heading(screen, f"{model['path']}, input {shape}, {model['precision']}, on {result['device']['name']}")
    screen.print(_times_table(result))
    if result["iterations"]:
        heading(screen, "Host to host, one input a call, over 10 inputs")
        screen.print(_iterations_table(result))
    for batch in result["batches"]:
        heading(screen, f"Steps at batch {batch['batch']}")
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
    shown = table(
        ["batch", "method", "who", "variant", "median", "p95", "min", "samples", "images/s", "time / ours", "error"],
        right=["batch", "median", "p95", "min", "samples", "images/s", "time / ours", "error"],
    )
    for batch in result["batches"]:
        rows = list(_time_rows(batch))
        for row in rows:
            add_row(shown, *row, end_section=row is rows[-1])
    return shown


def _time_rows(batch: Content) -> list[tuple[object, ...]]:
    """One row for each method and contender: its fastest variant."""
    rows: list[tuple[object, ...]] = []
    for method in Method:
        ours = best_entry(batch, NAME, method)
        for name in names(batch):
            if not (entry := best_entry(batch, name, method)):
                continue
            times = entry["times"][method.value]
            ratio = times["median_s"] / ours["times"][method.value]["median_s"] if ours else None
            count = f"{times['samples']} x {times['runs']}" if times["runs"] > 1 else times["samples"]
            rows.append(
                (
                    batch["batch"] if not rows else "",
                    method.value if name == NAME else "",
                    name,
                    entry["variant"],
                    seconds(times["median_s"]),
                    seconds(times["p95_s"]),
                    seconds(times["min_s"]),
                    count,
                    f"{times['images_per_s']:.4g}",
                    "" if name == NAME or ratio is None else f"{ratio:.3g}",
                    "-" if entry["error"] is None else f"{entry['error']:.1e}",
                )
            )
    return rows


def _iterations_table(result: Content) -> Any:
    columns = ["iterations", "runs", "mean", "median", "p95", "min"]
    shown = table(columns, right=columns)
    for item in result["iterations"]:
        times = [seconds(item[key]) for key in ("mean_s", "median_s", "p95_s", "min_s")]
        add_row(shown, item["iterations"], item["samples"], *times)
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
    ceilings, environment, verified = result["ceilings"], result["environment"], result["verification"]
    lines = [
        f"Ceilings of this device: {ceilings['flop_per_s'] / 1e12:.3g} TFLOP/s FFMA, "
        f"{ceilings['bytes_per_s'] / 1e9:.4g} GB/s copy",
        *(
            [f"Checked: error {verified['worst_error']:.1e} against {verified['reference']}"]
            if verified["worst_error"] is not None
            else []
        ),
        *(f"Note: {note}" for note in result["notes"]),
        *(f"{name}: {text}" for name, text in result["methods"].items() if _was_used(name, result)),
        f"Device: {result['device_choice']}; CPU: {environment['cpu']}, {environment['cores']} cores",
        f"Versions: {', '.join(f'{name} {version}' for name, version in _versions(environment).items())}",
    ]
    if start := result["cold_start"]:
        lines.insert(
            0, f"Cold start: {seconds(start['to_result_s'])} to the answer, {seconds(start['to_exit_s'])} to the end"
        )
    return lines


def _was_used(method: str, result: Content) -> bool:
    if method in ("iterations", "cold_start"):
        return bool(result[method])
    return method != "peers" or any(len(names(batch)) > 1 for batch in result["batches"])


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

"""`bench --devices`: one device beside several that share the work."""

from __future__ import annotations

from collections.abc import Callable

from vgg16gpu.bench.records.record import Content
from vgg16gpu.bench.several import REPEATS, SECONDS, DevicesConfig, measure_several
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.bench.deliver import deliver
from vgg16gpu.cli.bench.options import BenchOptions
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.common.show import add_row, console, table
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.compiler.model import Model


def measure_devices(options: BenchOptions, say: Callable[[str], None]) -> int:
    """Measure, write and show. Returns the exit code: 1 where several devices gave other bits than one."""
    assert options.devices is not None  # or it would be another benchmark
    wanted = DevicesConfig(
        Model(find_model(options.model)),
        options.devices,
        options.precisions,
        options.kernels,
        options.size,
        max(options.batches, default=None),
        options.repeats or REPEATS,
        options.seconds or SECONDS,
    )
    result = measure_several(wanted, say)
    for failure in result["failures"]:
        tell(failure)
    deliver(result, options, print_several)
    return EXIT_CHECK_FAILED if result["failures"] else 0


def print_several(result: Content) -> None:
    """Print how arrays and, where a folder was measured too, its pictures were shared."""
    screen = console()
    columns = ["precision", "devices", "images/s", "times one", "shares"]
    shown = table(columns, right=columns[1:4])
    for run in result["streams"]:
        whole = sum(run["shares"]) or 1
        shares = ", ".join(f"{images / whole:.0%}" for images in run["shares"])
        add_row(
            shown, run["precision"], run["devices"], f"{run['images_per_s']:,.0f}", f"{run['times_one']:.3f}", shares
        )
    screen.print(f"uint8 arrays in memory, batch {result['batch']}, {result['environment']['device']['name']}:")
    screen.print(shown)
    if not result["pictures"]:
        return
    columns = ["precision", "devices", "rows/s", "whole run, s"]
    shown = table(columns, right=columns[1:])
    for run in result["pictures"]:
        rate = f"{run['rows_per_s']:,.0f}" if run["rows_per_s"] else ""
        add_row(shown, run["precision"], run["devices"], rate, f"{run['whole_s']:.3g}")
    screen.print("From a folder of pictures to rows of a CSV:")
    screen.print(shown)

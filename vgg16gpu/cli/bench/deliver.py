"""What becomes of a result of `bench`, whichever benchmark it is of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vgg16gpu.bench.records.record import Content, write
from vgg16gpu.cli.bench.options import Options
from vgg16gpu.cli.common.show import print_json


def deliver(
    result: Content,
    options: Options,
    show: Callable[[Content], None],
    plot: Callable[[Content, Path], None] | None = None,
) -> None:
    """Write and draw it where that is asked for, and print it, as JSON or by `show`. Raises what these raise."""
    if options.output:
        write(options.output, result)
    if plot and options.plot:
        plot(result, options.plot)
    if options.as_json:
        print_json(result)
    else:
        show(result)

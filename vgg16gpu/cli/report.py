"""`report`: everything that was recorded, and all kernels, as one page for a browser."""

from __future__ import annotations

from pathlib import Path

import click

from vgg16gpu.cli.common.show import megabytes
from vgg16gpu.io.files import atomic_writer, check_outputs
from vgg16gpu.report.folder import find_results
from vgg16gpu.report.page import page

OUTPUT = Path("vgg16gpu-report.html")

_FOLDER = click.Path(file_okay=False, path_type=Path)
_RESULTS_HELP = "The records. Default: testbench/results of the checkout; without one the current folder."


@click.command("report")
@click.option("--results", "folder", type=_FOLDER, metavar="DIR", help=_RESULTS_HELP)
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=True, metavar="FILE")
def report_command(folder: Path | None, output: Path) -> None:
    """Write one HTML page of the records in a folder and of all kernel sources. It needs no network and no GPU.

    What has no record yet says which command makes it. Records are found by the names that the tools give them:
    bench*.json, ladder*.json, conformance*.json, tests*.json, sanitize*.json, fuzz*.json, stress*.json,
    testbench*.json, and what `lab run` wrote in DIR, DIR/lab or DIR/lab-results.
    """
    check_outputs({"--output": output})
    text = page(find_results(folder)).encode(errors="backslashreplace")  # folders may have any name
    with atomic_writer(output) as file:
        file.write(text)
    click.echo(f"Written: {output}, {megabytes(len(text))}")

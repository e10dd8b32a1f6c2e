"""`report`: everything that was recorded, and all kernels, as one page for a browser."""

from __future__ import annotations

from pathlib import Path

import click

from vgg16gpu.cli.common.show import megabytes
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.io.files import atomic_writer, check_outputs
from vgg16gpu.io.shown import printable
from vgg16gpu_lab.report.folder import Results, find_results
from vgg16gpu_lab.report.page import page

OUTPUT = Path("vgg16gpu-report.html")

_RESULTS_HELP = (
    "Show these records: a file, or a folder and what commands have written in it; several with several --results. "
    "Default: those of the current folder; where it has none, the package's own."
)
_NAMED = 3  # files in the line behind it


@click.command("report", cls=WritingCommand)
@click.option("--results", "named", type=click.Path(path_type=Path), multiple=True, metavar="PATH", help=_RESULTS_HELP)
@click.option("--package", is_flag=True, help="Show the package's own records, which are in a checkout.")
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=True, metavar="FILE")
def report_command(named: tuple[Path, ...], package: bool, output: Path) -> None:
    """Write one HTML page of records and of all kernel sources. It needs no network and no GPU.

    Records are what bench, testbench, ladder and lab wrote with --output, and the tests of a checkout; the page knows
    them by what they hold, and says at its top which it shows. In a folder they are looked for there, in
    testbench/results, and in lab and lab-results of both. What has no record says which command makes it.
    """
    if named and package:
        raise click.UsageError("--results and --package exclude each other")
    check_outputs({"--output": output})
    results = find_results(named, package=package)
    check_outputs({"--output": output}, (("a record", record.path) for record in results.found))
    text = page(results).encode(errors="backslashreplace")  # folders may have any name
    with atomic_writer(output) as file:
        file.write(text)
    click.echo(f"Written: {output}, {megabytes(len(text))}, of {_told(results)}")


def _told(results: Results) -> str:
    """Describe whose records these are; of a user's own the first files."""
    count = len(results.found)
    if not count:
        return "no records: there are none here"
    records = f"{count} record{'s' * (count > 1)}"
    if results.is_package:
        return f"the package's own {records}; in a folder with records of yours it shows those"
    names = ", ".join(results.name_of(record) for record in results.found[:_NAMED])
    return f"{records} of yours: {printable(names)}{', ...' * (count > _NAMED)}"

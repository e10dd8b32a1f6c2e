"""`vgg16gpu doctor`: what this machine has, what is wrong, how to mend it."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vgg16gpu.checks.doctor import DoctorReport, State, diagnose, survey
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.options import device_option, json_option
from vgg16gpu.cli.common.show import console, print_json

_STYLES = {State.OK: "green", State.ABSENT: "dim", State.WRONG: "bold red"}


@click.command("doctor")
@device_option
@json_option
@click.pass_context
def doctor_command(context: click.Context, device: str, as_json: bool) -> None:
    """Check driver, toolkit, PyCUDA, compiler, memory and cache, and run a kernel on the device that would be used.

    Exit code 1 when that device does not work.
    """
    report = diagnose(survey(device))
    if as_json:
        print_json(to_json(report))
    else:
        show(report, console())
    context.exit(0 if report.healthy else EXIT_CHECK_FAILED)


def to_json(report: DoctorReport) -> dict[str, object]:
    """Return the report as plain data."""
    return {
        "healthy": report.healthy,
        "device": report.trial.device,
        "reason": report.trial.reason,
        "checks": [asdict(check) | {"state": check.state.value} for check in report.checks],
    }


def show(report: DoctorReport, screen: Console) -> None:
    """Print the report as a table; what to do stands under the thing that is wrong."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in report.checks:
        style = _STYLES[check.state]
        text = escape(check.found) + (f"\n[bold]-> {escape(check.remedy)}[/bold]" if check.remedy else "")
        table.add_row(f"[{style}]{check.state.value}[/]", check.name, text)
    screen.print(table)

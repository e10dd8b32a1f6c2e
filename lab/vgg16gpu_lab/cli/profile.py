"""`lab profile`: Nsight Compute's readings of a variant's kernels, explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from vgg16gpu.cli.common.options import gpu_option, json_option, renamed_option, square_size_option
from vgg16gpu.cli.common.parsing import Whole
from vgg16gpu.cli.common.show import console, heading, print_json
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer, check_outputs, followed
from vgg16gpu_lab.measure.profile import METHOD, Job, Profile, content, profile, told
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants import variants

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command("profile", cls=WritingCommand)
@click.argument("name")
@square_size_option(1024)
@click.option("--channels", type=Whole(1), default=3, show_default=True, help="Of the image.")
@click.option("--output-channels", type=Whole(1), default=64, show_default=True, help="Of the result.")
@renamed_option("--outputs", "--output-channels", "output_channels", type=Whole(1))
@click.option("--kernel", type=Whole(1), default=3, show_default=True, help="Rows of a filter.")
@gpu_option
@click.option("--dir", "folder", type=_FOLDER, metavar="FOLDER", help="Your own variants, as `lab new` writes them.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the readings there, as JSON.")
@json_option
def profile_command(
    name: str,
    size: int,
    channels: int,
    output_channels: int,
    kernel: int,
    device: str,
    folder: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a variant once under Nsight Compute and explain the ten readings that matter, of each of its kernels.

    ncu is looked for on PATH and in CUDA_HOME; it needs a GPU, and a driver that lets you read its counters.
    """
    check_outputs({"--output": output})
    known = {variant.name for variant in (*variants(), *(own_variants(folder) if folder else ()))}
    if name not in known:
        raise InputError(f"there is no variant '{name}'; `vgg16gpu lab list` has the names, --dir is for your own")
    problem = Problem(1, channels, size, size, output_channels, kernel=kernel, padding=kernel // 2)
    job = Job(name, problem, device, followed(folder) if folder else None)
    found, environment = profile(job)
    record = content(job, found, environment)
    if output:
        with atomic_writer(output) as stream:
            stream.write(f"{json.dumps(record, indent=1)}\n".encode())
    if as_json:
        print_json(record)
        return
    for launch in found:
        _print(launch, environment["device"]["name"])
    console().print(f"{METHOD}.", markup=False)
    if output:
        console().print(f"Written: {output}", markup=False, soft_wrap=True)


def _print(launch: Profile, device: str) -> None:
    screen = console()
    heading(screen, f"{launch.kernel}: grid {launch.grid}, block {launch.block}, on {device}")
    for name, value, meaning in told(launch):
        screen.print(f"  {name + ':':20}{value:>14}  {meaning}", markup=False, soft_wrap=True)
    screen.print(f"  Bound by {launch.bound}.", markup=False, soft_wrap=True)

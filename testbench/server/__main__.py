"""Measure a server of KServe v2: answers a second, and how long clients wait. `python -m testbench.server URL`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from testbench.server import peer
from testbench.server.bodies import FORMS, FP32, JPEG, UINT8, bodies
from testbench.server.content import content
from testbench.server.plot import write_plot
from testbench.server.session import CLIENTS, CONNECTIONS, SECONDS, Contender, Wanted, measure
from testbench.server.target import Address, Body, Served
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.process import PeerFailureError
from vgg16gpu.bench.records.plot import check_plot
from vgg16gpu.bench.records.record import Content
from vgg16gpu.cli import EXIT_CHECK_FAILED, OneLineErrors, main
from vgg16gpu.cli.bench.deliver import deliver, progress
from vgg16gpu.cli.common.options import device_option, find_model, json_option
from vgg16gpu.cli.common.parsing import Real, Whole, parse_cores, parse_counts, parse_names
from vgg16gpu.cli.common.show import add_row, console, fitting, heading, per_second, seconds, table
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import check_outputs
from vgg16gpu.io.foreign.lines import read_lines

_OPTIONAL = ("KB", "p90", "batch")  # the first goes first

Say = Callable[[str], None]


_CLIENTS_HELP = "Clients that wait for their answers, counts with commas. Default: 1,8,32; with --rates none."
_RATES_HELP = (
    "Requests a second that arrive at random and wait for nobody. Latency counts from when one was meant to be sent. "
    "Default: 25, 50 and 80 % of the most that the clients reached."
)
_BODIES_HELP = "What requests hold: jpeg (as BYTES), uint8, fp32 (tensors). Default: the first two."
_PROCESSES_HELP = "Processes of clients. Default: half of the cores, or those of --client-cores."
_CORES_HELP = "The cores that clients stay on, as 8-15 or 4,5: a server here has the others to itself."


@dataclass(frozen=True)
class Options:
    """The command line, as values."""

    server: str
    model: str | None
    device: str
    against: tuple[str, ...]
    clients: tuple[int, ...]
    rates: tuple[int, ...]
    bodies: tuple[str, ...]
    images: int
    seconds: float
    connections: int
    processes: int | None
    client_cores: tuple[int, ...]
    pictures: Path | None
    token_file: Path | None
    output: Path | None
    plot: Path | None
    as_json: bool


@click.command("server", cls=OneLineErrors)
@click.argument("server", metavar="URL")
@click.option("--model", metavar="FILE", help="What --against loads.")
@device_option
@click.option("--against", callback=parse_names((peer.NAME,)), metavar="NAME", help=f"{peer.NAME}: with torch.")
@click.option("--clients", callback=parse_counts, metavar="COUNTS", help=_CLIENTS_HELP)
@click.option("--rates", callback=parse_counts, metavar="RATES", help=_RATES_HELP)
@click.option("--bodies", callback=parse_names(FORMS), metavar="NAMES", help=_BODIES_HELP)
@click.option("--images", type=Whole(1), default=1, show_default=True, help="Images of a request.")
@click.option("--seconds", type=Real(0, min_open=True), default=SECONDS, show_default=True, help="Of each load.")
@click.option("--connections", type=Whole(1), default=CONNECTIONS, show_default=True, help="With rates, in all.")
@click.option("--processes", type=Whole(1), metavar="N", help=_PROCESSES_HELP)
@click.option("--client-cores", callback=parse_cores, metavar="CORES", help=_CORES_HELP)
@click.option("--pictures", type=click.Path(path_type=Path), metavar="DIR", help="Sent in place of made ones.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Its first line is the token.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a .png, .svg or .pdf file.")
@json_option
@click.pass_context
def server_command(ctx: click.Context, /, **values: Any) -> None:
    """Measure the server at http://HOST:PORT: answers a second, and how long clients wait."""
    options = Options(**values)
    if options.against and options.model is None:
        raise click.UsageError(f"--against {peer.NAME} loads the model by itself: name the --model that is served")
    read = [("the file of tokens", options.token_file)] if options.token_file else []
    check_outputs({"--output": options.output, "--plot": options.plot}, read)
    if options.plot:
        check_plot(options.plot)
    ctx.exit(measure_server(options, progress(options)))


def measure_server(options: Options, say: Say) -> int:
    """Measure, write and show. Returns the exit code: 1 where a load of ours got no answer at all."""
    served = Served.find(Address.of(options.server, _token(options.token_file)))
    forms = options.bodies or ((JPEG, UINT8) if served.pixels else (FP32,))
    wanted = Wanted(
        clients=options.clients or (() if options.rates else CLIENTS),
        rates=options.rates,
        forms=forms,
        images=options.images,
        seconds=options.seconds,
        connections=options.connections,
        processes=options.processes or len(options.client_cores) or max(1, usable_cores() // 2),
        pictures=options.pictures,
        cores=options.client_cores,
    )
    sent = {form: bodies(form, served, wanted.images, wanted.pictures) for form in forms}
    rows = [
        row
        for form in forms
        for row in measure(
            Contender(NAME, form, served.address, served.path, sent[form], served.statistics), wanted, say
        )
    ]
    others, absent = _peer(options, wanted, served, sent, say)
    result = content(served, wanted, [*rows, *others], absent)
    deliver(result, options, _print, write_plot, options.plot)
    return EXIT_CHECK_FAILED if any(row["answers"] == 0 and row["requests"] for row in rows) else 0


def _peer(
    options: Options, wanted: Wanted, served: Served, sent: Mapping[str, Sequence[Body]], say: Say
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, str]]]:
    """Its rows, and why some are missing."""
    if not options.against:
        return [], []
    absent: list[Mapping[str, str]] = [
        {"name": peer.NAME, "form": form, "reason": "the peer takes pictures and pixels, one a request"}
        for form in wanted.forms
        if form not in peer.FORMS or wanted.images > 1
    ]
    forms = [form for form in wanted.forms if form in peer.FORMS and wanted.images == 1]
    if not forms or served.pixels is None:
        return [], absent
    height, width, channels = served.pixels
    setting = peer.PeerSetting(Model(find_model(options.model)), options.device, (channels, height, width))
    rows: list[Mapping[str, Any]] = []
    try:
        say(f"{peer.NAME}: starting")
        with peer.running(setting) as address:
            for form in forms:
                rows += measure(peer.contender(address, form, sent[form]), wanted, say)
    except (PeerError, PeerFailureError) as error:
        absent += [{"name": peer.NAME, "form": form, "reason": str(error)} for form in forms]
    return rows, absent


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    lines = read_lines(file, f"--token-file '{file}'")
    if not lines:
        raise InputError(f"--token-file '{file}' is empty; write the token into it, or leave the option out")
    return lines[0].split()[0]


def _print(result: Content) -> None:
    screen = console()
    serving = result["serving"]
    shape = "x".join(map(str, serving["input"]))
    heading(
        screen,
        f"{serving['model']} at {serving['url']}, input {shape}, {serving['images_a_request']} a request, "
        f"{result['environment']['cores']} cores here",
    )
    screen.print(fitting(screen, lambda omitted: _table(result, omitted), _OPTIONAL))
    for line in _remarks(result):
        screen.print(line, markup=False)


def _table(result: Content, omitted: Sequence[str]) -> Any:
    numbers = ["KB", "answers/s", "p50", "p90", "p99", "p99.9", "errors", "batch"]
    columns = [column for column in ("server", "form", "load", *numbers) if column not in omitted]
    shown = table(columns, right=numbers)
    for row in result["loads"]:
        rate = row["load"] == "open"
        cells = {
            "server": row["server"],
            "form": row["form"],
            "load": f"{per_second(row['amount'])}/s" if rate else f"{row['amount']:.0f} clients",
            "KB": f"{row['body_nbytes'] / 1e3:.3g}",
            "answers/s": per_second(row["answers_per_s"]),
            **{name: seconds(value) for name, value in row["latency_s"].items()},
            "errors": sum(row["errors"].values()),
            "batch": f"{row['mean_batch']:.1f}" if row["mean_batch"] else "-",
        }
        add_row(shown, *(cells[column] for column in columns))
    return shown


def _remarks(result: Content) -> list[str]:
    lines = []
    for row in result["loads"]:
        load = f"{row['server']}, {row['form']}, {row['amount']:g} {'clients' if row['load'] == 'closed' else '/s'}"
        if row["limit"]:
            lines.append(f"{load}: {row['limit']}")
        if row["errors"]:
            lines.append(f"{load}: {', '.join(f'{count} x {name}' for name, count in row['errors'].items())}")
    lines += [f"Absent: {each['name']}, {each['form']}: {each['reason']}" for each in result["absent"]]
    return [*lines, *(f"{name}: {text}" for name, text in result["methods"].items())]


if __name__ == "__main__":
    main(server_command, "python -m testbench.server")

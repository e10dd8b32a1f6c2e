"""`bench --server`: how fast a server answers over HTTP, and how long its clients wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.ours import NAME
from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.process import PeerFailureError
from vgg16gpu.bench.records.record import Content
from vgg16gpu.bench.serving import peer
from vgg16gpu.bench.serving.bodies import FP32, JPEG, UINT8, bodies
from vgg16gpu.bench.serving.content import content
from vgg16gpu.bench.serving.plot import write_plot
from vgg16gpu.bench.serving.session import CLIENTS, CONNECTIONS, SECONDS, Contender, Wanted, measure
from vgg16gpu.bench.serving.target import Address, Body, Served
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.bench.deliver import deliver
from vgg16gpu.cli.bench.options import Options
from vgg16gpu.cli.common.columns import fitting
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.common.show import add_row, console, heading, seconds, table
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import read_lines

_OPTIONAL = ("KB", "p90", "batch")  # the first goes first

Say = Callable[[str], None]


def measure_server(options: Options, say: Say) -> int:
    """Measure, write and show. Returns the exit code: 1 where a load of ours got no answer at all."""
    assert options.server is not None  # or it would be another benchmark
    served = Served.find(Address.of(options.server, _token(options.token_file)))
    forms = options.bodies or ((JPEG, UINT8) if served.pixels else (FP32,))
    wanted = Wanted(
        clients=options.clients or (() if options.rates else CLIENTS),
        rates=options.rates,
        forms=forms,
        images=max(options.batches, default=1),
        seconds=options.seconds or SECONDS,
        connections=options.connections or CONNECTIONS,
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
    deliver(result, options, _print, write_plot)
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
            "load": f"{row['amount']:,.0f}/s" if rate else f"{row['amount']:.0f} clients",
            "KB": f"{row['body_nbytes'] / 1e3:.3g}",
            "answers/s": f"{row['answers_per_s']:,.0f}",
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

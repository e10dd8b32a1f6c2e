"""`serve`: a model as an inference server."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from vgg16gpu.cli.common.model_notes import model_notes
from vgg16gpu.cli.common.options import (
    batch_option,
    device_option,
    devices_option,
    find_model,
    labels_option,
    model_argument,
    outputs_option,
    precision_option,
    size_option,
)
from vgg16gpu.cli.common.parsing import Real, Whole
from vgg16gpu.cli.common.preprocess_options import PixelOptions, preprocess_options
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.compiler.class_scores import class_count
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.quantization.scale_file import scales_path
from vgg16gpu.devices import expects_gpu
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.devices.several import resolve_devices, thread_shares
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import decode_text, read_bytes
from vgg16gpu.io.shown import shown
from vgg16gpu.pictures.choices import AUTO, DECODE
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.runtime.answers.codec_choice import decodes_on_device
from vgg16gpu.runtime.answers.folder import fit_for
from vgg16gpu_serving.address import Address, reserved
from vgg16gpu_serving.front_end.door import Door, LogFile, check_tls
from vgg16gpu_serving.page.layers import explainable
from vgg16gpu_serving.parent.identity import Identity
from vgg16gpu_serving.parent.limits import allowed_connections
from vgg16gpu_serving.parent.supervisor import Supervisor, check_installed
from vgg16gpu_serving.served import Bounds, Description, EngineChoice, Served

_log = logging.getLogger(__name__)

_DELAY_HELP = "Milliseconds that an image waits for others at most, while the device computes; never while it idles."
_QUEUE_HELP = "Images that may wait in all, at least a batch in each front end; beyond them requests get 429."
_WORKERS_HELP = (
    "Front-end processes, which read requests and decode. Default: one for each core, but one less where the device is "
    "the CPU or decodes pictures itself; at most 8."
)
_STALL_HELP = "A process that does not answer for so long, or for five slowest batches, is killed and started again."
_TOKENS_HELP = "File of tokens, one a line: requests need `Authorization: Bearer TOKEN`, but for health."
_LOG_HELP = "Append a line of JSON for each request; -: to stdout."
_PAGE_HELP = "The page at /, and the explanations that it shows; a process of its own computes them."
_DECODE_HELP = (
    "Who decodes JPEG pictures: front ends (cpu), or the GPU by nvJPEG (gpu), to the same pixels or nearly so "
    "(docs/pictures.md); auto is {auto}. Default: auto."
)
_HOST_NAME_HELP = (
    "A name that clients have for this machine (may be given several times). Requests by other names are refused where "
    "the server listens on the loopback, or this is given: a page of a stranger makes such names up."
)
_CONNECTIONS_HELP = "Of each front end; fewer where a process may not open so many files (ulimit -n)."
_PIXELS_HELP = "Of a picture; of a request's pictures together four times as many."
_DEADLINE_HELP = "Of a request from its head to its answer, in all."
_MOST_WORKERS = 8
_REQUEST_PIXELS = 4  # pictures of the most pixels that a request may have
_BODIES = 4  # bodies of the largest size that a front end holds at once
_MOST_TOKENS = 1 << 20  # bytes of a file of tokens


@dataclass(frozen=True)
class Options:
    """The command line, as it is."""

    model: str
    name: str | None
    host: str
    port: int
    device: str
    devices: tuple[str, ...] | None
    precision: str
    batch: int | None
    size: tuple[int, int] | None
    outputs: tuple[str, ...] | None
    pixels: PixelOptions
    labels: Path | None
    max_delay_ms: float
    queue: int
    workers: int | None
    max_body_mb: int
    max_pixels: int
    max_connections: int
    deadline_s: float
    stall_s: float
    token_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    access_log: str | None
    page: bool
    decode: str
    host_names: tuple[str, ...]


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("serve", cls=WritingCommand)
@model_argument(required=True)
@click.option(
    "--name", metavar="NAME", help="What clients call the model. Default: the file's name without its ending."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0: all networks.")
@click.option("--host-name", "host_names", multiple=True, metavar="NAME", help=_HOST_NAME_HELP)
@click.option("--port", type=Whole(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@device_option
@devices_option
@precision_option
@batch_option("8 on a CPU, 64 on a GPU")
@size_option
@outputs_option
@click.option("--max-delay-ms", type=Real(0), default=2.0, show_default=True, help=_DELAY_HELP)
@click.option("--queue", type=Whole(1, 1 << 16), default=512, show_default=True, help=_QUEUE_HELP)
@click.option("--workers", type=Whole(1, 64), metavar="N", help=_WORKERS_HELP)
@click.option("--max-body-mb", type=Whole(1, 1024), default=32, show_default=True, help="Size of a request.")
@click.option("--max-pixels", type=Whole(1), default=50_000_000, show_default=True, help=_PIXELS_HELP)
@click.option("--max-connections", type=Whole(1), default=1024, show_default=True, help=_CONNECTIONS_HELP)
@click.option("--deadline-s", type=Real(0.01), default=10.0, show_default=True, help=_DEADLINE_HELP)
@click.option("--stall-s", type=Real(1), default=10.0, show_default=True, help=_STALL_HELP)
@click.option("--token-file", type=_FILE, metavar="FILE", help=_TOKENS_HELP)
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="Certificate (PEM): HTTPS in place of HTTP.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="Its private key (PEM).")
@click.option("--access-log", metavar="FILE", help=_LOG_HELP)
@click.option("--page/--no-page", default=True, show_default=True, help=_PAGE_HELP)
@click.option("--decode", type=click.Choice(DECODE), default="auto", help=_DECODE_HELP.format(auto=AUTO))
@preprocess_options
@labels_option
@click.pass_context
def serve_command(context: click.Context, /, **values: Any) -> None:
    """Serve MODEL over HTTP by the Open Inference Protocol (KServe v2), to tritonclient and others.

    MODEL is an ONNX file, a VGG's .pth or .safetensors file, 'torchvision/vgg16' for torch hub's, or 'digits'. Images
    of several requests are run together: whatever waits when the device is free. SIGTERM ends what is under way, then
    the server; the exit code is 0.
    """
    options = Options(**values)
    check_installed()
    if (options.tls_cert is None) != (options.tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together; give both")
    serve(options)
    context.exit(0)


def serve(options: Options) -> None:
    """Serve until a signal. Raises what Model and Engine raise, and InputError."""
    _check_names(options)
    tokens = _tokens(options.token_file)
    check_tls(options.tls_cert, options.tls_key)
    connections = allowed_connections(options.max_connections)
    if connections < options.max_connections:
        tell(f"--max-connections is {connections}, as a process may open so few files here; raise `ulimit -n` for more")
    with ExitStack() as stack:
        address = stack.enter_context(reserved(options.host, options.port))
        log = LogFile.opened(options.access_log) if options.access_log else None
        if log:
            stack.callback(log.close)
        _serve(replace(options, max_connections=connections), address, tokens, log, stack)


def _serve(
    options: Options, address: Address, tokens: tuple[bytes, ...], log: LogFile | None, stack: ExitStack
) -> None:
    """Serve with the address taken. stack: closes what is opened."""
    model = Model(find_model(options.model))
    name = model.path.stem if options.name is None else options.name
    if options.name is None:
        _check_name(name)
    graph = model.graph(options.precision, options.outputs)
    shape = resolve_input_shape(graph, 1, options.size)
    notes = model_notes(model, graph, shape, options.pixels, options.labels)
    names = resolve_devices(options.devices) if options.devices else (options.device,)
    on_gpu = expects_gpu(names[0])
    spec = InputSpec(shape[1:], preprocess=notes.preprocess)
    decodes = decodes_on_device(options.decode, names[0], spec)
    workers = options.workers or front_ends(device_waits=on_gpu and not decodes)
    queue = -(-options.queue // workers)
    one = EngineChoice(
        model=str(model.path),
        device=options.device,
        precision=options.precision,
        batch=options.batch,
        sides=(shape[2], shape[3]) if len(shape) == 4 and graph.input.is_open_in_size else options.size,
        outputs=options.outputs,
        mean=notes.mean,
        std=notes.std,
        max_delay=options.max_delay_ms / 1000,
        fits=notes.preprocess if on_gpu and fit_for(spec) else None,
        decodes=decodes,
    )
    if notes.preprocess and (assumed := notes.preprocess.assumption(*shape[2:])):
        _log.warning("warning: %s; --preprocess says how", assumed)
    threads = thread_shares(len(names)) if names[0] == "cpu" else [None] * len(names)
    choices = [replace(one, device=device, threads=share) for device, share in zip(names, threads, strict=True)]
    identity = Identity(_files_of(model, options.precision))
    stack.callback(identity.close)
    hosts = options.host_names if address.is_loopback or options.host_names else None

    def served(description: Description) -> Served:
        """Return the model's facts, with class names where the first output is the model's own scores."""
        classes = class_count((1, *description.outputs[0].shape))
        named = notes.names(classes) if classes and not options.outputs else ()
        told = explainable(model, description.input.shape) if options.page else None
        bounds = _bounds(options, max(queue, description.largest))
        return Served(name, description, notes.preprocess, tuple(named), bounds, tokens, told, hosts)

    door = Door(address, options.tls_cert, options.tls_key, log)
    with Supervisor(choices, served, door, workers, options.stall_s, identity) as supervisor:
        supervisor.run(tell)


def _files_of(model: Model, precision: str) -> list[Path]:
    """Return the files that a device process loads of a model: its own, those beside it, and scales for int8."""
    paths = list(model.file.paths)
    if precision == "int8" and not model.has_scales:
        paths.append(scales_path(model.path))
    return [path for path in paths if path.exists()]


def _check_names(options: Options) -> None:
    """Raise InputError for names that no request could use."""
    if options.name is not None:
        _check_name(options.name)
    for host in options.host_names:
        if not host or not host.isascii() or not host.isprintable() or set(host) & set("/@ "):
            raise InputError(f"--host-name {shown(host)}: give the name alone, as in a URL: inference.example")


def _check_name(name: str) -> None:
    """Raise InputError for a name that is no part of a path, or means another one."""
    if not name or not name.isprintable() or set(name) & set("/?#%") or name in (".", "..", "stats"):
        raise InputError(
            f"--name {shown(name)}: clients write it in a path; give letters, digits, dots and dashes, and not 'stats'"
        )


def front_ends(*, device_waits: bool) -> int:
    """Return the default number of front ends: one a core, less one where the device process computes or decodes."""
    return max(1, min(_MOST_WORKERS, usable_cores() - (not device_waits)))


def _bounds(options: Options, queue: int) -> Bounds:
    body = options.max_body_mb << 20
    return Bounds(
        body=body,
        bodies=_BODIES * body,
        pixels=options.max_pixels,
        request_pixels=_REQUEST_PIXELS * options.max_pixels,
        queue=queue,
        connections=options.max_connections,
        deadline=options.deadline_s,
    )


def _tokens(file: Path | None) -> tuple[bytes, ...]:
    """Return the lines of the file. Raises InputError where it is unreadable or empty, or no header can hold a line."""
    if file is None:
        return ()
    name = f"'{file}'"
    text = decode_text(read_bytes(file, name, _MOST_TOKENS), name)
    tokens = {number: line.strip() for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    if not tokens:
        raise InputError(f"'{file}' holds no token; write one a line, or leave --token-file out")
    for number, token in tokens.items():
        if not (token.isascii() and token.isprintable()):
            raise InputError(f"line {number} of '{file}' is no token: a header holds printable ASCII alone; change it")
    return tuple(token.encode() for token in tokens.values())

"""The command line: parse, call the package, print.

Results go to stdout, everything else to stderr. `EXIT_CODES` says what the exit codes of all commands mean, and stands
in each one's --help. A subcommand's module is imported when it is used: `--help` must not cost numpy.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from vgg16gpu.cli.common.tell import never_fail_on_text, set_verbosity, tell, telling_log
from vgg16gpu.devices.platforms import supported_machine
from vgg16gpu.errors import Error, InputError
from vgg16gpu.io.foreign.numbers import digits_value
from vgg16gpu.io.shown import printable

# name -> (module below vgg16gpu.cli, line for --help); the module holds `<name>_command`. In place of the module: the
# folder of the repository whose package brings the command, by an entry point of GROUP.
COMMANDS = {
    "infer": ("infer.command", "Classify images, or arrays of numbers."),
    "serve": ("./serving", "Serve a model over HTTP (KServe v2): requests in, batches through the device."),
    "testbench": ("testbench.command", "Check scores and layers against onnxruntime or given references."),
    "bench": ("bench.command", "Measure: latency, throughput, per-layer table, peers."),
    "ladder": ("./lab", "Climb from naive kernels to the fastest: a whole VGG, checked at every rung."),
    "info": ("info.command", "Describe a model and its plan: layers, cost, memory. Needs no GPU."),
    "calibrate": ("calibrate", "Choose the scales of int8 from images."),
    "lab": ("./lab", "The convolution lab: published experiments run again, your own kernels beside them."),
    "report": ("./lab", "Everything recorded, and all kernels, as one HTML page."),
    "tune": ("tune", "Measure which tiles are fastest on this GPU."),
    "doctor": ("doctor", "Check driver, toolkit, compiler, memory; say what to fix."),
    "cache": ("cache", "Show or clear the compiled kernels."),
    "model": ("model.command", "Make or fetch a VGG model file; write out weights."),
}
GROUP = "vgg16gpu.commands"

# New objects until garbage is looked for. A start makes nearly as many, and all of them stay: at 700, the default,
# looking takes 5 % of the time to the first answer.
GARBAGE = 100_000

_NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(
    kind
    for kind in [getattr(click.exceptions, "NoArgsIsHelpError", None)]
    if kind  # click before 8.2 has none
)
_UNKNOWN_COMMAND = re.compile(r"No such command '(.*)'\.")

_MOST_COLUMNS = 10_000  # of a screen

EXIT_CHECK_FAILED = 1  # done, but something is wrong
EXIT_USAGE = 2  # nothing was done, or no input at all has an answer
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
ENDING = {signal.SIGTERM: "terminated", signal.SIGHUP: "its terminal was closed"}  # exit code 128 + signal
EXIT_CODES = (
    "Exit codes: 0 all is well; 1 done, but something is wrong (an input without an answer, a failed check); 2 nothing "
    "was done, or no input at all has an answer; 130 interrupted; 143 terminated; 129 its terminal was closed."
)


class Terminated(BaseException):
    """One of the signals of ENDING came: unwind, so that temporary files go."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


class OneLineErrors(click.Command):
    """A command that turns errors into one line and an exit code."""

    def main(  # type: ignore[override]  # always "standalone": it ends the process
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run and exit with the documented code."""
        extra.pop("standalone_mode", None)
        never_fail_on_text()
        _leave_out_no_numbers()
        try:
            supported_machine()
            with telling_log():
                code = super().main(args, prog_name or "vgg16gpu", standalone_mode=False, **extra)
            if sys.stdout:
                sys.stdout.flush()  # here its failure can still be told
        except InputError as error:  # one line, whatever a file is called
            fail(printable(str(error)), EXIT_USAGE)
        except Error as error:
            fail(str(error), EXIT_USAGE)
        except _NO_ARGUMENTS as error:  # a group without a command: its help, as `vgg16gpu` alone has it
            click.echo(error.format_message(), err=True)
            sys.exit(EXIT_USAGE)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "vgg16gpu"
            fail(f"{printable(error.format_message())}{_meant(error)} (see {path} --help)", EXIT_USAGE)
        except click.ClickException as error:
            fail(printable(error.format_message()), EXIT_USAGE)
        except click.Abort:
            fail("interrupted", EXIT_INTERRUPTED)
        except MemoryError as error:
            fail(f"not enough memory: {error or 'none is left'}; take a smaller model, image or batch", EXIT_USAGE)
        except Warning as warning:  # where the user made errors of them
            fail(str(warning), EXIT_USAGE)
        except OSError as error:
            _drop_stdout()
            if isinstance(error, BrokenPipeError):
                sys.exit(EXIT_CHECK_FAILED)  # as click does: nobody reads any more
            if error.filename is None and _has_no_folder():
                fail("the working folder was deleted; change to another one", EXIT_USAGE)
            fail(f"{error.filename or 'reading or writing a stream'}: {error.strerror or error}", EXIT_USAGE)
        sys.exit(code if isinstance(code, int) else 0)


class LazyGroup(OneLineErrors, click.Group):
    """A group that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the subcommands in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one subcommand; None for an unknown name. Raises InputError without its package."""
        if cmd_name not in COMMANDS:
            return None
        place = COMMANDS[cmd_name][0]
        if place.startswith("./"):
            command = _command_of_package(cmd_name, place)
        else:
            command = getattr(importlib.import_module(f"vgg16gpu.cli.{place}"), f"{cmd_name}_command")
        _tell_exit_codes(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list in --help, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _command_of_package(name: str, folder: str) -> click.Command:
    """Import a command that another package brings. Raises InputError where that package is not installed."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - it looks at every installed package

    for entry in entry_points(group=GROUP, name=name):
        try:
            command: click.Command = entry.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"{name} cannot be loaded: {error}; install it again: pip install {folder}") from error
        return command
    raise InputError(f"{name} is not installed: pip install {folder}, in a checkout of the repository")


def _leave_out_no_numbers() -> None:
    """Take away the size of a screen that is no number: libraries read it without looking."""
    for name in ("COLUMNS", "LINES"):
        if name in os.environ and not digits_value(os.environ[name], _MOST_COLUMNS):
            del os.environ[name]


def _tell_exit_codes(command: click.Command) -> None:
    """Add the exit codes to the end of its --help, and of those below it."""
    command.epilog = EXIT_CODES
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _tell_exit_codes(below)


def _meant(error: click.UsageError) -> str:
    """Return which command a mistyped one may mean, where click does not say it; "" where none is near."""
    found = _UNKNOWN_COMMAND.fullmatch(error.format_message())
    if not found or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    import difflib  # noqa: PLC0415 - for a message

    near = difflib.get_close_matches(found[1], error.ctx.command.list_commands(error.ctx), 1)
    return f" Did you mean '{near[0]}'?" if near else ""


def fail(message: str, code: int) -> NoReturn:
    """Print why and exit with `code`."""
    tell(message)
    sys.exit(code)


def _has_no_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - the same
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """Discard what the buffer cannot write: Python would try again, loudly, when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from vgg16gpu import __version__  # noqa: PLC0415 - reads a file

        click.echo(f"vgg16gpu {__version__}")
        ctx.exit()


@click.group(
    "vgg16gpu",
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print it and exit."
)
@click.option("-v", "--verbose", count=True, help="Tell what is done, with -vv more; before the command.")
@click.option("-q", "--quiet", is_flag=True, help="No warnings.")
@click.pass_context
def cli(ctx: click.Context, verbose: int, quiet: bool) -> None:
    """VGG16 ONNX inference through hand-written CUDA kernels, on a GPU and, the same kernels, on a CPU."""
    set_verbosity(-1 if quiet else verbose)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_USAGE)


def main(command: OneLineErrors = cli, name: str = "vgg16gpu") -> NoReturn:
    """Run a command as a program: `vgg16gpu` and `python -m vgg16gpu`, and the programs of testbench/."""
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # all that is left goes with the process: looking there for garbage took 0.1 s
    warnings.showwarning = _show_warning
    # Pillow's, of damaged metadata: the picture is read, or its row says why not. Behind what the user asked for.
    warnings.filterwarnings("ignore", module=r"PIL\.", append=True)
    for number in ENDING:
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _terminate)
    try:
        try:
            command.main(prog_name=name)
        finally:
            _change_nothing_more(sys.exception())
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)
    except Terminated as error:
        fail(ENDING[error.number], 128 + error.number)


def _change_nothing_more(error: BaseException | None) -> None:
    """Ignore further signals: the work has ended, and an exception would be a traceback while Python ends.

    error: with which it has ended. If a signal was why, the next one ends the process: Python waits for threads, and
    one of them may wait for what the signal struck.
    """
    code = error.code if isinstance(error, SystemExit) else None
    was_struck = isinstance(error, KeyboardInterrupt | Terminated) or code == EXIT_INTERRUPTED
    for number in (signal.SIGINT, *ENDING):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if was_struck else signal.SIG_IGN)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    tell(str(message))


def _terminate(number: int, _: object) -> NoReturn:
    raise Terminated(number)

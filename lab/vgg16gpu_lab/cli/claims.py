"""`lab claims`: what the reports claim, judged by their own tables and by recorded runs."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import click
from rich.text import Text

from vgg16gpu.cli.common.options import json_option
from vgg16gpu.cli.common.show import console, heading, print_json, table
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.io.foreign.outputs import refuse_read_files
from vgg16gpu_lab.claims.judge import Verdict
from vgg16gpu_lab.claims.records import newest, read_records
from vgg16gpu_lab.claims.table import NAME, content, notes, share_text, write_claims

RESULTS: Final = Path("lab-results")  # where `lab run` writes to
FOLDERS: Final = (RESULTS, Path("testbench") / "results" / "lab")

_SHARE: Final = 120  # characters of the cases in which a claim holds; claims.csv has all of them
_STYLES: Final = {Verdict.HOLDS: "green", Verdict.DOES_NOT: "red", Verdict.CANNOT_TELL: "dim"}
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@click.command("claims")
@click.option(
    "--records",
    "folder",
    type=_FOLDER,
    metavar="FOLDER",
    help=f"What `lab run` wrote. Default: the newest run in {FOLDERS[0]}, else in {FOLDERS[1]}.",
)
@click.option("--ladder", "ladder", type=_FILE, metavar="FILE", help="What `ladder --output` wrote, if not in there.")
@json_option
def claims_command(folder: Path | None, ladder: Path | None, as_json: bool) -> None:
    """Judge every claim of the reports that can be tested, by their own tables and by recorded runs.

    Each has its section, whether the report says it or shows or does it (or the question is ours), the figure behind
    its verdict and the cases in which it holds: holds, does not, or cannot tell where rows are missing or times are
    too close or too short. claims.csv and claims.json are written next to the records. Without any record the published
    tables are judged alone, and nothing is written. The exit code is 0 whatever the verdicts.
    """
    chosen = folder or newest(FOLDERS)
    others = [ladder] if ladder else []
    records = read_records(chosen, *others) if chosen or others else ()
    if chosen:
        written = (("--records", chosen / f"{NAME}{suffix}") for suffix in (".csv", ".json"))
        refuse_read_files(written, (("a record", record.path) for record in records))
    found = content(records)
    paths = write_claims(chosen, found) if chosen else ()
    if as_json:
        print_json(found)
        return
    _print(found)
    if paths:
        console().print(f"Written: {paths[0]}, {paths[1]}", markup=False, soft_wrap=True)
    elif not records:
        tell("no records: `vgg16gpu lab run all` measures, then ours are judged, too")


def _print(found: dict[str, Any]) -> None:
    screen = console()
    for record in found["records"]:
        quick = ", quick" if record["quick"] else ""
        kind = " (times of a CPU)" if record["kind"] == "cpu" else ""
        model = f" of {record['model']}" if record["model"] else ""
        heading(screen, f"{record['experiment']}{model}: {record['device']}{kind}, {record['date']}{quick}")
    shown = table(["", "claim", "test", "by their table", "by ours"])
    last = ""
    for claim in found["claims"]:
        if last and claim["seed"] != last:
            shown.add_section()
        last = claim["seed"]
        theirs = _cell(claim["theirs_verdict"], claim["theirs"])
        ours = _cell(claim["verdict"], claim["ours"], share_text(claim))
        place = Text("\n".join((claim["number"], f"({claim['section']})", claim["kind"])))
        shown.add_row(place, Text(claim["claim"]), Text(claim["test"]), theirs, ours)
    screen.print(shown)
    for side, counted in found["counts"].items():
        screen.print(f"By {side}: {', '.join(f'{count} {name}' for name, count in counted.items())}.", markup=False)
    screen.print(f"Verdicts: {found['method']}.", markup=False)
    for note in notes(found):
        screen.print(note, markup=False)


def _cell(verdict: str, figure: str, share: str = "") -> Text:
    """Return the verdict in its colour, its figure, and the cases in which the claim holds."""
    told = shorten(share, _SHARE, placeholder=" ...")
    return Text.assemble((verdict.upper(), _STYLES[Verdict(verdict)]), f": {figure}", f"\n{told}" if told else "")

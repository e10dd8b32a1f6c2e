"""Every claim of the reports, judged by their own tables and by the records of each folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vgg16gpu.errors import InputError
from vgg16gpu_lab.claims.judge import Verdict
from vgg16gpu_lab.claims.records import SEEDS, read_files
from vgg16gpu_lab.claims.records import Record as LabRecord
from vgg16gpu_lab.claims.table import content, notes, share_text
from vgg16gpu_lab.ladder.plot import PUBLISHED_SIZE
from vgg16gpu_lab.report.folder import Content, Record, Results
from vgg16gpu_lab.report.html.markup import Html, element, joined, missing, paragraph, table
from vgg16gpu_lab.report.kinds import Kind

_CLASSES = {Verdict.HOLDS: "good", Verdict.DOES_NOT: "bad", Verdict.CANNOT_TELL: "soft"}


def claims(results: Results) -> Html:
    """Return a table for every folder of the lab; without one the published tables are judged alone."""
    climbed = results.records(Kind.LADDER)
    folders = (list(filter(_has_claims, folder)) for folder in results.lab_folders())
    found = [_of_folder(experiments, climbed) for experiments in folders if experiments]
    if found:
        return joined(found)
    command = f"vgg16gpu lab run all --output {results.folder / 'lab'}"
    return joined([missing("our own numbers", command), _judged(())])


def _has_claims(record: Record) -> bool:
    """Return whether a report has claims about the experiment."""
    return record.content["experiment"] in SEEDS


def _of_folder(experiments: Sequence[Record], climbed: Sequence[Record]) -> Html:
    paths = [record.path for record in experiments]
    try:
        records = read_files([*paths, *_ladder_of(paths, climbed)])
    except InputError as error:  # two records of one experiment: nobody can tell which one is meant
        return element("p", f"Not judged: {error}", class_="missing")
    return _judged(records)


def _ladder_of(experiments: Sequence[Path], climbed: Sequence[Record]) -> list[Path]:
    """Return the ladders beside the experiments; else one of the same device, preferably at the published size."""
    if beside := [record.path for record in climbed if record.path.parent == experiments[0].parent]:
        return beside
    devices = {record.device for record in read_files(experiments)}
    kin = [record for record in climbed if record.content["device"]["name"] in devices]
    kin.sort(key=lambda record: record.content["model"]["input_shape"][-1] != PUBLISHED_SIZE)
    return [record.path for record in kin[:1]]


def _judged(records: Sequence[LabRecord]) -> Html:
    found = content(records)
    sources = "; ".join(map(_source, found["records"])) or "the published tables alone"
    return joined(
        [
            paragraph(f"From {sources}."),
            *(paragraph(f"By {_SIDES[side]}: {_counted(counts)}.") for side, counts in found["counts"].items()),
            element("div", _table(found["claims"]), class_="claims"),
            paragraph(f"Verdicts: {found['method']}."),
            *map(paragraph, notes(found)),
        ]
    )


_HEADINGS = [
    "",
    "section",
    "kind",
    "claim",
    "test",
    "by their table (times in ms)",
    "share",
    "by ours (times in ms)",
    "share",
    "which",
]
_SIDES = {"theirs": "their own tables", "ours": "our records"}


def _source(record: Content) -> str:
    model = f" of {record['model']}" if record["model"] else ""
    quick = ", quick" if record["quick"] else ""
    return f"{record['experiment']}{model} on {record['device']}, {record['date'][:10]}{quick}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _table(found: Sequence[Content]) -> Html:
    rows = (
        [
            *(claim[name] for name in ("number", "section", "kind", "claim", "test")),
            _cell(claim["theirs_verdict"], claim["theirs"]),
            _share(claim["theirs_holds"], claim["theirs_cases"]),
            _cell(claim["verdict"], claim["ours"]),
            _share(claim["holds"], claim["cases"]),
            share_text(claim),
        ]
        for claim in found
    )
    return table(_HEADINGS, rows)


def _share(holds: int, cases: int) -> str:
    """Return the share of the cases that count; nothing where none does."""
    return f"{holds}/{cases}" if cases else ""


def _cell(verdict: str, figure: str) -> Html:
    """Return the verdict in its colour, and its figure."""
    return joined([element("span", verdict, class_=_CLASSES[Verdict(verdict)]), f": {figure}"])

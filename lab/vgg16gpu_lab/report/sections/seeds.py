"""What `lab run` wrote: the figures and the tables of every experiment, ours beside what was published."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vgg16gpu_lab.claims.records import SEEDS
from vgg16gpu_lab.figures.data import Picture
from vgg16gpu_lab.figures.draw import draw_picture
from vgg16gpu_lab.figures.seeds import pictures
from vgg16gpu_lab.measure.measure import NOTES, Status
from vgg16gpu_lab.published import CARDS
from vgg16gpu_lab.report.folder import Content, Record, Results, each
from vgg16gpu_lab.report.html.markup import Html, element, error, fold, joined, missing, number, paragraph, table
from vgg16gpu_lab.report.html.pictures import files, picture
from vgg16gpu_lab.report.sections.benchmark import origin
from vgg16gpu_lab.report.sections.links import to_variant


def seeds(results: Results) -> Html:
    """Return a part for every experiment of every folder that the lab has written to."""
    parts: list[Html] = []
    seen: set[str] = set()
    for found in results.lab_folders():
        seen |= {record.content["experiment"] for record in found}
        parts += each(found, _experiment)
    output = f"--output {results.folder / 'lab'}"
    if not seen:
        return missing("the lab", f"vgg16gpu lab run all {output}")
    absent = [missing(name, f"vgg16gpu lab run {name} {output}") for name in SEEDS if name not in seen]
    return joined([paragraph(NOTES), *parts, *absent])


def device_of(content: Content) -> str:
    """Return where a record was measured."""
    device = content["environment"]["device"]
    return f"{device['name']}{' (times of a CPU)' if device['kind'] == 'cpu' else ''}"


def _experiment(record: Record) -> Html:
    content = record.content
    quick = ", quick" if content["options"].get("quick") else ""
    tables = dict.fromkeys(row["table"] for row in content["rows"])
    shown, *more = [_picture(record.path.parent, found) for found in pictures(content)]
    return joined(
        [
            element("h3", f"{content['experiment']}: {content['title']}, on {device_of(content)}{quick}"),
            paragraph(content["teaches"]),
            shown,
            fold(f"{len(more)} more figures, the roofline last", *more) if more else None,
            *(_table(name, [row for row in content["rows"] if row["table"] == name]) for name in tables),
            paragraph(_roofs(content)),
            paragraph(f"{content['method']}."),
            element("p", origin(content["environment"]), class_="soft"),
        ]
    )


def _picture(folder: Path, found: Picture) -> Html:
    if found.is_empty:
        return element("p", f"No figure {found.name}: {found.reason}.", class_="missing")
    return picture(found.title, files(folder, found.name), partial(draw_picture, found))


def _roofs(content: Content) -> str:
    ceilings, card = content["ceilings"], CARDS.get(content["experiment"])
    flop, nbytes = number(ceilings["flop_per_s"] / 1e12), number(ceilings["bytes_per_s"] / 1e9)
    theirs = f"theirs: {card.name}, by its data sheet" if card else "theirs: no card is named"
    return f"Roofline of ours: {flop} TFLOP/s FFMA, {nbytes} GB/s copy, measured; {theirs}."


def _table(name: str, rows: Sequence[Content]) -> Html:
    filled = sum(row["ours"] is not None for row in rows)
    head = ["size", "method", "parameter"]
    if all(row["unit"] == "ratio" for row in rows):
        right = ["published (ratio)", "ours (ratio)"]
        cells = [[*_name(row), number(row["theirs"]), number(row["ours"]), row["remark"]] for row in rows]
    else:
        right = ["published (ms)", "published (%)", "ours (ms)", "ours (%)", "cold (ms)", "convert (ms)", "error"]
        cells = [[*_name(row), *_times(row), _remark(row)] for row in rows]
    return fold(f"Table {name}: {filled} of {len(rows)} rows", table([*head, *right, "remark"], cells, right))


def _name(row: Content) -> list[object]:
    method = to_variant(row.get("variant", ""), row["method"])  # older records have none
    return [row["size"], method, row["parameter"].replace("ratio_not_ms", "ratio")]


def _times(row: Content) -> list[str]:
    about = "~" if row["status"] == Status.ESTIMATED else ""
    return [
        number(row["theirs"]),
        number(row["theirs_percent"]),
        f"{about}{number(row['ours'])}",
        number(row["ours_percent"]),
        number(_median_ms(row["compute"], "cold")),
        number(_median_ms(row["convert"], "warm")),
        error(row["error"]),
    ]


def _median_ms(times: Content | None, cache: str) -> float | None:
    found = (times or {}).get(cache)
    return 1e3 * found["median_s"] if found else None


def _remark(row: Content) -> Html:
    word = "" if row["status"] in (Status.RIGHT, Status.MISSING) else f"{row['status'].upper()}: "
    return element("span", f"{word}{row['remark']}", class_="bad" if Status(row["status"]).is_fault else None)

"""Which records the page shows: whose they are, their files, when and where they were made."""

from __future__ import annotations

from vgg16gpu_lab.report.folder import Record, Results
from vgg16gpu_lab.report.html.markup import NONE, Html, element, fold, joined, paragraph, table

_FEW = 8  # records that are listed openly


def which(results: Results) -> Html:
    """Return a sentence, and a list of the files."""
    return element("div", _told(results), id="records", class_="records")


def _told(results: Results) -> Html:
    found = results.found
    if not found:
        return paragraph(
            element("b", "There are no records to show."),
            " What is missing says which command makes it; claims are judged by the published tables alone.",
        )
    rows = [[element("code", results.name_of(record)), record.kind.value, *_origin(record)] for record in found]
    files = table(["file", "written by", "date", "device"], rows)
    count = f"{len(found)} record{'s' * (len(found) > 1)}"
    if results.is_package:
        text = element("b", f"Shown are the package's own {count}"), f", {_summary(found)}."
        yours = " In a folder with records of yours, vgg16gpu report shows those."
        return joined([paragraph(*text, yours), fold("Their files", files)])
    text = element("b", f"Shown {'are' if len(found) > 1 else 'is'} {count} of yours"), f", {_summary(found)}."
    return joined([paragraph(*text), files if len(found) <= _FEW else fold("Their files", files)])


def _summary(found: tuple[Record, ...]) -> str:
    """Return the range of dates, and the devices."""
    origins = [_origin(record) for record in found]
    dates = sorted({date for date, _ in origins if date != NONE})
    devices = [device for device in dict.fromkeys(device for _, device in origins) if device != NONE]
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "without a date"
    return f"{when}, on {', '.join(devices)}" if devices else when


def _origin(record: Record) -> tuple[str, str]:
    """Return date and device, as far as the record has them: whether it is whole is checked where it is shown."""
    environment = record.content.get("environment")
    known = environment if isinstance(environment, dict) else {}
    device = known.get("device")
    named = device if isinstance(device, dict) else {}
    on_cpu = " (a CPU)" if named.get("kind") == "cpu" else ""
    return str(known.get("date") or NONE)[:10], f"{named.get('name') or NONE}{on_cpu}"

"""What `ladder` wrote: its chart and its table, a rung a row."""

from __future__ import annotations

from collections.abc import Sequence

from vgg16gpu_lab.ladder.plot import PUBLISHED_SIZE, draw
from vgg16gpu_lab.report.folder import Content, Record, Results, each
from vgg16gpu_lab.report.html.markup import NONE, Html, element, error, fold, joined, missing, number, paragraph, table
from vgg16gpu_lab.report.html.pictures import files, picture
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections.benchmark import described, origin
from vgg16gpu_lab.report.sections.links import to_source


def ladder(results: Results) -> Html:
    """Return a part for every record."""
    found = each(results.records(Kind.LADDER), _ladder)
    command = f"vgg16gpu ladder --output {results.folder / 'ladder.json'}"
    return joined(found) if found else missing("the ladder", command)


def _ladder(record: Record) -> Html:
    content = record.content
    kind = content["device"]["kind"]
    on_cpu = "The same kernels as on a GPU, run by a CPU: the scores count, the times are a CPU's."
    title = f"{described(content)}: a bar a rung"
    return joined(
        [
            element("h3", described(content)),
            paragraph(on_cpu) if kind == "cpu" else None,
            picture(title, files(record.path.parent, record.name), lambda: draw(content)),
            _rungs(content),
            fold("Why each gain was predicted, and what else there is to say", _reasons(content["rungs"])),
            paragraph(f"Times: {content['method']}."),
            paragraph(f"Error: {content['bounds']}.") if "bounds" in content else None,  # older records have none
            paragraph(f"Predicted: {content['predictions']}."),
            element("p", origin(content["environment"]), class_="soft"),
        ]
    )


def _rungs(content: Content) -> Html:
    published = f"published at {PUBLISHED_SIZE} (ms)"  # pixels a side, whatever the size of this record
    right = ["median (ms)", "on the device (ms)", "gain predicted", "gain measured", "error", published]
    rows = [_rung(rung) for rung in content["rungs"]]
    line = content["onnxruntime"]
    rows.append(["", line["name"], "the line to beat", "", "fp32", number(1e3 * line["median_s"]), *[NONE] * 5])
    return table(["", "rung", "idea", "kernel", "precision", *right], rows, right)


def _rung(rung: Content) -> list[object]:
    times, device, gain = rung["times"], rung["on_device"], rung["gain"]
    return [
        *(rung[key] for key in ("letter", "name", "idea")),
        to_source(rung["source"]),
        rung["precision"],
        number(1e3 * times["median_s"]) if times else element("span", rung["status"], title=rung["why"]),
        number(1e3 * device["median_s"]) if device else NONE,
        _gain(gain["predicted"]),
        _gain(gain["measured"]),
        error(rung["error"]),
        number(rung["published_ms"]),
    ]


def _gain(value: float | None) -> str:
    return f"{number(value)}x" if value else NONE


def _reasons(rungs: Sequence[Content]) -> Html:
    texts = (" ".join(text for text in (rung["why"], rung["note"]) if text) for rung in rungs)
    rows = ([rung["letter"], rung["reason"], text] for rung, text in zip(rungs, texts, strict=True))
    return table(["", "reason", "to be said"], rows)

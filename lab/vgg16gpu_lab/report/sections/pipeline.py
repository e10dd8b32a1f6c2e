"""Show what `testbench.pipeline` wrote: stages, whole runs beside other software, their share of the ceiling."""

from __future__ import annotations

from collections.abc import Iterator

from testbench.pipeline.content import command, way
from vgg16gpu.bench.records.record import Content
from vgg16gpu_lab.report.folder import Record, Results, each
from vgg16gpu_lab.report.html.markup import NONE, Html, element, fold, joined, missing, number, paragraph, table
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections.benchmark import described, origin


def pipelines(results: Results) -> Html:
    """Return a part for every record."""
    found = each(results.records(Kind.PIPELINE), _pipeline)
    made = f"python -m testbench.pipeline MODEL --pictures DIR --output {results.folder / 'pipeline.json'}"
    return joined(found) if found else missing("the road from a folder to rows", made)


def _pipeline(record: Record) -> Html:
    content = record.content
    pictures = content["pipeline"]["pictures"]
    kilobytes = pictures["nbytes"] / pictures["count"] / 1e3
    what = f"{pictures['count']:,} pictures of {number(kilobytes)} KB, {content['pipeline']['cores']} cores"
    return joined(
        [
            element("h3", f"{described(content)}, {what}"),
            *(paragraph(_verdict(verdict)) for verdict in content["verdicts"]),
            _runs(content),
            _stages(content),
            _memory(content),
            _absent(content),
            *(paragraph(element("b", failure)) for failure in content.get("failures", ())),
            fold("How the numbers were taken", table(["what", "how"], content["methods"].items())),
            element("p", origin(content["environment"]), class_="soft"),
        ]
    )


def _verdict(verdict: Content) -> str:
    ceiling = verdict["ceiling"]
    turns = " and ".join(ceiling["stages"])
    rate = number(ceiling["pictures_per_s"])
    text = f"{way(verdict)}: {turns} alone let at most {rate} pictures a second through"
    share = "" if verdict["share"] is None else f", a whole run has {verdict['share']:.0%} of that"
    cpu = "" if verdict["cpu"] is None else f"; the stages alone take {verdict['cpu']:.0%} of its processor time"
    return f"{text}{share}{cpu}."


def _runs(content: Content) -> Html:
    right = ["batch", "pictures/s", "whole process (s)", "memory at most (MB)", "same best classes"]
    rows = [*map(_run, content["runs"]), *map(_peer, content["peers"])]
    return table(["whole run", "precision", *right], rows, right)


def _run(run: Content) -> list[object]:
    peak = max(run["peak_memory_nbytes"]) / 1e6
    rate = element("b", number(run["rows_per_s"]))
    whole = (number(run["whole_s"]), number(peak), NONE)
    return [element("b", command(run)), run["precision"], run["batch"], rate, *whole]


def _peer(peer: Content) -> list[object]:
    numbers = (number(peer["pictures_per_s"]), number(peer["whole_s"]), NONE, f"{peer['same_best']:,}")
    return [peer["name"], peer["precision"], peer["batch"], *numbers]


def _stages(content: Content) -> Html:
    right = ["threads", "pictures/s", "at best, pictures/s", "processor time (us)"]
    return table(["stage alone", "keeps busy", *right], _stage_rows(content), right)


def _stage_rows(content: Content) -> Iterator[list[object]]:
    for stage in content["stages"]:
        name = f"{stage['stage']}, {stage['precision']}" if "precision" in stage else stage["stage"]
        busy = 1e6 * min(stage["cpu_seconds"]) / stage["pictures"]
        yield [
            element("b", name) if stage["counts"] else name,
            stage["place"],
            stage["threads"],
            number(stage["pictures_per_s"]),
            number(stage["best_pictures_per_s"]),
            number(busy),
        ]


def _memory(content: Content) -> Html | None:
    """Return a table of memory; None where it was not asked for."""
    if not content["memory"]:
        return None
    right = ["pictures", "memory at most (MB)", "of it names (MB)"]
    rows = [
        [f"{each['pictures']:,}", number(each["peak_memory_nbytes"] / 1e6), number(each["names_nbytes"] / 1e6)]
        for each in content["memory"]
    ]
    return table(right, rows, right)


def _absent(content: Content) -> Html | None:
    """Return a table of contenders without a number, and why; None where none is missing."""
    if not content["absent"]:
        return None
    rows = [[absent["name"], absent["precision"] or "all", absent["reason"]] for absent in content["absent"]]
    return table(["without a number", "precision", "reason"], rows)

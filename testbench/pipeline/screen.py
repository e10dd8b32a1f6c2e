"""A record of the road from a folder to rows on the screen: tables of at most 80 columns, and what they say."""

from __future__ import annotations

from typing import Any

from testbench.pipeline.content import command, way
from vgg16gpu.bench.records.record import Content
from vgg16gpu.cli.common.show import add_row, console, fitting, heading, megabytes, seconds, table
from vgg16gpu.cli.common.tell import device_words

_STAGES_OPTIONAL = ("place", "best")  # the first goes first
_RUNS_OPTIONAL = ("memory", "same best")


def print_pipeline(result: Content) -> None:
    """All tables and remarks, on stdout."""
    screen = console()
    pictures, model = result["pipeline"]["pictures"], result["model"]
    shape = "x".join(map(str, model["input_shape"]))
    each = pictures["nbytes"] / pictures["count"] / 1e3
    heading(
        screen,
        f"{pictures['count']:,} pictures of {each:.1f} KB in {pictures['folder']}, {model['path']}, input {shape}, on "
        f"{result['device']['name']}, {result['pipeline']['cores']} cores",
    )
    screen.print(fitting(screen, lambda omitted: _stages_table(result, omitted), _STAGES_OPTIONAL))
    screen.print(fitting(screen, lambda omitted: _runs_table(result, omitted), _RUNS_OPTIONAL))
    if result["memory"]:
        screen.print(fitting(screen, lambda _: _memory_table(result), ()))
    for line in _remarks(result):
        screen.print(line, markup=False)


def _stages_table(result: Content, omitted: Any) -> Any:
    numbers = ["threads", "pictures/s", "best"]
    columns = [column for column in ("stage alone", "place", *numbers) if column not in omitted]
    shown = table(columns, right=numbers)
    for stage in result["stages"]:
        precision = f", {stage['precision']}" if "precision" in stage else ""
        row = {
            "stage alone": f"{stage['stage']}{precision}",
            "place": stage["place"] if stage["counts"] else "",
            "threads": stage["threads"],
            "pictures/s": rate(stage["pictures_per_s"]),
            "best": rate(stage["best_pictures_per_s"]),
        }
        add_row(shown, *(row[column] for column in columns), style=None if stage["counts"] else "dim")
    return shown


def _runs_table(result: Content, omitted: Any) -> Any:
    numbers = ["pictures/s", "whole", "memory", "same best"]
    columns = [column for column in ("whole run", "precision", *numbers) if column not in omitted]
    shown = table(columns, right=numbers)
    for run in result["runs"]:
        row = {
            "whole run": command(run),
            "precision": f"{run['precision']} x {run['batch']}",
            "pictures/s": rate(run["rows_per_s"]),
            "whole": seconds(run["whole_s"]),
            "memory": megabytes(max(run["peak_memory_nbytes"])),
            "same best": "",
        }
        add_row(shown, *(row[column] for column in columns))
    for peer in result["peers"]:
        row = {
            "whole run": peer["name"],
            "precision": f"{peer['precision']} x {peer['batch']}",
            "pictures/s": rate(peer["pictures_per_s"]),
            "whole": seconds(peer["whole_s"]),
            "memory": "",
            "same best": f"{peer['same_best']:,}",
        }
        add_row(shown, *(row[column] for column in columns))
    return shown


def _memory_table(result: Content) -> Any:
    numbers = ["pictures", "memory at most", "of it names"]
    shown = table(numbers, right=numbers)
    for each in result["memory"]:
        add_row(shown, f"{each['pictures']:,}", megabytes(each["peak_memory_nbytes"]), megabytes(each["names_nbytes"]))
    return shown


def _remarks(result: Content) -> list[str]:
    lines = [_verdict(verdict) for verdict in result["verdicts"]]
    lines += [_where(run) for run in result["runs"]]
    if result["memory_is_flat"] is not None:
        grows = "does not grow" if result["memory_is_flat"] else "GROWS"
        lines.append(f"Memory {grows} with the number of pictures, names apart")
    lines += [f"Absent: {each['name']}, {each['precision']}: {each['reason']}" for each in result["absent"]]
    lines += [f"{name}: {text}" for name, text in result["methods"].items() if result[name]]
    return [*lines, f"Device: {device_words(result['runs'][0]['device_choice'])}"]


def _verdict(verdict: Content) -> str:
    ceiling = verdict["ceiling"]
    turns = " and ".join(ceiling["stages"])
    text = f"{way(verdict)}: at most {rate(ceiling['pictures_per_s'])} pictures/s by {turns}"
    if verdict["share"] is None:
        return f"{text}; too few batches for a rate of the whole run"
    text += f"; a whole run has {verdict['share']:.0%} of that ({verdict['best']:.0%}, the best by the best)"
    cpu = verdict["cpu"]
    return text if cpu is None else f"{text}, and the stages alone take {cpu:.0%} of its processor time"


def _where(run: Content) -> str:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in run["stages"]["shares"].items())
    return f"{way(run)}, at work in a whole run, stages beside each other: {shares}"


def rate(value: float | None) -> str:
    """Pictures a second; a dash for None."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

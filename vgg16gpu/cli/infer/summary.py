"""What `infer` found of many inputs: how many have an answer, why others have none, and which answers there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from vgg16gpu.cli.common.show import add_row, table
from vgg16gpu.io.shown import printable

CLASSES = 10  # the most frequent ones are shown
REASONS = 5


def print_summary(screen: Console, report: Mapping[str, Any]) -> None:
    """Counts, reasons, and the most frequent best classes."""
    inputs, unreadable = report["inputs"], report["unreadable"]
    silent = [item for item in inputs if item["problem"]]
    kinds = ((len(silent), "without an answer"), (len(unreadable), "not read"))
    counts = [f"{len(inputs) - len(silent):,} answered", *(f"{count:,} {kind}" for count, kind in kinds if count)]
    screen.print(f"{len(inputs) + len(unreadable):,} inputs: {', '.join(counts)}")
    for reason, count in Counter(map(_reason, [*silent, *unreadable])).most_common(REASONS):
        screen.print(f"  {count:,}: {reason}", style="red", markup=False)
    if tops := [item["top"][0] for item in inputs if item["top"]]:
        _print_classes(screen, tops)
    screen.print("--table shows every input" + ("" if "output" in report else ", --output FILE writes all scores"))


def _reason(item: Mapping[str, str]) -> str:
    """What is wrong with an input, without its name, so that the same fault counts as the same."""
    return printable(item["problem"].removeprefix(f"'{item['name']}' "))


def _print_classes(screen: Console, tops: Sequence[Mapping[str, Any]]) -> None:
    """A row for each of the most frequent best classes, the more certain one first where they are as frequent."""
    probabilities: dict[tuple[int, str], list[float]] = defaultdict(list)
    for top in tops:
        probabilities[top["index"], top["label"]].append(top["probability"])
    ordered = sorted(probabilities.items(), key=lambda found: (-len(found[1]), -sum(found[1])))
    numbers = ["class", "inputs", "share", "mean probability"]
    result = table(["class", "name", *numbers[1:]], right=numbers)
    for (index, label), found in ordered[:CLASSES]:
        mean = sum(found) / len(found)
        add_row(result, index, label, f"{len(found):,}", f"{len(found) / len(tops):.1%}", f"{mean:.1%}")
    screen.print(result)
    if len(ordered) > CLASSES:
        screen.print(f"and {len(ordered) - CLASSES:,} other classes")

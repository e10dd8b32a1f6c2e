"""What `infer` found of many inputs: how many have an answer, why others have none, and which answers there are."""

from __future__ import annotations

from rich.console import Console

from vgg16gpu.cli.common.show import add_row, table
from vgg16gpu.cli.infer.tally import RunSummary

CLASSES = 10  # the most frequent ones are shown
REASONS = 5


def print_summary(screen: Console, tally: RunSummary, *, has_output: bool = False) -> None:
    """Print counts, reasons, and the most frequent best classes."""
    kinds = ((tally.silent, "without an answer"), (tally.unread, "not read"))
    counts = [f"{tally.answered:,} answered", *(f"{count:,} {kind}" for count, kind in kinds if count)]
    screen.print(f"{tally.total:,} inputs: {', '.join(counts)}")
    for reason, count in tally.reasons.most_common(REASONS):
        screen.print(f"  {count:,}: {reason}", style="red", markup=False)
    if tally.classes:
        _print_classes(screen, tally)
    screen.print("--table shows every input" + ("" if has_output else ", --output FILE writes a row for each"))


def _print_classes(screen: Console, tally: RunSummary) -> None:
    """Print a row for each of the most frequent best classes, the more certain one first of equally frequent ones."""
    found = tally.classes
    ordered = sorted(found, key=lambda index: (-found[index], -tally.probability[index]))
    numbers = ["class", "inputs", "share", "mean probability"]
    result = table(["class", "name", *numbers[1:]], right=numbers)
    for index in ordered[:CLASSES]:
        share, mean = found[index] / found.total(), tally.probability[index] / found[index]
        add_row(result, index, tally.names[index], f"{found[index]:,}", f"{share:.1%}", f"{mean:.1%}")
    screen.print(result)
    if len(ordered) > CLASSES:
        screen.print(f"and {len(ordered) - CLASSES:,} other classes")

"""Two results side by side: the ratio of every median, and which of ours have become slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgg16gpu.bench.ours import NAME
from vgg16gpu.bench.report import Content, best_entry, names
from vgg16gpu.bench.timing import Method
from vgg16gpu.errors import InputError


@dataclass(frozen=True)
class Ratio:
    """A median then and now. Only ours are judged: peers and the ceilings tell whether the machine has changed."""

    what: str
    before_s: float
    now_s: float
    judged: bool

    @property
    def ratio(self) -> float:
        """Now / before; above 1 is slower."""
        return self.now_s / self.before_s

    def is_slower(self, threshold: float) -> bool:
        """Judged, and slower by more than `threshold` percent."""
        return self.judged and not self.ratio <= 1 + threshold / 100


def check_comparable(old: Content, path: Path, model: Content, device: Content) -> None:
    """Raise InputError, saying what differs, unless an old result is of the same model on the same device."""
    for what, before, now in _identity(old["model"], old["device"], model, device):
        if before != now:
            raise InputError(f"'{path}' cannot be compared: {what} was {before}, now it is {now}")


def compare(old: Content, new: Content, path: Path) -> tuple[Ratio, ...]:
    """Every median that both results have. Raises InputError when there is none of ours."""
    ratios = (*_runs(old, new), *_iterations(old, new))
    if not any(ratio.judged for ratio in ratios):
        batches = ", ".join(str(batch["batch"]) for batch in old["batches"])
        raise InputError(f"'{path}' has nothing in common with this run; it was made with --batch {batches}")
    return ratios


def _identity(
    old_model: Content, old_device: Content, model: Content, device: Content
) -> Iterator[tuple[str, Any, Any]]:
    yield "the device", old_device["name"], device["name"]
    yield "the kind of device", old_device.get("kind"), device["kind"]
    yield "the input shape", old_model.get("input_shape"), model["input_shape"]
    yield "the precision", old_model.get("precision"), model["precision"]
    yield "the model's SHA-256", old_model["sha256"], model["sha256"]


def _runs(old: Content, new: Content) -> Iterator[Ratio]:
    before = {batch["batch"]: batch for batch in old["batches"]}
    for batch in new["batches"]:
        if batch["batch"] not in before:
            continue
        for name in names(batch):
            for method in Method:
                then = best_entry(before[batch["batch"]], name, method)
                now = best_entry(batch, name, method)
                if then and now:
                    what = f"{name}, batch {batch['batch']}, {method.value}"
                    before_s, now_s = (entry["times"][method.value]["median_s"] for entry in (then, now))
                    yield Ratio(what, before_s, now_s, judged=name == NAME)


def _iterations(old: Content, new: Content) -> Iterator[Ratio]:
    before = {item["iterations"]: item for item in old["iterations"]}
    for item in new["iterations"]:
        if then := before.get(item["iterations"]):
            yield Ratio(f"{NAME}, {item['iterations']} iterations", then["median_s"], item["median_s"], judged=True)

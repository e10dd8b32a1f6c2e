"""Two results side by side: the ratio of every median, and which of ours have become slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records.record import Content, combinations, fastest, kinds, label, select
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
        """Return whether it is judged, and slower by more than `threshold` percent."""
        return self.judged and not self.ratio <= 1 + threshold / 100


def check_comparable(old: Content, path: Path, model: Content, device: Content) -> None:
    """Raise InputError, saying what differs, unless an old result is of the same model on the same device."""
    for what, before, now in _identity(old["model"], old["device"], model, device):
        if before != now:
            raise InputError(f"'{path}' cannot be compared: {what} was {before}, now it is {now}")


def compare(old: Content, new: Content, path: Path) -> tuple[Ratio, ...]:
    """Compare every median that both results have. Raises InputError when there is none of ours."""
    ratios = (*_runs(old, new), *_iterations(old, new))
    if not any(ratio.judged for ratio in ratios):
        made = ", ".join(f"{precision} {batch}" for precision, batch in combinations(old))
        raise InputError(f"'{path}' has nothing in common with this run; it has these precisions and batches: {made}")
    return ratios


def _identity(
    old_model: Content, old_device: Content, model: Content, device: Content
) -> Iterator[tuple[str, Any, Any]]:
    yield "the device", old_device["name"], device["name"]
    yield "the kind of device", old_device.get("kind"), device["kind"]
    yield "the input shape", old_model.get("input_shape"), model["input_shape"]
    yield "the model's SHA-256", old_model["sha256"], model["sha256"]
    yield "what is computed (None: the model's own outputs)", old_model.get("outputs"), model.get("outputs")


def _runs(old: Content, new: Content) -> Iterator[Ratio]:
    for (precision, batch), method, regime in product(combinations(new), Method, Regime):
        keys = {"precision": precision, "batch": batch, "method": method, "regime": regime}
        for name, tf32 in kinds(select(new, **keys)):
            then = fastest(select(old, **keys, name=name, tf32=tf32))
            now = fastest(select(new, **keys, name=name, tf32=tf32))
            if then and now:
                what = f"{label(name, tf32)}, {precision}, batch {batch}, {method.value}, {regime.value}"
                yield Ratio(what, then["median_s"], now["median_s"], judged=name == NAME)


def _iterations(old: Content, new: Content) -> Iterator[Ratio]:
    before = {(item["precision"], item["iterations"]): item for item in old["iterations"]}
    for item in new["iterations"]:
        precision, count = item["precision"], item["iterations"]
        if then := before.get((precision, count)):
            yield Ratio(f"{NAME}, {precision}, {count} iterations", then["median_s"], item["median_s"], judged=True)

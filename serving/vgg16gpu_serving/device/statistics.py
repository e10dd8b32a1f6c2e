"""What a device process has done so far, as the statistics extension of the protocol tells it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

_INFER: Final = "compute_infer"
_COMPUTE: Final = ("compute_input", _INFER, "compute_output")
_STAGES: Final = ("success", "fail", "queue", *_COMPUTE)


class Statistics:
    """Counts since the device process was started, times in nanoseconds.

    What is read from slots and written to them is within `compute_infer`: the other two stages of computing, which the
    extension has, have its counts and no time, as perf_analyzer asks for three equal counts.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._batches: Counter[int] = Counter()
        self._batch_seconds: defaultdict[int, float] = defaultdict(float)
        self._images = self._files = self._refused = 0

    def add_success(self, seconds: float, queued: float, computed: float) -> None:
        """Record total, queue and compute seconds of an answered request."""
        for name in _COMPUTE:
            self._add(name, computed if name == _INFER else 0.0)
        self._add("queue", queued)
        self._add("success", seconds)

    def add_fail(self, seconds: float) -> None:
        """Record a request that got an error, after `seconds`."""
        self._add("fail", seconds)

    def add_batch(self, images: int, seconds: float) -> None:
        """Record a run of `images` images."""
        self._images += images
        self._batches[images] += 1
        self._batch_seconds[images] += seconds

    def add_files(self, count: int, refused: int) -> None:
        """Record pictures that the device was asked to decode, and how many of these it refused."""
        self._files += count
        self._refused += refused

    def told(self) -> dict[str, Any]:
        """Return the statistics of `model_stats`, without the model's name."""
        return {
            "inference_count": self._images,
            "execution_count": sum(self._batches.values()),
            **({"file_count": self._files, "refused_file_count": self._refused} if self._files else {}),
            "inference_stats": {name: _duration(self._counts[name], self._seconds[name]) for name in _STAGES},
            "batch_stats": [
                _batch(images, _duration(count, self._batch_seconds[images]))
                for images, count in sorted(self._batches.items())
            ],
        }

    def _add(self, name: str, seconds: float) -> None:
        self._counts[name] += 1
        self._seconds[name] += seconds


def _batch(images: int, infer: dict[str, int]) -> dict[str, Any]:
    beside = _duration(infer["count"], 0.0)
    return {"batch_size": images, **{name: infer if name == _INFER else beside for name in _COMPUTE}}


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(1e9 * seconds)}


def added_up(devices: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the statistics of device processes, as if one had done it all; those of a single one stay."""
    total: dict[str, Any] = {"inference_count": 0, "execution_count": 0, "inference_stats": {}}
    batches: dict[int, dict[str, int]] = {}
    for told in devices:
        for key in ("inference_count", "execution_count"):
            total[key] += told[key]
        for key in ("file_count", "refused_file_count"):
            if key in told:
                total[key] = total.get(key, 0) + told[key]
        for stage, duration in told["inference_stats"].items():
            _add(total["inference_stats"].setdefault(stage, _duration(0, 0.0)), duration)
        for batch in told["batch_stats"]:
            _add(batches.setdefault(batch["batch_size"], _duration(0, 0.0)), batch[_INFER])
    return {**total, "batch_stats": [_batch(size, infer) for size, infer in sorted(batches.items())]}


def _add(total: dict[str, int], duration: Mapping[str, int]) -> None:
    for key, value in duration.items():
        total[key] += value

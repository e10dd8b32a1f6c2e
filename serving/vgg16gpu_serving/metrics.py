"""Collect what /metrics tells of all processes together, by files that prometheus_client shares."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from vgg16gpu_serving.wire import Answer

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
_DEVICE = ["device"]  # its number
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class DeviceMetrics:
    """Those of a device process. The environment names the folder of the files before this module is imported."""

    def __init__(self, device: int) -> None:
        text = "Memory that is taken: of a GPU by anybody, else of the process that computes."
        gauge = Gauge("vgg16gpu_device_memory_bytes", text, _DEVICE, multiprocess_mode="livesum")
        self._memory = gauge.labels(str(device))

    def used(self, nbytes: int) -> None:
        """Set the used bytes."""
        self._memory.set(nbytes)


@dataclass(frozen=True)
class _OfDevice:
    """What a front end tells of one device: found once, as each lookup by label costs as much as the number."""

    images: Counter
    queued: Histogram
    computed: Histogram
    batch: Histogram


class Metrics:
    """Those of a front end. The environment names the folder of the files before this module is imported."""

    def __init__(self) -> None:
        self._requests = Counter("vgg16gpu_requests", "Requests that were answered.", ["code"])
        self._images = Counter("vgg16gpu_images", "Images that have scores.", _DEVICE)
        self._seconds = Histogram(
            "vgg16gpu_request_seconds", "From the head of a request to its answer.", buckets=_SECONDS
        )
        self._decoded = Histogram(
            "vgg16gpu_decode_seconds",
            "A request's pictures to pixels, waiting for a thread included.",
            buckets=_SECONDS,
        )
        self._queued = Histogram(
            "vgg16gpu_queue_seconds", "From a slot to the start of the batch.", _DEVICE, buckets=_SECONDS
        )
        self._computed = Histogram("vgg16gpu_device_seconds", "Of the batch on the device.", _DEVICE, buckets=_SECONDS)
        self._batch = Histogram(
            "vgg16gpu_batch_size", "Batch size that a request was run at.", _DEVICE, buckets=_BATCHES
        )
        self._devices: dict[int, _OfDevice] = {}
        self._codes: dict[int, Counter] = {}
        self._slots = Gauge("vgg16gpu_slots_used", "Images in slots.", multiprocess_mode="livesum")

    def replied(self, status: int, seconds: float, used: int) -> None:
        """Record the end of a request of any kind. used: slots that are leased."""
        if status not in self._codes:
            self._codes[status] = self._requests.labels(str(status))
        self._codes[status].inc()
        self._seconds.observe(seconds)
        self._slots.set(used)

    def decoded(self, seconds: float) -> None:
        """Record the seconds in which a request's pictures became rows of pixels, or were refused."""
        self._decoded.observe(seconds)

    def answered(self, images: int, answer: Answer) -> None:
        """Record that the images of a request have scores."""
        device = self._devices.get(answer.device) or self._found(answer.device)
        device.images.inc(images)
        device.queued.observe(answer.queued)
        device.computed.observe(answer.computed)
        device.batch.observe(answer.batch)

    def _found(self, number: int) -> _OfDevice:
        labelled = (each.labels(str(number)) for each in (self._images, self._queued, self._computed, self._batch))
        found = self._devices[number] = _OfDevice(*labelled)
        return found

    def exposed(self) -> tuple[bytes, str]:
        """Return the metrics of all processes as text, and its type."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST

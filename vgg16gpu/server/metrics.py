"""What /metrics tells: of all front ends together, by files that prometheus_client shares. Extra [serve]."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from vgg16gpu.server.wire import Answer

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Those of this process. The environment names the folder of the files before this module is imported."""

    def __init__(self) -> None:
        self._requests = Counter("vgg16gpu_requests", "Requests that were answered.", ["code"])
        self._images = Counter("vgg16gpu_images", "Images that have scores.")
        self._seconds = Histogram(
            "vgg16gpu_request_seconds", "From the head of a request to its answer.", buckets=_SECONDS
        )
        self._queued = Histogram("vgg16gpu_queue_seconds", "From a slot to the start of the batch.", buckets=_SECONDS)
        self._computed = Histogram("vgg16gpu_device_seconds", "Of the batch on the device.", buckets=_SECONDS)
        self._batch = Histogram("vgg16gpu_batch_size", "Batch size that a request was run at.", buckets=_BATCHES)
        self._slots = Gauge("vgg16gpu_slots_used", "Images in slots.", multiprocess_mode="livesum")

    def replied(self, status: int, seconds: float, used: int) -> None:
        """A request of any kind is over. used: slots that are leased."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        self._slots.set(used)

    def answered(self, images: int, answer: Answer) -> None:
        """The images of a request have scores."""
        self._images.inc(images)
        self._queued.observe(answer.queued)
        self._computed.observe(answer.computed)
        self._batch.observe(answer.batch)

    def exposed(self) -> tuple[bytes, str]:
        """Those of all front ends as text, and its type."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST

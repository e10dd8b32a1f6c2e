"""What was found, as plain data: what goes into the JSON file, and what table and plot are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from testbench.server.session import Wanted
from testbench.server.target import Served
from vgg16gpu.bench.measure.environment import host
from vgg16gpu.bench.records.record import Content

SCHEMA: Final = 1
METHODS: Final = {
    "closed": "so many clients, each of which sends its next request when it has the answer to the last",
    "open": "requests arrive at random (Poisson, seeded); a latency counts from when its request was meant to be sent",
    "latency_s": "of answers with status 200, by nearest rank; all else is counted in errors",
}


def content(
    served: Served, wanted: Wanted, rows: Sequence[Mapping[str, Any]], absent: Sequence[Mapping[str, str]]
) -> Content:
    """Everything, ready for `json.dumps`. Times are seconds; rates a second."""
    return {
        "schema": SCHEMA,
        "what": "a server over HTTP",
        "serving": {
            "url": str(served.address),
            "model": served.name,
            "version": served.version,
            "input": list(served.sample),
            "images_a_request": wanted.images,
            "seconds": wanted.seconds,
        },
        "environment": host(),
        "methods": METHODS,
        "loads": list(rows),
        "absent": list(absent),
    }

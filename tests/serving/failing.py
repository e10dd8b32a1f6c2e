"""`vgg16gpu`, but the device process that gets SIGUSR1 has a KernelError in place of its next batch's results."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

from vgg16gpu.cli import main
from vgg16gpu.errors import KernelError
from vgg16gpu.runtime.streaming import Pipeline
from vgg16gpu_serving.device import process


def device_main(*given: Any) -> None:
    """A device process."""
    signal.signal(signal.SIGUSR1, lambda *_: setattr(Pipeline, "receive", _fail))
    process.main(*given)


def _fail(*_: object) -> NoReturn:
    raise KernelError("a planted fault")


if __name__ == "__main__":  # and not in the processes that it starts
    process.main = device_main
    main()

"""`vgg16gpu`, but front ends run on asyncio's own loop, and tell the CPU time of what it calls in a file, line by line.

uvloop calls the same callbacks, and has no place where each could be measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Final

from vgg16gpu.cli import main
from vgg16gpu_serving.front_end import process as front_end

FILE: Final = "VGG16GPU_LOOP_TIMES"  # the variable that names it
LEAST: Final = 0.5  # milliseconds that are told


def end_main(*given: Any) -> None:
    """A front end."""
    import uvloop

    out = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        taken = 1e3 * (time.thread_time() - began)
        if taken >= LEAST:
            os.write(out, f"{taken:.3f} {handle!r:.300}\n".encode())

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    uvloop.run = asyncio.run
    front_end.main(*given)


if __name__ == "__main__":  # and not in the processes that it starts
    front_end.main = end_main
    main()

"""The same bits in replay after replay of a run, while another process computes on the same device.

Of its launches alone, one behind the other, and of whole runs with the copies from and to the host. These come behind a
run of another batch size, whose numbers lie where those of one image find theirs zero.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tests.stress.bits import pictures
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import Error
from vgg16gpu.io.synthetic import TESTBENCH_SEED
from vgg16gpu.pictures.loading.job import how_it_ended
from vgg16gpu.runtime.engine import Engine

TOGETHER: Final = 50  # launched one behind the other before their output is looked at, and runs before that
OTHER_BATCH: Final = 3  # of the run before those
BESIDE_BATCH: Final = 8  # of the other process
READY: Final = "ready"

COLUMNS = ("precision", "replays", "looks", "with copies", "other bits", "runs beside")


@dataclass(frozen=True)
class Replays:
    """One precision at batch 1.

    replays: of the launches; looks: at their output, after so many replays each; round_trips: runs with copies, each of
    which is looked at; differing: of all that is looked at; beside: runs of the other process.
    """

    precision: str
    replays: int
    looks: int
    round_trips: int
    differing: int
    beside: int

    @property
    def passed(self) -> bool:
        """No bit has changed, and there was other work."""
        return self.differing == 0 and self.beside > 0

    def cells(self) -> tuple[object, ...]:
        """A row under COLUMNS."""
        return (self.precision, self.replays, self.looks, self.round_trips, self.differing, self.beside)


def measure(model: Path, device: str, precision: str, count: int) -> Replays:
    """At least `count` replays and runs. Raises what Engine raises, and Error when the other process cannot compute."""
    batches = (1, OTHER_BATCH)
    with Engine(model, device=device, precision=precision, batch=batches) as engine, working(model, device) as runs:
        x = np.random.default_rng(TESTBENCH_SEED).standard_normal(engine.program.input.shape, np.float32)
        expected = _scores(engine, x)
        looks = differing = 0
        with engine.turn() as executor:
            launch, output = executor.launcher(1), executor.plan.programs[0].outputs[0]
            while looks * TOGETHER < count:
                executor.run(OTHER_BATCH, x)
                for _ in range(TOGETHER):
                    differing += executor.run(1, x[:1]).outputs[0].tobytes() != expected
                for _ in range(TOGETHER):
                    launch()
                looks += 1
                differing += executor.read(output).tobytes() != expected
        beside = runs()
    return Replays(precision, looks * TOGETHER, looks, looks * TOGETHER, differing, beside)


def _scores(engine: Engine, x: Array) -> bytes:
    """The first output for the first image, as floats, which are what a launcher takes up again."""
    outputs = engine.run(engine.graph.input.to_file(x[:1]))
    return (outputs[0] if isinstance(outputs, tuple) else outputs).tobytes()


@contextmanager
def working(model: Path, device: str) -> Iterator[Callable[[], int]]:
    """Another process that runs batches as long as this lasts; what is given ends it and says how many it ran."""
    command = [sys.executable, "-m", "tests.stress.replays", str(model), device]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != READY:
                raise Error("the process beside the replays did not come to compute: it has said why on stderr")

            def end() -> int:
                told, _ = process.communicate()  # closes its input
                if process.returncode != 0:
                    raise Error(f"the process beside the replays {how_it_ended(process.returncode)}")
                return int(told)

            yield end
        finally:
            process.kill()


def main() -> None:
    """The other process: batches until its input ends."""
    model, device = sys.argv[1:]
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    with Engine(model, device=device, precision="fp32", batch=BESIDE_BATCH) as engine:
        x = pictures(engine, BESIDE_BATCH)
        engine.run(x)
        print(READY, flush=True)
        threading.Thread(target=wait, daemon=True).start()
        runs = 0
        while not ended.is_set():
            engine.run(x)
            runs += 1
    print(runs)


if __name__ == "__main__":
    main()

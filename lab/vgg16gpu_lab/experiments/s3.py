"""S3: LeNet's forward pass with five ways to compute its convolutions, in batches of 128 images.

Their image size and net are not stated: LeNet-5 on 28x28 here, by digits that ship; Fashion-MNIST, among their sources,
does not, its files can be named. The weights are trained, which theirs did not need, as nothing was checked: remarks of
`accuracy` have their own words on that. Every convolution adds its bias. Rows named `batch=N` are the N-th batches of
the held-out images, from the beginning again where these end. What was announced there and is missing stands in tables
of its own: `accuracy` (share of right answers, and the error of the scores), `batch` (batch sizes) and `tile` (tiles
and blocks). `parts` splits a forward pass: the convolutions on the device, copies and waiting around them, and what is
left on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vgg16gpu_lab.experiment import Choice, Row, Tell
from vgg16gpu_lab.lenet.data import IMAGE, digits, from_idx
from vgg16gpu_lab.lenet.lesson import COLUMNS, SEQUENTIAL, Lesson, Method
from vgg16gpu_lab.lenet.train import trained_model
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.published import published

SEED: Final = "S3"
BATCH: Final = 128
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
QUICK_BATCHES: Final = (1, 16, 128)
NOT_DONE: Final = "'correctness: not done yet'"
NOT_YET: Final = f"{NOT_DONE}, 'faster, but not correct yet'"
METHODS: Final = (
    Method("sequential_cpu", SEQUENTIAL, "im2col and product, a thread of the host", NOT_DONE),
    Method("parallel_im2col", COLUMNS, "im2col on the device; copies and the product on the host included", NOT_DONE),
    Method("im2col_gemm_gpu", "im2col-vector", "not theirs: the product on the device, too"),
    Method("im2col_shared_gemm", "gemm-shared", "not theirs: the product from shared memory"),
    Method("direct_parallel", "direct-chw", said=NOT_DONE),
    Method("tiled_shared", "tiled-shared", said=NOT_YET),
    Method("constant_weights", "tiled-constant", "on top of the tiles", NOT_YET),
    Method("constant_alone", "constant-weights", "not theirs: without the tiles"),
)


@dataclass(frozen=True)
class LeNetExperiment:
    """The experiment on the digits that ship, or on a folder of IDX files such as Fashion-MNIST."""

    data: Path | None = None
    image: int = IMAGE  # pixels a side
    batches: tuple[int, ...] = ()  # sizes of the sweep; empty: BATCHES, or QUICK_BATCHES
    name: str = SEED
    title: str = "LeNet's forward pass, five versions"
    teaches: str = "A network is more than its convolutions: most of a pass may lie outside of what was made fast."

    takes: Sequence[str] = ("blocks",)

    def method(self, rig: BenchRig) -> str:
        """Return the rig's method."""
        return rig.method

    def run(self, rig: BenchRig, choice: Choice, tell: Tell) -> tuple[Row, ...]:
        """Train, or take the net from the cache; then every table. Raises InputError for wrong data."""
        data = from_idx(self.data, self.image) if self.data else digits(self.image)
        model = trained_model(data, progress=lambda done, steps: tell(done, steps, "training LeNet"))
        batches = self.batches or (QUICK_BATCHES if choice.quick else BATCHES)
        theirs = (replace(method, numbers=published_batches(method.name)) for method in METHODS)
        methods = (*theirs, *(Method(variant.name, variant.name) for variant in choice.own))
        lesson = Lesson(SEED, methods, BATCH, batches, data, model, rig, choice)
        tell(0, 1, "compiling")
        lesson.build()
        jobs = tuple(lesson.jobs())
        rows: list[Row] = []
        for done, (what, work) in enumerate(jobs):
            tell(done, len(jobs), what)
            rows += work()
        tell(len(jobs), len(jobs), "done")
        return tuple(rows)


def published_batches(method: str) -> tuple[int, ...]:
    """Return the batch numbers that the published table has of a method; (0,) for others."""
    names = [key[4] for key in published() if key[0] == SEED and key[3] == method]
    return tuple(sorted({int(name.split()[0].removeprefix("batch=")) for name in names})) or (0,)


EXPERIMENT = LeNetExperiment()

"""What tests of the pipeline's benchmark share: a few pictures, the digits model, whole runs that are made up."""

from pathlib import Path

import pytest

from tests.support.small_photos import small_photos
from vgg16gpu.bench.pipeline.wanted import Wanted, Work
from vgg16gpu.bench.pipeline.watching import Rows, Watched
from vgg16gpu.compiler.model import Model

COUNT = 20
TOLD = {"device": "made up", "device_choice": "cpu: as asked", "batch": 2, "stages": {}, "rates": {}, "timings": {}}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return small_photos(tmp_path_factory.mktemp("pipeline") / "pictures", COUNT)


@pytest.fixture(scope="session")
def work(pictures):
    return Work.of(Wanted(pictures, Model("digits"), "cpu", repeats=2, seconds=0.01))


def watched(per_s=100.0, whole=2.0, cpu=0.004, **told):
    """A run that is made up."""
    rows = Rows(2, 1.0, 1.5, per_s, None if per_s is None else cpu)
    return Watched(whole, COUNT, rows, 80_000_000, {**TOLD, **told})


def write_rows(path: Path, best, errors=None):
    """A .csv as `infer` writes it, with no more than is read back."""
    lines = ["input,error,class_1"]
    lines += [f"{i}.jpg,{(errors or {}).get(i, '')},{'' if value < 0 else value}" for i, value in enumerate(best)]
    path.write_text("\n".join(lines) + "\n")

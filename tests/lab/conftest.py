"""For the tests of the lab's own machinery: a rig that measures little, and somebody's own kernels."""

import pytest

from vgg16gpu_lab.cli import command
from vgg16gpu_lab.figures.write import Drawn
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Effort
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.own.template import write_template
from vgg16gpu_lab.variants import variants

LITTLE = Effort(seconds=0.01, samples=3, cold=False, products=10**6)


@pytest.fixture(scope="module", autouse=True)
def _one_measurement_of_the_ceilings(measured_ceilings):
    """No test here is about how they are measured: tests/bench/test_bench.py has those."""


@pytest.fixture
def no_figures(monkeypatch):
    """`lab run` draws none, which takes longer than the run; tests/lab/figures/test_figures.py has those."""
    monkeypatch.setattr(command, "draw", lambda *_: Drawn((), ("no figure here",)))


@pytest.fixture
def own(tmp_path):
    """Makes a variant `mine` of the template, its kernel or module changed by pairs of texts."""

    def make(*changes, module=()):
        kernel, python, _ = write_template(tmp_path / "lab", "mine")
        for path, pairs in ((kernel, changes), (python, module)):
            text = path.read_text()
            for old, new in pairs:
                assert old in text
                text = text.replace(old, new)
            path.write_text(text)
        return own_variants(tmp_path / "lab")

    return make


@pytest.fixture
def rig(device):
    """Of all variants of the package."""
    opened = BenchRig(device, variants(), LITTLE)
    yield opened
    opened.close()

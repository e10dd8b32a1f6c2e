"""pytest plugin: run any test with a mutant's kernels.

    VGG16GPU_MUTANT="missing barrier" python -m pytest -p tests.mutants.plugin tests/kernels/conv/test_conv_igemm.py

Works on every device, and under every sanitizer.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest

from vgg16gpu.devices import kernel_source

_folder = Path(mkdtemp(prefix="vgg16gpu-mutant-"))


def pytest_configure(config: pytest.Config) -> None:
    """Replace what says where the kernels are."""
    del config
    from tests.mutants.kernels import write_mutant
    from tests.mutants.table import PLANTED
    from tests.mutants.tables import MUTANTS

    name, every = os.environ["VGG16GPU_MUTANT"], (*MUTANTS, *PLANTED)
    write_mutant(_folder, next(mutant for mutant in every if mutant.name == name))
    kernel_source.kernel_dir = lambda: _folder  # type: ignore[assignment]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing stays behind."""
    del config
    shutil.rmtree(_folder, ignore_errors=True)

"""Public names and commands stay where they were; old names warn."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from vgg16gpu.compat import RENAMED

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "statement",
    [
        "from vgg16gpu import Engine, Session, Model, calibrate, DeviceArray",
        "from vgg16gpu import Error, ModelError, InputError, DeviceError, KernelError, __version__",
        "from vgg16gpu.errors import Error, ModelError, InputError, DeviceError, KernelError",
        "from vgg16gpu.session import Session; from vgg16gpu.preprocessing import Preprocess",
        "import vgg16gpu.onnx_backend as backend; backend.prepare, backend.run_model, backend.supports_device",
        "from vgg16gpu.program import Dim3, Kernel, KernelLaunch, Scalar",
        "from vgg16gpu.devices import open_device",
        "from vgg16gpu_lab.problem import Problem; from vgg16gpu_lab.trial import Trial",
        "from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant",
    ],
)
def test_public_names_are_where_they_were(statement: str) -> None:
    exec(statement)


def test_old_names_warn_and_are_those_of_today() -> None:
    """Step is in the kernels that `lab new` wrote."""
    for module, names in RENAMED.items():
        for old, today in names.items():
            found = import_module(module)
            with pytest.warns(DeprecationWarning, match=f"{module}.{old} is called {today} now"):
                assert getattr(found, old) is getattr(found, today)
    with pytest.raises(AttributeError, match=r"module 'vgg16gpu\.program' has no attribute 'Stride'"):
        import_module("vgg16gpu.program").Stride  # noqa: B018


def test_kernels_of_lab_new_import_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="vgg16gpu_lab"):
        from vgg16gpu.lab.problem import Problem
    from vgg16gpu.lab.trial import Trial
    from vgg16gpu.lab.variant import Variant

    from vgg16gpu_lab import problem, trial, variant

    assert (Problem, Trial, Variant) == (problem.Problem, trial.Trial, variant.Variant)


COMMANDS = (
    "vgg16gpu.__main__ vgg16gpu.cuda_setup vgg16gpu.devices.sanitize tests.conformance.suite tests.fuzz.models "
    "tests.sanitize.gpu tests.stress.promises testbench.measure.accuracy testbench.measure.cold_start "
    "testbench.measure.host_path testbench.measure.sweep_conv"
)


@pytest.mark.parametrize("name", COMMANDS.split())
def test_public_commands_are_where_they_were(name: str) -> None:
    assert 'if __name__ == "__main__":' in (ROOT / f"{name.replace('.', '/')}.py").read_text()

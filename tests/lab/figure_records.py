"""Made-up records of convolutions for figures: what an experiment runs, with times as a large card might have them."""

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from unittest.mock import patch

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.timing import Summary, summarise
from vgg16gpu_lab.experiment import Choice, experiments, row_of
from vgg16gpu_lab.experiments import record
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32, CUDNN_THREE
from vgg16gpu_lab.measure.measure import Effort, Measurement, Status, Times

CEILINGS = Ceilings(4.0e12, 60e12, 1 << 29, "made up")
DEVICE = {"kind": "cuda", "name": "NVIDIA H200"}
SLOWNESS = {"gemm-by-row": 8000.0, "numpy": 30000.0, "direct-planes": 30.0, "gemm-basic": 12.0, CUDNN: 2.0}
LIBRARIES = (CUDNN, CUDNN_TF32, CUDNN_THREE)
PARTS = {"convolutions": 0.05, "copies and waiting": 0.2, "outside": 21.0}


def seconds(variant, problem, parameters):
    """More than the roofline's, and a launch."""
    slowness = SLOWNESS.get(variant, 3.0 + len(variant) % 7) * 8 / parameters.get("block", 8)
    return 3e-6 + slowness * CEILINGS.floor(problem.flop, problem.nbytes)


def rig():
    """As much of one as records ask for."""
    return SimpleNamespace(
        ceilings=CEILINGS,
        device=None,
        effort=Effort(),
        broken="",
        empty_launch=Summary(2.4e-6, 2.5e-6, 2.3e-6, 30, 50),
        method="made up",
        percent=lambda problem, time: 100 * CEILINGS.floor(problem.flop, problem.nbytes) / time,
    )


def content(name, rows, choice):
    experiment = next(found for found in experiments() if found.name == name)
    with patch.object(record, "environment", return_value={"device": DEVICE}):
        return record.content(experiment, rows, rig(), choice)


def case_record(name, *, library=True, **options):
    """Of S1, S2 or S4; `library` False: cuDNN is not installed."""
    choice = Choice("cuda", **options)
    experiment = next(found for found in experiments() if found.name == name)
    rows = [row_of(name, case, measurement(case, library), rig()) for case in experiment.cases(choice)]
    return content(name, [*rows, *experiment.ratios(rows)], choice)


def measurement(case, library):
    if case.variant in LIBRARIES and not library:
        return Measurement(Status.MISSING, "no cuDNN")
    if case.variant == "gemm-by-block" and case.parameters["block"] == 64:
        return Measurement(Status.INVALID, "4096 threads in a block")
    if case.variant == "gemm-by-row" and case.size == "4096":
        return Measurement(Status.ESTIMATED, "too long", estimate_s=seconds(case.variant, case.problem, {}))
    time = seconds(case.variant, case.problem, case.parameters)
    found = timed(time, {"setup_s": 0.04} if case.variant in LIBRARIES else {})
    converts = case.scope == "total" and case.variant.startswith(("gemm", "im2col"))
    return replace(found, convert=Times(summarise([time / 4]))) if converts else found


def timed(time, details=MappingProxyType({})):
    return Measurement(Status.RIGHT, error=0.0, compute=Times(summarise([time])), details=details)

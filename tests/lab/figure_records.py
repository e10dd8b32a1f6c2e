"""Made-up records for the tests of figures: what an experiment runs, with times as a large card might have them."""

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from unittest.mock import patch

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.timing import Summary, summarise
from vgg16gpu_lab.experiment import Case, Choice, Row, experiments, row_of
from vgg16gpu_lab.experiments import record, s5
from vgg16gpu_lab.experiments.s3 import METHODS
from vgg16gpu_lab.lenet.net import Shape
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32, CUDNN_THREE
from vgg16gpu_lab.measure.measure import Effort, Measurement, Status, Times
from vgg16gpu_lab.network.causes import causes
from vgg16gpu_lab.problem import Network
from vgg16gpu_lab.published import published
from vgg16gpu_lab.variants import variants

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


def lenet_record(batches=(1, 8, 64, 512)):
    """Of S3."""
    rows = []
    for method, variant in ((found.name, found.variant) for found in METHODS):
        for number in (0, 1):
            rows += version_rows("lenet", 128, method, variant, f"batch={number} ")
        parts = PARTS | ({"copies and waiting": -0.1} if method == "tiled_shared" else {})
        rows += [Row("S3", "parts", "128", method, part, time) for part, time in parts.items()]
        for batch in batches:
            rows += version_rows("batch", batch, method, variant, "")
        for parameters in values(variant):
            text = " ".join(f"{name}={value}" for name, value in parameters.items())
            rows += [
                convolution("tile", 128, method, f"{layer} {text}", layer, variant, parameters) for layer in LAYERS
            ]
    return content("S3", rows, Choice("cuda"))


def network_record():
    """Of S5."""
    work = Network(3, 244, 244, 36_000_000_000, 550_000_000)
    rows = []
    for place, version in enumerate(s5.VERSIONS):
        for count in version.iterations:
            key = "S5", s5.TABLE, "244", version.method, f"iterations={count}"
            time = 4000.0 / 4**place
            percent = None if version.method in s5.HOSTS else rig().percent(work, time / 1e3)
            measured = timed(time / 1e3)
            options = {"ours_percent": percent, "variant": version.variant, "problem": work, "measurement": measured}
            rows.append(Row(*key, time, published().get(key), **options))
    for place, version in enumerate(causes()):
        rows.append(Row("S5", "causes", "244", version.method, "", 800.0 / 2**place, measurement=timed(1.0)))
    for place, layer in enumerate(("conv1_1", "conv1_2", "pool1", "fc6")):
        found = timed(1e-3 * (place + 1), {} if layer == "pool1" else {"ns_a_product": 0.5 / (place + 1)})
        rows.append(Row("S5", "layers", "244", "version_b", layer, 1.0 + place, measurement=found))
    return content("S5", rows, Choice("cuda"))


LAYERS = ("conv1", "conv2")


def version_rows(table, batch, method, variant, head):
    key = "S3", table, str(batch), method, f"{head}forward"
    forward = Row(*key, 20.0 + batch / 100, published().get(key), variant=variant, measurement=timed(1.0))
    return [*(convolution(table, batch, method, f"{head}{layer}", layer, variant, {}) for layer in LAYERS), forward]


def convolution(table, batch, method, parameter, layer, variant, parameters):
    problem = Shape().convolution(layer, batch)
    case = Case(table, str(batch), method, parameter, problem, variant, parameters, "total")
    return row_of("S3", case, timed(seconds(variant, problem, parameters)), rig())


def values(variant):
    known = {found.name: found.parameters for found in variants()}.get(variant, {})
    return [{name: value} for name, several in known.items() for value in several]

"""lab/measure/dry_run/dry_run.py: which problems are tried, and what becomes of the processes that try them."""

import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vgg16gpu.errors import DeviceError
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu_lab.measure.dry_run import dry_run as dry_run_module
from vgg16gpu_lab.measure.dry_run import process as dry_run_process
from vgg16gpu_lab.measure.dry_run.problems import small_problems
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants import variants

ASKED = Problem(1, 3, 200, 300, 2, padding=1)
FACTS = DeviceFacts("cpu", "a processor", 2, (0, 0), 49152, 1 << 30, 1 << 30)
VARIANTS = {variant.name: variant for variant in variants()}
LAST = "  y[(((long long)n"  # of the template's kernel: where it stores


@pytest.fixture(autouse=True)
def _not_under_a_sanitizer():
    if "VGG16GPU_SANITIZE" in os.environ:
        pytest.skip("wrong kernels end a process under a sanitizer")


@pytest.fixture
def dry_run(own, tmp_path, monkeypatch):
    """What is said of the template with these changes, in each case."""

    def tried(cases, *changes, seconds=20.0, module=()):
        monkeypatch.setattr(dry_run_module, "SECONDS", seconds)
        (mine,) = own(*changes, module=module)
        return dry_run_module.dry_run(tmp_path / "lab", "cpu", mine, cases)

    return tried


# ---- Problems


@pytest.mark.every_case
@pytest.mark.parametrize(("kernel", "padding", "stride"), [(3, 1, 1), (7, 0, 3)])
def test_outputs_have_edges_in_every_block(kernel, stride, padding):
    asked = Problem(8, 3, 512, 512, 20, kernel, stride, padding)
    found = small_problems(VARIANTS["direct-chw"], asked, {"block": 16}, FACTS)
    assert {(one.kernel, one.stride, one.padding) for one in found} == {(kernel, stride, padding)}
    first = found[0]
    assert first.y_shape[:2] == (2, 16)
    assert min(first.out_height, first.out_width) > 32
    assert all(side % edge for side in (first.out_height, first.out_width) for edge in range(2, 33))
    assert any(one.width % 4 == 0 and one.out_width % 8 for one in found) or (kernel, padding) != (3, 1) or stride > 1
    assert (3, 20) in {(one.channels, one.outputs) for one in found}  # as many channels as are asked for


def test_a_variant_that_is_particular_gets_what_it_takes():
    def only(accepts):
        refuses = lambda problem, _: "" if accepts(problem) else "not that"  # noqa: E731
        return small_problems(replace(VARIANTS["direct-chw"], refuses=refuses), ASKED, {"block": 16}, FACTS)

    assert {one.width for one in only(lambda problem: problem.width % 4 == 0)} == {44, 64}
    assert [one.x_shape[2:] for one in only(lambda problem: problem.height >= 64)] == [(64, 64)]
    assert only(lambda problem: problem.width == 300) == [ASKED]
    assert only(lambda problem: problem.width != 300) == []  # the run will say that it is refused
    assert small_problems(VARIANTS["direct-chw"], ASKED, {"block": 64}, FACTS) == []  # CUDA would reject the launch


# ---- Processes


@pytest.mark.slow(reason="waits for loops; what leaves and what does not start is in make test")
def test_a_crash_ends_one_setting_and_a_loop_without_an_end_is_waited_for_once(dry_run):
    lines = (
        "if (blockDim.x == 16) y[(1ll << 40) + i] = sum;",
        "while (blockDim.x != 16 && blockDim.x > 4 && x != nullptr) y[0] += 0.f;",
    )
    blocks = [(ASKED, {"block": block}) for block in (16, 4, 8, 32)]
    crash, right, endless, left = dry_run(blocks, (LAST, "".join(f"  {line}\n" for line in lines) + LAST), seconds=2.0)
    assert right is None
    assert crash.status is Status.FAILED
    assert crash.reason.startswith("dry run on an output of 37x43: ended its process by SIG")
    assert "did not end within 2 s: a loop without an end?" in endless.reason
    assert left.reason == f"not run, as it did not end elsewhere: {endless.reason}"


def test_a_process_that_leaves_or_does_not_start_is_no_success(dry_run, tmp_path):
    change = ('    block = parameters["block"]', '    import os\n    os._exit(0)\n    block = parameters["block"]')
    (found,) = dry_run([(ASKED, {})], module=(change,))
    assert (found.status, found.reason) == (Status.FAILED, "ended its process with exit code 0")
    (mine,) = own_variants(tmp_path / "lab")
    (found,) = dry_run_module.dry_run(tmp_path / "lab", "cpu", replace(mine, name="another"), [(ASKED, {})])
    assert found.status is Status.FAILED
    assert found.reason.startswith("its dry run failed: ")


def test_a_python_side_that_fails_is_told_with_its_line(dry_run):
    change = ('block = parameters["block"]', 'block = parameters["blok"]')
    (found,) = dry_run([(ASKED, {})], module=(change,))
    assert found.status is Status.FAILED
    assert found.reason.startswith("KeyError: 'blok' (")
    assert "mine.py:" in found.reason


def test_without_a_sanitizer_it_is_said(dry_run, monkeypatch, caplog):
    def missing(_):
        raise DeviceError("no libasan")

    monkeypatch.setattr(dry_run_module.sanitize, "environment", missing)
    assert dry_run([(ASKED, {})]) == [None]
    assert caplog.messages == ["what a kernel reads beside its arrays and does not use stays unseen: no libasan"]


def with_stage(monkeypatch, **environment):
    """The CPU as it is beside a GPU, and nothing else."""
    first = next(dry_run_module._stages("cpu"))
    stages = [replace(first, environment={**first.environment, **environment}, is_optional=True)]
    monkeypatch.setattr(dry_run_module, "_stages", lambda _: stages)


def test_what_only_the_second_opinion_cannot_compile_or_start_is_no_fault(dry_run, tmp_path, monkeypatch, caplog):
    """A GPU's kernel may have instructions that the CPU's compiler does not know."""
    with_stage(monkeypatch, CXX="g++ -Dsum=1")
    assert dry_run([(ASKED, {"block": 8}), (ASKED, {"block": 16})]) == [None] * 2
    (message,) = caplog.messages
    assert re.fullmatch(r"mine was not tried on cpu: \S+/mine.cu does not compile", message)
    (mine,) = own_variants(tmp_path / "lab")
    other = dry_run_module.dry_run(tmp_path / "lab", "cpu", replace(mine, name="another"), [(ASKED, {})])
    assert (other, len(caplog.messages)) == ([None], 2)


def test_a_gpu_is_tried_with_both_poisons(monkeypatch):
    gpu = SimpleNamespace(facts=replace(FACTS, kind="cuda"))
    monkeypatch.setattr(dry_run_process, "open_device", lambda name: (gpu, name))
    task = dry_run_process.Task("", "", "cuda:0", False, "mine", 1.0, ())
    assert [(way.device, way.poison) for way in dry_run_process.ways(task)] == [(gpu, 0xFF), (gpu, 0x7F)]


def test_beside_a_gpu_there_are_second_opinions():
    """The sanitizer, where there is one, comes last."""
    found = list(dry_run_module._stages("cuda:0"))
    assert [(one.device, one.is_optional) for one in found[:2]] == [("cuda:0", False), ("cpu", True)]
    assert all(one.is_sanitized for one in found[2:])

"""Shared by all tests: which of them run, the devices, and what becomes of GPU tests where there is no GPU."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import remembered, selection, skips, workers
from vgg16gpu.devices import open_device, stages
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.launch import CompiledModel


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail GPU tests instead of skipping them without a GPU")
    parser.addoption("--record", type=Path, metavar="FILE", help="write outcomes, machine and versions as JSON")
    parser.addoption(
        "--cases", choices=selection.CHOICES, default=selection.ALL, help="which cases: tests/support/selection.py"
    )
    parser.addoption("--again", type=int, default=1, metavar="N", help="each test N times: threads meet otherwise")
    skips.add_option(parser)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return workers.count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    workers.share_cores(len(specs))


def pytest_configure(config: pytest.Config) -> None:
    # `make test` must not tell the makes that tests start what to do.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTEST_ARGS"):
        os.environ.pop(name, None)
    selection.configure(config.getoption("--cases"))
    remembered.remember()
    if config.getoption("--cases") == selection.REPRESENTATIVE:
        # The bits are the same, and compiling takes less than half the time. Tests of all cases compile what users get.
        os.environ.setdefault("VGG16GPU_OPTIMIZE", "1")
    if (path := config.getoption("--record")) and not hasattr(config, "workerinput"):  # xdist's workers report to one
        from tests.support.record import Recorder

        if not path.parent.is_dir():  # said now, not after the whole run
            raise pytest.UsageError(f"--record {path}: the folder {path.parent} does not exist")
        config.pluginmanager.register(Recorder(path, config.getoption("-m")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    if (count := metafunc.config.getoption("--again")) > 1:
        metafunc.fixturenames.append("again")
        metafunc.parametrize("again", range(count))
    result = yield
    selection.choose(metafunc)
    if problem := _why_not_collected(metafunc.config):
        skips.tell_of_worker(metafunc.config, problem, selection.leave_out_gpu(metafunc))
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without tests marked alone where `-m` asks for these: importing all files takes half a minute."""
    if re.search(r"(?<!not )\balone\b", config.getoption("-m")) and collection_path.suffix == ".py":
        return b"mark.alone(" not in collection_path.read_bytes() or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep modules and items out of garbage collections: each full one would walk through them for 0.3 s.

    Python's own threshold, 700 new objects, has a collection a few hundred times in a second of planning. Runs on a GPU
    keep it: torch's operators leave cycles that hold autograd's graphs, and a capture must not meet those.
    """
    gc.disable()
    result = yield
    gc.freeze()
    if not session.config.getoption("--require-gpu"):
        gc.set_threshold(20_000)
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if nameless := selection.without_reason(items):
        raise pytest.UsageError(f"mark them with a reason, slow(reason=...): {', '.join(nameless)}")
    left_out = {*filter(selection.is_left_out, items), *workers.alone(config, items)}
    if problem := _why_not_collected(config):
        without = {item for item in items if item.get_closest_marker("gpu")} - left_out
        left_out |= without
        skips.tell_of_worker(config, problem, len(without))
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _why_not_collected(config: pytest.Config) -> str | None:
    """Why a worker of pytest-xdist leaves tests of the GPU out instead of skipping each, or None."""
    if config.getoption("--require-gpu") or workers.place(config)[1] == 1:
        return None
    return gpu_problem()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let a worker of pytest-xdist tell less: see `workers.run`."""
    return workers.run(item, nextitem) if workers.place(item.config)[1] > 1 else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    skips.hear_of_worker(node.config, getattr(node, "workeroutput", {}))  # one that was killed has none


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[Any]:
    return workers.report_to_send((yield))


@pytest.fixture(scope="session", autouse=True)
def _compiled_before() -> Iterator[None]:
    """What stderr has must not depend on whether kernels were compiled before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stages, "_has_told", True)
        yield


@cache
def gpu_problem() -> str | None:
    """Why GPU tests cannot run here, or None."""
    try:
        CudaDevice().close()
    except DeviceError as error:
        return str(error)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (problem := gpu_problem()):
        if item.config.getoption("--require-gpu"):
            pytest.fail(f"a GPU is required (--require-gpu): {problem}", pytrace=False)
        pytest.skip(problem)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # sees what has become of an expected failure
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption(skips.OPTION) and not item.get_closest_marker("gpu"):
        skips.fail_if_skipped(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips.write_reasons(terminalreporter)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if collector.config.getoption(skips.OPTION):
        skips.fail_if_skipped(report)
    return report


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each device in turn: what is asked of one is asked of both."""
    opened, _ = open_device(request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def gpu() -> Iterator[CudaDevice]:
    """The first GPU; for tests that are marked `gpu`."""
    opened = CudaDevice()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def hopper(gpu: CudaDevice, request: pytest.FixtureRequest) -> CudaDevice:
    """The first GPU, if it has the tensor cores of compute capability 9.0; kernels of all selected cases compiled."""
    from tests.support.wgmma_harness import build_together
    from vgg16gpu.compiler.op_kernels.wgmma import has_wgmma

    if not gpu.facts.tensor_maps and request.config.getoption("--require-gpu"):
        pytest.fail("tests of the GPU need cuda-bindings, which cannot be imported: make cuda", pytrace=False)
    if not has_wgmma(gpu.facts):
        pytest.skip(f"{gpu.facts.name} has no wgmma, or cuda-bindings is missing")
    build_together(gpu, request.session.items, *workers.place(request.config))
    return gpu


@pytest.fixture(scope="module")
def measured_ceilings() -> Iterator[None]:
    """`bench` and `lab` take the ceilings of a device from one measurement: a small one on a CPU."""
    from vgg16gpu.bench import session
    from vgg16gpu_lab.measure import bench_rig

    with pytest.MonkeyPatch.context() as patch:
        for module in (session, bench_rig):
            patch.setattr(module, "measure_ceilings", _ceilings)
        yield


_measured: dict[str, Any] = {}


def _ceilings(device: Device) -> Any:
    from vgg16gpu.bench.measure import ceilings

    name = device.facts.name
    if name not in _measured:
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(ceilings._COPY_NBYTES, "cpu", 1 << 22)
            patched.setitem(ceilings._FFMA_ROUNDS, "cpu", 8)
            _measured[name] = ceilings.measure_ceilings(device)
    return _measured[name]


@pytest.fixture
def second_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of engines hold every image to be out of range, and the program of batch 1 to be exact."""
    from vgg16gpu.compiler.compile import SizePlanner

    make = SizePlanner.plan

    def made(*arguments: Any) -> CompiledModel:
        plan = make(*arguments)
        controls = [replace(program.control, lowest=60000.0) for program in plan.programs]
        strict = [replace(program, control=control) for program, control in zip(plan.programs, controls, strict=True)]
        return replace(plan, programs=tuple(strict), second_pass=plan.programs[0])

    monkeypatch.setattr(SizePlanner, "plan", made)

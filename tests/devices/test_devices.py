"""The choice of a device, with stand-ins for the devices themselves."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest

from vgg16gpu.devices import open_device
from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.devices.cpu import device as cpu
from vgg16gpu.devices.cuda import compiler as cuda_compiler
from vgg16gpu.devices.cuda import device as cuda
from vgg16gpu.devices.cuda import probe as cuda_probe
from vgg16gpu.devices.cuda.compiler import CubinCompiler, CubinUnit
from vgg16gpu.errors import DeviceError, KernelError


class FakeDevice:
    """Compiles as a GPU does; what it compiles is not loaded anywhere."""

    def __init__(self, name):
        self.facts = SimpleNamespace(name=name)
        self.built = []
        self.closed = False

    def build(self, kernels):
        for kernel in kernels:
            CubinCompiler((9, 0)).cubins([CubinUnit(kernel.source, kernel.defines)])
            self.built.append(kernel.name)

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """The GPUs and processors that were opened; two GPUs, a compiler, and an empty cache."""
    made = []

    def open_cuda(ordinal=0):
        if ordinal > 1:
            raise DeviceError(f"no GPU cuda:{ordinal}: there are 2 GPUs here, cuda:0 to cuda:1")
        made.append(FakeDevice(f"GPU {ordinal}"))
        return made[-1]

    def open_cpu(threads=None):  # noqa: ARG001
        made.append(FakeDevice("processor"))
        return made[-1]

    monkeypatch.setattr(cuda, "CudaDevice", open_cuda)
    monkeypatch.setattr(cpu, "CpuDevice", open_cpu)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: nvcc)
    monkeypatch.setattr(cuda_compiler, "_run_nvcc", lambda *_: b"\x7fELF")
    return made


@pytest.fixture
def without_gpu(monkeypatch, opened):
    """The same without a GPU."""

    def fail(_ordinal=0):
        raise DeviceError("no NVIDIA driver (libcuda.so.1) found")

    monkeypatch.setattr(cuda, "CudaDevice", fail)
    return opened


@pytest.mark.parametrize(
    ("name", "device", "why"),
    [
        ("auto", "GPU 0", "cuda: GPU 0"),
        ("cpu", "processor", "cpu: as asked"),
        ("cuda", "GPU 0", "cuda: GPU 0, as asked"),
        ("cuda:0", "GPU 0", "cuda:0: GPU 0, as asked"),
        ("cuda:1", "GPU 1", "cuda:1: GPU 1, as asked"),
    ],
)
def test_choice(opened, name, device, why):
    found, reason = open_device(name)
    assert found.facts.name == device
    assert reason == why
    assert opened == [found]


@pytest.mark.usefixtures("without_gpu")
def test_auto_without_gpu_takes_the_processor_and_says_why():
    found, reason = open_device("auto")
    assert found.facts.name == "processor"
    assert reason == "cpu: no NVIDIA driver (libcuda.so.1) found"


def with_driver(monkeypatch, gpus=(), problem=""):
    driver = cuda_probe.Driver((13, 0), "libcuda.so.1", gpus, problem)
    monkeypatch.setattr(cuda_probe, "probe_driver", lambda: driver)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    ("gpus", "problem", "level"),
    [
        (("a card",), "", "WARNING"),
        ((), "the driver does not start: driver and library do not match (error 803)", "WARNING"),
        ((), cuda_probe.NO_GPU, "INFO"),
        (None, "", "INFO"),
    ],
)
def test_falling_back_is_a_warning_where_there_is_a_gpu(monkeypatch, caplog, gpus, problem, level):
    with_driver(monkeypatch, gpus, problem)
    if gpus is None:
        monkeypatch.setattr(cuda_probe, "probe_driver", lambda: None)
    caplog.set_level("INFO", "vgg16gpu")
    open_device("auto")
    (record,) = caplog.records
    assert record.levelname == level
    assert "no NVIDIA driver (libcuda.so.1) found" in record.getMessage()
    assert ("doctor" in record.getMessage()) == (level == "WARNING")


def falls_back(opened):
    """Open "auto"; the one line on why the processor was taken. The GPU is let go of."""
    found, reason = open_device("auto")
    assert found.facts.name == "processor"
    assert [device.closed for device in opened] == [True, False]
    assert len(reason.splitlines()) == 1
    assert reason.startswith("cpu: GPU 0 is there, but ")
    return reason


@pytest.mark.parametrize("cached", [False, True], ids=["cache empty", "cache of other kernels"])
def test_auto_with_a_gpu_but_nothing_to_compile_with(monkeypatch, opened, cached):
    if cached:
        KernelCache("cuda").fetch(["another kernel"], ".cubin", lambda path: path.write_bytes(b"\x7fELF"))
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda _: None)
    reason = falls_back(opened)
    assert "nvcc" in reason
    assert "CUDA_HOME" in reason


@pytest.mark.usefixtures("opened")
def test_auto_without_nvcc_takes_a_gpu_whose_kernels_are_cached(monkeypatch):
    assert open_device("auto")[0].built == ["transfer"]
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda _: None)
    assert open_device("auto")[0].facts.name == "GPU 0"


def test_auto_with_an_nvcc_that_does_not_know_the_gpu(monkeypatch, opened):
    def fail(nvcc, unit, arch):
        raise KernelError(f"{unit} does not compile for {arch} with {nvcc}:\nnvcc fatal: Unsupported gpu\nand\nmore")

    monkeypatch.setattr(cuda_compiler, "_run_nvcc", fail)
    assert "transfer.cu -DGROUPS=2 does not compile for sm_90a" in (reason := falls_back(opened))
    assert reason.endswith("nvcc: nvcc fatal: Unsupported gpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_an_explicit_gpu_never_falls_back(without_gpu, name):
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1.*doctor.*'cpu'"):
        open_device(name)
    assert not without_gpu


def test_a_gpu_that_is_not_there(opened):
    with pytest.raises(DeviceError, match=r"cuda:7.*there are 2 GPUs here, cuda:0 to cuda:1"):
        open_device("cuda:7")
    assert not opened


@pytest.mark.parametrize(
    "name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:0 ", "cuda:99999", "cpu:0", "tpu"]
)
def test_unknown_names_are_refused_with_what_is_accepted(opened, name):
    with pytest.raises(DeviceError, match=r"auto, cpu, cuda, cuda:N") as caught:
        open_device(name)
    assert repr(name) in str(caught.value)
    assert not opened


def test_other_platforms_get_one_line(monkeypatch, opened):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(DeviceError, match="Linux on riscv64 is not supported"):
        open_device()
    assert not opened

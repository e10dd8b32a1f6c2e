"""devices/cuda/ahead.py: the context of a card starts in a thread, is given back, and fails in silence."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from pathlib import Path

import pytest

from vgg16gpu import devices
from vgg16gpu.devices import opening_ahead
from vgg16gpu.devices.cpu.compiler import find_compiler
from vgg16gpu.devices.cuda import ahead as cuda_ahead
from vgg16gpu.devices.cuda.ahead import ContextAhead

# A driver of 3 cards that writes down what it is asked and takes its time.
DRIVER = """
#include <unistd.h>
extern "C" {
int inits, retained, device, init_result, begun, may_end;
int cuInit(unsigned) { ++inits; return init_result; }
int cuDeviceGet(int *found, int ordinal) { *found = device = 100 + ordinal; return ordinal < 3 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **, int) {
    for (begun = 1; !__atomic_load_n(&may_end, __ATOMIC_SEQ_CST);) usleep(1000);
    return ++retained, 0;
}
int cuDevicePrimaryCtxRelease_v2(int given) { return given == device ? --retained, 0 : 1; }
}
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, path = tmp_path / "driver.cpp", tmp_path / "libdriver.so"
    source.write_text(DRIVER)
    subprocess.run([*find_compiler().command, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


def number(library: Path, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), name)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vgg16gpu-context"]


def test_the_context_is_made_beside_what_the_caller_does(library: Path) -> None:
    with ContextAhead(2, str(library)):
        while not number(library, "begun").value:
            time.sleep(0.001)
        assert number(library, "retained").value == 0  # under way, and this thread goes on
        number(library, "may_end").value = 1
        while not number(library, "retained").value:
            time.sleep(0.001)
        assert number(library, "device").value == 102
    assert number(library, "retained").value == 0
    assert not threads()


def test_an_error_inside_leaves_no_thread_and_no_context(library: Path) -> None:
    number(library, "may_end").value = 1
    with pytest.raises(KeyError), ContextAhead(0, str(library)):
        raise KeyError("a bad file")
    assert number(library, "inits").value == 1
    assert number(library, "retained").value == 0
    assert not threads()


@pytest.mark.parametrize(("ordinal", "init_result"), [(0, 100), (3, 0)], ids=["no card", "no such card"])
def test_what_fails_is_left_for_who_opens_the_device(library: Path, ordinal: int, init_result: int) -> None:
    number(library, "init_result").value = init_result
    with ContextAhead(ordinal, str(library)):
        pass
    assert number(library, "begun").value == number(library, "retained").value == 0


@pytest.mark.parametrize("name", ["libnothing-of-this-name.so", "libc.so.6"])
def test_without_a_driver_nothing_happens(name: str) -> None:
    with ContextAhead(0, name):
        pass
    assert not threads()


@pytest.mark.parametrize(("name", "ordinal"), [("auto", 0), ("cuda", 0), ("cuda:2", 2)])
def test_names_that_mean_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, ordinal: int) -> None:
    asked: list[int] = []
    monkeypatch.setattr(cuda_ahead, "ContextAhead", asked.append)
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    opening_ahead(name)
    assert not asked  # no PyCUDA, so no device to open
    monkeypatch.setattr(devices, "find_spec", lambda _: "found")
    opening_ahead(name)
    assert asked == [ordinal]

import platform

import pytest

from vgg16gpu.devices import platforms
from vgg16gpu.devices.platforms import supported_machine
from vgg16gpu.errors import DeviceError


@pytest.mark.parametrize(("machine", "name"), [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("aarch64", "aarch64")])
def test_linux_on_these_is_supported(monkeypatch, machine, name):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert supported_machine() == name


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64")])
def test_anything_else_gets_one_line(monkeypatch, system, machine):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(DeviceError, match=f"{system} on {machine} is not supported: .*x86-64 or aarch64"):
        supported_machine()


def test_memory_is_a_container_share_of_what_the_machine_has(monkeypatch, tmp_path):
    limits = [tmp_path / name for name in ("memory.max", "memory.limit_in_bytes")]
    monkeypatch.setattr(platforms, "_CGROUP_LIMITS", tuple(limits))
    whole, free = platforms.machine_memory()
    assert 0 < free <= whole
    limits[0].write_text("max\n")
    assert platforms.machine_memory()[0] == whole
    limits[1].write_text(f"{1 << 20}\n")
    assert platforms.machine_memory() == (1 << 20, 1 << 20)

import platform

import pytest

from vgg16gpu.devices import platforms
from vgg16gpu.devices.platforms import supported_machine
from vgg16gpu.errors import DeviceError


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64")])
def test_anything_else_gets_one_line(monkeypatch, system, machine):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(DeviceError, match=f"{system} on {machine} is not supported: .*x86-64 or aarch64"):
        supported_machine()


MB = 1 << 20


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A tree of control groups with these files, and in which of them this process is; the machine itself is real."""

    def made(own="", **files):
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "own").write_text(own)
        monkeypatch.setattr(platforms, "_CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(platforms, "_OWN_CGROUPS", tmp_path / "own")
        return platforms.machine_memory()

    return made


@pytest.mark.parametrize(
    ("own", "group", "names"),
    [
        ("0::/\n", "", ("memory.max", "memory.current", "inactive_file")),
        ("0::/user/me\n", "user/me/", ("memory.max", "memory.current", "inactive_file")),
        ("0::/user/me\n", "user/", ("memory.max", "memory.current", "inactive_file")),
        (
            "3:cpu:/other\n7:hugetlb,memory:/docker/abc\n",
            "memory/docker/abc/",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
        ("", "memory/", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_memory_is_what_a_container_has_left(machine, own, group, names):
    """Its limit without what it uses, but for files that are only kept until somebody needs the room."""
    limit, usage, cache = names
    files = {f"{group}{limit}": f"{64 * MB}\n", f"{group}{usage}": f"{40 * MB}\n"}
    assert machine(own, **files) == (64 * MB, 24 * MB)
    files[f"{group}memory.stat"] = f"anon {16 * MB}\n{cache} {10 * MB}\nactive_file {MB}\n"
    assert machine(own, **files) == (64 * MB, 34 * MB)
    files[f"{group}{usage}"] = f"{90 * MB}\n"  # above the limit for a moment
    assert machine(own, **files) == (64 * MB, 0)


def test_every_group_around_a_process_holds(machine):
    outer = {"a/memory.max": f"{100 * MB}\n", "a/memory.current": f"{95 * MB}\n"}
    inner = {"a/b/memory.max": f"{50 * MB}\n", "a/b/memory.current": f"{10 * MB}\n"}
    assert machine("0::/a/b\n", **outer, **inner) == (50 * MB, 5 * MB)


def test_what_cannot_be_read_takes_nothing_away(machine):
    assert machine("0::/gone\n", **{"memory.max": f"{MB}\n"}) == (MB, MB)
    assert machine("no line of this kind\n", **{"memory.max": f"{MB}\n", "memory.current": "?"}) == (MB, MB)

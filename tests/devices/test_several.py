"""Several devices: what their names mean, and who has how many threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgg16gpu.devices import several
from vgg16gpu.devices.cuda import probe
from vgg16gpu.devices.several import open_devices, split_devices
from vgg16gpu.errors import DeviceError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", ("all",)),
        ("cpu", ("cpu",)),
        ("cpu:2", ("cpu", "cpu")),
        ("cuda:0, cuda:1", ("cuda:0", "cuda:1")),
        ("auto", ("auto",)),
    ],
)
def test_names(text: str, names: tuple[str, ...]) -> None:
    assert split_devices(text) == names


def test_none_stays_open_where_one_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_one = several.open_device

    def opening(name: str, threads: int | None = None) -> object:
        if opened:
            raise DeviceError("no more")
        opened.append(open_one(name, threads))
        return opened[-1]

    monkeypatch.setattr(several, "open_device", opening)
    with pytest.raises(DeviceError, match="no more"):
        open_devices("cpu:2")
    with pytest.raises(DeviceError, match="is closed"):
        opened[0].device.allocate(1)


def test_the_threads_of_the_cpu_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGG16GPU_THREADS", "7")
    opened = open_devices("cpu:3")
    assert [each.device._os_threads for each in opened] == [3, 2, 2]  # type: ignore[attr-defined]
    for each in opened:
        each.device.close()
    monkeypatch.setenv("VGG16GPU_THREADS", "1")
    opened = open_devices(["cpu", "cpu"])
    assert [each.device._os_threads for each in opened] == [1, 1]  # type: ignore[attr-defined]
    for each in opened:
        each.device.close()


def test_all_is_every_gpu_and_without_one_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe_driver", lambda: None)
    assert several._all() == ("auto",)
    card = probe.Gpu("a card", (9, 0), 1 << 30)
    monkeypatch.setattr(probe, "probe_driver", lambda: probe.Driver((13, 0), Path("driver"), (card, card)))
    assert several._all() == ("cuda:0", "cuda:1")

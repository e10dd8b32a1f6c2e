"""devices/facts.py: what is known of a device without a GPU."""

from vgg16gpu.devices.cache import cache_dir
from vgg16gpu.devices.facts import H200, device_facts
from vgg16gpu.devices.tuned import table
from vgg16gpu.errors import DeviceError


def no_gpu():
    raise DeviceError("no GPU")


def test_facts_need_no_gpu():
    assert device_facts("cpu").kind == "cpu"
    assert device_facts("cpu").multiprocessors >= 1
    assert device_facts("cuda").kind == "cuda"
    assert H200.multiprocessors == 132


def test_an_h200_has_the_tiles_that_were_measured_on_one(monkeypatch):
    monkeypatch.setattr("vgg16gpu.devices.facts._gpu_facts", no_gpu)
    assert device_facts("cuda") == H200
    assert device_facts("cuda").tuned == table("NVIDIA H200", cache_dir()) != {}

"""The experiment with LeNet: its tables, and what has no time."""

import gzip
import struct
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.lab.lenet.small import EFFORT, VARIANTS
from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu_lab.experiment import Choice
from vgg16gpu_lab.experiments import s3
from vgg16gpu_lab.lenet import lesson as lenet_lesson
from vgg16gpu_lab.lenet import train as lenet_train
from vgg16gpu_lab.lenet.data import from_idx
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Status

ON_HOST = ("sequential_cpu", "parallel_im2col")  # whose product is numpy's: no variant is asked for
NOTED = ("tiled_shared", "constant_alone")
TABLES = ("lenet", "parts", "batch", "tile")
PARTS = ("conv1", "conv2", "forward")


@pytest.fixture
def experiment(monkeypatch, tmp_path):
    """A small one, with a net that has hardly learned."""

    def made(data, progress):
        path = tmp_path / "small.onnx"
        lenet_train.train(data, steps=2, progress=progress).write(path)
        return path

    monkeypatch.setattr(s3, "trained_model", made)
    monkeypatch.setattr(s3, "BATCH", 4)
    monkeypatch.setattr(lenet_lesson, "QUICK_IMAGES", 8)
    return replace(s3.EXPERIMENT, image=12, batches=(1, 3))


def run(experiment, device, variants, choice):
    rig, told = BenchRig(device, variants, EFFORT), []
    rig.ceilings = Ceilings(1e10, 1e10, 0, "as it pleases")  # measured, that takes seconds
    try:
        rows = experiment.run(rig, choice, lambda *what: told.append(what))
    finally:
        rig.close()
    assert told[-1][0] == told[-1][1]
    assert len({row.key for row in rows}) == len(rows)
    return rows


def test_columns_that_find_no_room_have_no_time(device, experiment, monkeypatch):
    monkeypatch.setattr(device, "allocate", Mock(side_effect=DeviceError("no room")))
    monkeypatch.setattr(lenet_lesson, "Engine", Mock(side_effect=DeviceError("on strike")))
    rows = run(experiment, device, (), Choice(quick=True))
    engine = next(row for row in rows if row.method == "engine")
    assert (engine.status, engine.ours) == (Status.FAILED, None)
    assert "on strike" in engine.remark
    found = {(row.table, row.status, row.ours) for row in rows if row.method == "parallel_im2col"}
    assert found == {(table, Status.NO_ROOM, None) for table in ("lenet", "batch")}


def test_a_folder_in_fashion_mnists_form_goes_all_the_way(device, experiment, tmp_path):
    """Its names, types and image size, and labels in any order, as it is downloaded."""
    random = np.random.default_rng(7)
    for part, count in (("train", 60), ("t10k", 10)):
        arrays = {"images-idx3": random.integers(0, 256, (count, 28, 28), np.uint8)}
        arrays["labels-idx1"] = random.permutation(count).astype(np.uint8) % 10
        for name, array in arrays.items():
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (tmp_path / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    with pytest.raises(InputError, match="has no train-images"):
        run(replace(experiment, data=tmp_path / "none"), device, (), Choice())
    data = from_idx(tmp_path)
    assert np.array_equal(data.heldout[..., 0], arrays["images-idx3"])  # 28x28 needs no frame
    assert np.array_equal(data.heldout_labels, arrays["labels-idx1"])
    folder = replace(experiment, data=tmp_path, image=28, batches=(1,))
    own = replace(VARIANTS["direct-chw"], name="mine")  # one's own stands beside the others
    methods = {method.name: VARIANTS[method.variant] for method in s3.METHODS if method.name in NOTED}
    rows = run(folder, device, (*methods.values(), own), Choice(quick=True, own=(own,)))
    assert {row.table for row in rows if row.method == "mine" and row.ours is not None} == {*TABLES, "accuracy"}
    found = {row.method: row for row in rows if row.table == "accuracy"}
    assert {*found} == {*NOTED, *ON_HOST, "mine", "float64", "engine"}
    assert len({row.ours for row in found.values()}) == 1
    assert all(row.measurement.error < 1e-5 for row in found.values())
    assert found["tiled_shared"].note.endswith("'correctness: not done yet', 'faster, but not correct yet'")
    assert found["constant_alone"].note.endswith("right")

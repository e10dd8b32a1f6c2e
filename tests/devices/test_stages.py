"""stages.py: how long the parts of a start take, for who listens; what `infer` imports before it starts the GPU."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.devices.stages import BESIDE, read_run, read_stages, stage, tell_run, tell_stage


def test_stages_are_told_and_read_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vgg16gpu"):
        with stage("plan"):
            pass
        tell_stage(f"context{BESIDE}", 0.25)
        tell_stage("plan", 1.5)
    found = read_stages("\n".join(f"vgg16gpu: {record.getMessage()}" for record in caplog.records))
    assert list(found) == ["plan", "context (beside)"]
    assert found["context (beside)"] == 0.25
    assert 1.5 <= found["plan"] < 1.6


def test_a_run_tells_its_report_and_it_is_read_back(caplog: pytest.LogCaptureFixture) -> None:
    report = {"batch": 8, "device": 'a "card"', "rates": {"inputs_per_s": 0.5, "decode_images_per_s": None}}
    with caplog.at_level(logging.INFO, "vgg16gpu"):
        tell_run(report)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "vgg16gpu"):
        tell_run({"batch": 1})
        tell_run(report)
    said = "\n".join(f"vgg16gpu: {record.getMessage()}" for record in caplog.records)
    assert all(len(line) < 100 for line in said.splitlines())
    assert read_run(f"{said}\nvgg16gpu: start: report 1.0 ms") == report
    assert read_run("vgg16gpu: start: report 1.0 ms") is None


def test_infer_reads_its_options_before_it_imports_what_computes() -> None:
    heavy = {"numpy", "onnx", "google", "PIL", "rich", "ctypes", "pycuda", "vgg16gpu.runtime.engine"}
    code = f"import sys, vgg16gpu.cli.infer.command; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


# ---- What a start imports. Creating a dataclass takes half a millisecond, finding and reading a module a quarter.

# `Sent` and `OpCost` came when streaming, and the costs of ops, became one module each.
MOST_MODULES, MOST_DATACLASSES = 158, 100
UNUSED = {  # by the room that it lies in: what one picture on the CPU does without
    "": ("bench", "checks", "cluster", "lab", "pytorch", "zoo"),
    "cli.infer.": ("jobs", "several", "summary", "writing"),
    "compiler.": ("declared", "quantization"),
    "compiler.graph.": ("first_layers", "gradient", "gradient_ops", "loss"),
    "compiler.op_kernels.": ("general", "mma", "strided", "tile_choice", "wgmma"),
    "compiler.op_kernels.conv.": ("conv_few", "conv_first", "conv_general", "conv_mma", "conv_wgmma", "same_3x3"),
    "compiler.op_kernels.gemm.": ("fc_wgmma", "gemm_mma"),
    "compiler.op_kernels.layout.": ("resize", "settle", "take"),
    "compiler.onnx.": ("inline", "names"),
    "devices.": ("cuda", "picture_decoder"),
    "io.": ("results", "text"),
    "pictures.loading.": ("child", "job", "processes", "shared"),
    "runtime.": ("batcher", "calibration", "session"),
    "runtime.answers.": ("classify", "decoding", "fitting"),
    "runtime.on_device.": ("graph_cache", "pending", "results", "runner", "views"),
    "runtime.plans.": ("gradients", "losses"),
}
_TELL = """
import atexit, json, sys
def tell():
    own = {name: module for name, module in sys.modules.items() if name.startswith("vgg16gpu.")}
    classes = {value for module in own.values() for value in vars(module).values() if isinstance(value, type)}
    made = [kind for kind in classes if kind.__module__ in own and "__dataclass_fields__" in vars(kind)]
    print(json.dumps([sorted(own), len(made)]))
atexit.register(tell)
from vgg16gpu.cli import main
main()
"""


def test_a_picture_on_the_cpu_imports_what_it_uses_and_no_more(tmp_path: Path) -> None:
    """Where a bound is passed, import what is new where it is used, or say in these lines why a start needs it."""
    Image.fromarray(np.zeros((40, 40), np.uint8)).save(picture := tmp_path / "picture.jpg")
    command = [sys.executable, "-c", _TELL, "infer", str(picture), "--model", "digits", "--device", "cpu"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    modules, dataclasses = json.loads(told.splitlines()[-1])
    unused = [f"vgg16gpu.{room}{name}" for room, names in UNUSED.items() for name in names]
    assert sorted({*modules} & {*unused}) == []
    assert [name for name in unused if find_spec(name) is None] == [], "renamed: in the list above, too"
    assert len(modules) <= MOST_MODULES
    assert dataclasses <= MOST_DATACLASSES

"""Made-up records of every kind, as small as they can be, with a name that must be escaped."""

import json
from unittest.mock import patch

from tests.lab import figure_records
from vgg16gpu.bench.records.record import read
from vgg16gpu_lab.experiments.record import write
from vgg16gpu_lab.measure import profile as lab_profile
from vgg16gpu_lab.measure.profile import READINGS, Job, Profile
from vgg16gpu_lab.measure.usage import Usage, Usages
from vgg16gpu_lab.problem import Problem

HOSTILE = "<script>alert('x')</script> & \"co\""
ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;co&quot;"

DEVICE = {"kind": "cuda", "name": HOSTILE}
ENVIRONMENT = {
    "date": "2026-01-02T03:04:05+00:00",
    "device": DEVICE,
    "commit": {"hash": "0123456789abcdef", "dirty": False},
    "versions": {"vgg16gpu": "0.1.0"},
}
MODEL = {"path": "/somewhere/vgg.onnx", "sha256": "0" * 64, "input_shape": [3, 224, 224]}
METHODS = ("isolated", "back to back", "host to host", "cool", "sustained")
PRECISIONS = {"fp32": 1.0, "int8": 0.25}
SUMMARY = {"median_s": 0.002, "p95_s": 0.003, "min_s": 0.001, "samples": 5}
CEILINGS = {
    "bytes_per_s": 4e12,
    "flop_per_s": 6e13,
    "copy_nbytes": 1 << 29,
    "description": "made up",
    "tensor_flop_per_s": {"fp32": 3.3e14, "int8": 2e15},
}
LAYERS = (
    ("input", 0, 4000, "made_up<1,2>"),
    ("conv 3x3 3->64", 3.7e9, 16e6, "conv_first<3,0,3,80>"),
    ("conv 3x3 64->64", 3.8e9, 16e6, "conv_wgmma<3,0>"),
    ("gemm", 2e8, 4e8, "gemv<1>"),
)


def bench():
    return {
        "schema": 2,
        "model": MODEL,
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "methods": {name: f"{name}, made up" for name in METHODS},
        "verification": {
            "reference": "onnxruntime",
            "tolerances": {"fp32": 1e-5, "int8": 0.5},
            "worst_errors": {"fp32": 2e-6, "int8": None},
        },
        "ceilings": CEILINGS,
        "records": [
            measured(precision, name, factor * slow)
            for precision, factor in PRECISIONS.items()
            for name, slow in (("vgg16gpu", 1.0), ("torch", 2.0))
        ],
        "batches": [
            {"precision": precision, "batch": 1, "flop": 1, "layers": [layer(*each) for each in LAYERS], "gpu": []}
            for precision in PRECISIONS
        ],
        "iterations": [],
        "cold_start": {"to_result_s": 0.7, "parts_s": {"imports": 0.2}},
        "notes": [],
        "failures": [],
    }


def measured(precision, name, factor):
    return {
        "precision": precision,
        "batch": 1,
        "name": name,
        "variant": "made up",
        "error": None,
        "unchecked": "",
        "regime": "cool",
        "method": "back to back",
        **SUMMARY,
        "median_s": factor * SUMMARY["median_s"],
        "images_per_s": 500.0 / factor,
    }


def layer(label, flop, nbytes, kernel):
    seconds = 2e-5
    return {
        "label": label,
        "kernel": kernel,
        "median_s": seconds,
        "floor_s": 1e-5,
        "flop": flop,
        "nbytes": nbytes,
        "flop_per_s": flop / seconds,
        "bytes_per_s": nbytes / seconds,
        "percent_of_ceiling": 50.0,
    }


def pipeline():
    stage = {"place": "cores", "pictures": 100, "seconds": [0.1, 0.2], "cpu_seconds": [0.2, 0.3], "threads": 2}
    rates = {"pictures_per_s": 667.0, "best_pictures_per_s": 1000.0}
    return {
        "schema": 1,
        "what": "from a folder of pictures to rows of a CSV",
        "pipeline": {"cores": 2, "repeats": 2, "pictures": {"folder": HOSTILE, "count": 100, "nbytes": 3e5}},
        "model": MODEL,
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "methods": {"stages": "made up"},
        "stages": [
            {"stage": "decoding", "counts": True, **stage, **rates},
            {"stage": "computing", "counts": True, "precision": "fp16", **stage, **rates, "place": "device"},
        ],
        "runs": [
            {"precision": "fp16", "batch": 8, "rows_per_s": 512.0, "whole_s": 3.0, "peak_memory_nbytes": [7e7, 8e7]}
        ],
        "peers": [
            {
                **{"name": "torch, DataLoader", "precision": "fp16", "batch": 128, "pictures_per_s": 128.0},
                **{"whole_s": 20.0, "same_best": 99},
            }
        ],
        "absent": [{"name": "torch, nvJPEG", "precision": "fp16", "reason": HOSTILE}],
        "memory": [{"pictures": 1000, "peak_memory_nbytes": 7e7, "names_nbytes": 1e5}],
        "memory_is_flat": None,
        "verdicts": [
            {
                **{"precision": "fp16", "share": 0.77, "best": 0.5, "cpu": None, "whole_s": 3.0},
                "ceiling": {"stages": ["decoding", HOSTILE], **rates},
            }
        ],
        "failures": [],
    }


def ladder():
    first = rung("A", "sums on the host", 2.0, {"predicted": None, "measured": None})
    second = rung("B", "sums by thread 0", 0.1, {"predicted": 12.0, "measured": 20.0})
    third = {**rung("M", HOSTILE, 0.0, {"predicted": 2.0, "measured": None}), "times": None, "status": "missing"}
    return {
        "schema": 1,
        "model": MODEL,
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "method": "made up",
        "bounds": "as far as is allowed",
        "predictions": "made up",
        "onnxruntime": {"name": "onnxruntime, CPU", **SUMMARY},
        "rungs": [first, second, {**third, "why": "needs a Hopper"}],
    }


def rung(letter, name, seconds, gain):
    return {
        "letter": letter,
        "name": name,
        "idea": "an idea",
        "source": "ladder/pixels.cu",
        "precision": "fp32",
        "reason": "a reason",
        "note": "",
        "published_ms": None,
        "status": "measured",
        "why": "",
        "error": 1e-6,
        "times": {**SUMMARY, "median_s": seconds},
        "on_device": None,
        "gain": gain,
    }


def tests_record(**outcomes):
    return {"tests": outcomes, "exit_status": 0, "seconds": 12.0, "environment": ENVIRONMENT}


def others():
    """By the names of their files."""
    return {
        "conformance-made": {
            "onnx": "1.0",
            "seconds": 10.0,
            "environment": ENVIRONMENT,
            "totals": {"passed": 7, "refused": 8, "failed": 0},
            "must": {"listed": 5, "passed": 5},
            "ops": {"Conv": {"passed": 7}, HOSTILE: {"refused": 8}},
        },
        "tests-made": tests_record(passed=3117),
        "sanitize-made": tests_record(passed=136, skipped=2),
        "fuzz-made": {
            "cases": 1000,
            "compared": 150,
            "seconds": 3.0,
            "verdicts": {"refused": 850, "crash": 0, "hang": 1},
            "environment": ENVIRONMENT,
        },
        "stress-made": {
            "bits": {"seconds": 2.0, "rows": [{"passed": True}, {"passed": True}], "failures": []},
            "failures": [],
            "environment": ENVIRONMENT,
        },
        "testbench-made": {
            "model": "vgg.onnx",
            "note": "random weights",
            "tolerance": 1e-5,
            "worst_error": 3e-6,
            "inputs_passed": 10,
            "inputs": [{}] * 10,
            "accuracy": None,
            "mean_run_s": {"1": 0.002, "500": 0.001},
            "environment": ENVIRONMENT,
        },
    }


def lab():
    """S1 on two sizes, by its name."""
    found = figure_records.case_record("S1", sizes=(63, 511), strides=(1,))
    rows = [{**row, "variant": "direct-rows" if row["method"] == "direct" else ""} for row in found["rows"]]
    return {**found, "environment": ENVIRONMENT, "rows": rows}


def usage():
    """What `lab list --kernels --json` prints."""
    taken = Usage("made-up", "made_up_f32<3>", "lab/made_up.cu", (256, 1, 1), 40, 1296, 0, 6, 0.75, "registers")
    return Usages((9, 0), HOSTILE, "13.0.88", (taken,)).content


def profile():
    """What `lab profile --output` writes."""
    values = {reading.metric: 12.5 for reading in READINGS[:9]}
    launch = Profile("made_up_f32", "(1, 1, 1)", "(256, 1, 1)", values)
    return lab_profile.content(Job("made-up", Problem(1, 3, 64, 64, 8)), [launch], ENVIRONMENT)


def write_all(folder):
    """A folder with everything; what is in it can be read as the tools read it."""
    files = {"bench-made": bench(), "pipeline-made": pipeline(), "ladder-made": ladder(), **others()}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    read(folder / "bench-made.json")
    (folder / "lab").mkdir()
    write(folder / "lab", "S1", lab())
    (folder / "lab" / "usage.json").write_text(json.dumps(usage()))
    (folder / "lab" / "profile-made-up.json").write_text(json.dumps(profile()))
    return folder


def without_matplotlib():
    """Pictures cannot be drawn."""
    return patch("vgg16gpu_lab.report.html.pictures.importlib.util.find_spec", return_value=None)

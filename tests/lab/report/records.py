"""Records of every kind: those of testbench/results, with a name that must be escaped; of the lab a small one."""

import json
from unittest.mock import patch

from tests.lab import figure_records
from vgg16gpu_lab.experiments.record import write
from vgg16gpu_lab.report.folder import CHECKOUT
from vgg16gpu_lab.report.kinds import Kind

HOSTILE = "<script>alert('x')</script> & \"co\""
ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;co&quot;"

FILES = {
    "bench-h200-244": Kind.BENCHMARK,
    "pipeline-h200": Kind.PIPELINE,
    "ladder-h200": Kind.LADDER,
    "conformance-cpu": Kind.CONFORMANCE,
    "tests-h200": Kind.TESTS,
    "sanitize-memcheck-h200": Kind.TESTS,
    "fuzz-cpu": Kind.FUZZ,
    "stress-h200": Kind.STRESS,
    "testbench-cpu": Kind.TESTBENCH,
    "lab/usage-sm_90": Kind.USAGE,
    "lab/profile-direct-chw": Kind.PROFILE,
}


def recorded(name):
    """Return a record of the checkout; its device has a hostile name."""
    content = json.loads((CHECKOUT / f"{name}.json").read_text())
    for place in (content, content["environment"]):
        if "device" in place:
            place["device"] = {**place["device"], "name": HOSTILE}
    return content


def ladder():
    """Return the ladder without the time of its last rung, whose idea has a hostile name."""
    content = recorded("ladder-h200")
    content["rungs"][-1] |= {"status": "missing", "why": "needs a Hopper", "times": None, "name": HOSTILE}
    content["rungs"][-1]["gain"] = {"predicted": 1.5, "measured": None}
    return content


def pipeline():
    """Return the pipeline with a peer that could not be measured."""
    content = recorded("pipeline-h200")
    return {**content, "absent": [{"name": "torch, nvJPEG", "precision": "fp16", "reason": HOSTILE}]}


def lab():
    """Return a record of S1 on two sizes."""
    found = figure_records.case_record("S1", sizes=(63, 511), strides=(1,))
    rows = [{**row, "variant": "direct-rows" if row["method"] == "direct" else ""} for row in found["rows"]]
    return {**found, "environment": recorded("ladder-h200")["environment"], "rows": rows}


def every():
    """Return the records by the names of their files."""
    return {name: recorded(name) for name in FILES} | {"ladder-h200": ladder(), "pipeline-h200": pipeline()}


def write_all(folder):
    """Write a folder with everything."""
    (folder / "lab").mkdir()
    for name, content in every().items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    write(folder / "lab", "S1", lab())
    return folder


def without_matplotlib():
    """Pictures cannot be drawn."""
    return patch("vgg16gpu_lab.report.html.pictures.importlib.util.find_spec", return_value=None)

"""Write the tables of docs/lab.md, between their markers, from testbench/results. --check writes nothing.

A marker is `<!-- table: NAME (tools/lab_tables.py) -->`; what follows up to the next `<!-- end -->` is the table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten
from typing import Any, Final

from lab_roofline import by_hand
from readme_table import ROOT, load, row, settle
from result_tables import RESULTS

from vgg16gpu_lab.claims.records import in_planes
from vgg16gpu_lab.ladder.plot import digits
from vgg16gpu_lab.measure.profile import READINGS

PAGE = ROOT / "docs" / "lab.md"
WHICH: Final = 90  # characters of the cases in which a claim holds; claims.csv has all of them
MARKED: Final = re.compile(r"(<!-- table: (\w+) \(tools/lab_tables.py\) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)

S1_SIZES: Final = ("8191", "8192")  # of the kind that they have, and a power of two
S1_METHODS: Final = {
    "direct": "direct, as theirs",
    "direct_rows": "its first half alone: threads along rows",
    "direct_planes": "its second half alone: sums stored in the loop over channels",
    "direct_coalesced": "direct, coalesced, sums in registers",
    "shared_memory": "tile in shared memory (their future work)",
    "several_outputs": "four outputs a thread (not theirs)",
    "im2col_gemm_only": "im2col's product alone (what they timed)",
    "im2col_gemm": "im2col with its conversion",
    "cudnn": "cuDNN, the fastest of its plans (channels side by side)",
    "cudnn_planes": "cuDNN, the fastest for planes, as verdicts have it",
}
LAYER_METHODS: Final = {
    "direct": "direct, HWC",
    "basic": "GEMM from global memory",
    "shared": "GEMM, shared memory, block 16",
    "register_tile": "GEMM, a true register tile",
    "cudnn": "cuDNN, the fastest of its plans",
}


def s1() -> str:
    """The largest images of S1: of 2^n - 1 pixels and of 2^n."""
    plain = (each for each in load("lab/S1.json")["rows"] if not each["parameter"])
    rows = {(each["method"], each["size"]): each for each in plain}
    text = row("3x3, 3 channels to 1, ms", [f"{size}x{size}" for size in S1_SIZES] + ["of the roofline"])
    text += row("---", ["---:"] * (len(S1_SIZES) + 1))
    rows |= {("cudnn_planes", size): in_planes(rows["cudnn", size]) for size in S1_SIZES}
    for method, label in S1_METHODS.items():
        found = [rows[method, size] for size in S1_SIZES]
        text += row(label, [*(digits(each["ours"]) for each in found), _percents(found)])
    return text


def _percents(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of the roofline; once where all round to the same."""
    return ", ".join(dict.fromkeys(f"{each['ours_percent']:.2g} %" for each in rows))


def layer() -> str:
    """S2 with 64 output channels."""
    rows = {each["method"]: each for each in load("lab/S2.json")["rows"] if each["table"] == "layer"}
    return _methods("1024x1024, 3x3, 3 channels to 64, im2col included", rows, LAYER_METHODS)


def network() -> str:
    """S5, theirs and ours."""
    text = row("version", ["iterations", "theirs, ms", "ours, ms", "runs", "error"]) + row("---", ["---:"] * 5)
    for found in (each for each in load("lab/S5.json")["rows"] if each["table"] == "vgg16"):
        theirs = "" if found["theirs"] is None else digits(found["theirs"])
        numbers = theirs, digits(found["ours"]), str(found["compute"]["warm"]["samples"]), f"{found['error']:.1e}"
        text += row(found["method"], [found["parameter"].removeprefix("iterations="), *numbers])
    return text


def ladder() -> str:
    """Every rung, and the line to beat."""
    content = load("ladder-h200.json")
    text = row("rung", ["idea", "gain predicted", "gain", "ms", "ms, device alone", "error"])
    text += row("---", ["---", *["---:"] * 5])
    for rung in content["rungs"]:
        gain, device, times = rung["gain"]["measured"], rung["on_device"], rung["times"]
        text += row(
            f"{rung['letter']} {rung['name']}",
            [
                rung["idea"],
                f"{digits(rung['predicted'])}x" if rung["predicted"] else "",
                f"{digits(gain)}x" if gain else "",
                digits(1e3 * times["median_s"]) if times else rung["status"],
                digits(1e3 * device["median_s"]) if device else "",
                f"{rung['error']:.1e}" if times else "",
            ],
        )
    peer, cores = digits(1e3 * content["onnxruntime"]["median_s"]), content["environment"]["cores"]
    return text + row(f"onnxruntime, {cores} CPU cores", ["the line to beat", "", "", peer, "", ""])


def claims() -> str:
    """How many of the claims hold, and each with where it stands and in how many cases it holds."""
    judged = load("lab/claims.json")["claims"]
    found = Counter(claim["verdict"] for claim in judged)
    holds, fails, unsure = (found[verdict] for verdict in ("holds", "does not", "cannot tell"))
    text = (
        f"Of {found.total()} claims {holds} hold on the H200, {fails} do not; for {unsure} times are too close, "
        "too short to count or not there.\n[claims.csv](../testbench/results/lab/claims.csv) has the figure behind "
        "each verdict.\n\n"
        "<details><summary>Every claim</summary>\n\n"
    )
    text += row("claim", ["section", "kind", "in words", "by their table", "by ours", "holds in"])
    text += row("---", ["---"] * 6)
    for claim in judged:
        words = claim["section"], claim["kind"], claim["claim"]
        theirs = _verdict(claim["theirs_verdict"], claim["theirs_holds"], claim["theirs_cases"])
        ours = _verdict(claim["verdict"], claim["holds"], claim["cases"])
        is_part = 0 < claim["holds"] < claim["cases"]
        which = shorten(claim["which"], WHICH, placeholder=" ...") if is_part else ""
        text += row(claim["number"], [*words, theirs, ours, which])
    return f"{text}\n</details>\n"


def _verdict(verdict: str, holds: int, cases: int) -> str:
    """With the share, where there are several cases."""
    return f"{verdict}, {holds} of {cases}" if cases > 1 else verdict


def usage() -> str:
    """What each kernel takes, a kernel once."""
    content = load("lab/usage-sm_90.json")
    text = row(f"nvcc {content['nvcc']}", ["registers", "shared, B", "blocks", "occupancy", "bound by"])
    text += row("---", [*["---:"] * 4, "---"])
    for found in {each["kernel"]: each for each in content["kernels"]}.values():
        counts = [str(found[name]) for name in ("registers", "shared_nbytes", "resident_blocks")]
        name = f"`{found['kernel'].partition('<')[0]}`"
        text += row(name, [*counts, f"{100 * found['occupancy']:.0f} %", found["bound"]])
    return text


def profiles() -> str:
    """What Nsight Compute reads of the kernel of each variant that computes; those that convert are left out."""
    text = row("variant", [f"{reading.name}, {reading.unit}" for reading in READINGS])
    text += row("---", ["---:"] * len(READINGS))
    for path in sorted((RESULTS / "lab").glob("profile-*.json")):
        content = json.loads(path.read_text())
        values = content["kernels"][-1]["values"]
        found = [values[reading.metric] for reading in READINGS]
        scaled = zip(found, READINGS, strict=True)
        cells = ["-" if value is None else digits(value * reading.factor) for value, reading in scaled]
        text += row(f"`{content['variant']}`", cells)
    return text


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "claims": claims,
    "S1": s1,
    "usage": usage,
    "profiles": profiles,
    "roofline": lambda: by_hand(load("lab/S2.json")),
    "S2": layer,
    "S5": network,
    "ladder": ladder,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or with --check return 1 if the page differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    old = PAGE.read_text()
    missing = set(TABLES) ^ {found[2] for found in MARKED.finditer(old)}
    if missing:
        print(f"{PAGE}: markers and tables differ: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    fresh = MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[4], old)
    return settle(PAGE, fresh, "tools/lab_tables.py", check=check)


def _methods(title: str, rows: Mapping[str, dict[str, Any]], names: Mapping[str, str]) -> str:
    text = row(title, ["ms", "of the roofline"]) + row("---", ["---:"] * 2)
    for method, label in names.items():
        found = rows[method]
        text += row(label, [digits(found["ours"]), f"{found['ours_percent']:.2g} %"])
    return text


if __name__ == "__main__":
    sys.exit(main())

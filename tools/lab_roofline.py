"""The roofline of one layer worked by hand, for docs/lab.md: every step with its numbers, those of the record of S2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from readme_table import row

from vgg16gpu_lab.ladder.plot import digits

METHODS: Final = {"cudnn": "cuDNN", "register_tile": "the register tile", "direct": "direct"}


def by_hand(content: Mapping[str, Any]) -> str:
    """A table: what there is to do, what the card can do, how long that takes at least, and who comes how near."""
    rows = {found["method"]: found for found in content["rows"] if found["table"] == "layer"}
    p, roofs = next(iter(rows.values()))["problem"], content["ceilings"]
    pixels, taps = p["height"] * p["width"], p["channels"] * p["kernel"] ** 2  # stride 1, padded: as many outputs
    flop = 2 * p["outputs"] * pixels * taps
    nbytes = 4 * (p["channels"] * pixels + p["outputs"] * taps + p["outputs"] * pixels)
    bandwidth, arithmetic = nbytes / roofs["bytes_per_s"], flop / roofs["flop_per_s"]
    ridge, least = roofs["flop_per_s"] / roofs["bytes_per_s"], max(bandwidth, arithmetic)
    bound = "memory" if bandwidth > arithmetic else "arithmetic"
    size = f"{p['height']} x {p['width']}"
    map_bytes = f"({p['channels']} x {size} + {p['outputs']} x {taps} + {p['outputs']} x {size})"
    steps = [
        ("arithmetic", f"2 x {p['outputs']} x {size} x {taps}", f"{flop / 1e9:.3g} GFLOP"),
        ("bytes, each array moved once", f"4 x {map_bytes}", f"{nbytes / 1e6:.3g} MB"),
        ("intensity of the layer", "arithmetic / bytes", f"{flop / nbytes:.3g} FLOP/B"),
        ("the card's ridge", _peaks(roofs), f"{ridge:.3g} FLOP/B"),
        ("time for the bytes", f"{nbytes / 1e6:.3g} MB / {_bandwidth(roofs)}", f"{1e3 * bandwidth:.3g} ms"),
        ("time for the arithmetic", f"{flop / 1e9:.3g} GFLOP / {_rate(roofs)}", f"{1e3 * arithmetic:.3g} ms"),
        (f"**at least**: {bound} bounds it", "the longer of the two", f"**{1e3 * least:.3g} ms**"),
    ]
    for method, name in METHODS.items():
        ours = rows[method]["ours"]
        steps.append((f"{name}, measured", f"{1e3 * least:.3g} / {digits(ours)}", f"{1e5 * least / ours:.2g} %"))
    text = row("step", ["how", "result"]) + row("---", ["---", "---:"])
    return text + "".join(row(step, [how, result]) for step, how, result in steps)


def _bandwidth(roofs: Mapping[str, float]) -> str:
    return f"{roofs['bytes_per_s'] / 1e12:.3g} TB/s"


def _rate(roofs: Mapping[str, float]) -> str:
    return f"{roofs['flop_per_s'] / 1e12:.3g} TFLOP/s"


def _peaks(roofs: Mapping[str, float]) -> str:
    return f"{_rate(roofs)} / {_bandwidth(roofs)}, both measured"

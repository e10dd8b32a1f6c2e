"""Version B layer by layer: the time of each launch on the device, and for a product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from vgg16gpu.bench.measure.timing import summarise
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.compiler.graph.ops import Conv, Pool
from vgg16gpu.errors import Error
from vgg16gpu_lab.experiment import Row
from vgg16gpu_lab.ladder.layers import Site, sites
from vgg16gpu_lab.ladder.net import HostNet
from vgg16gpu_lab.ladder.rungs import SERIAL
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Measurement, Status, Times, verdict
from vgg16gpu_lab.measure.outcome import outcome
from vgg16gpu_lab.network.host import TOLERANCE
from vgg16gpu_lab.network.rows import NetworkRows, Place, Prepared, scaled

TABLE: Final = "layers"
METHOD: Final = "version_b"
VARIANT: Final = "ladder B"
REPEATS: Final = {"cuda": 3, "cpu": 1}  # launches of a layer, by kind of device


def layer_rows(network: NetworkRows, place: Place, rig: BenchRig) -> Iterator[Row]:
    """Yield a row for each layer; from the small image, scaled by FLOP, if there is one. Wrong answers have no time."""
    asked = sites(network.given.setting.graph, network.given.setting.shape)
    given = network.probe or network.given
    try:
        judged, timed = _timed(given)
    except Error as error:
        judged, timed = outcome(error), [(site, [0.0]) for site in asked]
    for name, site, (measured, seconds) in zip(names(asked), asked, timed, strict=True):
        found = judged
        if judged.status is Status.RIGHT:
            scale = products(site) / products(measured)
            times = Times(summarise(seconds))
            found = replace(judged, compute=times) if scale == 1 else _estimate(scale * times.warm.median_s, rig)
        yield _row(place, name, site, found)


def names(found: Sequence[Site]) -> list[str]:
    """Return conv1_1, conv1_2, pool1, ... as in VGG; fully connected layers go on behind the last pool."""
    block, index, listed = 1, 0, []
    for site in found:
        index += 1
        if isinstance(site.layer, Conv):
            listed.append(f"conv{block}_{index}")
        else:
            listed.append(f"{'pool' if isinstance(site.layer, Pool) else 'fc'}{block}")
            block, index = block + 1, 0
    return listed


def products(site: Site) -> int:
    """Count the products of a layer, the comparisons of a pool."""
    if site.weight is None:
        return site.y_size * math.prod(site.window.kernel)
    return site.y_size * math.prod(site.weight.shape[1:])


def _timed(given: Prepared) -> tuple[Measurement, list[tuple[Site, list[float]]]]:
    """Return whether the whole is right, and the seconds of each layer."""
    setting, image = given.setting, given.x[:1]
    with closing(HostNet(setting.graph, setting.shape, setting.device, SERIAL)) as net:
        error = float(score_error(net.run(image), given.expected[:1]).max())
        checked = "scores of the first image against onnxruntime's"
        return verdict(error, checked, TOLERANCE, "onnxruntime's scores"), net.layer_seconds(
            image, REPEATS[setting.device.facts.kind]
        )


def _estimate(seconds: float, rig: BenchRig) -> Measurement:
    return Measurement(Status.ESTIMATED, scaled(rig.effort.limit), estimate_s=seconds)


def _row(place: Place, name: str, site: Site, found: Measurement) -> Row:
    seconds, note = found.seconds(), ""
    if seconds is not None and site.weight is not None:
        nanoseconds = 1e9 * seconds / products(site)
        found = replace(found, details={"ns_a_product": nanoseconds})
        note = f"{nanoseconds:.3g} ns a product"
    ours = None if seconds is None else 1e3 * seconds
    key = place.seed, place.table, place.size, METHOD, name
    return Row(*key, ours, variant=VARIANT, measurement=found, note=note)

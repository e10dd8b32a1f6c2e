"""What S4 claims: a hand-written direct convolution against cuDNN, at one point and elsewhere, and its parts.

The report has pseudo-code and pieces of its kernel, no source. The row "direct" is the loop of that pseudo-code.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from vgg16gpu_lab.claims.judge import (
    ABOUT,
    Claim,
    Finding,
    Judge,
    Pair,
    Verdict,
    about,
    compare,
    decided,
    faster,
    missing,
    no_faster,
    reason,
)
from vgg16gpu_lab.claims.s4_chart import OWN, SEED, WITHIN, depends, elsewhere, small_leads, time_of
from vgg16gpu_lab.claims.times import Entry, Quantity, Times, key, number, one
from vgg16gpu_lab.experiments.s4 import POINT, WINOGRAD_METHODS
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32, NUMPY
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.published import published

SIZE: Final = f"{POINT.height}x{POINT.width}"
WINOGRAD: Final = "winograd"
EDGE, EVEN, FLOAT4 = "halo_edge", "halo_even", "halo_float4"  # the steps to the last kernel, one change each
OUTSIDE, CHANNELS, PREFETCH = "halo_oc_outside", "halo_channels", "halo_prefetch"
WARPS: Final = ("4x8", "8x4", "16x2", "32x1")  # columns x rows of a block of 32 threads
LARGER_BLOCKS: Final = ("8x8", "16x16")
TABLES: Final = ("conv2d", "chart")  # whose rows differ in shape
LIBRARIES: Final = (CUDNN, CUDNN_TF32, "cpu", NUMPY)  # not kernels of ours


def _point(first: str, second: str) -> Iterator[Pair]:
    parameter = f"channels={POINT.channels} outputs={POINT.outputs} kernel={POINT.kernel} stride={POINT.stride}"
    yield Pair("", time_of("conv2d", SIZE, first, parameter), time_of("conv2d", SIZE, second, parameter))


def _block(edges: str) -> Quantity:
    return one(SEED, "blocks", SIZE, EVEN, f"block={edges}")


def _one_warp() -> Iterator[Pair]:
    for warp, larger in product(WARPS[:2], LARGER_BLOCKS):
        yield Pair(f"{warp} and {larger}", _block(warp), _block(larger))


def _cuts() -> Judge:
    """Judge the slowest of all block shapes against the fastest."""
    quantities = {edges: _block(edges) for edges in (*WARPS, *LARGER_BLOCKS)}

    def find(times: Times) -> Finding:
        entries = {edges: quantity.of(times) for edges, quantity in quantities.items()}
        if lacking := [reason(entry) for entry in entries.values() if not entry.value]:
            return missing(lacking)
        values = {edges: entry.value for edges, entry in entries.items() if entry.value}
        fastest, slowest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        pair = Pair(f"{fastest} and {slowest}", quantities[fastest], quantities[slowest])
        ((found,), _) = compare([pair], times)
        return decided(f"{number(found.ratio)}x ({found.text})", None if found.is_short else found.ratio > ABOUT)

    return Judge(tuple(name for quantity in quantities.values() for name in quantity.keys), find)


def _simple() -> Iterator[Pair]:
    for size in (512, 2048):
        parameter = "channels=1 outputs=1 kernel=5 stride=1"
        first, second = (time_of("simple", size, method, parameter) for method in ("simple", CUDNN))
        yield Pair(str(size), first, second, optional=size != 512)


def _layer(first: str, second: str) -> Pair:
    parameter = "channels=64 outputs=64 kernel=3 stride=1"
    ours, other = (time_of("winograd", 256, method, parameter) for method in (first, second))
    return Pair(f"{first} and {second}", ours, other)


def _right_everywhere() -> Judge:
    """Judge that every row of a kernel of ours, whatever the shape, was checked."""

    def find(times: Times) -> Finding:
        rows = {name: entry for table in TABLES for name, entry in times.rows(SEED, table).items()}
        entries = [entry for name, entry in rows.items() if name[3] not in LIBRARIES]
        if not entries:
            return missing([times.absent])
        right = [entry for entry in entries if _is_right(entry)]
        errors = [entry.error for entry in right if entry.error is not None]
        figure = f"right at {len(right)} of {len(entries)} rows"
        share = len(right), len(entries)
        if len(right) == len(entries):
            return Finding(f"{figure}, largest error {max(errors):.1e}", Verdict.HOLDS, *share)
        first = next(entry for entry in entries if not _is_right(entry))
        is_wrong = any(entry.is_fault for entry in entries)
        return Finding(f"{figure}; {reason(first)}", Verdict.DOES_NOT if is_wrong else Verdict.CANNOT_TELL, *share)

    return Judge((), find)


def _is_right(entry: Entry) -> bool:
    return entry.status == Status.RIGHT and entry.error is not None


_SAID: Final = published()[key(SEED, "claim", SIZE, "direct_over_cudnn_speed", "ratio_not_ms")]


def _products() -> Finding:
    """Count multiplications for four outputs of a 3x3 filter: element by element of a 4x4 tile, and directly."""
    direct, winograd = 4 * 3 * 3, 4 * 4
    return decided(f"F(2x2,3x3): {winograd} for 4 outputs instead of {direct}, {direct / winograd:g}x", True)


CLAIMS: Final = (
    Claim(
        "S4.1",
        "intro",
        f"About {_SAID:g} times as fast as cuDNN at 6x{SIZE}, kernel 6x6, 6 outputs",
        "said",
        "their loop against cuDNN there, set-up left out",
        about(_SAID, _point(OWN, CUDNN)),
        theirs=Finding(f"{_SAID:g}x is said, no times", Verdict.CANNOT_TELL),
    ),
    Claim(
        "S4.2",
        "3.6",
        "Elsewhere from 0.1 to 10 times cuDNN's speed",
        "said",
        f"least and most over sizes and channels, within a factor of {WITHIN:g} of these",
        elsewhere(),
    ),
    Claim(
        "S4.3",
        "3.6",
        "Its speed beside cuDNN's depends much on the channels",
        "said",
        "at some size the winner changes with the channels",
        depends(),
    ),
    Claim(
        "S4.5",
        "3.2",
        "Dealing tile and halo out evenly is best",
        "said",
        "even shares against halos by edge threads, all else equal, at the point",
        faster(_point(EVEN, EDGE)),
    ),
    Claim(
        "S4.6",
        "3.1.2, 3.3",
        "A prefetch of the next channel pays",
        "said",
        "with a true prefetch (two tiles) against one tile, all else equal, at the point",
        faster(_point(PREFETCH, CHANNELS)),
        theirs=Finding("one tile, refilled without a barrier (3.3): no prefetch", Verdict.CANNOT_TELL),
    ),
    Claim(
        "S4.7",
        "2.3, 3.4.1",
        "Sums of several outputs in registers pay",
        "said",
        "several output channels per thread against one, all else equal, at the point",
        faster(_point(CHANNELS, FLOAT4)),
    ),
    Claim(
        "S4.8",
        "1.2, 3.1.1",
        "It is cuDNN's convolution, for every shape",
        "practice",
        "our kernels checked against float64 wherever they were run: point and chart",
        _right_everywhere(),
        theirs=Finding(
            "one filter for all input channels (3.1.1), no padding, no stride (1.2); float4 needs 16-byte addresses "
            "(3.2.2, 3.4.2)",
            Verdict.DOES_NOT,
        ),
    ),
    Claim(
        "S4.9",
        "1.3",
        "Winograd needs far fewer multiplications",
        "said",
        "element-wise products of F(2x2,3x3) against those of a direct convolution",
        Judge((), lambda _: _products()),
    ),
    Claim(
        "S4.10",
        "3.2",
        "Loading by edge threads is less than half as efficient as ideal",
        "said",
        "the kernel with even shares is faster; its time holds the products too, twice is theirs of loading alone",
        faster(_point(EVEN, EDGE)),
    ),
    Claim(
        "S4.11",
        "2.1",
        "How the image is cut into blocks makes a great difference",
        "said",
        f"even shares, blocks of {', '.join((*WARPS, *LARGER_BLOCKS))}: slowest over fastest above {ABOUT:g}",
        _cuts(),
    ),
    Claim(
        "S4.12",
        "2.1",
        "Blocks of one warp spare overhead",
        "said",
        f"{' and '.join(WARPS[:2])} against {' and '.join(LARGER_BLOCKS)}, even shares, at the point",
        faster(_one_warp()),
    ),
    Claim(
        "S4.13",
        "3.4.1",
        "The loop over input channels outside would be faster",
        "said",
        "all sums in registers, input channels outside, against output channels outside, at the point",
        faster(_point(CHANNELS, OUTSIDE)),
    ),
    Claim(
        "S4.14",
        "3.2.2",
        "float4 loads pay",
        "practice",
        "even shares by 16 bytes against single floats, all else equal, at the point",
        faster(_point(FLOAT4, EVEN)),
    ),
    Claim(
        "S4.15",
        "intro",
        "The lead over cuDNN grows as images shrink",
        "said",
        f"chart, {POINT.channels} channels: cuDNN's time by theirs at 64, 128, 256 above that at 1024",
        small_leads(),
    ),
    Claim(
        "S4.16",
        "-",
        "A simple kernel keeps up with cuDNN",
        "our question",
        "one output a thread, 5x5, one channel, against cuDNN at 512, and at 2048 where it was run; the kernel is ours",
        no_faster(Pair(pair.label, pair.second, pair.first, pair.optional) for pair in _simple()),
    ),
    Claim(
        "S4.17",
        "-",
        "Winograd F(2x2,3x3) is faster than our other kernels",
        "our question",
        "with its transforms, 64 to 64 channels at 256",
        faster(_layer(WINOGRAD, other) for other in WINOGRAD_METHODS if other not in (WINOGRAD, CUDNN)),
    ),
)

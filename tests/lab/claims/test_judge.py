"""table.py, judge.py, times.py: what every claim has, the names that they ask for, comparisons."""

import re
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from tests.lab.claims.numbers import ALL, CANNOT_TELL, DOES_NOT, HOLDS, NOTHING, times
from vgg16gpu.compiler.graph.ops import Pool
from vgg16gpu.compiler.model import Model
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_lab.claims.judge import (
    LAUNCHES,
    MARGIN,
    Kind,
    Pair,
    about,
    differ,
    faster,
    no_faster,
    same,
)
from vgg16gpu_lab.claims.s5 import LADDER, ONNXRUNTIME
from vgg16gpu_lab.claims.table import claims, counts
from vgg16gpu_lab.claims.times import Entry, key, one
from vgg16gpu_lab.experiment import Choice
from vgg16gpu_lab.experiments import s1, s2, s3, s4, s5
from vgg16gpu_lab.ladder.layers import sites
from vgg16gpu_lab.network import causes as network_causes
from vgg16gpu_lab.network import layers as network_layers
from vgg16gpu_lab.network import pools as network_pools
from vgg16gpu_lab.published import published

# ---- What every claim has


def test_numbers_texts_sections_and_kinds():
    assert list(ALL)[:2] == ["S1.1", "S1.2"]
    assert len({claim.text for claim in claims()}) == len({claim.number for claim in claims()}) == len(claims()) == 89
    assert {claim.seed for claim in claims()} == {"S1", "S2", "S3", "S4", "S5"}
    assert not {"S2.12", "S4.4"} & set(ALL)  # no report makes them; their numbers are not used again
    for claim in claims():
        assert claim.kind in get_args(Kind)
        assert re.fullmatch(r"(intro|\d(\.\d)*)(, \d(\.\d)*)*|-", claim.section), claim.number
        assert claim.test
    assert sum(counts(list(ALL.values()))["ours"].values()) == len(ALL)


# ---- What claims ask for by name


def narrow_vgg():
    """The layers of a VGG16 with few channels, at the published size."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vgg.onnx"
        make_vgg(path, width=1, hidden=2, size=244, classes=2)
        return sites(Model(path).graph(), (1, 3, 244, 244))


def cases():
    """The names of all rows that experiments can have, as on a GPU."""
    for seed in (s1, s2, s4):
        choice = Choice(kind="cuda", outputs=(1, 64) if seed is s2 else ())
        for case in seed.EXPERIMENT.cases(choice):
            yield seed.EXPERIMENT.name, case.table, case.size, case.method, case.parameter
    yield from (key("S3", "batch", batch, method.name, "forward") for batch in s3.BATCHES for method in s3.METHODS)
    for version in s5.VERSIONS:
        yield from (key("S5", s5.TABLE, 244, version.method, f"iterations={n}") for n in version.iterations)
    yield from (key("S5", network_causes.TABLE, 244, version.method) for version in network_causes.causes())
    layers = narrow_vgg()
    names = network_layers.names(layers)
    yield from (key("S5", network_layers.TABLE, 244, network_layers.METHOD, name) for name in names)
    for site, method, maps in product(layers, network_pools.METHODS, (network_pools.BEHIND, network_pools.ANY)):
        if isinstance(site.layer, Pool):
            yield key("S5", network_pools.TABLE, site.x_shape[1], method, maps)
    yield from (key("S5", LADDER, "", letter) for letter in ("A", "B", "C", "D", "E", ONNXRUNTIME))


def test_every_name_is_a_published_row_or_one_of_ours():
    """Every name whose table and method were published is a row of the file."""
    known, methods = {*published(), *cases()}, {(name[0], name[1], name[3]) for name in published()}
    for each in ALL.values():
        names = set(each.claim.judge.keys)
        assert not names - known, each.claim.number
        if each.theirs.verdict is not CANNOT_TELL:
            names = {name for name in names - {*published()} if (name[0], name[1], name[3]) in methods}
            unpublished = {name[2] for name in names if name[0] != "S1" or not name[4]}  # of S1 one stride was
            assert unpublished <= {str(size) for size in (*s1.NEAR, *s1.LARGER)}, each.claim.number


# ---- Comparisons

A, B, C = (key("S1", "methods", 31, name) for name in "abc")


def pair(first=A, second=B, **options):
    return Pair("x", one(*first), one(*second), **options)


def verdict_of_pair(judge_of, first, second):
    return judge_of.find(times({A: first, B: second})).verdict


def test_the_margin():
    just, beyond = 1 + 0.9 * MARGIN, 1 + 1.1 * MARGIN
    rules = {
        faster: (DOES_NOT, CANNOT_TELL, CANNOT_TELL, HOLDS),
        no_faster: (HOLDS, HOLDS, HOLDS, DOES_NOT),
        same: (DOES_NOT, HOLDS, HOLDS, DOES_NOT),
        differ: (HOLDS, DOES_NOT, DOES_NOT, HOLDS),
    }
    for rule, expected in rules.items():
        ratios = (1 / beyond, 1 / just, just, beyond)
        assert tuple(verdict_of_pair(rule([pair()]), 1.0, ratio) for ratio in ratios) == expected, rule
    assert [verdict_of_pair(about(2, [pair()]), 1.0, ratio) for ratio in (1.5, 1.7, 2.3, 2.5)] == [
        DOES_NOT,
        HOLDS,
        HOLDS,
        DOES_NOT,
    ]


def test_times_whose_samples_overlap_are_no_different():
    slow = Entry(1.0, spread=(0.8, 1.4))
    overlapping, beyond = Entry(2.0, spread=(1.3, 2.2)), Entry(2.0, spread=(1.5, 2.2))
    for rule, alike, different in (
        (faster, CANNOT_TELL, HOLDS),
        (no_faster, HOLDS, DOES_NOT),
        (same, HOLDS, DOES_NOT),
        (lambda pairs: about(2, pairs), HOLDS, HOLDS),
    ):
        assert verdict_of_pair(rule([pair()]), slow, overlapping) is alike
        assert verdict_of_pair(rule([pair()]), slow, beyond) is different
        assert verdict_of_pair(rule([pair()]), slow, Entry(2.0)) is different  # published: no samples are known
    assert verdict_of_pair(faster([pair()]), overlapping, slow) is CANNOT_TELL
    assert verdict_of_pair(faster([pair()]), beyond, slow) is DOES_NOT


def test_one_counter_example_is_enough_and_a_missing_row_leaves_open():
    pairs = [pair(), pair(A, C)]
    finding = faster(pairs).find(times({A: 1, B: 2, C: 0.5}))
    assert (finding.verdict, finding.figure) == (
        DOES_NOT,
        "0.5x to 2x (weakest: x: 1 against 0.5 ms); 1 of 2 as claimed",
    )
    gone = Entry(None, "invalid launch", "4096 threads")
    finding = faster(pairs).find(times({A: 1, B: 2, C: gone}))
    assert finding.verdict is CANNOT_TELL
    assert finding.figure.endswith("1 of 2 as claimed; 1 missing: 4096 threads")
    assert faster(pairs).find(times({A: 1, B: 0.5, C: gone})).verdict is DOES_NOT
    assert faster([pair(), pair(A, C, optional=True)]).find(times({A: 1, B: 2})).verdict is HOLDS
    alone = faster([pair(A, C, optional=True)]).find(NOTHING)
    assert (alone.verdict, alone.figure, alone.cases) == (CANNOT_TELL, "no numbers", 0)
    estimated = faster([pair()]).find(times({A: 1, B: Entry(2, "estimated")}))
    assert estimated.figure == "2x (x: 1 against ~2 ms)"


# ---- Shares


def test_a_time_that_is_hardly_more_than_a_launch_counts_for_nothing():
    floors = {"S1": 0.0025}
    short, long = times({A: 0.0046, B: 0.0041, C: 0.1}, floors=floors), times({A: 0.1, B: 0.2, C: 0.3}, floors=floors)
    for rule in (faster, no_faster, same, differ):
        finding = rule([pair()]).find(short)
        assert (finding.verdict, finding.figure) == (CANNOT_TELL, "1 of 1 too short to count")
        assert (finding.holds, finding.cases, finding.short) == (0, 0, ("x",))
    assert faster([pair()]).find(times({A: 0.0046, B: 0.0041, C: 0.1})).verdict is DOES_NOT
    mixed = times({A: 0.1, B: 0.2, C: 0.001}, floors=floors)
    finding = faster([Pair("long", one(*A), one(*B)), Pair("short", one(*A), one(*C))]).find(mixed)
    assert (finding.verdict, finding.which, finding.short) == (HOLDS, ("long",), ("short",))
    assert finding.figure == "2x (long: 0.1 against 0.2 ms); 1 of 2 too short to count"
    assert faster([pair()]).find(long).short == ()
    just = LAUNCHES * floors["S1"]
    assert not faster([pair()]).find(times({A: just, B: 2 * just}, floors=floors)).short

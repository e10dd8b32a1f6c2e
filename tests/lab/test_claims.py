"""claims*.py: verdicts of the published tables, every claim both ways on made-up numbers, the names it asks for."""

from collections.abc import Mapping

import pytest

from vgg16gpu.lab.claims import claims, counts, judge
from vgg16gpu.lab.claims_judge import MARGIN, Pair, Verdict, about, differ, faster, no_faster, same
from vgg16gpu.lab.claims_s5 import LADDER, ONNXRUNTIME
from vgg16gpu.lab.claims_times import Entry, Quantity, Times, key, one, published_times
from vgg16gpu.lab.experiment import Choice
from vgg16gpu.lab.published import published
from vgg16gpu.lab.seeds import s1, s2, s3, s4, s5

HOLDS, DOES_NOT, CANNOT_TELL = Verdict.HOLDS, Verdict.DOES_NOT, Verdict.CANNOT_TELL
NOTHING = Times({}, "not run")
ALL = {each.number: each for each in judge(NOTHING)}


def times(values):
    """Numbers, or entries, by key."""
    return Times({name: v if isinstance(v, Entry) else Entry(v) for name, v in values.items()}, "not run")


# ---- The published tables

PUBLISHED = {
    "S1.1": (DOES_NOT, "31: 0.077 against 0.071 ms"),
    "S1.4": (HOLDS, "1.24x to 3.35x"),
    "S1.6": (CANNOT_TELL, "not faster up to 511: 0.39x"),
    "S2.1": (DOES_NOT, "basic 2048, 16 and 32: 32.4 against 18.8 ms"),
    "S2.2": (DOES_NOT, "0.911 against 0.603 ms"),
    "S2.3": (DOES_NOT, "256 stride=1, cudnn and direct: 0.179 against 0.17 ms"),
    "S2.4": (HOLDS, "15 of 15"),
    "S2.5": (HOLDS, "10 of 10"),
    "S2.6": (HOLDS, "1.47x to 2.89x"),
    "S2.7": (HOLDS, "1.51x to 3.9x"),
    "S2.8": (HOLDS, "1.22x to 3.43x"),
    "S2.9": (DOES_NOT, "the most is 0.5%"),
    "S2.12": (DOES_NOT, "the most is 0.6%"),
    "S2.13": (DOES_NOT, "221 % to 28326 % of the roofline"),
    "S2.14": (HOLDS, "1x to 1x"),
    "S2.15": (DOES_NOT, "65,536 blocks of 256 threads: 16,777,216 threads"),
    "S3.1": (HOLDS, "1.31x (forward: 1430 against 1875 ms)"),
    "S3.2": (DOES_NOT, "6.55x (forward: 286 against 1875 ms)"),
    "S3.3": (HOLDS, "5x to 24.6x"),
    "S3.4": (DOES_NOT, "conv1: 40.7 against 36.4 ms"),
    "S3.5": (CANNOT_TELL, "2 too close"),
    "S3.6": (HOLDS, "77%: 220 of 286 ms"),
    "S4.8": (DOES_NOT, "forgets the channel"),
    "S5.1": (HOLDS, "9.35x"),
    "S5.2": (HOLDS, "17.4x"),
    "S5.3": (DOES_NOT, "1198 against 229 ms"),
    "S5.8": (DOES_NOT, "version_a, 1 and 5: 22364 against 20803 ms"),
    "S5.10": (HOLDS, "244 -> 122 -> 61 -> 30 -> 15 -> 7"),
}


@pytest.mark.parametrize("number", ALL)
def test_verdict_of_the_published_table(number):
    verdict, figure = PUBLISHED.get(number, (CANNOT_TELL, ""))
    assert ALL[number].theirs.verdict is verdict
    assert figure in ALL[number].theirs.figure


def test_their_times_as_ours_get_their_verdicts():
    judged = {each.number: each for each in judge(published_times())}
    for number, each in judged.items():
        if each.claim.theirs is None:
            assert each.ours == each.theirs, number


# ---- What claims ask for by name


def cases():
    """The names of all rows that experiments can have, as on a GPU."""
    for seed in (s1, s2, s4):
        for case in seed.EXPERIMENT.cases(Choice(kind="cuda", outputs=(1, 64) if seed is s2 else ())):
            yield seed.EXPERIMENT.name, case.table, case.size, case.method, case.parameter
    yield from (key("S3", "batch", batch, method.name, "forward") for batch in s3.BATCHES for method in s3.METHODS)
    for version in s5.VERSIONS:
        yield from (key("S5", s5.TABLE, 244, version.method, f"iterations={n}") for n in version.iterations)
    yield from (key("S5", LADDER, "", letter) for letter in ("A", "B", "C", "D", "E", ONNXRUNTIME))


@pytest.mark.parametrize("number", ALL)
def test_every_name_is_a_published_row_or_one_of_ours(number):
    known = set(published()) | set(cases())
    assert set(ALL[number].claim.judge.keys) <= known


@pytest.mark.parametrize("number", [number for number, (verdict, _) in PUBLISHED.items() if verdict is not CANNOT_TELL])
def test_what_a_published_table_decides_it_holds(number):
    """Every name whose table and method were published is a row of the file."""
    methods = {(name[0], name[1], name[3]) for name in published()}
    names = [name for name in ALL[number].claim.judge.keys if (name[0], name[1], name[3]) in methods]
    assert set(names) <= set(published())
    assert names or not ALL[number].claim.judge.keys or number == "S4.8"


def test_numbers_and_texts():
    assert list(ALL)[:2] == ["S1.1", "S1.2"]
    assert len({each.claim.text for each in ALL.values()}) == len(ALL) == len(claims())
    assert {each.claim.seed for each in ALL.values()} == {"S1", "S2", "S3", "S4", "S5"}
    assert sum(counts(list(ALL.values()))["ours"].values()) == len(ALL)


# ---- Every claim on made-up numbers: (those that it holds for, those that it does not); by method or parameter

FALLING = {"stride=1": 6, "stride=2": 3, "stride=3": 2}
RISING = {"stride=1": 1, "stride=2": 2, "stride=3": 3}
MADE_UP: Mapping[str, tuple[dict, dict]] = {
    "S1.1": ({"im2col_gemm_only": 1, "direct": 2}, {"im2col_gemm_only": 2, "direct": 1}),
    "S1.2": ({"im2col_gemm": 1, "direct": 2}, {"im2col_gemm": 2, "direct": 1}),
    "S1.3": ({}, {"im2col_gemm": 2}),
    "S1.4": ({"cudnn": 2}, {"direct": 2}),
    "S1.5": ({"direct": 6.5}, {"direct": 2}),
    "S1.8": ({"direct_coalesced": 2}, {"shared_memory": 2}),
    "S1.9": ({"direct_coalesced": 2}, {"several_outputs": 2}),
    "S1.10": ({}, {"direct": 2}),
    "S1.11": ({}, {"direct_planes": 2}),
    "S2.1": ({"block=8": 2, "block=32": 2}, {"block=16": 2}),
    "S2.2": ({"block=16": 2}, {"block=32": 2}),
    "S2.3": ({"direct": 2, "im2col_gemm": 3}, {"direct": 0.5}),
    "S2.4": ({"im2col_gemm": 2}, {"direct": 2}),
    "S2.5": ({}, FALLING),
    "S2.6": (FALLING, RISING),
    "S2.7": (FALLING, RISING),
    "S2.8": ({"basic": 2}, {"shared": 2}),
    "S2.9": ({"registers": 2}, {}),
    "S2.10": ({"shared": 2}, {"register_tile": 2}),
    "S2.11": ({"shared": 2}, {"register_tile": 2}),
    "S2.12": ({"basic": 2}, {}),
    "S2.13": ({"block=32": 2}, {"block=64": 2}),
    "S2.14": ({}, {"block=64": 2}),
    "S3.1": ({"sequential_cpu": 2}, {"parallel_im2col": 2}),
    "S3.2": ({"sequential_cpu": 2}, {"sequential_cpu": 7}),
    "S3.3": ({"parallel_im2col": 2}, {"direct_parallel": 2}),
    "S3.4": ({"direct_parallel": 2}, {"tiled_shared": 2}),
    "S3.5": ({"direct_parallel": 2}, {"constant_weights": 2}),
    "S3.6": ({"forward": 10}, {"forward": 2.5}),
    "S3.9": ({}, {"128": 200}),
    "S4.1": ({"cudnn": 1.2}, {"cudnn": 0.5}),
    "S4.4": ({"cpu": 2}, {"direct": 2}),
    "S4.5": ({"several_channels": 2}, {"halo_shared": 2}),
    "S4.6": ({"halo_shared": 2}, {"direct": 2}),
    "S4.7": ({"direct_chw": 2}, {"several_channels": 2}),
    "S4.9": ({"winograd": 0.5}, {"winograd": 2}),
    "S5.1": ({"cpu": 2}, {"cpu": 0.5}),
    "S5.2": ({"A": 2, "version_a": 2}, {"B": 2, "version_b": 2}),
    "S5.3": ({"onnxruntime_cpu": 2}, {"onnxruntime_cpu": 0.5}),
    "S5.4": ({"version_b": 2}, {"no_host": 2}),
    "S5.5": ({"no_host": 2}, {"tree": 2}),
    "S5.6": ({"tree": 2}, {"pixels": 2}),
    "S5.7": ({"onnxruntime_cpu": 2}, {"onnxruntime_cpu": 0.5}),
    "S5.8": ({}, {"iterations=1": 2}),
}
APART = {"S1.6", "S1.7", "S2.15", "S3.7", "S3.8", "S3.10", "S4.2", "S4.3", "S4.8", "S5.9", "S5.10"}


def made_up(number, values):
    """1 ms for every name, but for those with a size, method, part or parameter in `values`."""

    def value(name):
        parts = (name[2], name[3], *name[4].split())
        return next((values[part] for part in parts if part in values), 1.0)

    return times({name: value(name) for name in ALL[number].claim.judge.keys})


@pytest.mark.parametrize("number", MADE_UP)
def test_both_verdicts_and_none(number):
    judge_of = ALL[number].claim.judge
    right, wrong = MADE_UP[number]
    assert judge_of.find(made_up(number, right)).verdict is HOLDS
    assert judge_of.find(made_up(number, wrong)).verdict is DOES_NOT
    assert judge_of.find(NOTHING) == ALL[number].ours
    assert (ALL[number].ours.verdict, ALL[number].ours.figure) == (CANNOT_TELL, "not run")


def test_no_claim_is_forgotten():
    assert set(MADE_UP) | APART == set(ALL)
    assert not set(MADE_UP) & APART


# ---- Those that are no pairs


def found(number, values):
    finding = ALL[number].claim.judge.find(times(values))
    return finding.verdict, finding.figure


def test_crossover():
    def sizes(*ratios):
        values = {}
        for size, ratio in zip((31, 511, 1024, 8192), ratios, strict=False):
            values |= {key("S1", "methods", size, "direct"): ratio, key("S1", "methods", size, "cudnn"): 1.0}
        return values

    verdict, figure = found("S1.6", sizes(0.5, 0.9, 1.3, 6))
    assert (verdict, figure) == (HOLDS, "faster from 1024 on (1024: 1 against 1.3 ms); 6x at 8192")
    assert found("S1.6", sizes(2, 0.5, 3))[0] is DOES_NOT  # ahead from the start
    assert found("S1.6", sizes(None, 2, 3))[0] is CANNOT_TELL  # or from where it was run
    assert found("S1.6", sizes(0.5, 1.2, 0.9))[0] is CANNOT_TELL  # sizes are missing
    whole = {key("S1", "methods", size, name): 1 for size in s1.SIZES + s1.LARGER for name in ("direct", "cudnn")}
    assert found("S1.6", whole)[0] is DOES_NOT


def test_setup_of_cudnn():
    name = key("S1", "methods", 511, "cudnn")
    assert found("S1.7", {name: Entry(1.0, setup_ms=9.0)}) == (DOES_NOT, "set-up 9 ms, a run 1 ms, at 511")
    assert found("S1.7", {name: Entry(1.0, setup_ms=0.01)})[0] is HOLDS
    assert found("S1.7", {name: Entry(1.0)}) == (CANNOT_TELL, "its set-up is not known")
    assert found("S1.7", {name: Entry(None, "missing", "no cuDNN")}) == (CANNOT_TELL, "no cuDNN")


def test_an_invalid_launch_is_no_time():
    name = key("S2", "gemm_partition", 4096, "block", "block=64")
    verdict, figure = found("S2.13", {name: Entry(None, "invalid launch", "64x64 is 4096 threads, 1024 are allowed")})
    assert (verdict, figure) == (DOES_NOT, "invalid launch, 1 of 5 sizes: 64x64 is 4096 threads, 1024 are allowed")


def lenet(shares, error=1e-7, status="right"):
    return {
        key("S3", "accuracy", 300, method, "right answers"): Entry(share, status, error=error)
        for method, share in shares.items()
    }


VERSIONS = dict.fromkeys(
    ("sequential_cpu", "parallel_im2col", "direct_parallel", "tiled_shared", "constant_weights"), 0.9
)


def test_versions_are_right_and_as_accurate():
    everything = VERSIONS | {"float64": 0.9}
    assert found("S3.7", lenet(everything))[0] is HOLDS
    assert found("S3.8", lenet(everything)) == (HOLDS, "90.00% to 90.00% right, float64 90.00%")
    assert found("S3.7", lenet(everything, 1e-3))[0] is DOES_NOT
    wrong = lenet(everything) | lenet({"tiled_shared": 0.1}, 0.5, "wrong")
    assert found("S3.7", wrong) == (DOES_NOT, "5 of 5 checked, largest error 5.0e-01; wrong: tiled_shared")
    assert found("S3.8", wrong)[0] is DOES_NOT
    few = lenet({"float64": 0.9, "direct_parallel": 0.9})
    assert found("S3.7", few)[0] is CANNOT_TELL
    assert "missing: sequential_cpu" in found("S3.8", few)[1]


def test_tuning():
    def tiles(**values):
        names = {(tile, layer): ms for tile, ms in values.items() for layer in ("conv1", "conv2")}
        return {key("S3", "tile", 128, "tiled_shared", f"{at[1]} tile={at[0][1:]}"): ms for at, ms in names.items()}

    assert found("S3.10", tiles(t8=2, t16=3, t32=4)) == (HOLDS, "8 is best: 4 ms, 6 with 16: 1.5x")
    assert found("S3.10", tiles(t8=4, t16=3))[0] is DOES_NOT
    assert found("S3.10", tiles(t16=3))[0] is CANNOT_TELL
    assert found("S3.10", tiles(t8=None, t16=3))[0] is CANNOT_TELL


def chart(ratio):
    """A full one; `ratio(size, channels)` is how many times as fast as cuDNN ours is."""
    values = {}
    for size in s4.CHART_SIZES:
        for channels in s4.CHART_CHANNELS:
            parameter = f"channels={channels} outputs={channels} kernel=6 stride=1"
            values[key("S4", "chart", size, "direct", parameter)] = Entry(1.0, error=1e-7)
            values[key("S4", "chart", size, "cudnn", parameter)] = Entry(ratio(size, channels))
    return values


def test_the_chart():
    whole = chart(lambda _, channels: 10 / channels)
    assert found("S4.2", whole) == (HOLDS, "0.156x (size 64, 64 channels) to 10x (size 64, 1 channels), 30 points")
    assert found("S4.3", whole)[0] is HOLDS
    flat = chart(lambda *_: 0.5)
    assert found("S4.2", flat)[0] is DOES_NOT
    assert found("S4.3", flat) == (DOES_NOT, "ahead of cuDNN at 0 of 30 points; the winner changes at sizes: none")
    part = dict(list(flat.items())[:8])
    assert found("S4.2", part)[0] is found("S4.3", part)[0] is CANNOT_TELL
    no_library = {name: entry for name, entry in flat.items() if name[3] == "direct"}
    assert found("S4.2", no_library) == (CANNOT_TELL, "not run")
    assert found("S4.8", whole) == (HOLDS, "halo-prefetch right at 30 of 30 shapes, largest error 1.0e-07")
    name = next(iter(whole))
    assert found("S4.8", whole | {name: Entry(None, "wrong", "error 0.5")})[0] is DOES_NOT
    assert found("S4.8", whole | {name: Entry(None, "no room", "too large")})[0] is CANNOT_TELL


def test_rungs_are_right():
    def rungs(**statuses):
        return {
            key("S5", LADDER, "", letter): Entry(1.0, status, "far off", 1e-6) for letter, status in statuses.items()
        }

    verdict, figure = found("S5.9", rungs(A="right", B="right", C="right"))
    assert (verdict, figure) == (HOLDS, "A, B, C agree with onnxruntime, A and B to 1.0e-06, all to 1.0e-06")
    for status in ("wrong", "failed"):
        assert found("S5.9", rungs(A="right", B="right", C=status)) == (DOES_NOT, "C: far off")
    assert found("S5.9", rungs(A="right"))[0] is CANNOT_TELL


def test_s5s_table_counts_before_the_ladder_and_either_will_do():
    ladder = {key("S5", LADDER, "", letter): Entry(time, error=1e-6) for letter, time in {"A": 30.0, "B": 10.0}.items()}
    table = {
        key("S5", s5.TABLE, 244, method, "iterations=5"): Entry(time, error=2e-6)
        for method, time in {"version_a": 40.0, "version_b": 10.0}.items()
    }
    assert found("S5.2", ladder)[1].startswith("3x")
    assert found("S5.2", ladder | table)[1].startswith("4x")
    assert found("S5.9", table) == (HOLDS, "A, B agree with onnxruntime, A and B to 2.0e-06, all to 2.0e-06")


def test_arithmetic_is_the_same_for_both():
    for number in ("S2.15", "S5.10"):
        assert ALL[number].ours == ALL[number].theirs


# ---- Comparisons

A, B, C = (key("S1", "methods", 31, name) for name in "abc")


def pair(first=A, second=B, **options):
    return Pair("x", one(*first), one(*second), **options)


def verdict_of(judge_of, first, second):
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
        assert tuple(verdict_of(rule([pair()]), 1.0, ratio) for ratio in ratios) == expected, rule
    assert [verdict_of(about(2, [pair()]), 1.0, ratio) for ratio in (1.5, 1.7, 2.3, 2.5)] == [
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
        assert verdict_of(rule([pair()]), slow, overlapping) is alike
        assert verdict_of(rule([pair()]), slow, beyond) is different
        assert verdict_of(rule([pair()]), slow, Entry(2.0)) is different  # published: no samples are known
    assert verdict_of(faster([pair()]), overlapping, slow) is CANNOT_TELL
    assert verdict_of(faster([pair()]), beyond, slow) is DOES_NOT


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
    assert faster([pair(A, C, optional=True)]).find(NOTHING) == ALL["S1.2"].ours.__class__("no numbers", CANNOT_TELL)


def test_estimates_are_marked():
    finding = faster([pair()]).find(times({A: 1, B: Entry(2, "estimated")}))
    assert finding.figure == "2x (x: 1 against ~2 ms)"


def test_quantities():
    some = times({A: 1.0, B: 4.0})
    assert Quantity((C, B, A)).of(some).value == 4
    assert Quantity((A, B, C), "median").of(some).value == 2.5
    reasons = times({A: Entry(None, "missing", "no cuDNN")})
    assert Quantity((B, A)).of(reasons).remark == "no cuDNN"
    assert Quantity((A, B), "median").of(times({A: 1.0, B: Entry(2.0, "estimated")})).text == "~1.5"
    taken = times({A: Entry(1.0, spread=(0.9, 1.1)), B: Entry(2.0, spread=(1.8, 2.3)), C: 3.0})
    assert Quantity((A, B, C), "median").of(taken).spread == (0.9, 2.3)
    assert Quantity((C, A)).of(taken).spread is None

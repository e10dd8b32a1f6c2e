"""lab/claims/s1.py to s5.py: claims that are no pairs of times, and rows that count for nothing."""

from itertools import pairwise

from tests.lab.claims.numbers import ALL, CANNOT_TELL, DOES_NOT, HOLDS, found, times
from vgg16gpu_lab.claims.s5 import LADDER, ODD_SIZES
from vgg16gpu_lab.claims.times import Entry, key
from vgg16gpu_lab.experiments import s4, s5
from vgg16gpu_lab.experiments.s1 import LARGER, NEAR, SIZES

# ---- S1


def sizes(method, chosen, *ratios):
    """CuDNN takes 1 ms, the method so much."""
    values = {}
    for size, ratio in zip(chosen, ratios, strict=False):
        values |= {key("S1", "methods", size, method): ratio, key("S1", "methods", size, "cudnn"): 1.0}
    return values


def test_crossover():
    def at(*ratios, number="S1.6", method="direct"):
        verdict, figure = found(number, sizes(method, (31, 511, 1023, 8191), *ratios))
        return verdict, figure.split("; at powers of two")[0]

    from_1023 = (HOLDS, "faster from 1023 on (1023: 1 against 1.3 ms); 6x at 8191")
    assert at(0.5, 0.9, 1.3, 6) == at(0.5, 0.9, 1.3, 6, number="S1.13", method="direct_coalesced") == from_1023
    assert at(2, 0.5, 3)[0] is DOES_NOT  # ahead from the start
    assert at(None, 2, 3)[0] is CANNOT_TELL  # or from where it was run
    assert at(0.5, 1.2, 0.9)[0] is CANNOT_TELL  # sizes are missing
    assert found("S1.6", sizes("direct", SIZES + NEAR, *[1.0] * 9))[0] is DOES_NOT
    # Powers of two are told and decide nothing
    values = sizes("direct", SIZES + NEAR, *[0.5] * 9) | sizes("direct", LARGER, 0.5, 2, 2, 2)
    verdict, figure = found("S1.6", values)
    assert verdict is DOES_NOT
    assert "; at powers of two: faster from 2048 on" in figure


def test_setup_of_cudnn():
    name = key("S1", "methods", 511, "cudnn")
    assert found("S1.7", {name: Entry(1.0, setup_ms=9.0)}) == (DOES_NOT, "set-up 9 ms, a run 1 ms, at 511")
    assert found("S1.7", {name: Entry(1.0, setup_ms=0.01)})[0] is HOLDS
    assert found("S1.7", {name: Entry(1.0)}) == (CANNOT_TELL, "its set-up is not known")
    assert found("S1.7", {name: Entry(None, "missing", "no cuDNN")}) == (CANNOT_TELL, "no cuDNN")


def test_a_fixed_cost():
    def extra(small, large, **options):
        values = sizes("direct", (31, 511), 1.0, 1.0)
        values[key("S1", "methods", 31, "cudnn")], values[key("S1", "methods", 511, "cudnn")] = 1 + small, 1 + large
        return found("S1.14", values, **options)

    assert extra(0.5, 0.75)[0] is HOLDS
    assert extra(0.5, 1.5) == (DOES_NOT, "0.5 ms at 31, 1.5 ms at 511: 3x")
    assert extra(-0.5, 1.5)[0] is CANNOT_TELL
    assert extra(0.5, 0.75, floors={"S1": 0.2})[0] is CANNOT_TELL


# ---- S2


def test_an_invalid_launch_is_no_time():
    name = key("S2", "gemm_partition", 4096, "block", "block=64")
    verdict, figure = found("S2.13", {name: Entry(None, "invalid launch", "64x64 is 4096 threads, 1024 are allowed")})
    assert (verdict, figure) == (DOES_NOT, "invalid launch, 1 of 5 sizes: 64x64 is 4096 threads, 1024 are allowed")


def grown(table, parameter, factors):
    """Times that grow by a factor from size to size, by method."""
    return {
        key("S2", table, size, method, parameter): factor**step
        for method, factor in factors.items()
        for step, size in enumerate((256, 512, 1024, 2048, 4096))
    }


def test_growth_of_the_tasks():
    def tasks(**factors):
        return grown("stride", "stride=1", factors) | grown("stride", "stride=2", factors)

    assert found("S2.28", tasks(direct=3, im2col_gemm=4))[0] is HOLDS
    assert found("S2.28", tasks(direct=4, im2col_gemm=4))[0] is DOES_NOT
    assert found("S2.29", tasks(cudnn=2, direct=3, im2col_gemm=4))[0] is HOLDS
    assert found("S2.29", tasks(cudnn=3, direct=2, im2col_gemm=4))[0] is DOES_NOT
    values = tasks(cudnn=2, direct=3, im2col_gemm=4)
    assert "from 256" in found("S2.29", values)[1]
    assert "from 1024" in found("S2.29", values, floors={"S2": 0.5})[1]  # 256 takes two launches


# ---- S3


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

    assert found("S3.10", tiles(t8=2, t16=3, t32=4)) == (HOLDS, "8 is best: 4 ms, 8 with 32: 2x")
    assert found("S3.10", tiles(t8=4, t16=3))[0] is HOLDS  # whichever is the best
    assert found("S3.10", tiles(t8=3.1, t16=3))[0] is DOES_NOT
    assert found("S3.10", tiles(t16=3))[0] is CANNOT_TELL
    assert found("S3.10", tiles(t8=None, t16=3))[0] is CANNOT_TELL
    assert found("S3.10", tiles(t8=2, t16=3), floors={"S3": 1.0})[0] is CANNOT_TELL


# ---- S4


def chart(ratio, **changes):
    """A full one; `ratio(size, channels)` is how many times as fast as cuDNN ours is."""
    values = {}
    for size in s4.CHART_SIZES:
        for channels in s4.CHART_CHANNELS:
            parameter = f"channels={channels} outputs={channels} kernel=6 stride=1"
            values[key("S4", "chart", size, "direct", parameter)] = Entry(1.0, error=1e-7, **changes)
            values[key("S4", "chart", size, "cudnn", parameter)] = Entry(ratio(size, channels))
    return values


def test_the_chart():
    whole = chart(lambda _, channels: 10 / channels)
    least, most = "0.156x (size 64, 64 channels)", "10x (size 64, 1 channels)"
    assert found("S4.2", whole) == (HOLDS, f"{least} to {most}, 30 points of 30")
    assert found("S4.3", whole)[0] is HOLDS
    flat = chart(lambda *_: 0.5)
    assert found("S4.2", flat)[0] is DOES_NOT
    assert found("S4.3", flat) == (DOES_NOT, "ahead of cuDNN at 0 of 30 points; the winner changes at sizes: none")
    part = dict(list(flat.items())[:8])
    assert found("S4.2", part)[0] is found("S4.3", part)[0] is CANNOT_TELL
    no_library = {name: entry for name, entry in flat.items() if name[3] == "direct"}
    assert found("S4.2", no_library) == (CANNOT_TELL, "not run")
    best = chart(lambda *_: 10, variant="halo-prefetch")
    assert found("S4.2", best) == (CANNOT_TELL, "row direct of the record is halo-prefetch, not theirs")


def test_points_that_are_too_short_count_for_nothing():
    mixed = chart(lambda size, channels: 10 / channels if size > 64 else 0.001)
    finding = ALL["S4.2"].claim.judge.find(times(mixed, floors={"S4": 0.04}))
    assert finding.verdict is HOLDS
    assert finding.figure.endswith("24 points of 30, 6 too short to count")
    assert set(finding.short) == {f"size 64, {channels} channels" for channels in s4.CHART_CHANNELS}
    everything = ALL["S4.3"].claim.judge.find(times(mixed, floors={"S4": 9.0}))
    assert (everything.verdict, everything.figure) == (CANNOT_TELL, "30 too short to count")


def test_right_at_every_shape():
    whole = {name: entry for name, entry in chart(lambda *_: 1.0).items() if name[3] != "cudnn"}
    assert found("S4.8", whole) == (HOLDS, "right at 30 of 30 rows, largest error 1.0e-07")
    name = next(iter(whole))
    assert found("S4.8", whole | {name: Entry(None, "wrong", "error 0.5")})[0] is DOES_NOT
    assert found("S4.8", whole | {name: Entry(None, "no room", "too large")})[0] is CANNOT_TELL
    assert found("S4.8", chart(lambda *_: 1.0))[0] is HOLDS  # cuDNN's rows are none of ours


# ---- S5


def rungs(precision="fp32", tolerance=1e-4, error=1e-6, **statuses):
    return {
        key("S5", LADDER, "", letter): Entry(1.0, status, "far off", error, tolerance=tolerance, precision=precision)
        for letter, status in statuses.items()
    }


def test_rungs_are_right():
    verdict, figure = found("S5.9", rungs(A="right", B="right", C="right"))
    assert (verdict, figure) == (HOLDS, "fp32: 3 of 3 within 0.0001 (largest 1.0e-06)")
    for status in ("wrong", "failed"):
        assert found("S5.9", rungs(A="right", B="right", C=status)) == (DOES_NOT, "C: far off")
    assert found("S5.9", rungs(A="right"))[0] is CANNOT_TELL
    assert found("S5.9", rungs(A="right", B="right", error=1e-3))[0] is DOES_NOT
    # Other precisions have bounds of their own and are not counted
    values = rungs(A="right", B="right") | rungs("int8", 0.5, 0.13, P="right") | rungs("fp16", 0.02, 4e-3, L="right")
    assert found("S5.9", values) == (
        HOLDS,
        "fp32: 2 of 2 within 0.0001 (largest 1.0e-06); int8: 1 of 1 within 0.5: not counted; "
        "fp16: 1 of 1 within 0.02: not counted",
    )


def test_iterations_that_were_not_made_say_nothing():
    def runs(many, status="right"):
        made = {("version_a", 1): 10, ("version_a", 5): 5, ("version_b", 1): 10, ("version_b", 5): 5}
        return {
            key("S5", s5.TABLE, 244, method, f"iterations={n}"): Entry(
                1.0, status if n == 500 else "right", samples=samples
            )
            for (method, n), samples in (made | {("version_b", 500): many}).items()
        }

    assert found("S5.8", runs(500))[0] is HOLDS
    verdict, figure = found("S5.8", runs(3))
    assert verdict is CANNOT_TELL
    assert figure.endswith("1 missing: 3 runs of 500 were made")
    verdict, figure = found("S5.8", runs(None, "estimated"))
    assert verdict is CANNOT_TELL
    assert figure.endswith("1 missing: no run was made, their time is an estimate")
    name, reason = key("S5", s5.TABLE, 244, "version_b", "iterations=500"), "not measured: 500 runs would take 900 s"
    verdict, figure = found("S5.8", runs(None) | {name: Entry(None, "missing", reason)})
    assert verdict is CANNOT_TELL
    assert figure.endswith(f"1 missing: {reason}")


def pools(**changes):
    """Return what each of the five pools wrote: rows, and how it differs from numpy's."""
    sizes = pairwise(ODD_SIZES)
    rows = {
        key("S5", "pool", size, "pool_columns", "after ReLU"): Entry(float(half), error=0.0) for size, half in sizes
    }
    return rows | {
        key("S5", "pool", size, "pool_columns", "after ReLU"): e for size, e in changes.get("rows", {}).items()
    }


def test_pools_are_run():
    assert found("S5.10", pools())[0] is HOLDS
    assert found("S5.10", pools(rows={61: Entry(31.0, error=0.0)}))[0] is DOES_NOT
    assert found("S5.10", pools(rows={61: Entry(30.0, error=0.1)}))[1].endswith("4 of 5 equal numpy's")
    assert found("S5.10", {})[0] is CANNOT_TELL


def test_a_maximum_from_zero():
    def errors(after, elsewhere):
        names = (key("S5", "pool", 244, "start_at_zero", maps) for maps in ("after ReLU", "any sign"))
        return found("S5.13", dict(zip(names, (Entry(1.0, error=after), Entry(1.0, error=elsewhere)), strict=True)))

    assert errors(0.0, 0.5)[0] is HOLDS
    assert errors(0.1, 0.5)[0] is DOES_NOT
    assert errors(0.0, 0.0)[0] is CANNOT_TELL  # the other maps must tell the two apart
